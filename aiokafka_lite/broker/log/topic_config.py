"""The effect of a topic's configuration on its logs (Kafka: LogConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TopicConfig:
    """The effective configuration of one topic.

    Attributes:
        overrides: The topic's own settings, as text.
        retention_ms: -1 for no limit.
        retention_bytes: -1 for no limit.
        segment_ms: With compaction, at most max.compaction.lag.ms.
    """

    overrides: Mapping[str, str]
    max_message_bytes: int
    segment_bytes: int
    min_insync_replicas: int
    is_log_append_time: bool
    timestamp_after_max_ms: int
    is_compacted: bool
    is_deleted_by_retention: bool
    retention_ms: int
    retention_bytes: int
    segment_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
