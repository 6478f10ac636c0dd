"""Delays that grow (KIP-580): first, twice that, … up to the last, each with ±20 % jitter."""

from __future__ import annotations

import random
from typing import Final

JITTER: Final = 0.2


class Backoff:
    """How long to wait before the next attempt, given the failures so far."""

    __slots__ = ("_first_s", "_last_s", "_rng", "failures")

    def __init__(self, first_s: float, last_s: float, rng: random.Random) -> None:
        self._first_s = first_s
        self._last_s = max(first_s, last_s)
        self._rng = rng
        self.failures = 0

    def next_delay_s(self) -> float:
        """Count one more failure and return the delay it earns."""
        # The exponent is capped: 2 ** failures of a node that is down for days overflows floats.
        delay_s = min(self._first_s * 2.0 ** min(self.failures, 30), self._last_s)
        self.failures += 1
        return delay_s * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def reset(self) -> None:
        self.failures = 0
