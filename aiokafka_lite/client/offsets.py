"""Offsets of partitions, and the timestamps by which ListOffsets returns a log's ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from aiokafka_lite.structs import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2
# With read_committed, the latest offset is the last stable one.
ISOLATION_LEVELS: Final[Mapping[str, int]] = {"read_uncommitted": 0, "read_committed": 1}

Offsets: TypeAlias = dict[TopicPartition, int]
"""An offset for each partition."""
