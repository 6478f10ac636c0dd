"""Offsets of partitions, and the timestamps by which ListOffsets returns a log's ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aiokafka_lite.client.view import NO_EPOCH
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.protocol.messages.offsets import ListOffsetsRequest

LATEST: Final = -1
EARLIEST: Final = -2
# With read_committed, the latest offset is the last stable one.
ISOLATION_LEVELS: Final[Mapping[str, int]] = {"read_uncommitted": 0, "read_committed": 1}


class CommittedOffset(NamedTuple):
    """An offset of a group, with the leader epoch of the record before it (-1: unknown)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


Offsets: TypeAlias = dict[TopicPartition, int]
"""An offset for each partition."""


def offsets_request(
    asked: Mapping[TopicPartition, tuple[int, int]], isolation_level: int, timeout_ms: int = 0
) -> ListOffsetsRequest:
    """Ask a leader for offsets by time, each with its epoch, which a former leader refuses."""
    # Imported here, because most tasks of Spark do without.
    from aiokafka_lite.protocol.messages.offsets import (
        ListOffsetsPartition,
        ListOffsetsRequest,
        ListOffsetsTopic,
    )

    topics: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, partition), (epoch, timestamp) in asked.items():
        topics.setdefault(topic, []).append(
            ListOffsetsPartition(
                partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp
            )
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()],
        timeout_ms=timeout_ms,
    )
