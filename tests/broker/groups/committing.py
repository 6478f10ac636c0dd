"""Commits to a coordinator, past the requests."""

from __future__ import annotations

from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.coordinator_log import ErrorType
from aiokafka_lite.broker.groups.offsets import Committer, OffsetCommitEntry
from aiokafka_lite.structs import TopicPartition

TP = TopicPartition("t", 0)
TOPIC_ID = b"\x07" * 16


def commit(
    coordinator: GroupCoordinator,
    offset: int = 5,
    *,
    group_id: str = "g",
    tp: TopicPartition = TP,
    topic_id: bytes = TOPIC_ID,
    retention_ms: int = -1,
) -> ErrorType:
    item = OffsetCommitEntry(tp, topic_id, offset, -1, "m")
    (error,) = coordinator.commit(group_id, [item], Committer(), retention_ms=retention_ms)
    return error
