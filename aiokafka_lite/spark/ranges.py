"""What a task reads: ranges of offsets, and where they were led when they were planned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias, cast

from aiokafka_lite.client.arguments import MOST_LONG, check_tp
from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.client.view import NO_EPOCH, Node
from aiokafka_lite.errors import IllegalArgumentError
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition


class KafkaOffsetRange(NamedTuple):
    """The records of one partition from `start` up to, and without, `end`.

    With leader, epoch and topic id from the planner, a task needs no metadata unless they changed.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = ZERO_UUID
    leader: Node | None = None
    leader_epoch: int = NO_EPOCH

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")

SparkOffsets: TypeAlias = dict[str, dict[str, int]]
"""The next offset to read of each partition: ``{"flights": {"0": 23, "1": 345}}``."""


def to_spark(offsets: Mapping[TopicPartition, int]) -> SparkOffsets:
    """Return offsets in the layout of checkpoints, topics and partitions in order.

    Spark's own Kafka source has the same layout (`JsonUtils.scala`).
    """
    spark: SparkOffsets = {}
    for tp in sorted(offsets):
        spark.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return spark


def from_spark(spark: object) -> Offsets:
    """Read the layout of `to_spark`. Raises IllegalArgumentError if a checkpoint has another."""
    offsets: Offsets = {}
    try:
        for topic, partitions in cast("SparkOffsets", spark).items():
            for partition, offset in partitions.items():
                is_offset = type(offset) is int and 0 <= offset <= MOST_LONG
                if not is_offset or not _NUMBER.fullmatch(partition):
                    raise ValueError(f"{topic}-{partition} is at {offset!r}")
                offsets[check_tp(TopicPartition(topic, int(partition)))] = offset
    except (AttributeError, ValueError) as error:
        raise IllegalArgumentError(
            f'the offsets of a checkpoint are not like {{"flights":{{"0":23}}}}: {error}'
        ) from error
    return offsets
