"""The time slice of reads; compiled in place (time_slice.pxd)."""

from __future__ import annotations

from collections.abc import Callable

from aiokafka_lite.consumer.gate import Gate


class TimeSlice:
    """The time that reads have until the event loop has to run, from the first use to `ends_at`."""

    def __init__(self, length_s: float, clock: Callable[[], float], gate: Gate) -> None:
        self._clock = clock
        self._gate = gate
        self.length_s = length_s
        self.ends_at: float | None = None

    def begin(self) -> float:
        """Return when the slice ends."""
        if self.ends_at is None:
            self.ends_at = self._clock() + self.length_s
        return self.ends_at

    def renew(self) -> None:
        """Note that the loop has run: a callback may have blocked it longer than the session."""
        self.ends_at = None
        self._gate.look_if_due(self._clock())

    def is_over(self, now: float) -> bool:
        if self.ends_at is None:
            self.ends_at = now + self.length_s
            return False
        return now >= self.ends_at

    def end_if_half_used(self, now: float) -> None:
        if self.ends_at is not None and now > self.ends_at - self.length_s / 2:
            self.ends_at = 0.0
