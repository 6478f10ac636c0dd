"""Offsets as Spark's checkpoints hold them: by topic, then by partition as text.

The layout is that of Spark's own Kafka source (`JsonUtils.scala`), to the letter, so that either
source can go on from the other's checkpoint. It has no room for anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.structs import TopicPartition

SparkOffsets: TypeAlias = dict[str, dict[str, int]]
"""The next offset to read of each partition: ``{"flights": {"0": 23, "1": 345}}``."""


def to_spark(offsets: Mapping[TopicPartition, int]) -> SparkOffsets:
    """Return offsets in the layout of checkpoints, topics and partitions in order."""
    spark: SparkOffsets = {}
    for tp in sorted(offsets):
        spark.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return spark


def from_spark(spark: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return what a checkpoint holds."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in spark.items()
        for partition, offset in partitions.items()
    }
