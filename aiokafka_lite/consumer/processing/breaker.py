"""When what handlers depend on is down, nothing is tried but one record now and then.

::

    CLOSED ──many failures, or one record's last─> OPEN ──the pause is over─> PROBING
      ^                                             ^                           │
      │                                             └──the probe fails──────────┤
      └───────────────────────the probe succeeds────────────────────────────────┘

A record that has failed for the last time looks the same whether it is bad, or the database is
down. What tells them apart is whether another record has succeeded since. If none has, the breaker
opens on a suspicion, and the record waits. The next record that has not failed yet is tried at
once: if it succeeds, the first one is bad. So does any success of a call that began before. When a
second record has failed, it is more than a suspicion, and only a probe's success counts. Failures
while the breaker is not closed say nothing of the record, and are not its attempts.

Records that have not failed yet are tried first. If the database is down they fail as well, and the
breaker stays open as long as there are such. When only records are left that have failed, time has
to tell, and there is an end to the pause: a record that is the only one to fail counts as bad after
`probes` more tries. Several do when nothing has succeeded for `give_up_ms`. Pauses go on growing
after that, until something succeeds.

Plain data; the times are the loop's, given by whoever calls.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from aiokafka_lite._arguments import check_fields
from aiokafka_lite.client.backoff import delay_after


@dataclass(frozen=True)
class CircuitBreaker:
    """Decides when processing pauses, because the handlers' dependencies seem to be down.

    Args:
        failure_rate: The part of a window's calls that has to fail before processing pauses.
        min_calls: The least number of calls for a rate.
        window_ms: The length of a window, which begins with a failure.
        first_pause_ms: The pause before one record is tried. It doubles with each failure, and
            varies by a fifth.
        max_pause_ms: The longest pause.
        probes: How often a record without attempts left is tried again, if only this record has
            failed since a call succeeded. After that it counts as bad.
        give_up_ms: How long no call has to succeed before all failed records count as bad, if no
            other record is left to try. `math.inf`: without limit.

    Raises:
        ValueError: A number is out of range.
        TypeError: An argument is no number.
    """

    failure_rate: float = 0.5
    min_calls: int = 20
    window_ms: float = 10_000
    first_pause_ms: float = 1_000
    max_pause_ms: float = 30_000
    probes: int = 4
    give_up_ms: float = 900_000

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.failure_rate <= 1:
            raise ValueError(f"failure_rate must be above 0 and at most 1, not {self.failure_rate}")
        if self.min_calls < 1:
            raise ValueError(f"min_calls must be at least 1, not {self.min_calls}")
        if self.probes < 1:
            raise ValueError(f"probes must be at least 1, not {self.probes}")
        for name in ("window_ms", "give_up_ms"):
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"{name} must be positive, not {value}")
        if not 0 < self.first_pause_ms <= self.max_pause_ms:
            raise ValueError(
                "first_pause_ms must be positive and at most max_pause_ms, but is "
                f"{self.first_pause_ms} with max_pause_ms={self.max_pause_ms}"
            )


class Breaker:
    """The state of one circuit breaker.

    Args:
        settings: When it opens, and for how long.
        rng: For the lengths of pauses.

    Attributes:
        is_closed: Whether everything may be tried. Written here only, as the others.
        is_probing: Whether it is not, and one record is being tried.
        is_suspicion: Whether one record alone has failed since it was closed.
        since: The loop time since when it is not closed.
        probe_at: The loop time from which on one record may be tried, while it is open.
        reason: Why it opened, or did not close.
    """

    __slots__ = (
        "_failed_at",
        "_failed_probes",
        "_failing_since",
        "_failures",
        "_is_probe_new",
        "_rng",
        "_settings",
        "_succeeded_before",
        "_succeeded_before_failures",
        "_window_ends_at",
        "is_closed",
        "is_probing",
        "is_suspicion",
        "probe_at",
        "reason",
        "since",
    )

    def __init__(self, settings: CircuitBreaker, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self.is_closed = True
        # The last: whether the probe is a record that has not failed before.
        self.is_probing = self.is_suspicion = self._is_probe_new = False
        self.since = 0.0
        self.probe_at = 0.0
        self.reason = ""
        # A window begins with a failure. Its failures, and how many calls had succeeded before it.
        self._window_ends_at = 0.0
        self._failures = self._succeeded_before = 0
        # How many calls had succeeded before those that have all failed (None: no call has failed);
        # since when these have, the latest of them, and how many probes were among them.
        self._succeeded_before_failures: int | None = None
        self._failing_since = self._failed_at = 0.0
        self._failed_probes = 0

    def admits(self, now: float, *, has_failed: bool) -> bool:
        """Whether a record may be tried while it is not closed: no other then, until it ends."""
        is_due = now >= self.probe_at or (self.is_suspicion and not has_failed)
        if is_due and not self.is_probing:
            self.is_probing = True
            self._is_probe_new = not has_failed
            return True
        return False

    def may_probe(self, now: float) -> bool:
        """Whether a record may be tried now that has not failed yet, while it is not closed."""
        return not self.is_probing and (self.is_suspicion or now >= self.probe_at)

    def succeeded(self, *, is_probe: bool) -> bool:
        """Note a call that succeeded while it is not closed; whether all may be tried again."""
        if not (is_probe or self.is_suspicion):
            return False  # it began before, which says nothing of now
        self._close()
        return True

    def begins_anew(self, began_at: float, now: float, success_count: int, *, is_new: bool) -> bool:
        """Note that a call has failed; whether it is the first since one succeeded.

        It also is if no failure came for a long time, as when there were no records: that says
        nothing of what handlers depend on.

        Args:
            began_at: When the call began.
            now: The loop time.
            success_count: How many calls have succeeded by now.
            is_new: Its record has not failed before.
        """
        was_idle = is_new and began_at - self._failed_at >= self._settings.give_up_ms / 1000
        is_first = was_idle or success_count != self._succeeded_before_failures
        self._failed_at = now
        if is_first:
            self._succeeded_before_failures = success_count
            self._failing_since, self._failed_probes = now, 0
        return is_first

    @property
    def gives_up_at(self) -> float:
        """The loop time from which on what has failed counts as bad, if nothing has succeeded."""
        return self._failing_since + self._settings.give_up_ms / 1000

    def gives_up(self, now: float, *, is_alone: bool) -> bool:
        """Whether what has failed counts as bad: no other record was left to try, and that failed.

        Args:
            now: The loop time.
            is_alone: One record only has failed since a call succeeded.
        """
        if is_alone and self._failed_probes >= self._settings.probes:
            return True
        return now >= self.gives_up_at

    def give_up(self) -> None:
        """Let everything be tried again, though nothing has succeeded."""
        self._close()

    def _close(self) -> None:
        self.is_closed, self.is_probing = True, False
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
                self.is_suspicion = self.is_suspicion and not self._is_probe_new
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
            f"{self._failures} of {calls} handler calls failed, the latest with {reason}",
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
        self.is_suspicion = is_suspicion
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
