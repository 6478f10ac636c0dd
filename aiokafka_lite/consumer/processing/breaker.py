"""A circuit breaker: pauses the handlers while a system that they depend on seems to be down.

==========  ============================  ==============================================
state       records that may be tried     next state
==========  ============================  ==============================================
CLOSED      all                           OPEN: many calls fail
                                          SUSPECTING: one record's last attempt fails
SUSPECTING  a new one at once, or a       OPEN: a new one fails
            failed one after the pause
OPEN        any one after the pause
==========  ============================  ==============================================

The record that is being tried is the probe: no other one is tried at the same time. Its success
closes the breaker.

A record that has failed for the last time looks the same whether it is bad, or the database is
down. The difference shows when another record succeeds. So a new record (one that has not failed
yet) is tried at once: if it succeeds, the first record is bad. When a second record has failed,
only a probe's success closes the breaker. Failures while it is not closed are no attempts of the
record.

Once only failed records are left, the pause has an end: a record that is the only one to fail
counts as bad after `probes` more tries, several when no call has succeeded for `give_up_ms`.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

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
        ValueError, TypeError: An argument is invalid.
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


class BreakerState(enum.Enum):
    CLOSED = enum.auto()
    SUSPECTING = enum.auto()
    OPEN = enum.auto()


MOVES: Final[Mapping[BreakerState, frozenset[BreakerState]]] = MappingProxyType(
    {
        BreakerState.CLOSED: frozenset({BreakerState.SUSPECTING, BreakerState.OPEN}),
        BreakerState.SUSPECTING: frozenset({BreakerState.OPEN, BreakerState.CLOSED}),
        BreakerState.OPEN: frozenset({BreakerState.CLOSED}),
    }
)


class Breaker:
    """The state of one circuit breaker, and its only writer.

    Attributes:
        is_probing: A record is being tried, while it is not closed.
        since: The loop time since when it is not closed.
        probe_at: The loop time at which the pause ends.
    """

    def __init__(self, settings: CircuitBreaker, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self.state, self.is_closed = BreakerState.CLOSED, True
        # Whether the probe had not failed before.
        self.is_probing = self._is_probe_new = False
        self.since = 0.0
        self.probe_at = 0.0
        self.reason = ""
        # A window begins with a failure. Its failures, and how many calls had succeeded before it.
        self._window_ends_at = 0.0
        self._failures = self._succeeded_before = 0
        # Of the latest calls, which have all failed: how many calls had succeeded before, when the
        # first and the last failed, and how many of them were probes.
        self._succeeded_before_failures: int | None = None
        self._failing_since = self._failed_at = 0.0
        self._failed_probes = 0

    @property
    def is_suspicion(self) -> bool:
        return self.state is BreakerState.SUSPECTING

    def _enter(self, state: BreakerState) -> None:
        if state is not self.state and state not in MOVES[self.state]:
            raise AssertionError(
                f"a breaker cannot change its state from {self.state.name} to {state.name}"
            )
        self.state, self.is_closed = state, state is BreakerState.CLOSED
        self.is_probing = False

    def admits(self, now: float, *, has_failed: bool) -> bool:
        """Whether a record may be tried while the breaker is not closed. Then it is the probe."""
        is_at_once = self.is_suspicion and not has_failed
        if self.is_probing or (now < self.probe_at and not is_at_once):
            return False
        self.is_probing, self._is_probe_new = True, not has_failed
        return True

    def may_probe(self, now: float) -> bool:
        return not self.is_probing and (self.is_suspicion or now >= self.probe_at)

    def succeeded(self, *, is_probe: bool) -> bool:
        """Note a success while it is not closed. Return whether that closes it."""
        if not (is_probe or self.is_suspicion):
            return False  # the call began before the breaker opened
        self.close()
        return True

    def begins_anew(self, began_at: float, now: float, success_count: int, *, is_new: bool) -> bool:
        """Note a failed call. Return whether it is the first since a success or a long pause."""
        was_idle = is_new and began_at - self._failed_at >= self._settings.give_up_ms / 1000
        is_first = was_idle or success_count != self._succeeded_before_failures
        self._failed_at = now
        if is_first:
            self._succeeded_before_failures = success_count
            self._failing_since, self._failed_probes = now, 0
        return is_first

    @property
    def gives_up_at(self) -> float:
        return self._failing_since + self._settings.give_up_ms / 1000

    def gives_up(self, now: float, *, is_alone: bool) -> bool:
        """Whether failed records count as bad, as no other is left. `is_alone`: one has failed."""
        if is_alone and self._failed_probes >= self._settings.probes:
            return True
        return now >= self.gives_up_at

    def close(self) -> None:
        self._enter(BreakerState.CLOSED)
        self._window_ends_at = 0.0

    def failed(self, now: float, reason: str, success_count: int, *, is_probe: bool) -> bool:
        """Note a call that failed, not because of its record. Return whether the breaker opened."""
        if not self.is_closed:
            if is_probe:
                self._failed_probes += 1
                state = BreakerState.OPEN if self._is_probe_new else self.state
                self._pause(state, now, reason)
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
        if self.is_probing:
            self._pause(self.state, now, self.reason)

    def open(self, now: float, reason: str, *, is_suspicion: bool) -> None:
        self.since = now
        self._pause(BreakerState.SUSPECTING if is_suspicion else BreakerState.OPEN, now, reason)

    def _pause(self, state: BreakerState, now: float, reason: str) -> None:
        settings = self._settings
        self._enter(state)
        self.reason = reason
        self.probe_at = now + delay_after(
            self._failed_probes,
            settings.first_pause_ms / 1000,
            settings.max_pause_ms / 1000,
            self._rng,
        )
