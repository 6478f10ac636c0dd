"""Delays that double with each failure, with ±20 % jitter (KIP-580)."""

from __future__ import annotations

import random
from typing import Final

JITTER: Final = 0.2
# The longest pause between two attempts of a request (Kafka's retry.backoff.max.ms).
LONGEST_BACKOFF_S: Final = 1.0


def delay_after(failures: int, first_s: float, last_s: float, rng: random.Random) -> float:
    """Return the delay after this many failures in a row before the latest."""
    # The exponent is capped: 2 ** failures of a node that is down for days overflows floats.
    delay_s = min(first_s * 2.0 ** min(failures, 30), last_s)
    return delay_s * rng.uniform(1 - JITTER, 1 + JITTER)


class Backoff:
    def __init__(self, first_s: float, last_s: float, rng: random.Random) -> None:
        self._first_s = first_s
        self._last_s = max(first_s, last_s)
        self._rng = rng
        self.failures = 0

    def next_delay_s(self) -> float:
        """Count a failure and return its delay."""
        delay_s = delay_after(self.failures, self._first_s, self._last_s, self._rng)
        self.failures += 1
        return delay_s

    def reset(self) -> None:
        self.failures = 0
