"""The watermark: the event time up to which windows are closed.

Spark's own watermark is the latest event time of all partitions, minus a delay. After a lag,
partitions are read at different speeds, so that the delay has to cover their distance. Here each
partition has its own latest time, and partitions with new records hold back the watermark (as in
Flink). So the delay covers only the disorder within a partition.

The watermark depends on offsets and rows only, not on a clock. So a repeated batch has the same
late rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.structs import TopicPartition


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark after the batches so far.

    Attributes:
        time_ms: The watermark (ms since the epoch), None before there is one. Windows that end
            here or earlier are closed.
        latest_ms: The latest event time of each partition.
    """

    time_ms: int | None = None
    latest_ms: Mapping[TopicPartition, int] = field(default_factory=dict)

    def advanced(
        self,
        before: Offsets,
        after: Offsets,
        latest_ms: Mapping[TopicPartition, int],
        delay_ms: int,
    ) -> Watermark:
        """Return the watermark after a batch. It never decreases.

        Args:
            before: Each partition's next offset before the batch.
            after: The same after the batch. Partitions that moved hold back the watermark, even if
                all their records were bad.
            latest_ms: The latest event time of each partition in the batch.
            delay_ms: How far behind its latest event time a partition's later rows may be.
        """
        latest = dict(self.latest_ms)
        for tp, time_ms in latest_ms.items():
            latest[tp] = max(latest.get(tp, time_ms), time_ms)
        moved = [tp for tp, offset in after.items() if offset > before.get(tp, 0)]
        if not moved or any(tp not in latest for tp in moved):
            return Watermark(self.time_ms, latest)
        reached_ms = min(latest[tp] for tp in moved) - delay_ms
        return Watermark(
            reached_ms if self.time_ms is None else max(self.time_ms, reached_ms), latest
        )
