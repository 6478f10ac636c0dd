"""Keys and values that tests produce, and the partitions that they go to."""

from __future__ import annotations

from aiokafka_lite.structs import TopicPartition

Rows = list[tuple[bytes | None, bytes | None]]


def rows(first: int, count: int) -> Rows:
    """Records with their offset as key, if `first` is the end of the log."""
    return [(b"%d" % i, b"value %d" % i) for i in range(first, first + count)]


def tps(topic: str, *numbers: int) -> set[TopicPartition]:
    """Partitions of a topic, by their numbers."""
    return {TopicPartition(topic, number) for number in numbers}
