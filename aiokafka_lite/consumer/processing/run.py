"""`consumer.run`: many handlers at a time, in order by key, and nothing lost.

::

    Buffer ──take──> OneByOne ─> Progress (one per partition: handed out, finished)
                        └─────> Lanes ──ready──> workers ──> handler
                                  ^                 │
                                  └──after a pause──┴──> finished, dead letters, or the end of `run`

- One task feeds: it takes records when fewer are ready than there are handlers.
- A worker is a task that calls the handler for one record after the other. There are as many as
  have had work at the same time, `concurrency` at most.
- A record that waits for another attempt is in no worker's hands. It comes back by a timer.
- What a rebalance takes away is not begun any more. Handlers are waited for, and cancelled when
  the time is up (membership/revocation.py).

Everything is changed on the event loop, between two awaits: when records are handed out, and when
a handler returns. Whoever finishes a record of an assignment that is over finishes nothing: its
table does not know the job any more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite._compat import is_being_cancelled, timeout_at
from aiokafka_lite._event import Event
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.backoff import delay_after
from aiokafka_lite.consumer.assignment.cursor import Cursor, Range, joined
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.buffer import Buffer, Limits
from aiokafka_lite.consumer.events.kinds import CircuitClosed, CircuitOpened, RecordDead
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.breaker import Breaker
from aiokafka_lite.consumer.processing.handling import DeadRecord, Handling
from aiokafka_lite.consumer.processing.intake import OneByOne
from aiokafka_lite.consumer.processing.lanes import Job, Lanes
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    DeserializationError,
    DeserializerUnavailableError,
)
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Record

log = logging.getLogger(__name__)

# Of one get: so many jobs are made in one go.
MOST_TAKEN: Final = 2_000
LEAST_TAKEN: Final = 64
# Between two attempts to write a dead letter.
FIRST_DEAD_DELAY_S: Final = 0.1
LAST_DEAD_DELAY_S: Final = 10.0
# How long handlers that were cancelled may take to end.
LONGEST_END_S: Final = 1.0
# In one turn of the loop.
SLICE_S: Final = 0.002
# A record that is worked on for longer than this is worth a word.
LONG_WORK_S: Final = 60.0


class Run:
    """One call of `consumer.run`.

    Args:
        state: Whose records these are.
        buffer: Has them.
        handler: Is awaited for each record, or for lists of them.
        handling: How.
        hold_s: How long handlers may go on when something else has failed.
        rng: For the lengths of pauses.
    """

    #: As long as for what gets have handed out.
    hold_s: Final[float | None] = None
    #: Records are asked for as long as it goes on, whatever handlers do.
    is_always_asking: Final = True

    def __init__(
        self,
        state: SubscriptionState,
        buffer: Buffer,
        handler: Callable[[Any], Awaitable[object]],
        handling: Handling,
        *,
        hold_s: float,
        rng: random.Random,
    ) -> None:
        self._state = state
        self._buffer = buffer
        self._handler = handler
        self._handling = handling
        self._retry = handling.retry
        self._most_hold_s = hold_s
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope("processing", on_failure=self._note_end)
        self._breaker = Breaker(handling.breaker, rng) if handling.breaker else None
        self._sink = OneByOne(self._accept)
        self._lanes = Lanes(handling.order)
        # Who works on what just now; and whom we have cancelled.
        self._flights: dict[Job, asyncio.Task[None]] = {}
        self._cut: set[asyncio.Task[None]] = set()
        # Workers that have nothing to do, the latest last.
        self._idle: list[asyncio.Future[None]] = []
        self._worker_count = 0
        # Until when handlers may go on in this turn of the loop; None: none has begun in it.
        self._slice_ends_at: float | None = None
        # What waits for another attempt; what may not begin, as its partition is paused or goes.
        self._waiting: dict[Job, asyncio.TimerHandle] = {}
        self._parked: dict[Cursor, list[Job]] = {}
        self._probe: Job | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        # How many calls have succeeded, so that it can be seen whether one has since.
        self._success_count = 0
        self._allowance = Allowance(state, handling.max_uncommitted)
        # The feeder waits until handlers need some.
        self._is_enough_ready = False
        self._wants_more = Event()
        self._landed = Event()
        self._ended = Event()
        self._error: BaseException | None = None
        # Nothing more begins.
        self._is_finishing = False
        self._feeder: asyncio.Task[None] | None = None
        self._dead_letter_error: BaseException | None = None
        self._dead_letter_failures = 0
        self._totals = state.processing_totals

    def __repr__(self) -> str:
        return f"<Run of {self._handling.concurrency} handlers, {len(self._flights)} at work>"

    # --- The whole ------------------------------------------------------------------------
    @contextmanager
    def opened(self) -> Iterator[None]:
        """Take the consumer's records for itself, within a block around `run`.

        Records can be finished until its end, also after `run` has ended.

        Raises:
            IllegalStateError: Another run takes them already, or a get waits.
        """
        state = self._state
        state.open_processing(self)
        state.observers.on_partition_change(self._partition_changed)
        state.observers.on_assignment_change(self._assignment_changed)
        state.gate.on_change(self._offer)
        try:
            yield
        finally:
            state.observers.forget(self._partition_changed)
            state.observers.forget(self._assignment_changed)
            state.gate.forget(self._offer)
            state.close_processing(self)

    async def run(self) -> None:
        """Handle records until the consumer is stopped.

        When it is cancelled, handlers are cancelled; what they had begun is not finished.

        Raises:
            BaseException: What ended it: a handler's error, or a get's.
        """
        try:
            self._feeder = self._scope.spawn(self._feed(), name="feeder")
            await self._ended.wait()
            await self.end(self._loop.time() + self._most_hold_s)
        finally:
            self._is_finishing = True
            try:
                await self._scope.close()
            finally:
                for timer in self._waiting.values():
                    timer.cancel()
                if self._probe_timer is not None:
                    self._probe_timer.cancel()
        if self._error is not None:
            raise self._error

    def _note_end(self, error: BaseException | None) -> None:
        """Let `run` end, by the first error that there was."""
        if not self._ended.is_set():
            self._error = error
            self._ended.set()

    async def _feed(self) -> None:
        """Take records while handlers need some."""
        ready, concurrency = self._lanes.ready, self._handling.concurrency
        taken = min(max(LEAST_TAKEN, 2 * concurrency), MOST_TAKEN)
        limits = Limits(max_records=min(taken, self._handling.max_uncommitted))
        try:
            while True:
                while len(ready) >= concurrency:
                    self._is_enough_ready = True
                    self._wants_more.clear()
                    await self._wants_more.wait()
                self._sink.clear()
                try:
                    await self._buffer.take(self._sink, limits)
                except DeserializationError as error:
                    await self._take_bad_record(error)
                self._offer()
        except ConsumerStoppedError:
            self._note_end(None)
        except Exception as error:  # noqa: BLE001 -- `run` raises it
            self._note_end(error)

    async def _take_bad_record(self, error: DeserializationError) -> None:
        """Let a record that cannot be deserialised be a dead letter, and pass it.

        Raises:
            DeserializationError: There are no dead letters.
        """
        cursor = None if error.tp is None else self._state.assignment.get(error.tp)
        record, next_offset = error.record, error.next_offset
        if isinstance(error, DeserializerUnavailableError):
            # It says nothing of the record.
            await asyncio.sleep(self._retry.delay_s(1, self._rng))
            return
        if (
            self._handling.dead_letter is None
            or not isinstance(record, ConsumerRecord)
            or next_offset is None
        ):
            raise error
        if cursor is None:
            return
        self._accept(cursor, [record], cursor.leader_epoch, error)
        self._state.start_at(cursor, next_offset, cursor.leader_epoch, cursor.validated_epoch)

    async def end(self, until: float) -> None:
        """Begin with nothing more, wait for handlers until a loop time, and cancel the rest.

        The caller's own handler is not waited for.
        """
        self._is_finishing = True
        if self._feeder is not None:
            self._scope.cancel(self._feeder)
        own = asyncio.current_task()
        try:
            await self._wait_for_handlers(until, own)
        finally:
            self._note_end(None)

    async def _wait_for_handlers(self, until: float, own: asyncio.Task[Any] | None) -> None:
        try:
            async with timeout_at(until):
                await self._until_landed(own)
        except asyncio.TimeoutError:
            log.warning("handlers were not done in time, and are cancelled: %s", self._at_work())
            self._cut_off(job for job, task in self._flights.items() if task is not own)
            try:
                async with timeout_at(self._loop.time() + LONGEST_END_S):
                    await self._until_landed(own)
            except asyncio.TimeoutError:
                log.warning("handlers were cancelled, and have not ended: %s", self._at_work())

    async def _until_landed(self, own: asyncio.Task[Any] | None) -> None:
        while any(task is not own for task in self._flights.values()):
            self._landed.clear()
            await self._landed.wait()

    def _at_work(self) -> str:
        return ", ".join(sorted(_name(job) for job in self._flights if job.is_current))

    # --- What comes -----------------------------------------------------------------------
    def _accept(
        self,
        cursor: Cursor,
        records: list[Record],
        leader_epoch: int,
        error: DeserializationError | None = None,
    ) -> None:
        """Make jobs of what a get hands out of a partition; no await comes in between.

        Where there is an error, they are dead from the beginning.
        """
        state, lanes = self._state, self._lanes
        progress = state.progress_of(cursor)
        if leader_epoch > progress.ahead_epoch:
            progress.forget_ahead()  # the log may have been cut: these may be other records
        lane = lanes.of(cursor.tp)
        hand_out, put, has_ahead = progress.hand_out, lanes.put, progress.has_ahead
        for record in records:
            if has_ahead and progress.passes_over(record.offset):
                self._totals["passed_over_total"] += 1
                continue
            job = Job(record, cursor, lane, error)
            hand_out(record.offset, job)
            put(job)
        self._allowance.handed_out(cursor)

    def _partition_changed(self, cursor: Cursor) -> None:
        """Look anew at what of a partition may begin, and how much of it there is."""
        allowance = self._allowance
        if allowance.is_tight and cursor in allowance:
            allowance.finished(cursor)
        if cursor in self._parked and not (cursor.is_revoking or cursor.is_paused):
            self._lanes.ready.extendleft(reversed(self._parked.pop(cursor)))
            self._offer()

    def _assignment_changed(self) -> None:
        """Forget what is assigned no more; its lanes go on."""
        self._allowance.forget_unassigned()
        for cursor in [each for each in self._parked if not each.is_assigned]:
            self._lanes.ready.extend(self._parked.pop(cursor))
        for job in [each for each in self._waiting if not each.is_current]:
            self._waiting.pop(job).cancel()
            self._lanes.ready.append(job)
        self._offer()

    # --- Workers --------------------------------------------------------------------------
    def _offer(self) -> None:
        """Wake workers for what is ready, or start some."""
        if self._is_finishing:
            return
        wanted = len(self._lanes.ready)
        idle = self._idle
        while wanted and idle:
            waiter = idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                wanted -= 1
        work = self._work_on_lists if self._handling.batch_size else self._work
        while wanted and self._worker_count < self._handling.concurrency:
            self._worker_count += 1
            self._scope.spawn(work(), name=f"handler {self._worker_count}")
            wanted -= 1

    def _begin_slice(self, now: float) -> None:
        """Say until when handlers may begin: those that never wait would keep the loop for ever."""
        self._slice_ends_at = now + SLICE_S
        self._loop.call_soon(self._end_slice)

    def _end_slice(self) -> None:
        self._slice_ends_at = None

    async def _wait_for_work(self) -> None:
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        await waiter

    def _next(self) -> Job | None:
        """Return what to begin now; None: there is nothing, or nothing may."""
        ready, breaker = self._lanes.ready, self._breaker
        if self._is_finishing or self._state.gate.holds:
            return None
        while ready:
            job = ready[0]
            cursor = job.cursor
            progress = cursor.progress
            # As Job.is_current, without its call: this is the way of every record.
            if progress is None or not progress.is_held_by(job.record.offset, job):
                ready.popleft()
                self._lanes.leave(job)
            elif (cursor.is_revoking or cursor.is_paused) and cursor.is_assigned:
                self._parked.setdefault(cursor, []).append(ready.popleft())
            elif breaker is None or breaker.is_closed or self._is_admitted(job, breaker):
                ready.popleft()
                break
            else:
                return None
        else:
            job = None
        if self._is_enough_ready and len(ready) < self._handling.concurrency:
            self._is_enough_ready = False
            self._wants_more.set()
        return job

    def _is_admitted(self, job: Job, breaker: Breaker) -> bool:
        if job.is_dead:
            return True
        now = self._loop.time()
        if breaker.admits(now, has_failed=job.error is not None):
            self._probe = job
            return True
        if self._probe is None and self._probe_timer is None:
            self._probe_timer = self._loop.call_at(breaker.probe_at, self._probe_due)
        return False

    def _probe_due(self) -> None:
        self._probe_timer = None
        self._offer()

    async def _work(self) -> None:
        """Handle one record after the other."""
        task = _current_task()
        handler, flights, clock = self._handler, self._flights, self._loop.time
        while not self._is_finishing:
            now, slice_ends_at = clock(), self._slice_ends_at
            if slice_ends_at is None:
                self._begin_slice(now)
            elif now >= slice_ends_at:
                await asyncio.sleep(0)
                continue
            job = self._next()
            if job is None:
                await self._wait_for_work()
                continue
            flights[job] = task
            try:
                if not job.is_dead:
                    job.began_at = now
                    if job.error is None:
                        job.success_count = self._success_count
                    try:
                        await handler(job.record)
                    except asyncio.CancelledError as error:
                        if self._is_cancelled(task):
                            raise
                        self._failed(job, error)
                    except Exception as error:  # noqa: BLE001 -- the handler's: the policy decides
                        self._failed(job, error)
                    else:
                        self._succeeded(job)
                if job.is_dead:
                    await self._bury(job)
            except asyncio.CancelledError:
                self._cancelled(job)
                raise
            finally:
                del flights[job]
                cursor = job.cursor
                if cursor.is_revoking or not cursor.is_assigned or self._is_finishing:
                    self._tell_landed(cursor)

    async def _work_on_lists(self) -> None:
        """Handle one list of records after the other."""
        task = _current_task()
        handler, flights, clock = self._handler, self._flights, self._loop.time
        while not self._is_finishing:
            now, slice_ends_at = clock(), self._slice_ends_at
            if slice_ends_at is None:
                self._begin_slice(now)
            elif now >= slice_ends_at:
                await asyncio.sleep(0)
                continue
            chains = self._next_list()
            if not chains:
                await self._wait_for_work()
                continue
            jobs = [job for chain in chains for job in chain]
            for job in jobs:
                flights[job] = task
            try:
                if not jobs[0].is_dead:
                    for job in jobs:
                        job.began_at = now
                        if job.error is None:
                            job.success_count = self._success_count
                    try:
                        await handler([job.record for job in jobs])
                    except asyncio.CancelledError as error:
                        if self._is_cancelled(task):
                            raise
                        self._list_failed(chains, error)
                    except Exception as error:  # noqa: BLE001 -- likewise
                        self._list_failed(chains, error)
                    else:
                        for chain in chains:
                            for job in chain[:-1]:
                                self._finish(job)
                            self._succeeded(chain[-1])
                if jobs[0].is_dead:
                    await self._bury(jobs[0])
            except asyncio.CancelledError:
                for chain in chains:
                    self._cancelled(chain[0])
                raise
            finally:
                for job in jobs:
                    del flights[job]
                    self._tell_landed(job.cursor)

    def _next_list(self) -> list[list[Job]]:
        """Return what to begin now as one list: of each lane those that come next, in order."""
        chains: list[list[Job]] = []
        left = self._handling.batch_size or 1
        while left > 0 and (job := self._next()) is not None:
            is_alone = job.is_alone or job.is_dead or job is self._probe
            if is_alone and chains:
                self._lanes.ready.appendleft(job)
                break
            chain = [job] if is_alone else self._lanes.chain(job, left)
            chains.append(chain)
            left -= len(chain)
            if is_alone:
                break
        return chains

    def _list_failed(self, chains: list[list[Job]], error: BaseException) -> None:
        """Note that a list failed: which of its records are bad is found by trying each alone."""
        if len(chains) == 1 and len(chains[0]) == 1:
            self._failed(chains[0][0], error)
            return
        if isinstance(error, self._retry.stop):
            self._stop_at(chains[0][0], error)
            return
        self._count_failure(chains[0][0], error)
        for chain in chains:
            for job in chain:
                job.is_alone = True
        self._lanes.ready.extendleft(chain[0] for chain in reversed(chains))
        self._offer()

    def _is_cancelled(self, task: asyncio.Task[None]) -> bool:
        """Whether a worker was cancelled, and not what a handler awaits."""
        return task in self._cut or is_being_cancelled(task) or not hasattr(task, "cancelling")

    def _tell_landed(self, cursor: Cursor) -> None:
        """Tell whoever waits that nobody works on a record of a partition any more."""
        if cursor.is_revoking or not cursor.is_assigned:
            self._state.observers.acted()  # a rebalance may wait for it
        if self._is_finishing:
            self._landed.set()

    # --- What becomes of a record ----------------------------------------------------------
    def _finish(self, job: Job) -> None:
        """Count a record as finished, if it is still this one's."""
        cursor = job.cursor
        if self._state.finish(cursor, job.record.offset, job) and self._allowance.is_tight:
            self._allowance.finished(cursor)

    def finish_dead(self, dead: DeadRecord) -> None:
        """Count a dead record as finished; nothing happens if it is another's by now."""
        if dead.job is not None:
            self._finish(dead.job)

    def _succeeded(self, job: Job) -> None:
        cursor = job.cursor  # as _finish, without its call
        if self._state.finish(cursor, job.record.offset, job) and self._allowance.is_tight:
            self._allowance.finished(cursor)
        self._lanes.leave(job)
        self._totals["finished_total"] += 1
        self._success_count += 1
        if self._breaker is not None and not self._breaker.is_closed:
            self._prove(job, self._breaker)

    def _prove(self, job: Job, breaker: Breaker) -> None:
        """Let everything be tried again, if it is proven that it is not all that fails."""
        if breaker.succeeded(is_probe=job is self._probe):
            self._probe = None  # if another one has proven it, this is no probe any more
            log.info("handlers succeed again: all records are handled")
            self._state.events.publish(CircuitClosed(self._loop.time() - breaker.since))
            self._offer()

    def _cancelled(self, job: Job) -> None:
        """Put a record back whose handler was cancelled; it is not finished."""
        if job is self._probe:
            self._probe = None
            if self._breaker is not None:
                self._breaker.abandoned(self._loop.time())
        self._lanes.ready.appendleft(job)

    def _count_failure(self, job: Job, error: BaseException) -> bool:
        """Count a failure; whether it says something of the record, as far as is known."""
        self._totals["failed_total"] += 1
        breaker = self._breaker
        if breaker is None:
            return True
        is_bad = self._retry.is_bad_record(error)
        was_closed = breaker.is_closed
        if is_bad:
            # What handlers depend on has answered: a probe that fails by its record succeeds.
            self._success_count += 1
            if not was_closed:
                self._prove(job, breaker)
            return True
        if is_probe := job is self._probe:
            self._probe = None
        if breaker.failed(self._loop.time(), _text(error), self._success_count, is_probe=is_probe):
            self._opened(breaker)
        return was_closed

    def _opened(self, breaker: Breaker) -> None:
        log.warning("handling pauses: %s", breaker.reason)
        self._state.events.publish(CircuitOpened(breaker.reason))

    def _failed(self, job: Job, error: BaseException) -> None:
        """Let a record wait for another attempt, go to the dead letters, or end everything."""
        job.error = error
        counts = self._count_failure(job, error)
        if not job.is_current:
            self._lanes.leave(job)
            return
        if not counts and not isinstance(error, self._retry.stop):
            self._wait_for_probe(job)
            return
        job.attempts += 1
        verdict = self._retry.verdict(error, job.attempts)
        if verdict == "retry":
            job.success_count = self._success_count
            self._try_again_in(job, self._retry.delay_s(job.attempts, self._rng))
        elif verdict == "stop" or self._handling.dead_letter is None:
            self._stop_at(job, error)
        elif self._may_be_everybodys(job, error):
            job.attempts -= 1
            job.success_count = self._success_count
            self._wait_for_probe(job)
        else:
            job.is_dead = True  # whoever works on it goes on with that

    def _wait_for_probe(self, job: Job) -> None:
        """Let a record wait until one may be tried: meanwhile another may be, and succeed."""
        breaker = self._breaker
        probe_at = self._loop.time() if breaker is None else breaker.probe_at
        self._try_again_in(job, max(0.0, probe_at - self._loop.time()))
        self._offer()

    def _may_be_everybodys(self, job: Job, error: BaseException) -> bool:
        """Whether nothing proves that other records fare better; then handling pauses."""
        breaker = self._breaker
        if breaker is None or self._retry.is_bad_record(error):
            return False
        if self._success_count != job.success_count:
            return False
        if breaker.is_closed:
            breaker.open(
                self._loop.time(),
                f"{_name(job)} failed {job.attempts} times by {_text(error)}, and no other record "
                "has succeeded since",
                is_suspicion=True,
            )
            self._opened(breaker)
        return True

    def _try_again_in(self, job: Job, delay_s: float) -> None:
        self._waiting[job] = self._loop.call_later(delay_s, self._try_again, job)

    def _try_again(self, job: Job) -> None:
        del self._waiting[job]
        self._lanes.ready.append(job)
        self._offer()

    def _stop_at(self, job: Job, error: BaseException) -> None:
        """End everything: a record can neither be handled nor be passed over."""
        log.error("%s: the handler failed, and run() ends: %s", _name(job), _text(error))
        self._note_end(error)

    async def _bury(self, job: Job) -> None:
        """Write a record to the dead letters; only their acknowledgement finishes it."""
        dead_letter, error = self._handling.dead_letter, job.error
        if dead_letter is None or error is None:
            raise AssertionError("only what failed is written to dead letters, where there are any")
        try:
            await dead_letter(DeadRecord(job.record, error, job.attempts, job))
        except (Exception, asyncio.CancelledError) as failure:
            # Whatever it is, the record is not lost.
            if isinstance(failure, asyncio.CancelledError) and self._is_cancelled(_current_task()):
                raise
            self._dead_letter_error = failure
            self._dead_letter_failures += 1
            log.warning("%s: no dead letter could be written: %s", _name(job), _text(failure))
            delay_s = delay_after(
                min(self._dead_letter_failures, 30) - 1,
                FIRST_DEAD_DELAY_S,
                LAST_DEAD_DELAY_S,
                self._rng,
            )
            self._try_again_in(job, delay_s)
            return
        self._dead_letter_error, self._dead_letter_failures = None, 0
        log.warning(
            "%s is a dead letter after %d attempts: %s", _name(job), job.attempts, _text(error)
        )
        self._state.events.publish(
            RecordDead(job.cursor.tp, job.record.offset, job.attempts, error)
        )
        self._totals["dead_total"] += 1
        self._finish(job)
        self._lanes.leave(job)

    # --- As a work (assignment/work.py) -----------------------------------------------------
    def takes(self, sink: object) -> bool:
        """Whether a get is its own."""
        return sink is self._sink

    @property
    def is_open(self) -> bool:
        """Whether anything may be left to do."""
        return bool(self._flights)

    def partitions(self) -> Set[TopicPartition]:
        """Return the partitions of which it has records."""
        return {cursor.tp for cursor in self._allowance if cursor.worked_by is self}

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return what handlers are at work on: what waits for its turn goes as it is."""
        found: dict[TopicPartition, Range] = {}
        for job in self._flights:
            tp, offset = job.cursor.tp, job.record.offset
            if tp in partitions and job.is_current:
                found[tp] = joined(found.get(tp), Range(offset, offset + 1))
        return found

    def is_wanted_by(self, until: float) -> None:
        """Do nothing: nothing more begins of partitions that are to be given back."""

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Cancel handlers of partitions that go."""
        self._cut_off(job for job in self._flights if job.cursor.tp in partitions)

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether a handler that was cancelled has not ended yet."""
        return any(
            task in self._cut and job.cursor.tp in partitions for job, task in self._flights.items()
        )

    def _cut_off(self, jobs: Iterator[Job]) -> None:
        for task in {self._flights[job] for job in jobs}:
            if task not in self._cut and task is not asyncio.current_task():
                self._cut.add(task)
                task.add_done_callback(self._worker_ended)
                self._scope.cancel(task)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        """Let another worker take the place of one that was cancelled."""
        self._cut.discard(task)
        self._worker_count -= 1
        self._offer()

    # --- For operators --------------------------------------------------------------------
    def troubles(self, now: float) -> Iterator[str]:
        """Say what is wrong, at loop time `now`."""
        breaker = self._breaker
        if breaker is not None and not breaker.is_closed:
            trying = max(0.0, breaker.probe_at - now)
            yield (
                f"handling has paused for {now - breaker.since:.1f} s, as handlers fail: "
                f"{breaker.reason}. One record is tried in {trying:.1f} s; all go on when that "
                "succeeds"
            )
        if self._dead_letter_error is not None:
            yield (
                "dead letters cannot be written, and their records are kept: "
                f"{_text(self._dead_letter_error)}"
            )
        for cursor in self._allowance:
            progress = cursor.progress
            job = None if progress is None else progress.holder_of_first()
            if not isinstance(job, Job) or job.began_at is None:
                continue
            if now - job.began_at > LONG_WORK_S and job in self._flights:
                yield self.explain(cursor, now)

    def explain(self, cursor: Cursor, now: float) -> str:
        """Say what of a partition is being worked on, and what holds its commit back."""
        progress = cursor.progress
        job = None if progress is None else progress.holder_of_first()
        if progress is None or not isinstance(job, Job):
            return ""
        if job.is_dead:
            doing = "waits for a dead letter to be written"
        elif job in self._flights and job.began_at is not None:
            doing = f"has been with its handler for {now - job.began_at:.1f} s"
        elif (timer := self._waiting.get(job)) is not None:
            doing = f"is tried again in {max(0.0, timer.when() - now):.1f} s"
        else:
            doing = "waits for its turn"
        tried = "" if job.error is None else f" (attempt {job.attempts}, {_text(job.error)})"
        return (
            f"{_name(job)}, key {job.record.key!r}, {doing}{tried}: it holds the commit back; "
            f"{progress.finished_count} records behind it are finished, "
            f"{progress.uncommitted_count - progress.finished_count} are not"
        )

    def counts(self) -> dict[str, int]:
        """Return how many records are where, by name."""
        return {
            "at_work": len(self._flights),
            "ready": len(self._lanes.ready),
            "waiting_for_retry": len(self._waiting),
            "uncommitted": self._allowance.uncommitted_count,
        }


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise AssertionError("a worker is a task")
    return task


def _name(job: Job) -> str:
    tp = job.cursor.tp
    return f"{tp.topic}/{tp.partition} offset {job.record.offset}"


def _text(error: BaseException) -> str:
    return " ".join(repr(error).split())[:200]
