"""When what handlers depend on is down, nothing is tried but one record now and then.

::

    CLOSED ──many failures, or one record's last─> OPEN ──the pause is over─> PROBING
      ^                                             ^                           │
      │                                             └──the probe fails──────────┤
      └───────────────────────the probe succeeds────────────────────────────────┘

A record that has failed for the last time looks the same whether it is bad, or the database is
down. What tells them apart is whether another record has succeeded since. If none has, the breaker
opens on a suspicion, and the record waits: it is not called dead as long as nothing proves that
others fare better, or until it has failed so often that it counts as bad (`probes`). The next
record that has not failed yet is tried at once, as it may prove it; so may one that began before:
any success ends a suspicion. When a second record has failed, it is more than a suspicion, and only
a probe's success counts. Failures while the breaker is not closed say nothing of the record, and
are not its attempts.

Plain data; the times are the loop's, given by whoever calls.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from aiokafka_lite.client.backoff import delay_after


@dataclass(frozen=True)
class CircuitBreaker:
    """Says when handling pauses because what it depends on seems to be down.

    Args:
        failure_rate: The part of the calls of a window that fail, from which on it pauses.
        min_calls: How many calls there are before a rate says anything.
        window_ms: How long calls are counted, from a failure on, before counting begins anew.
        first_pause_ms: How long it pauses before one record is tried. It doubles with each that
            fails, and varies by a fifth.
        max_pause_ms: The longest pause.
        probes: How often a record whose attempts are used up is tried again while no other
            succeeds; then it counts as bad. Doubles with each other record that has failed
            meanwhile.

    Raises:
        ValueError: A number is out of range.
    """

    failure_rate: float = 0.5
    min_calls: int = 20
    window_ms: float = 10_000
    first_pause_ms: float = 1_000
    max_pause_ms: float = 30_000
    probes: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.failure_rate <= 1:
            raise ValueError(f"failure_rate is above 0, and 1 at most: {self.failure_rate}")
        if self.min_calls < 1:
            raise ValueError(f"min_calls is 1 or more: {self.min_calls}")
        if self.probes < 1:
            raise ValueError(f"probes is 1 or more: {self.probes}")
        if self.window_ms <= 0:
            raise ValueError(f"window_ms is positive: {self.window_ms}")
        if not 0 < self.first_pause_ms <= self.max_pause_ms:
            raise ValueError(
                "first_pause_ms is positive, and no longer than max_pause_ms: "
                f"{self.first_pause_ms}, {self.max_pause_ms}"
            )


class Breaker:
    """The state of one circuit breaker.

    Args:
        settings: When it opens, and for how long.
        rng: For the lengths of pauses.

    Attributes:
        probes: How often a record is tried again of which nothing proves that it is bad.
        is_closed: Whether everything may be tried. Written here only, as the others.
        is_probing: Whether it is not, and one record is being tried.
        since: The loop time since when it is not closed.
        probe_at: The loop time from which on one record may be tried, while it is open.
        reason: Why it opened, or did not close.
    """

    def __init__(self, settings: CircuitBreaker, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self.probes = settings.probes
        self.is_closed = True
        self.is_probing = False
        self.since = 0.0
        self.probe_at = 0.0
        self.reason = ""
        self._window_ends_at = 0.0
        self._failures = 0
        # How many calls had succeeded when the window began: with a failure.
        self._succeeded_before = 0
        self._failed_probes = 0
        # One record alone has failed since it was closed; and whether the probe is another one.
        self._is_suspicion = False
        self._is_probe_new = False

    def admits(self, now: float, *, has_failed: bool) -> bool:
        """Whether one more record may be tried; if it is the probe, no other until it ends."""
        if self.is_closed:
            return True
        is_due = now >= self.probe_at or (self._is_suspicion and not has_failed)
        if is_due and not self.is_probing:
            self.is_probing = True
            self._is_probe_new = not has_failed
            return True
        return False

    def may_probe(self, now: float) -> bool:
        """Whether a record may be tried now that has not failed yet, while it is not closed."""
        return not self.is_probing and (self._is_suspicion or now >= self.probe_at)

    def succeeded(self, *, is_probe: bool) -> bool:
        """Note a call that succeeded while it is not closed; whether all may be tried again."""
        if not (is_probe or self._is_suspicion):
            return False  # it began before, which says nothing of now
        self._close()
        return True

    def dismiss(self) -> bool:
        """Note that the record that is tried is bad; whether it was all that has failed."""
        if self.is_closed or not self._is_suspicion:
            return False
        self._close()
        return True

    def _close(self) -> None:
        self.is_closed, self.is_probing = True, False
        self._failed_probes = self._failures = 0
        self._window_ends_at = 0.0

    def failed(self, now: float, reason: str, success_count: int, *, is_probe: bool) -> bool:
        """Note a call that failed by what is not the record's fault; whether it opened.

        Args:
            now: The loop time.
            reason: What it failed by.
            success_count: How many calls have succeeded by now.
            is_probe: It was the one that was tried.
        """
        if not self.is_closed:
            if is_probe:
                self._is_suspicion = self._is_suspicion and not self._is_probe_new
                self._failed_probes += 1
                self._pause(now, reason)
            return False
        settings = self._settings
        if now >= self._window_ends_at:
            self._window_ends_at = now + settings.window_ms / 1000
            self._failures, self._succeeded_before = 0, success_count
        self._failures += 1
        calls = self._failures + success_count - self._succeeded_before
        if calls < settings.min_calls or self._failures < settings.failure_rate * calls:
            return False
        self.open(
            now,
            f"{self._failures} of {calls} calls failed, the last by {reason}",
            is_suspicion=False,
        )
        return True

    def abandoned(self, now: float) -> None:
        """Note that the probe came to no end: it was cut off."""
        if self.is_probing:
            self._pause(now, self.reason)

    def open(self, now: float, reason: str, *, is_suspicion: bool) -> None:
        """Try nothing for a while."""
        self.since = now
        self._failed_probes = 0
        self._is_suspicion = is_suspicion
        self._pause(now, reason)

    def _pause(self, now: float, reason: str) -> None:
        settings = self._settings
        self.is_closed = self.is_probing = False
        self.reason = reason
        self.probe_at = now + delay_after(
            self._failed_probes,
            settings.first_pause_ms / 1000,
            settings.max_pause_ms / 1000,
            self._rng,
        )
