"""The result of each handler call for a record, and when the record is tried again.

A circuit breaker pauses the handlers while a system that they depend on seems to be down:

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

An attempt after which a record is delayed is not its last one.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, Literal, Protocol, TypeVar

from aiokafka_lite.client.backoff import Backoff, delay_after
from aiokafka_lite.consumer.processing.calls import text_of
from aiokafka_lite.consumer.processing.handling import CircuitBreaker, Handling, NoLetter
from aiokafka_lite.consumer.processing.job import DEAD, LISTED, JobState
from aiokafka_lite.events import CircuitClosed, CircuitOpened, RecordDead
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.events import Events
    from aiokafka_lite.consumer.processing.handling import DeadLetter
    from aiokafka_lite.consumer.processing.headers import Origin

log = logging.getLogger(__name__)

# Between two attempts to write a dead letter.
FIRST_DEAD_DELAY_S: Final = 0.1
LAST_DEAD_DELAY_S: Final = 10.0
# Other than any count of successes: as if others had succeeded since.
GIVEN_UP: Final = -1

Fate = Literal["again", "dead", "stop", "over"]


class Handled(Protocol):
    """A record on its way through a handler: a `Job`, or a lease of a share group."""

    record: ConsumerRecord
    origin: Origin | None
    letter: DeadLetter | None
    attempts: int
    began_at: float | None
    error: BaseException | None
    state: JobState
    success_count: int

    @property
    def place(self) -> str:
        """Topic, partition and offset, for messages."""

    @property
    def is_current(self) -> bool:
        """Whether it is still to be finished here."""

    @property
    def is_finished(self) -> bool:
        """Whether the handler itself has finished it."""

    def die(self, error: BaseException, letter: DeadLetter) -> None:
        """Let no handler have it any more: `letter` finishes it."""


HandledT = TypeVar("HandledT", bound=Handled)


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
    """The state of one circuit breaker; since when it is not closed, and when its pause ends."""

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
        """Whether a record may be tried, as the probe, while the breaker is not closed."""
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


class Attempts(Generic[HandledT]):
    """The attempts of one run. `success_count` shows whether a call succeeded meanwhile.

    `begin_again` receives a record that is due, and `offer` begins records that may begin.
    """

    def __init__(
        self,
        handling: Handling,
        begin_again: Callable[[HandledT], None],
        offer: Callable[[], None],
        *,
        rng: random.Random,
        events: Events,
        totals: dict[str, int],
    ) -> None:
        self._rng = rng
        self.breaker: Final = Breaker(handling.breaker, rng) if handling.breaker else None
        self.success_count = 0
        # How many calls had succeeded when a list failed last.
        self._succeeded_before_list = 0
        self._retry = handling.retry
        self._handling = handling
        self._begin_again, self._offer = begin_again, offer
        self._loop = asyncio.get_running_loop()
        self._events = events
        self._totals = totals
        # Records that wait for another attempt, and until when.
        self._waiting: dict[HandledT, tuple[asyncio.Handle, float]] = {}
        # Records that have failed since a call succeeded, and their failures that are no attempts.
        self._suspects: dict[HandledT, int] = {}
        self._probe: HandledT | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._dead_letter_error: BaseException | None = None
        self._dead_letter_backoff = Backoff(FIRST_DEAD_DELAY_S, LAST_DEAD_DELAY_S, rng)

    def close(self) -> None:
        for timer, _ in self._waiting.values():
            timer.cancel()
        if self._probe_timer is not None:
            self._probe_timer.cancel()

    # --- Admission --------------------------------------------------------------------------
    def admits(self, job: HandledT, breaker: Breaker) -> bool:
        if self.is_free(job):
            return True
        if breaker.admits(self._loop.time(), has_failed=job.error is not None):
            self._probe = job
            return True
        if self._probe is None and self._probe_timer is None:
            self._probe_timer = self._loop.call_at(breaker.probe_at, self._probe_due)
        return False

    def is_free(self, job: HandledT) -> bool:
        return job.state is DEAD or self._is_proven(job)

    def is_alone(self, job: HandledT) -> bool:
        is_closed = self.breaker is None or self.breaker.is_closed
        return job.state is not LISTED or not is_closed

    def _is_proven(self, job: HandledT) -> bool:
        """Whether a failed record's next failure is an attempt, because others have succeeded."""
        breaker = self.breaker
        if breaker is None or not (breaker.is_closed or breaker.is_suspicion):
            return False
        return job.error is not None and job.success_count != self.success_count

    def _probe_due(self) -> None:
        self._probe_timer = None
        self._offer()

    def take_revoked(self) -> list[HandledT]:
        gone = [job for job in self._waiting if not job.is_current]
        for job in gone:
            self._waiting.pop(job)[0].cancel()
        return gone

    # --- Results ----------------------------------------------------------------------------
    def succeeded(self, job: HandledT) -> None:
        self.success_count += 1
        if self.breaker is not None and not self.breaker.is_closed:
            self._prove(job, self.breaker)

    def cancelled(self, job: HandledT) -> None:
        if job is self._probe:
            self._probe = None
            if self.breaker is not None:
                self.breaker.abandoned(self._loop.time())

    def failed(self, job: HandledT, error: BaseException) -> Fate:
        """Note a failed call for a record. Return the next step.

        "over": the record was finished, or its partition was revoked.
        """
        is_probe, is_new = job is self._probe, job.error is None
        counts = self.count_failure(job, error)
        job.error = error
        if not job.is_current:
            if job.is_finished:  # by a commit or a transaction of the handler
                log.warning(
                    "%s: the handler failed after its record was finished, so the record is not "
                    "tried again: %s",
                    job.place,
                    one_line(error),
                )
            return "over"
        # A failed record is the probe only if every record has failed.
        may_give_up = is_probe and not is_new
        if not (counts or self._retry.stops(error) or (may_give_up and self._gives_up())):
            self._suspects[job] += 1
            self._wait_for_probe(job)
            return "again"
        job.attempts += 1
        verdict = self._retry.verdict(error, job.attempts)
        if verdict == "retry":
            self._try_again_in(job, self._retry.delay_s(job.attempts, self._rng))
            return "again"
        letter = None if verdict == "stop" else self._handling.letter_for(error, job)
        if letter is None:
            return "stop"
        if not self._handling.delays.is_writer(letter) and self._may_be_everybodys(job, error):
            job.attempts -= 1
            self._suspects[job] = 1
            self._wait_for_probe(job)
            return "again"
        job.die(error, letter)
        return "dead"

    def refused(self, job: HandledT) -> None:
        self._totals["failed_total"] += 1
        job.attempts += 1

    def list_failed(self, first: HandledT, error: BaseException, *, is_half: bool) -> None:
        """Count a failed call for a list, or for a half of one.

        The halves of a list with a bad record fail, too. The breaker counts them only if no other
        call succeeds between these failures.
        """
        successes = self._succeeded_before_list
        self._succeeded_before_list = self.success_count
        if is_half and self.success_count != successes:
            self._totals["failed_total"] += 1
        else:
            self.count_failure(first, error)

    def count_failure(self, job: HandledT, error: BaseException) -> bool:
        """Count a failure of a call. Return whether it counts as an attempt of the record, so far.

        Only a record's first failure counts for the breaker, so that few records do not open it.
        """
        self._totals["failed_total"] += 1
        breaker = self.breaker
        if breaker is None:
            return True
        was_closed, is_new, now = breaker.is_closed, job.error is None, self._loop.time()
        if self._retry.is_bad_record(error):
            # The dependency works: a probe that fails because of its record succeeds.
            self.success_count += 1
            if not was_closed:
                self._prove(job, breaker)
            return True
        if self._is_proven(job):
            return True
        began_at = now if job.began_at is None else job.began_at
        if breaker.begins_anew(began_at, now, self.success_count, is_new=is_new):
            self._suspects.clear()
        self._suspects.setdefault(job, 0)
        if is_probe := job is self._probe:
            self._probe = None
        if was_closed and not is_new:
            return True
        if breaker.failed(now, one_line(error), self.success_count, is_probe=is_probe):
            self._opened(breaker)
        return was_closed

    def _may_be_everybodys(self, job: HandledT, error: BaseException) -> bool:
        """Whether all records may be failing, as no other has succeeded. Then handling pauses."""
        breaker = self.breaker
        if breaker is None or self._retry.is_bad_record(error):
            return False
        if self.success_count != job.success_count:
            return False
        if breaker.is_closed:
            breaker.open(
                self._loop.time(),
                f"{job.place} failed {job.attempts} times, and no other record has succeeded "
                f"since the first attempt. The latest error is {one_line(error)}",
                is_suspicion=True,
            )
            self._opened(breaker)
        return True

    def _gives_up(self) -> bool:
        breaker, now = self.breaker, self._loop.time()
        if breaker is None or not breaker.gives_up(now, is_alone=len(self._suspects) == 1):
            return False
        for job, failures in self._suspects.items():
            self._suspects[job] = 0
            job.attempts += failures
            job.success_count = GIVEN_UP
        breaker.close()
        log.warning(
            "handling continues, and each failed record gets one more attempt. Handling was paused "
            "because %s",
            breaker.reason,
        )
        self._events.publish(CircuitClosed(now - breaker.since))
        self._offer()
        return True

    def _opened(self, breaker: Breaker) -> None:
        log.warning("handling is paused, because %s", breaker.reason)
        self._events.publish(CircuitOpened(breaker.reason))

    def _prove(self, job: HandledT, breaker: Breaker) -> None:
        """Try every record again, if this success proves that not all of them fail."""
        if breaker.succeeded(is_probe=job is self._probe):
            self._probe = None
            log.info("handlers succeed again, and handling continues")
            self._events.publish(CircuitClosed(self._loop.time() - breaker.since))
            self._offer()

    def _wait_for_probe(self, job: HandledT) -> None:
        """Let a record wait until one may be tried. Until then another one may be, and succeed."""
        breaker = self.breaker
        probe_at = self._loop.time() if breaker is None else breaker.probe_at
        self._try_again_in(job, max(0.0, probe_at - self._loop.time()))
        self._offer()

    def _try_again_in(self, job: HandledT, delay_s: float) -> None:
        due_at = self._loop.time() + delay_s
        self._waiting[job] = self._loop.call_at(due_at, self._due, job), due_at

    def _due(self, job: HandledT) -> None:
        del self._waiting[job]
        self._begin_again(job)

    # --- Dead letters -----------------------------------------------------------------------
    def letter_written(self, job: HandledT, error: BaseException) -> None:
        letter = job.letter
        if not isinstance(letter, NoLetter):
            self._dead_letter_error = None
            self._dead_letter_backoff.reset()
        level, total, fate = logging.WARNING, "dead_total", "was written to the dead letters"
        if isinstance(letter, NoLetter):
            total, fate = letter.total, letter.fate
        elif self._handling.delays.is_writer(letter):
            level, total, fate = logging.INFO, "delayed_total", f"is delayed in {letter!r}"
        else:
            record = job.record
            tp = TopicPartition(record.topic, record.partition)
            self._events.publish(RecordDead(tp, record.offset, job.attempts, error))
        log.log(
            level, "%s %s after %d attempts: %s", job.place, fate, job.attempts, one_line(error)
        )
        self._totals[total] += 1

    def letter_failed(self, job: HandledT, failure: BaseException) -> None:
        self._dead_letter_error = failure
        log.warning(
            "%s: the dead letter could not be written, and writing is retried: %s",
            job.place,
            one_line(failure),
        )
        self._try_again_in(job, self._dead_letter_backoff.next_delay_s())

    # --- For operators ----------------------------------------------------------------------
    @property
    def is_paused(self) -> bool:
        return self.breaker is not None and not self.breaker.is_closed

    def troubles(self, now: float) -> Iterator[str]:
        breaker = self.breaker
        if breaker is not None and not breaker.is_closed:
            trying = max(0.0, breaker.probe_at - now)
            left = max(0.0, breaker.gives_up_at - now)
            yield (
                f"handling has been paused for {now - breaker.since:.1f} s, because "
                f"{breaker.reason}. One record is tried in {trying:.1f} s. If its handler "
                "succeeds, handling continues. Otherwise, each failed record gets one more "
                f"attempt in {left:.0f} s, or earlier if no other record is left to try"
            )
        if self._dead_letter_error is not None:
            yield (
                "dead letters cannot be written, and writing is retried: "
                f"{one_line(self._dead_letter_error)}"
            )

    def pause_of(self, job: HandledT, now: float) -> float | None:
        waiting = self._waiting.get(job)
        return None if waiting is None else max(0.0, waiting[1] - now)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)


def end_of_run(job: Handled, error: BaseException) -> BaseException:
    """Log the error of a handler that ends `run`, and return the error that `run` raises.

    The caller of `run` would take a CancelledError for its own cancellation: an asyncio.TaskGroup
    continues as if no task had failed.
    """
    log.error("%s: the handler failed, so run() ends: %s", job.place, one_line(error))
    if not isinstance(error, asyncio.CancelledError):
        return error
    cancelled = RuntimeError(
        f"{job.place}: the handler raised CancelledError, but run() was not cancelled"
    )
    cancelled.__cause__ = error
    return cancelled


def one_line(error: BaseException) -> str:
    return " ".join(text_of(error, repr).split())[:200]
