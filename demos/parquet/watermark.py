"""The time that event times have reached, by partition, and what is late.

Spark's own watermark is the latest event time of all partitions, less a delay. While a topic is
caught up with, partitions are read at different speeds, so that the delay has to cover how far
apart they are, which depends on the sizes of the micro-batches. Here each partition is held to
its own times: those that a batch brought something of hold back the watermark (as in Flink), and
the delay needs to cover only the disorder within a partition.

It follows from the offsets and rows of batches alone, never from a clock: a batch that is done
again counts the same rows as late.
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
        latest_ms: Of each partition, its latest event time.
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
        """Return the watermark after a batch; it never goes back.

        Args:
            before: Each partition's next offset before the batch.
            after: The same after it: partitions that moved hold back the watermark, also those
                all of whose records were bad.
            latest_ms: The latest event time that the batch has of each partition.
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
