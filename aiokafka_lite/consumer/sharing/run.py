"""`AIOKafkaShareConsumer.run`: handlers of leased records, as many at a time as are free.

- One task feeds: it takes records when handlers are free.
- A worker is a task that handles one record after another, as long as handlers return and records
  wait. Each dead letter is written by a task.
- A timer makes a record ready again that waits for another attempt (processing/attempts.py). Its
  lease is renewed meanwhile, so that the broker counts deliveries, not attempts.

A record ends in one of these ways:

    handler returns, or its dead letter is written      ACCEPT
    no attempts are left, and dead_letter is "reject"   REJECT
    run ends, or max_lease_ms is over                   RELEASE
    the lease is lost                                   its result has no effect
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from aiokafka_lite._record_py import DELIVERY_COUNT
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.consumer.assignment.work import LONGEST_END_S
from aiokafka_lite.consumer.processing.attempts import (
    Attempts,
    BreakerState,
    end_of_run,
    one_line,
)
from aiokafka_lite.consumer.processing.calls import (
    in_copy_of,
    is_asked_to_end,
    is_failure,
    raise_cancellation,
)
from aiokafka_lite.consumer.processing.handling import REJECT, DeadRecord, Handling
from aiokafka_lite.consumer.processing.job import DEAD, JobState
from aiokafka_lite.consumer.processing.limits import Concurrency, LetterSlots
from aiokafka_lite.consumer.processing.time_limit import TimeLimit
from aiokafka_lite.consumer.sharing.leases import AckType, LeaseState, LostLeases, RecordLease
from aiokafka_lite.consumer.sharing.reads import deserialise
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    DeserializerUnavailableError,
    LeaseLostError,
)

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.decode import Delivery
    from aiokafka_lite.consumer.processing.handlers import Call
    from aiokafka_lite.consumer.processing.handling import DeadLetter
    from aiokafka_lite.consumer.processing.headers import Origin
    from aiokafka_lite.consumer.sharing.life import ShareEngine
    from aiokafka_lite.structs import ConsumerRecord, TopicPartition

log = logging.getLogger(__name__)

OnLeaseLost = Literal["cancel", "finish"]
# Records that wait for another attempt, or for their dead letters. They take no handler.
MOST_WAITING: Final = 1_000
# How long `run` waits for running handlers after an error, before it cancels them.
END_S: Final = 10.0
# In one turn of the event loop, workers begin no other record after this time.
SLICE_S: Final = 0.002


class LeasedJob:
    """One leased record on its way through a handler. See `Handled` in processing/attempts.py."""

    __slots__ = (
        "attempts",
        "began_at",
        "error",
        "is_deserialised",
        "lease",
        "letter",
        "lost",
        "origin",
        "record",
        "state",
        "success_count",
    )

    def __init__(self, lease: RecordLease) -> None:
        self.lease = lease
        self.record: ConsumerRecord = lease.record
        self.origin: Origin | None = None  # a share group has no delay topics
        self.letter: DeadLetter | None = None
        self.attempts = self.success_count = 0
        self.began_at: float | None = None
        self.error: BaseException | None = None
        self.state = JobState.ALONE
        self.is_deserialised = False
        # Why its lease was lost.
        self.lost: LeaseLostError | None = None

    @property
    def place(self) -> str:
        record = self.record
        return f"{record.topic}/{record.partition} offset {record.offset}"

    @property
    def is_current(self) -> bool:
        return self.lease.state is LeaseState.HELD

    @property
    def is_finished(self) -> bool:
        return False

    def begin(self, now: float, success_count: int) -> None:
        self.began_at = now
        if self.error is None:
            self.success_count = success_count

    def die(self, error: BaseException, letter: DeadLetter) -> None:
        self.error, self.letter, self.state = error, letter, DEAD

    def explain(self, error: BaseException) -> None:
        """Name the lost lease as the cause of the handler's cancellation."""
        if self.lost is not None and isinstance(error, asyncio.CancelledError):
            error.__cause__ = self.lost


class ShareWorker:
    """A task's current record."""

    __slots__ = ("job",)

    def __init__(self, job: LeasedJob) -> None:
        self.job = job


