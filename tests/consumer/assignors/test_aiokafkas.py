"""aiokafka's own assignors, in a group of our consumers."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import reading
from tests.support.waiting import until

ASSIGNORS = [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_aiokafkas_assignor_shares_a_topic_out(kafka: KafkaHandle, assignor: Any) -> None:
    topic = await kafka.create_topic(partitions=4)
    member: dict[str, Any] = {
        "group_id": unique("group"),
        "heartbeat_interval_ms": 100,
        "partition_assignment_strategy": [assignor],
    }
    async with reading(kafka, topic, **member) as first:
        assert {tp.partition for tp in first.assignment()} == {0, 1, 2, 3}
        async with reading(kafka, topic, **member) as second:
            assert len(second.assignment()) == 2
            await until(lambda: len(first.assignment()) == 2)
            assert not first.assignment() & second.assignment()
