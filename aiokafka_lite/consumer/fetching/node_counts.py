"""What is counted of the fetches from one node: per answer, never per record."""

from __future__ import annotations


class NodeCounts:
    """Counters of one node since the start; the node's fetch task writes them."""

    __slots__ = (
        "failure_count",
        "fetch_count",
        "last_answer_at",
        "latency_max_s",
        "latency_s",
        "latency_sum_s",
        "received_bytes",
    )

    def __init__(self) -> None:
        self.fetch_count = 0
        self.failure_count = 0
        # Bytes of record batches that were buffered, as they came: compressed.
        self.received_bytes = 0
        # From the request to its answer, which the broker holds back while there is nothing new.
        self.latency_s = 0.0
        self.latency_sum_s = 0.0
        self.latency_max_s = 0.0
        # Loop time; None before the first.
        self.last_answer_at: float | None = None

    def answered(self, now: float, sent_at: float) -> None:
        """Count an answer that came at loop time `now`."""
        self.fetch_count += 1
        self.last_answer_at = now
        self.latency_s = latency_s = now - sent_at
        self.latency_sum_s += latency_s
        if latency_s > self.latency_max_s:
            self.latency_max_s = latency_s
