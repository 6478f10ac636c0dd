"""The offsets of a checkpoint, as text that was JSON."""

from __future__ import annotations

import pytest

from aiokafka_lite.errors import IllegalArgumentError
from aiokafka_lite.spark.ranges import from_spark, to_spark
from aiokafka_lite.structs import TopicPartition
from tests.support.for_each import for_each


def test_offsets_are_read_back() -> None:
    offsets = {TopicPartition("t", 10): 3, TopicPartition("t", 2): 2**62, TopicPartition("u", 0): 0}
    assert to_spark(offsets) == {"t": {"2": 2**62, "10": 3}, "u": {"0": 0}}
    assert from_spark(to_spark(offsets)) == offsets


@for_each(
    [
        None,
        7,
        [],
        {"t": None},
        {"t": [0, 1]},
        {"t": {"0": None}},
        {"t": {"0": "1"}},
        {"t": {"0": 1.5}},
        {"t": {"0": True}},
        {"t": {"": 1}},
        {"t": {"-1": 1}},
        {"t": {"1_0": 1}},
        {"t": {" 1": 1}},
        {"t": {"x": 1}},
        {"t": {"00": 1}},
        {"t": {"2147483648": 1}},
        {"t": {"0": -1}},
        {"t": {"0": 2**63}},
        {"\ud800": {"0": 1}},
    ]
)
def test_offsets_of_another_layout_are_refused(damaged: object) -> None:
    with pytest.raises(IllegalArgumentError, match="the offsets of a checkpoint are not like"):
        from_spark(damaged)
