"""`consumer.run`: many concurrent handlers, in order by key, without a lost record.

- One task feeds: it takes records when fewer are ready than twice the handlers, because in a turn
  of the loop each handler may begin one, and the next turn needs as many.
- A worker is a task that calls the handler for one record after the other.
- A dead letter is written by a task of its own, so that its topic may be down: it takes no handler.
- A timer makes a record ready again that waits for another attempt (attempts.py).
- With transactions, the commit of its outputs and its offset finishes a record (outbox.py).

A result of an earlier assignment is ignored: the partition's table no longer has its job.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokafka_lite._record_py import HANDLED
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.consumer.assignment.cursor import Cursor, Epochs, Range
from aiokafka_lite.consumer.assignment.work import (
    LONGEST_END_S,
    DeliveredRecords,
    Processing,
    spans_of,
)
from aiokafka_lite.consumer.buffer.buffer import Limits
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.delivery.gets import OneByOne
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.attempts import Attempts, end_of_run, one_line
from aiokafka_lite.consumer.processing.bounds import LOOK_S, RunBounds
from aiokafka_lite.consumer.processing.calls import (
    HANDLING,
    asker,
    in_copy_of,
    is_asked_to_end,
    is_failure,
    raise_cancellation,
)
from aiokafka_lite.consumer.processing.delays import HeldRecords
from aiokafka_lite.consumer.processing.fair import FairQueue
from aiokafka_lite.consumer.processing.handling import DeadLetter, DeadRecord, Handling
from aiokafka_lite.consumer.processing.job import DEAD, LISTED, Job, JobState, halve
from aiokafka_lite.consumer.processing.lanes import Lanes
from aiokafka_lite.consumer.processing.limits import Concurrency, LetterSlots, TokenBucket
from aiokafka_lite.consumer.processing.lists import WaitingLists
from aiokafka_lite.consumer.processing.outbox import Entry, Outbox
from aiokafka_lite.consumer.processing.steps import Steps
from aiokafka_lite.consumer.processing.time_limit import TimeLimit
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    DeserializationError,
    DeserializerUnavailableError,
    IllegalOperation,
    IllegalStateError,
)
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition

try:
    from aiokafka_lite.consumer.processing._calls import Calls
except ModuleNotFoundError:  # the extension is not built: the same in plain Python
    from aiokafka_lite.consumer.processing._calls_py import Calls

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Record
    from aiokafka_lite.consumer.commits.transactional import Deliver, DeliveryToCommit
    from aiokafka_lite.producing.batch import Output

log = logging.getLogger(__name__)

# Of one get: so many jobs are made in one go.
MOST_TAKEN: Final = 2_000
LEAST_TAKEN: Final = 64
# How long a stop waits at least for handlers that were cancelled.
LEAST_END_S: Final = 0.05
# How long a dead letter is being written before `health()` names it, and rebalances do not wait.
LONG_LETTER_S: Final = 5.0
# In one turn of the loop: as long as Python lets a thread run while others wait.
SLICE_S: Final = 0.005
# Workers that go on in one turn of those for which there was no time in an earlier one.
MOST_WOKEN: Final = 32


class JobReceipt(NamedTuple):
    run: Run
    job: Job
    refusal_count: int = 0

    @property
    def offset(self) -> int:
        return self.job.offset

    @property
    def cursor(self) -> Cursor:
        return self.job.cursor

    @property
    def is_current(self) -> bool:
        return self.job.is_current

    @property
    def is_finished(self) -> bool:
        return self.job.is_finished

    def enlist(self, transaction: object | None) -> None:
        """Do nothing: no handler acknowledges a record."""

    def ack(self) -> bool:
        is_current = self.job.is_current
        self.run.finish(self.job)
        return is_current


class Run(Processing):
    """One call of `consumer.run`. `stop` ends it by `end`, which knows the caller's own handler."""

    is_always_asking: Final = True

    def __init__(
        self,
        core: Core,
        handler: Callable[..., Awaitable[Any]],
        handling: Handling,
        deliver: Deliver,
    ) -> None:
        self.hold_s = core.config.handler_hold_s
        self._deliver = deliver
        self._state, self._works, self._buffer = core.state, core.works, core.buffer
        self._gate, self._observers, self._rng = core.gate, core.observers, core.rng
        self._handler = handler
        self._handling = handling
        self._end_s = core.config.rebalance_hold_s
        self._bounds: RunBounds | None = None
        self._progress: Coroutine[object, object, None] | None = None
        self._outbox: Outbox | None = None
        # That outbox, or the one of the dead letters.
        self._watched: Outbox | None = None
        # Until when cancelled handlers and transactions may end. None: they are not given up.
        self._ends_at: float | None = None
        # The workers whose handlers stop the consumer, and until when these are not cancelled.
        self._stoppers: set[asyncio.Task[Any]] = set()
        self._stoppers_until = -math.inf
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope("processing", on_failure=self._note_end)
        given, rate = handling.concurrency, handling.max_per_second
        self._concurrency = given if isinstance(given, Concurrency) else Concurrency(given)
        self._rate = None if rate is None else TokenBucket(rate, self._loop.time())
        # Instead of a deque of ready records. None: they begin in the order of that.
        self._fair = self._new_fair_queue()
        self._lanes = Lanes(handling.order, self._order_failed, self._fair)
        # Where records wait for others of their list.
        self._lists = self._new_lists()
        # When a list is due, or a call may begin.
        self._offer_timer: asyncio.Handle | None = None
        self._offer_due_at = math.inf
        self._attempts: Attempts[Job] = Attempts(
            handling,
            self.begin_again,
            self.offer,
            rng=core.rng,
            events=core.events,
            totals=core.works.totals,
        )
        self._allowance = Allowance(core, handling.max_uncommitted)
        self._steps = Steps(
            core.works, core.gate, self._lanes, self._attempts, self._allowance, self
        )
        # The context of the caller of `run`.
        self._context = copy_context()
        self._context.run(HANDLED.set, self._delivery_of)
        self._runner: asyncio.Task[Any] | None = None
        # The worker of each record in a handler, and the workers that were cancelled here.
        self._running: dict[Job, asyncio.Task[None]] = {}
        self._cancelled_workers: set[asyncio.Task[None]] = set()
        self._limit: TimeLimit[Job] | None = None
        if handling.timeout_s is not None:
            self._limit = TimeLimit(handling.timeout_s, self._running, self._stoppers)
        # The dead letters that are being written, and since when.
        self._letters: dict[Job, float] = {}
        self._letter_slots = LetterSlots(self._concurrency)
        # Idle workers, the latest last.
        self._idle: list[asyncio.Future[None]] = []
        self._worker_count = 0
        # Whether `offer` is starting a worker.
        self._is_starting = False
        # Workers that became idle as the time of a turn was over, and were not woken since.
        self._displaced_count = 0
        # Records that may not begin, because their partition is paused or being revoked.
        self._parked: dict[Cursor, list[Job]] = {}
        self._held = HeldRecords(handling.delays, self._allowance, self._begin_held)
        self._sink = OneByOne(self._accept, self._held.admit)
        # A record is to be tried that has not failed.
        self._is_new_wanted: bool
        self._wants_more = Event()
        self._returned = Event()
        self._ended = Event()
        self._error: BaseException | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._totals = core.works.totals

    def __repr__(self) -> str:
        return f"<Run of {self._concurrency.value} handlers, {len(self._running)} running>"

    # --- The whole ------------------------------------------------------------------------
    def end_at(self, bounds: RunBounds) -> None:
        """Handle no records after the bounds, and end when all before them are finished."""
        self._bounds = bounds
        self._allowance.complete = bounds.complete

    def complete(self) -> None:
        self._note_end(None)

    def show(self, progress: Coroutine[object, object, None]) -> None:
        """Show the progress, from the begin to the end."""
        self._progress = progress

    def put(self, cursor: Cursor, jobs: list[Job]) -> None:
        """Let records of a partition begin that were kept back, unless they are not due."""
        self._begin(self._not_held(cursor, jobs))

    def _begin(self, jobs: Sequence[Job]) -> None:
        self._lanes.put(jobs)
        if self._lists is not None:
            self._lists.note_accepted(jobs)
        self.offer()

    def _begin_held(self, jobs: Sequence[Job]) -> None:
        """Let delayed records begin that are due. An error ends the run: no caller raises it."""
        try:
            self._begin(jobs)
        except Exception as error:  # noqa: BLE001 -- `run` raises it
            self._note_end(error)

    def _not_held(self, cursor: Cursor, jobs: list[Job]) -> list[Job]:
        """Hold records of a delay topic that are not due, and finish those of other groups."""
        due, foreign = self._held.take(cursor, jobs)
        for job in foreign:
            self._finish_or_commit(job)
        return due

    def reads(self, topic: str) -> bool:
        """Whether the consumer is to read a topic."""
        # Until a rebalance, partitions of an earlier subscription are assigned.
        subscribed, pattern = self._state.subscription, self._state.pattern
        return (
            topic in (self._state.topics if subscribed is None else subscribed)
            or (pattern is not None and pattern.match(topic) is not None)
            or topic in self._handling.delays.names
        )

    def write_into(self, outbox: Outbox) -> None:
        self._outbox, handler = outbox, self._handler
        self.watch(outbox)

        async def handle(given: object) -> list[Output]:
            outputs = outbox.new_outputs()
            try:
                await handler(given, outputs)
            finally:
                taken = outputs.close()
            return taken

        self._handler = handle

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Take the consumer's records in a block around `run`. In it they can be finished."""
        self._works.open_processing(self)
        self._observers.partition_changed.add(self._partition_changed)
        self._observers.assignment_changed.add(self._assignment_changed)
        self._gate.on_change(self.offer)
        try:
            with self._concurrency._watched_by(self._concurrency_changed):
                yield
        except Exception as error:
            if self._error is None:  # at the start of the producer
                self._error = error
            raise
        finally:
            self._observers.partition_changed.forget(self._partition_changed)
            self._observers.assignment_changed.forget(self._assignment_changed)
            self._gate.forget(self.offer)
            self._works.close_processing(self, self._error)
            self._allowance.close()

    async def run(self) -> None:
        self._runner = asyncio.current_task()
        try:
            if self._limit is not None:
                self._limit.open()
            self._feeder = self._scope.spawn(self._feed(), name="feeder")
            if self._bounds is not None:
                self._scope.spawn(self._bounds.watch(self), name="bounds")
            if self._progress is not None:
                self._scope.spawn(self._progress, name="progress")
            await self._ended.wait()
            until = self._loop.time() + self._end_s
            await self.end(until)
            await self._end_stoppers(until)
            if self._ends_at is not None and self._is_at_work():
                log.warning(
                    "run() cancels again handlers and transactions that have not ended in %g s: %s",
                    LONGEST_END_S,
                    self._at_work(),
                )
        finally:
            self._steps.is_finishing = True
            try:
                await self._scope.close()
            finally:
                self._attempts.close()
                self._held.close()
                if self._limit is not None:
                    self._limit.close()
                if self._offer_timer is not None:
                    self._offer_timer.cancel()
        if self._error is not None:
            raise self._error

    def _note_end(self, error: BaseException | None) -> None:
        if not self._ended.is_set():
            self._error = error
            self._ended.set()

    async def _feed(self) -> None:
        ready, most = self._lanes.ready, self._handling.max_uncommitted
        try:
            while True:
                # To choose among records of all keys and topics, it reads as many as may be.
                enough = 2 * self._concurrency.value if self._fair is None else most
                taken = min(max(LEAST_TAKEN, enough), MOST_TAKEN)
                limits = Limits(max_records=min(taken, most))
                self._sink.clear()
                self._is_new_wanted = False
                try:
                    await self._buffer.take(self._sink, limits)
                except DeserializationError as error:
                    await self._take_bad_record(error)
                self.offer()
                while len(ready) >= enough and not self._is_new_wanted:
                    self._steps.feed_below = enough
                    self._wants_more.clear()
                    await self._wants_more.wait()
        except ConsumerStoppedError:
            self._note_end(None)
        except Exception as error:  # noqa: BLE001 -- `run` raises it
            self._note_end(error)

    async def _take_bad_record(self, error: DeserializationError) -> None:
        cursor = None if error.tp is None else self._state.assignment.get(error.tp)
        record, next_offset = error.record, error.next_offset
        if isinstance(error, DeserializerUnavailableError):
            # The record may be good.
            await asyncio.sleep(self._handling.retry.delay_s(1, self._rng))
            return
        if cursor is None or not isinstance(record, ConsumerRecord) or next_offset is None:
            raise error
        if (letter := self._handling.letter_for(error)) is None:
            if self._bounds is None:
                raise error
            if (end := self._bounds.end_of(cursor)) is None:
                await asyncio.sleep(LOOK_S)  # then it is read again
                return
            if record.offset < end:
                raise error
        self._allowance.admit(cursor, [record])
        self._accept(cursor, [record], (), None if letter is None else (error, letter))
        self._state.skip_to(cursor, next_offset)

    async def end(self, until: float, deadline: float = math.inf) -> None:
        """Begin no record, wait for handlers until a loop time, and cancel the others.

        A stop then waits for half of its rest, and run() for LONGEST_END_S. The caller's own
        handler continues.
        """
        self._steps.is_finishing = True
        if self._feeder is not None:
            self._scope.cancel(self._feeder)
        self.note_stopper(deadline)
        try:
            await self._wait_while(lambda: self._ends_at is None and self._is_at_work(), until)
            if self._is_at_work():
                ends_at = self._cancel_late() if self._ends_at is None else self._ends_at
                now = self._loop.time()
                end_s = max(LEAST_END_S, (deadline - now) / 2)
                await self._wait_while(self._is_at_work, min(ends_at, now + end_s))
        finally:
            self._note_end(None)

    def _caller(self) -> asyncio.Task[None] | None:
        """Return the task of the handler call that calls this, also from a task of its own."""
        place = HANDLING.get(None)
        running = self._running.items()
        return next((task for job, task in running if (job.cursor, job.offset) == place), None)

    def note_stopper(self, deadline: float) -> None:
        if (task := self._caller()) is not None:
            self._stoppers.add(task)
            self._stoppers_until = max(self._stoppers_until, deadline + LONGEST_END_S)
            self._returned.set()  # a stop that waits for this handler

    async def _end_stoppers(self, until: float) -> None:
        """Cancel the handlers that stop the consumer, if they go on after the stop."""

        def is_running() -> bool:
            return not self._stoppers.isdisjoint(self._running.values())

        await self._wait_while(is_running, max(until, self._stoppers_until))
        if is_running():
            self._stoppers.clear()
            await self._wait_while(self._is_at_work, self._cancel_late())

    def _cancel_late(self) -> float:
        log.warning(
            "run() is ending, and handlers that did not finish in time are cancelled: %s",
            self._at_work(),
        )
        self._ends_at = ends_at = self._loop.time() + LONGEST_END_S
        self._cancel_workers(self._running)
        if self._outbox is not None:
            self._outbox.give_up(self._state.assignment)
        self._returned.set()  # other waits end then, too
        return ends_at

    async def _wait_while(self, is_so: Callable[[], bool], until: float) -> None:
        while is_so():
            self._returned.clear()
            if not await self._returned.wait(until):
                return

    def _is_at_work(self) -> bool:
        """Whether transactions go on, or handlers other than those that stop the consumer."""
        is_writing = self._watched is not None and self._watched.is_busy
        return is_writing or not self._stoppers.issuperset(self._running.values())

    def _at_work(self) -> str:
        left = sorted(
            job.place
            for job, task in self._running.items()
            if job.is_current and task not in self._stoppers
        )
        if self._outbox is not None and (count := self._outbox.record_count):
            left.append(f"the outputs of {count} records were not committed")
        return ", ".join(left)

    # --- Taken records --------------------------------------------------------------------
    def _accept(
        self,
        cursor: Cursor,
        records: list[Record],
        epochs: Epochs,
        death: tuple[Exception, DeadLetter] | None = None,
    ) -> None:
        """Make jobs of taken records, without an await in between. `death`: why they are dead."""
        lane = self._lanes.of(cursor.tp)
        jobs = self._works.hand_out_each(cursor, records, epochs, partial(Job, cursor, lane))
        if death is not None:
            for job in jobs:
                job.die(*death)
        if self._bounds is not None:
            jobs = self._bounds.admit(cursor, jobs)
        jobs = self._not_held(cursor, jobs)
        self._lanes.put(jobs)
        self._allowance.handed_out(cursor)
        if self._lists is not None:
            self._lists.note_accepted(jobs)

    def _order_failed(self, job: Job, error: Exception) -> None:
        """Treat a record as a bad one, because the function for `order` has failed for it."""
        letter = self._handling.letter_for(error)
        if letter is None or self._handling.retry.stops(error):
            log.error(
                "%s: the function for order failed, so run() ends: %s",
                job.place,
                one_line(error),
            )
            raise error
        job.die(error, letter)

    def _partition_changed(self, cursor: Cursor) -> None:
        if self._outbox is not None:
            self._outbox.look_again()
        self._allowance.count(cursor)
        self._held.look(cursor)  # after a seek, its records are no longer to be handled
        if cursor in self._parked and not (cursor.is_withheld or cursor.is_paused):
            self._lanes.ready.extendleft(reversed(self._parked.pop(cursor)))
            self.offer()

    def _assignment_changed(self) -> None:
        """Lanes of partitions that are no longer assigned continue."""
        self._allowance.forget_unassigned()
        for cursor in [each for each in self._parked if not each.is_assigned]:
            self._lanes.ready.extend(self._parked.pop(cursor))
        self._lanes.ready.extend(self._attempts.take_revoked())
        self._held.forget_unassigned()
        if self._outbox is not None:
            self._outbox.look_again()
        self.offer()

    # --- Workers --------------------------------------------------------------------------
    def offer(self, most: int | None = None) -> None:
        if self._steps.is_finishing:
            return
        wanted = len(self._lanes.ready) if self._lists is None else self._gather(self._lists)
        if self._rate is not None:
            wanted = min(wanted, self._calls_left(self._rate)) or int(self._put_dead_first())
        if self._outbox is not None and self._outbox.is_full:
            wanted = int(self._put_first(self._is_awaited))
        if most is not None:
            wanted = min(wanted, most)
        idle = self._idle
        while wanted and idle:
            waiter = idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                wanted -= 1
        while wanted and self._worker_count < self._concurrency.value:
            self._worker_count += 1
            self._is_starting = True
            self._context.run(self._scope.spawn, self._work(), name=f"handler {self._worker_count}")
            self._is_starting = False
            wanted -= 1

    def _new_fair_queue(self) -> FairQueue | None:
        handling = self._handling
        if not (handling.fair or handling.priority):
            return None
        return FairQueue(self._concurrency, handling.priority, is_fair=handling.fair)

    def _new_lists(self) -> WaitingLists | None:
        handling = self._handling
        by, size, wait_s = handling.batch_by, handling.batch_size, handling.batch_wait_ms / 1000
        if size is None or not (by or wait_s or handling.list_of):
            return None
        return WaitingLists(self._lanes, by, handling.list_of, size, wait_s, self._concurrency)

    def _gather(self, lists: WaitingLists) -> int:
        """Let ready records wait for others of their lists. Return how many calls may begin."""
        now, ready, steps = self._loop.time(), self._lanes.ready, self._steps
        is_full = self._outbox is not None and self._outbox.is_full
        if is_full or self._attempts.is_paused:  # then certain records are tried first
            lists.give_back()
            return lists.kept_count
        lists.gather(now)
        has_all = self._bounds is not None and self._bounds.has_read_all
        if has_all or all(each.has_enough for each in self._state.assignment.values()):
            lists.wait_no_longer(now)
        if len(ready) < steps.feed_below:
            steps.feed_below = 0
            self._wants_more.set()
        if lists.is_due(now):
            return lists.kept_count + 1
        if (due_at := lists.due_at()) is not None:
            self._offer_at(due_at)
        return lists.kept_count

    def _calls_left(self, rate: TokenBucket) -> int:
        if not (count := rate.count(self._loop.time())):
            self._offer_at(rate.next_at)
        return count

    def _offer_at(self, due_at: float) -> None:
        # uvloop's handle of a time within this millisecond does not know it.
        if self._offer_due_at <= due_at:
            return
        if self._offer_timer is not None:
            self._offer_timer.cancel()
        self._offer_due_at = due_at
        self._offer_timer = self._loop.call_at(due_at, self._offer_due)

    def _offer_due(self) -> None:
        self._offer_due_at = math.inf
        self.offer()

    def _concurrency_changed(self) -> None:
        """Begin more calls, or let the workers end that are too many, the idle ones at once."""
        surplus = self._worker_count - self._concurrency.value
        for waiter in [self._idle.pop() for _ in range(min(surplus, len(self._idle)))]:
            if not waiter.done():
                waiter.set_result(None)
        self._letter_slots.fill()
        self._wants_more.set()
        self.offer()

    def begin_again(self, job: Job) -> None:
        ready = self._lanes.ready
        is_over = self._steps.is_finishing or self._gate.holds
        if job.state is DEAD and job.may_begin and not is_over:
            self._begin_letter(job)
        elif self._attempts.is_free(job):
            ready.appendleft(job)  # not behind those that wait for a probe
        else:
            ready.append(job)
        self.offer()

    async def _wait_for_work(self) -> None:
        """Wait until a record may begin, or until other tasks of this loop have had a turn."""
        if self._steps.slice_ends_at is not None and self._loop.time() >= self._steps.slice_ends_at:
            self._displaced_count += 1
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        await waiter

    def begin_slice(self, now: float) -> None:
        """Limit the records that begin in this turn of the loop: handlers may never wait."""
        self._gate.look()  # a handler that was ready runs right after a block, before timers
        self._steps.slice_ends_at = now + SLICE_S
        self._loop.call_soon(self._end_slice)

    def _end_slice(self) -> None:
        self._steps.slice_ends_at = None
        if count := min(self._displaced_count, MOST_WOKEN):
            self._displaced_count -= count
            self.offer(count)

    def _next(self, now: float) -> Job | None:
        if (slice_ends_at := self._steps.slice_ends_at) is None:
            self.begin_slice(now)
        elif now >= slice_ends_at:
            return None
        if self._steps.is_finishing or self._gate.holds:
            return None
        breaker, ready = self._attempts.breaker, self._lanes.ready
        is_full = self._outbox is not None and self._outbox.is_full
        if is_full and not (ready and self._is_awaited(ready[0])):
            return None
        if (
            breaker is not None
            and not breaker.is_closed
            and breaker.may_probe(now)
            and not (ready and ready[0].state is DEAD)  # its letter takes no call
        ):
            is_new_there = self._put_first(lambda job: job.error is None and job.may_begin)
            if not is_new_there and self._buffer.can_serve(()):
                self._is_new_wanted = True
                self._wants_more.set()
                return None
        if (job := self._first_that_may()) is not None:
            job.begin(now, self._attempts.success_count)
        if len(ready) < self._steps.feed_below:
            self._steps.feed_below = 0
            self._wants_more.set()
        return job

    def _first_that_may(self) -> Job | None:
        attempts, ready = self._attempts, self._lanes.ready
        breaker = attempts.breaker
        while ready:
            job = ready[0]
            cursor = job.cursor
            if not job.is_current:
                ready.popleft()
                self._lanes.leave(job)
            elif (cursor.is_withheld or cursor.is_paused) and cursor.is_assigned:
                self._parked.setdefault(cursor, []).append(ready.popleft())
            elif breaker is None or breaker.is_closed or attempts.admits(job, breaker):
                return ready.popleft()
            else:
                return None
        return None

    def _is_awaited(self, job: Job) -> bool:
        """Whether a full outbox may wait for it: the first unfinished, or one handled again."""
        cursor, progress = job.cursor, job.cursor.progress
        is_first = progress is not None and progress.holder_of_first() is job
        is_wanted = is_first or self._is_handled_again(job)
        return is_wanted and not (cursor.is_withheld or cursor.is_paused)

    def _is_handled_again(self, job: Job) -> bool:
        return self._outbox is not None and self._outbox.awaits(job)

    def _put_dead_first(self) -> bool:
        return self._put_first(lambda job: job.state is DEAD and job.may_begin)

    def _put_first(self, is_wanted: Callable[[Job], bool]) -> bool:
        ready = self._lanes.ready
        found = next(filter(is_wanted, ready), None)
        if found is not None and found is not ready[0]:
            if self._fair is None:
                ready.remove(found)
                ready.appendleft(found)
            else:
                self._fair.put_first(found)
        return found is not None

    async def _work(self) -> None:
        if self._is_starting:  # an eager task factory runs this worker within `offer`
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a worker is one
        handler, running, clock = self._handler, self._running, self._loop.time
        is_cancelled, limit = asker(task), self._limit
        takes_lists = self._handling.batch_size is not None
        # A handler may undo the cancellation by the limit, which only this loop notices.
        is_alone = takes_lists or self._outbox is not None or limit is not None
        fair = self._fair
        may_change = self._handling.concurrency is self._concurrency
        is_limited = may_change or self._rate is not None or fair is not None
        begin = self._begin_within_limits if is_limited else self._next_chains
        calls = Calls(self._steps, task, handler, running, is_alone=is_alone or is_limited)
        while not self._steps.is_finishing:
            chains = begin(clock())
            if chains is None:
                self._worker_count -= task not in self._cancelled_workers
                return
            if not chains:
                await self._wait_for_work()
                continue
            job = chains[0][0]
            if job.state is DEAD:
                self._begin_letter(job)
                del job, chains
                continue
            calls.job, calls.context = job, self._context_of(job)
            running.update((each, task) for chain in chains for each in chain)
            try:
                try:
                    try:
                        call = handler(
                            [each.record for chain in chains for each in chain]
                            if takes_lists
                            else job.record
                        )
                        outputs = await (
                            in_copy_of(calls.context, call)
                            if self._steps.isolates
                            else calls.of(call)
                        )
                    finally:
                        if fair is not None:
                            fair.ended(chains, clock())
                        if calls.job is not job:  # the call went on with others
                            job = calls.job
                            chains = [[job]]
                    if is_cancelled():
                        await raise_cancellation(task)
                        self._cancelled_workers.discard(task)  # it was ignored
                    if limit is not None and limit.is_late(task):
                        raise asyncio.CancelledError
                except Exception as error:  # noqa: BLE001 -- the handler's: the policy decides
                    self._failed(chains, error, task)
                except BaseException as error:  # noqa: BLE001 -- likewise, or it is raised
                    self._raise_unless_failed(error, task)
                    self._failed(chains, error, task)
                else:
                    self._succeeded(chains, outputs)
                if job.state is DEAD:
                    self._begin_letter(job)
            except asyncio.CancelledError:
                for chain in chains:
                    self._attempts.cancelled(chain[0])
                    self._lanes.ready.appendleft(chain[0])
                raise
            finally:
                if limit is not None:
                    limit.ended(task)
                for chain in chains:
                    for job in chain:
                        if running[job] is task:
                            del running[job]
                            self._note_returned(job.cursor)
                del calls.job, job, chain, chains
            self._isolate_if_changed(calls.context)

    def _context_of(self, job: Job) -> Context:
        """Return the context of a call: the worker's, unless a call has changed that of one."""
        HANDLING.set((job.cursor, job.offset))
        if not self._steps.isolates:
            return copy_context()
        context = self._context.copy()
        context.run(HANDLING.set, (job.cursor, job.offset))
        return context

    def _isolate_if_changed(self, context: Context) -> None:
        try:
            if copy_context() != context:
                self._steps.isolates = True
        except Exception:  # noqa: BLE001 -- a value that cannot be compared
            self._steps.isolates = True

    def _next_chains(self, now: float) -> list[list[Job]]:
        """Return the records that begin now in one call: of each lane the next ones, in order."""
        most, lists = self._handling.batch_size, self._lists
        if most is None:
            return [] if (job := self._next(now)) is None else [[job]]
        if lists is None:
            return self._new_list(now, most, self._lanes.chain)
        while self._make_list_ready(lists, now):
            if chains := self._new_list(now, most, lists.chain):
                self.offer(1)  # another list may be due
                return chains
            if self._lanes.ready:
                break  # none of these may begin now
        return []

    def _new_list(
        self, now: float, left: int, chain_of: Callable[[Job, int], list[Job]]
    ) -> list[list[Job]]:
        chains: list[list[Job]] = []
        while left > 0 and (job := self._next(now)) is not None:
            is_alone = self._attempts.is_alone(job)
            if not chains and job.list_limit:
                left = min(left, job.list_limit)
            if chains and (is_alone or not self._may_share_list(chains[0][0], job)):
                self._lanes.ready.appendleft(job)
                break
            chain = [job] if is_alone else chain_of(job, left)
            for follower in chain[1:]:
                follower.begin(now, self._attempts.success_count)
            chains.append(chain)
            left -= len(chain)
            if is_alone:
                break
        return chains

    def _may_share_list(self, first: Job, job: Job) -> bool:
        # A record whose list has failed is in a list with others of such lists only.
        if job.list_limit != first.list_limit:
            return False
        # A record that others wait for is in no list with those, which would be a deadlock.
        if self._is_handled_again(job) is not self._is_handled_again(first):
            return False
        return self._lists is None or self._lists.name_of(job) == self._lists.name_of(first)

    def _begin_within_limits(self, now: float) -> list[list[Job]] | None:
        """Return as `_next_chains` what begins. None: the worker is too many, and ends."""
        if self._worker_count > self._concurrency.value:
            return None
        rate = self._rate
        if rate is not None and not self._calls_left(rate):  # a dead letter takes no call
            job = self._next(now) if self._put_dead_first() else None
            chains = [] if job is None else [[job]]
        else:
            chains = self._next_chains(now)
        if chains and chains[0][0].state is not DEAD:
            if rate is not None:
                rate.take()
            if self._fair is not None:
                self._fair.began(chains, now)
        return chains

    def _make_list_ready(self, lists: WaitingLists, now: float) -> bool:
        """Make the records of a list ready that is due. Return whether records may begin."""
        if self._steps.slice_ends_at is None:
            self.begin_slice(now)
        elif now >= self._steps.slice_ends_at:
            return False
        if self._steps.is_finishing or self._gate.holds:
            return False
        if not self._gather(lists):
            return False
        if not lists.kept_count:
            lists.make_ready(now)
        return True

    def _failed(
        self, chains: list[list[Job]], error: BaseException, task: asyncio.Task[None]
    ) -> None:
        """Retry or give up the record of a failed call, or try the halves of its list.

        Only a call for the record alone is an attempt of it.
        """
        if self._limit is not None:
            error = self._limit.error_of(task, error)
        if len(chains) == 1 and len(chains[0]) == 1:
            (job,) = chains[0]
            if job.state is LISTED:
                job.enter(JobState.ALONE)
            fate = self._attempts.failed(job, error)
            if fate == "over":
                self._lanes.leave(job)
            elif fate == "stop":
                self._stop_at(job, error)
            return
        if self._handling.retry.stops(error):
            self._stop_at(chains[0][0], error)
            return
        first = chains[0][0]
        self._attempts.list_failed(first, error, is_half=first.list_limit > 0)
        halve([job for chain in chains for job in chain])
        self._lanes.ready.extendleft(chain[0] for chain in reversed(chains))
        self.offer()

    @property
    def is_closing(self) -> bool:
        """Whether no handler is waited for any longer."""
        return self._scope.is_ending

    def _is_cancelled(self, task: asyncio.Task[None]) -> bool:
        """Whether a worker was cancelled, and not by its handler or an awaitable of that."""
        runner = self._runner
        return (
            task in self._cancelled_workers
            or self._scope.is_ending
            or (runner is not None and is_asked_to_end(runner))
        )

    def _raise_unless_failed(self, error: BaseException, task: asyncio.Task[None]) -> None:
        if not is_failure(error, task):
            raise error
        if self._is_cancelled(task):
            raise asyncio.CancelledError from error

    def _note_returned(self, cursor: Cursor) -> None:
        if cursor.is_withheld or not cursor.is_assigned:
            self._observers.acted()  # a rebalance may wait for it
        if self._steps.is_finishing:
            self._returned.set()

    # --- Results ---------------------------------------------------------------------------
    def finish(self, job: Job) -> None:
        self._works.finish(job.cursor, job.offset, job)
        self._allowance.count(job.cursor)

    def _succeeded(self, chains: list[list[Job]], outputs: list[Output]) -> None:
        jobs = [job for chain in chains for job in chain]
        if self._outbox is not None:
            self._outbox.put(Entry(jobs, outputs))
        else:
            for job in jobs:
                self.finish(job)
        for chain in chains:
            self._lanes.leave(chain[-1])
            self._totals["finished_total"] += len(chain)
            self._attempts.succeeded(chain[-1])

    def _stop_at(self, job: Job, error: BaseException) -> None:
        self._note_end(end_of_run(job, error))

    def _begin_letter(self, job: Job) -> None:
        if self._scope.is_ending:
            self._lanes.ready.appendleft(job)
            return
        self._letters[job] = self._loop.time()
        task = self._running[job] = self._context.run(
            self._scope.spawn, self._write_in_turn(job), name="dead letter"
        )
        task.add_done_callback(partial(self._letter_ended, job))

    async def _write_in_turn(self, job: Job) -> None:
        await asyncio.sleep(0)  # an eager task factory runs this task before it is noted
        task = self._running[job]
        HANDLING.set((job.cursor, job.offset))
        # A rebalance that waits looks again.
        alarm = self._loop.call_later(LONG_LETTER_S, self._observers.acted)
        try:
            async with self._letter_slots:
                await self._write_dead_letter(job, task)
        finally:
            alarm.cancel()

    def _letter_ended(self, job: Job, task: asyncio.Task[None]) -> None:
        """Note the end of a letter's task, which may have been cancelled before its first step."""
        if task.cancelled():
            self._lanes.ready.appendleft(job)
        if self._running.get(job) is task:  # otherwise another letter of it is being written
            del self._running[job], self._letters[job]
        self._note_returned(job.cursor)
        self.offer()  # the next record of its lane

    def _long_letters(self, now: float) -> list[Job]:
        return [job for job, began_at in self._letters.items() if now - began_at >= LONG_LETTER_S]

    async def _write_dead_letter(self, job: Job, task: asyncio.Task[None]) -> None:
        """Only the acknowledgement finishes the record."""
        error, letter = job.error, job.letter
        assert error is not None  # noqa: S101 -- it is dead
        assert letter is not None  # noqa: S101 -- likewise
        history = () if job.origin is None else job.origin.history
        try:
            await letter(DeadRecord(job.record, error, job.attempts, job, history))
        except BaseException as failure:  # noqa: BLE001 -- kept, or raised
            self._raise_unless_failed(failure, task)
            if self._handling.delays.cannot_have(job, failure):
                self._not_delayed(job, error, failure)
            else:
                self._attempts.letter_failed(job, failure)
            return
        self._attempts.letter_written(job, error)
        self._finish_or_commit(job)
        self._lanes.leave(job)

    def _not_delayed(self, job: Job, error: BaseException, failure: BaseException) -> None:
        """Treat a record that does not fit into its delay topic as after the last delay."""
        log.warning("%s cannot be delayed: %s", job.place, one_line(failure))
        if (letter := self._handling.letter_for(error)) is None:
            self._stop_at(job, error)
        else:
            job.die(error, letter)
            self.begin_again(job)

    def _finish_or_commit(self, job: Job) -> None:
        """Finish a record without outputs."""
        if self._outbox is None:
            self.finish(job)
        elif job.is_current:
            self._outbox.put(Entry([job], []))

    # --- For outboxes -------------------------------------------------------------------------
    @property
    def longest_end_s(self) -> float:
        """How long the end of an outbox waits for its transaction."""
        if self._ends_at is None:
            return max(self._end_s, LONGEST_END_S)
        return max(0.0, self._ends_at - self._loop.time())

    def refused(self, jobs: Sequence[Job], error: Exception) -> None:
        """Make a dead letter of a record that cannot be written. Of several, try the halves."""
        if len(jobs) > 1:
            halve(jobs)
            self.handle_again(jobs)
            return
        (job,) = jobs
        self._attempts.refused(job)
        if (letter := self._handling.letter_for(error, job)) is None:
            self._stop_at(job, error)
        else:
            job.die(error, letter)
            self.handle_again(jobs)

    def handle_again(self, jobs: Sequence[Job]) -> None:
        self._lanes.put_again(jobs)
        self.offer()

    def outbox_failed(self, error: BaseException) -> None:
        log.error(
            "run() ends, because the outputs of handlers cannot be written in transactions: %s",
            one_line(error),
        )
        self._note_end(error)

    def outbox_moved(self, jobs: Iterable[Job]) -> None:
        """Note that there is room, and that these records have left the outbox."""
        for cursor in dict.fromkeys(job.cursor for job in jobs):
            self._note_returned(cursor)
        if self._steps.is_finishing:
            self._returned.set()
        self.offer()

    # --- As a work (assignment/work.py) -----------------------------------------------------
    def takes(self, sink: object) -> bool:
        return sink is self._sink

    def own_records(self) -> Mapping[Cursor, Mapping[int, Job]]:
        if self._outbox is not None:
            raise IllegalStateError(
                "handlers cannot commit offsets, because run(transactions=…) commits the offsets "
                "together with the handlers' outputs"
            )
        own: dict[Cursor, dict[int, Job]] = {}
        for job in self._own_jobs():
            own.setdefault(job.cursor, {})[job.offset] = job
        return own

    def _own_jobs(self) -> list[Job]:
        caller = self._caller()
        return [job for job, task in self._running.items() if task is caller]

    def as_read(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        for job in self._own_jobs():
            tp = TopicPartition(job.record.topic, job.record.partition)
            named = None if job.origin is None else offsets.get(tp)
            if named is not None and named.offset == job.record.offset + 1:
                del offsets[tp]
                offsets[job.cursor.tp] = named._replace(offset=job.offset + 1)

    def receipts(self) -> list[JobReceipt]:
        own = [JobReceipt(self, job) for job in self._own_jobs()]
        if not own:
            raise IllegalOperation(
                "consumer.run() is active, and this task is not a handler: only a handler can "
                "commit a record in a transaction, with tx.commit_offsets(record)"
            )
        return own

    def _delivery_of(self, record: ConsumerRecord) -> DeliveryToCommit:
        tp = TopicPartition(record.topic, record.partition)
        for job in self._running:
            if job.record is record:
                return self._deliver(DeliveredRecords(receipts=[JobReceipt(self, job)]))
        raise IllegalOperation(
            f"the record at offset {record.offset} of {tp.topic}/{tp.partition} is not being "
            "processed by a handler of this run()"
        )

    @property
    def is_open(self) -> bool:
        return bool(self._running) or (self._outbox is not None and self._outbox.is_busy)

    def partitions(self) -> Set[TopicPartition]:
        return {cursor.tp for cursor in self._allowance if cursor.worked_by is self}

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        long = self._long_letters(self._loop.time())
        running = (job for job in self._running if job not in long)
        jobs = (*running, *(() if self._outbox is None else self._outbox.undone()))
        places = ((job.cursor, job.offset) for job in jobs if job.is_current)
        return spans_of(places, partitions)

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        self._cancel_workers(job for job in self._running if job.cursor.tp in partitions)
        if self._outbox is not None:
            self._outbox.give_up(partitions)

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether a cancelled handler, or a transaction, has not ended yet."""
        return any(
            task in self._cancelled_workers and job.cursor.tp in partitions
            for job, task in self._running.items()
        ) or (self._watched is not None and self._watched.is_writing(partitions))

    def _cancel_workers(self, jobs: Iterable[Job]) -> None:
        spared = {asyncio.current_task(), *self._stoppers, *self._cancelled_workers}
        for task, job in {self._running[job]: job for job in jobs}.items():
            if task not in spared:
                self._cancelled_workers.add(task)
                task.add_done_callback(
                    self._cancelled_workers.discard if job in self._letters else self._worker_ended
                )
                self._scope.cancel(task)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        if task in self._cancelled_workers:
            self._cancelled_workers.remove(task)
            self._worker_count -= 1
            self.offer()

    # --- For operators --------------------------------------------------------------------
    def watch(self, outbox: Outbox) -> None:
        self._watched = outbox

    def troubles(self, now: float) -> Iterator[str]:
        yield from self._attempts.troubles(now)
        if long := self._long_letters(now):
            yield (
                f"the dead letter of {long[0].place} has been waiting for "
                f"{now - self._letters[long[0]]:.1f} s to be written by {long[0].letter!r}, and so "
                f"have {len(long) - 1} others"
            )
        if self._limit is not None:
            yield from self._limit.troubles(now)
        if self._watched is not None:
            yield from self._watched.troubles()

    def explain(self, cursor: Cursor, now: float) -> str:
        progress = cursor.progress
        job = None if progress is None else progress.holder_of_first()
        if progress is None or not isinstance(job, Job):
            return ""
        if job.state is DEAD:
            doing = "waits for its dead letter to be written"
        elif job in self._running and job.began_at is not None:
            doing = (
                f"was passed to its handler {now - job.began_at:.1f} s ago, and the handler has "
                "not returned"
            )
            if self._limit is not None:
                doing = f"{doing}; the call {self._limit.state_of(self._running[job])}"
        elif (wait_s := self._held.wait_of(job)) is not None:
            doing = f"was delayed after it had failed, and is tried again in {wait_s:.1f} s"
        elif (pause_s := self._attempts.pause_of(job, now)) is not None:
            doing = f"failed, and is tried again in {pause_s:.1f} s"
        elif self._outbox is not None and job in self._outbox:
            doing = "has been handled, and its outputs wait until a transaction is committed"
        elif self._lists is not None and (wait_s := self._lists.wait_of(job, now)) is not None:
            doing = f"waits for other records of its list, for {wait_s:.1f} s at most"
        elif self._rate is not None and not self._rate.count(now):
            doing = "has not been passed to a handler yet, because of max_per_second"
        else:
            doing = "has not been passed to a handler yet"
        tried = "" if job.error is None else f" (attempt {job.attempts}, {one_line(job.error)})"
        return f"{job.place}, key {job.record.key!r}, {doing}{tried}. {progress.what_waits()}"

    @property
    def is_paused(self) -> bool:
        return self._attempts.is_paused

    def is_delaying(self, cursor: Cursor) -> bool:
        return cursor in self._held

    def counts(self) -> dict[str, int]:
        return {
            "concurrency": self._concurrency.value,
            "calls": self._worker_count - len(self._idle),
            "at_work": len(self._running),
            "ready": len(self._lanes.ready) + (0 if self._lists is None else self._lists.count),
            "waiting_for_retry": self._attempts.waiting_count + self._held.count,
            "uncommitted": self._allowance.uncommitted_count,
            "in_outbox": 0 if self._outbox is None else self._outbox.record_count,
        }
