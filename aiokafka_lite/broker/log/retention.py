"""Which segments of a log are old enough, or too many, to be deleted.

Reference: org.apache.kafka.storage.internals.log.UnifiedLog.deleteOldSegments. Whole segments go,
from the oldest on, and only while each of them may. By age: its newest record is older than
retention.ms; what a client says the time is counts, not when the record came. A segment whose
records have no time at all never gets too old. By size: without it at least retention.bytes are
left. This may be all segments, the last one, too: its next record then starts a new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka_lite.broker.log.segment import Segment
from aiokafka_lite.broker.log.topic_config import TopicConfig


def count_expired(segments: Sequence[Segment], config: TopicConfig, now_ms: int) -> int:
    """Return how many of the oldest segments are not kept by retention."""
    return max(
        _count_too_much(segments, config.retention_bytes),
        _count_too_old(segments, config.retention_ms, now_ms),
    )


def _count_too_much(segments: Sequence[Segment], retention_bytes: int) -> int:
    if retention_bytes < 0:
        return 0
    too_much = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    while count < len(segments) and too_much >= segments[count].size:
        too_much -= segments[count].size
        count += 1
    return count


def _count_too_old(segments: Sequence[Segment], retention_ms: int, now_ms: int) -> int:
    if retention_ms < 0:
        return 0
    for count, segment in enumerate(segments):
        newest = segment.index.newest_timestamp
        if newest < 0 or now_ms - newest <= retention_ms:
            return count
    return len(segments)