# Whose call this is. Tasks that the call starts inherit it, and may outlive the record.
HANDLED: Final[ContextVar[LeasedJob]] = ContextVar("HANDLED")


class ShareRun:
    """One call of `AIOKafkaShareConsumer.run`, as a use of the consumer's records."""

    def __init__(
        self,
        engine: ShareEngine,
        delivery: Delivery,
        handler: Call,
        handling: Handling,
        max_lease_s: float,
        on_lease_lost: OnLeaseLost,
    ) -> None:
        self._engine, self._delivery = engine, delivery
        self._handler, self._handling = handler, handling
        self.max_lease_s = max_lease_s
        self._cancels_lost = on_lease_lost == "cancel"
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope("processing", on_failure=self._note_end)
        self._context = copy_context()
        given = handling.concurrency
        self._concurrency = given if isinstance(given, Concurrency) else Concurrency(given)
        self._letter_slots = LetterSlots(self._concurrency)
        self._attempts: Attempts[LeasedJob] = Attempts(
            handling,
            self._begin_again,
            self.offer,
            rng=engine.rng,
            events=engine.events,
            totals=engine.totals,
        )
        # Every record that is not settled, by lease.
        self._jobs: dict[RecordLease, LeasedJob] = {}
        # Those that may begin.
        self._ready: deque[LeasedJob] = deque()
        # The tasks of handlers and of letters, in the order in which they began.
        self._running: dict[LeasedJob, asyncio.Task[None]] = {}
        self._handler_count = 0
        # None: no worker has begun a record in this turn of the loop.
        self._slice_ends_at: float | None = None
        self._cancelled: set[asyncio.Task[None]] = set()
        # Handlers that stop the consumer: the stop does not wait for them.
        self._stoppers: set[asyncio.Task[None]] = set()
        self._limit: TimeLimit[LeasedJob] | None = None
        if handling.timeout_s is not None:
            self._limit = TimeLimit(handling.timeout_s, self._running, self._stoppers)
        self._runner: asyncio.Task[object] | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._is_finishing = False
        self._returned = Event()
        self._ended = Event()
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<ShareRun of {self._concurrency.value} handlers, {len(self._running)} running>"

    # --- The whole ------------------------------------------------------------------------
    @contextmanager
    def opened(self) -> Iterator[None]:
        """Use the consumer's records in a block around `run`."""
        engine, before = self._engine, self._engine.use
        engine.use_for(self)
        try:
            with self._concurrency._watched_by(self._concurrency_changed):
                yield
        finally:
            self._release(self._jobs.values())
            engine.use_for(before)
            engine.release_waiting()

    async def run(self) -> None:
        self._runner = asyncio.current_task()
        try:
            if self._limit is not None:
                self._limit.open()
            self._feeder = self._scope.spawn(self._feed(), name="feeder")
            await self._ended.wait()
            until = self._loop.time() + END_S
            await self.end(until)
            await self._wait_while(lambda: bool(self._running), until)
        finally:
            self._is_finishing = True
            try:
                await self._scope.close()
            finally:
                self._attempts.close()
                if self._limit is not None:
                    self._limit.close()
        if self._error is not None:
            raise self._error

    def _note_end(self, error: BaseException | None) -> None:
        if not self._ended.is_set():
            self._error = error
            self._ended.set()

    @property
    def is_closing(self) -> bool:
        """Whether no handler is waited for any longer."""
        return self._scope.is_ending

    def reads(self, topic: str) -> bool:
        return topic in self._engine.topics

    async def end(self, until: float, deadline: float = math.inf, *, is_clean: bool = True) -> None:
        """Begin no record, wait for handlers until a loop time, and cancel the others."""
        self._is_finishing = True
        if self._feeder is not None:
            self._scope.cancel(self._feeder)
        self._release([job for job in self._jobs.values() if job not in self._running])
        self._ready.clear()
        self._engine.release_waiting()
        self._returned.set()
        try:
            await self._wait_while(self._is_at_work, until)
            if self._is_at_work():
                log.warning(
                    "run() is ending, and handlers that did not finish in time are cancelled: %s",
                    ", ".join(sorted(job.place for job in self._running)),
                )
                for each in self._running.values():
                    self._cancel(each)
                ends_at = min(deadline, self._loop.time() + LONGEST_END_S)
                await self._wait_while(self._is_at_work, ends_at)
        finally:
            self._note_end(None)

    def note_stopper(self) -> None:
        """Note that a handler, or a task of its own, stops the consumer."""
        job = HANDLED.get(None)
        if job is not None and (task := self._running.get(job)) is not None:
            self._stoppers.add(task)
            self._returned.set()  # a stop that waits for this handler

    def _is_at_work(self) -> bool:
        return not self._stoppers.issuperset(self._running.values())

    async def _wait_while(self, is_so: Callable[[], bool], until: float) -> None:
        while is_so():
            self._returned.clear()
            if not await self._returned.wait(until):
                return

    # --- As a use -------------------------------------------------------------------------
    def want(self) -> int:
        if self._is_finishing:
            return 0
        breaker = self._attempts.breaker
        if breaker is not None and not breaker.is_closed:
            # A new record shows whether all records fail. Otherwise a failed one is tried.
            is_wanted = breaker.is_suspicion or not self._jobs
            is_new_there = any(job.error is None for job in self._ready)
            return int(is_wanted and breaker.may_probe(self._loop.time()) and not is_new_there)
        free = self._concurrency.value - self._handler_count - len(self._ready)
        left = self._concurrency.value + MOST_WAITING - len(self._jobs)
        return max(0, min(free, left))

    def lost(self, lost: LostLeases) -> None:
        for lease in lost.leases:
            if (job := self._jobs.pop(lease, None)) is None:
                continue
            tp = lease.partition.tp
            job.lost = LeaseLostError(
                f"{job.place}: the lease was lost, so another member may process the record: "
                f"{lost.reason}"
            ).at(tp, lease.offset)
            if self._cancels_lost and (task := self._running.get(job)) is not None:
                self._cancel(task)
        self._attempts.take_revoked()
        self._engine.changed.set()

    # --- Records that begin ---------------------------------------------------------------
    async def _feed(self) -> None:
        engine, attempts = self._engine, self._attempts
        try:
            while True:
                engine.check()
                leasing = engine.leasing
                self.offer()
                engine.changed.clear()
                if self.want():
                    leasing.wanted()
                breaker = attempts.breaker
                is_open = breaker is not None and not breaker.is_closed
                await engine.changed.wait(
                    max(breaker.probe_at, self._loop.time() + 0.01)
                    if breaker is not None and is_open and not self._jobs
                    else None
                )
        except ConsumerStoppedError:
            self._note_end(None)
        except Exception as error:  # noqa: BLE001 -- `run` raises it
            self._note_end(error)

    def _take(self) -> None:
        """Take records that wait, as many as handlers are free."""
        parts = self._engine.current
        leasing = None if parts is None else parts.leasing
        if leasing is None or not leasing.leases.waiting_count or not (wanted := self.want()):
            return
        for each in leasing.take_nowait(wanted):
            count = each.range.delivery_count
            for record in each.records:
                if count > 1:
                    setattr(record, DELIVERY_COUNT, count)
                lease = leasing.lease(each.range, record)
                job = self._jobs[lease] = LeasedJob(lease)
                self._ready.append(job)
            self._engine.record_count += len(each.records)

    def offer(self) -> None:
        """Begin records that may begin, and let the feeder ask for more if handlers are free."""
        self._take()
        while self._handler_count < self._concurrency.value and not self._is_finishing:
            if (job := self._next()) is None:
                break
            self._handler_count += 1
            job.begin(self._loop.time(), self._attempts.success_count)
            worker = ShareWorker(job)
            self._spawn(worker, self._work(worker), name="handler")
        if self.want():
            self._engine.changed.set()

    def _next(self) -> LeasedJob | None:
        ready, breaker = self._ready, self._attempts.breaker
        if breaker is not None and not breaker.is_closed and breaker.may_probe(self._loop.time()):
            new = next((job for job in ready if job.error is None), None)
            if new is not None:
                ready.remove(new)
                ready.appendleft(new)
        while ready:
            job = ready[0]
            if not job.is_current:
                ready.popleft()
            elif breaker is None or breaker.is_closed or self._attempts.admits(job, breaker):
                return ready.popleft()
            else:
                break
        return None

    def _begin_again(self, job: LeasedJob) -> None:
        if self._is_finishing or not job.is_current:
            return
        if job.state is DEAD:
            self._begin_letter(job)
        elif self._attempts.is_free(job):
            self._ready.appendleft(job)  # not behind those that wait for a probe
        else:
            self._ready.append(job)
        self.offer()

    def _concurrency_changed(self) -> None:
        self._letter_slots.fill()
        self._engine.changed.set()

    # --- Calls ----------------------------------------------------------------------------
    def _spawn(
        self, worker: ShareWorker, call: Coroutine[object, None, None], *, name: str
    ) -> None:
        job = worker.job
        task = self._running[job] = self._context.run(self._scope.spawn, call, name=name)
        task.add_done_callback(partial(self._task_ended, worker, is_letter=job.state is DEAD))

    def _task_ended(
        self, worker: ShareWorker, task: asyncio.Task[None], *, is_letter: bool
    ) -> None:
        """Note the end of a task, which may have been cancelled before its first step."""
        job = worker.job
        self._cancelled.discard(task)
        if not is_letter:
            self._handler_count -= 1
            if task.cancelled():
                self._attempts.cancelled(job)
        if self._running.get(job) is task:  # otherwise its letter is being written
            del self._running[job]
        self._returned.set()
        self.offer()

    async def _own_task(self, job: LeasedJob) -> asyncio.Task[None]:
        """Return the current task, which an eager task factory runs before it is noted."""
        if self._running.get(job) is not asyncio.current_task():
            await asyncio.sleep(0)
        return self._running[job]

    def _cancel(self, task: asyncio.Task[None]) -> None:
        if task not in self._cancelled and task not in self._stoppers:
            self._cancelled.add(task)
            self._scope.cancel(task)

    async def _work(self, worker: ShareWorker) -> None:
        task = await self._own_task(worker.job)
        while await self._handle(worker.job, task) and self._goes_on(worker, task):
            pass

    def _goes_on(self, worker: ShareWorker, task: asyncio.Task[None]) -> bool:
        """Give a worker another record. False: there is none, or the worker has to end."""
        if self._is_finishing or task in self._cancelled:
            return False
        self._handler_count -= 1
        is_free = self._handler_count < self._concurrency.value
        if is_free and not self._ready:
            self._take()
        job = self._next() if is_free else None
        self._handler_count += 1
        if job is None:
            return False
        del self._running[worker.job]
        worker.job, self._running[job] = job, task
        job.begin(self._loop.time(), self._attempts.success_count)
        return True

    def _is_slice_over(self) -> bool:
        now = self._loop.time()
        if self._slice_ends_at is None:
            self._slice_ends_at = now + SLICE_S
            self._loop.call_soon(self._end_slice)
        return now >= self._slice_ends_at

    def _end_slice(self) -> None:
        self._slice_ends_at = None

    async def _handle(self, job: LeasedJob, task: asyncio.Task[None]) -> bool:
        """Return whether its worker may go on."""
        breaker = self._attempts.breaker
        try:
            while self._is_slice_over():  # noqa: ASYNC110 -- in a later turn there is time
                await asyncio.sleep(0)
            await self._call(job)
            if is_asked_to_end(task):
                await raise_cancellation(task)  # it was ignored
            if self._limit is not None and self._limit.is_late(task):
                raise asyncio.CancelledError
        except BaseException as error:  # noqa: BLE001 -- the handler's, or it is raised
            self._raise_unless_failed(error, task)
            self._failed(job, error, task)
            if job.state is DEAD:
                self._begin_letter(job)
            return False
        else:
            was_closed = breaker is None or breaker.is_closed  # otherwise others may begin now
            self._attempts.succeeded(job)
            self._engine.totals["finished_total"] += self._settle(job, AckType.ACCEPT)
            return was_closed
        finally:
            if self._limit is not None:
                self._limit.ended(task)

    async def _call(self, job: LeasedJob) -> None:
        if self._delivery.has_deserializers and not job.is_deserialised:
            try:
                await deserialise(self._delivery, job.record)
            except DeserializerUnavailableError as error:
                raise error.__cause__ or error from None
            job.is_deserialised = True
        await self._in_context(job, self._handler(job.record))

    def _in_context(self, job: LeasedJob, call: Awaitable[object]) -> Awaitable[object]:
        self._context.run(HANDLED.set, job)  # for the copy
        return in_copy_of(self._context, call, job.explain)

    def _failed(self, job: LeasedJob, error: BaseException, task: asyncio.Task[None]) -> None:
        if self._limit is not None:
            error = self._limit.error_of(task, error)
        if self._attempts.failed(job, error) == "stop":
            self._note_end(end_of_run(job, error))
        breaker = self._attempts.breaker
        if breaker is not None and breaker.state is BreakerState.OPEN and not self._is_finishing:
            self._release([each for each in self._ready if each.error is None])
            self._ready = deque(each for each in self._ready if each.error is not None)
            self._engine.release_waiting()

    def _raise_unless_failed(self, error: BaseException, task: asyncio.Task[None]) -> None:
        if isinstance(error, Exception):
            return
        if not is_failure(error, task):
            raise error
        runner = self._runner
        if (
            task in self._cancelled
            or self._scope.is_ending
            or (runner is not None and is_asked_to_end(runner))
        ):
            raise asyncio.CancelledError from error

    # --- Ends of records ------------------------------------------------------------------
    def _settle(self, job: LeasedJob, ack_type: AckType) -> bool:
        """Settle a record. Return False if its lease was lost before."""
        self._jobs.pop(job.lease, None)
        parts = self._engine.parts
        assert parts is not None  # noqa: S101 -- it was leased
        assert parts.leasing is not None  # noqa: S101 -- likewise
        return parts.leasing.settle(job.lease, ack_type)

    def _release(self, jobs: Iterable[LeasedJob]) -> None:
        for job in tuple(jobs):
            self._settle(job, AckType.RELEASE)

    def _begin_letter(self, job: LeasedJob) -> None:
        if not self._scope.is_ending:
            self._spawn(ShareWorker(job), self._write_letter(job), name="dead letter")

    async def _write_letter(self, job: LeasedJob) -> None:
        task, error, letter = await self._own_task(job), job.error, job.letter
        assert error is not None  # noqa: S101 -- it is dead
        assert letter is not None  # noqa: S101 -- likewise
        async with self._letter_slots:
            try:
                call = letter(DeadRecord(job.record, error, job.attempts))
                await self._in_context(job, call)
            except BaseException as failure:  # noqa: BLE001 -- kept, or raised
                self._raise_unless_failed(failure, task)
                self._attempts.letter_failed(job, failure)
                return
        self._attempts.letter_written(job, error)
        self._settle(job, AckType.REJECT if letter is REJECT else AckType.ACCEPT)

    # --- For operators --------------------------------------------------------------------
    @property
    def is_paused(self) -> bool:
        return self._attempts.is_paused

    def troubles(self, now: float) -> Iterator[str]:
        yield from self._attempts.troubles(now)
        if self._limit is not None:
            yield from self._limit.troubles(now)
        if len(self._jobs) >= self._concurrency.value + MOST_WAITING:
            yield (
                f"{len(self._jobs)} records wait for another attempt or for their dead letters, so "
                "no more are fetched"
            )

    def explain(self, tp: TopicPartition, now: float) -> str:
        """Describe the record of a partition that is held longest."""
        job = next((job for job in self._jobs.values() if job.lease.partition.tp == tp), None)
        if job is None:
            return ""
        if job.state is DEAD:
            doing = "waits for its dead letter to be written"
        elif job in self._running and job.began_at is not None:
            doing = f"was passed to its handler {now - job.began_at:.1f} s ago"
        elif (pause_s := self._attempts.pause_of(job, now)) is not None:
            doing = f"failed, and is tried again in {pause_s:.1f} s"
        else:
            doing = "has not been passed to a handler yet"
        tried = "" if job.error is None else f" (attempt {job.attempts}, {one_line(job.error)})"
        return f"{job.place} {doing}{tried}"

    def counts(self) -> dict[str, int]:
        return {
            "concurrency": self._concurrency.value,
            "calls": self._handler_count,
            "at_work": len(self._running),
            "ready": len(self._ready),
            "waiting_for_retry": self._attempts.waiting_count,
            "uncommitted": len(self._jobs),
        }
