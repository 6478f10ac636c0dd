"""Counts a node's responses to Fetch since the start."""

from __future__ import annotations


class NodeCounts:
    def __init__(self) -> None:
        self.fetch_count = 0
        self.failure_count = 0
        # Bytes of buffered record batches, compressed.
        self.received_bytes = 0
        # Responses that contained records.
        self.record_answer_count = 0
        # From the request to its response, which the broker delays until there are records.
        self.latency_sum_s = 0.0
        self.latency_max_s = 0.0
        # Loop time, or None before the first response.
        self.last_answer_at: float | None = None

    def answered(self, now: float, latency_s: float) -> None:
        self.fetch_count += 1
        self.last_answer_at = now
        self.latency_sum_s += latency_s
        self.latency_max_s = max(self.latency_max_s, latency_s)

    def answered_at_once(self) -> None:
        """Count a response that the broker did not delay."""
        self.fetch_count += 1

    def records_came(self, size_bytes: int) -> None:
        self.received_bytes += size_bytes
        self.record_answer_count += 1

    def failed(self) -> None:
        self.failure_count += 1
