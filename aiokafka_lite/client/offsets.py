"""Offsets of partitions, and the timestamps by which ListOffsets returns a log's ends."""

from __future__ import annotations

from typing import Final, TypeAlias

from aiokafka_lite.structs import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2

Offsets: TypeAlias = dict[TopicPartition, int]
"""An offset for each partition."""
