"""What a topic's configuration means to its logs.

Reference: org.apache.kafka.storage.internals.log.LogConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TopicConfig:
    """The effective configuration of one topic.

    Attributes:
        overrides: What was set for this topic, as it was written.
        is_log_append_time: Records get the broker's time instead of the producer's.
        timestamp_after_max_ms: How far ahead of the broker's clock a record's time may be.
        is_compacted: Records must have keys; of each key the newest record is kept.
        is_deleted_by_retention: Old records are deleted, by age and size.
        retention_ms: Age of records to delete, -1 for none.
        retention_bytes: Size of a partition's log beyond which they are deleted, -1 for none.
        segment_ms: After so long the next record starts a new segment; with compaction no later
            than max.compaction.lag.ms.
        min_cleanable_dirty_ratio: Compaction starts when this part of a log was never compacted.
        delete_retention_ms: How long tombstones stay once compaction has seen them.
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
