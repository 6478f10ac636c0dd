"""Writes the outputs of handlers and dead letters in transactions, with their records' offsets.

A task writes the entries that have arrived, in order, in one transaction after the other, again
after an abort. The commit finishes their records. Handlers do not wait for it.

An entry is dropped if its records are not to be finished here any more. If a list of records was
refused, or has lost some, the others are handled again, and entries of later records of their lanes
wait until then. An entry of an unknown topic waits until metadata has the topic.

A commit lists finished records in metadata of bounded size. Records that it has no room for wait
until those before them are finished.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import (
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite._tasks import Event, TaskScope, own_copy
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.commits.transactional import (
    NamedOffsets,
    OffsetsByCursor,
    OffsetsInTransaction,
    Seeks,
    seeks_of,
)
from aiokafka_lite.consumer.processing.job import Job
from aiokafka_lite.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    OffsetMetadataTooLargeError,
    TransactionAbortableError,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.run import Run
    from aiokafka_lite.producing.batch import Output
    from aiokafka_lite.producing.lease import ProducerLease
    from aiokafka_lite.producing.producer import AIOKafkaProducer

log = logging.getLogger(__name__)

# In one transaction.
MOST_ENTRIES: Final = 5_000
MOST_BYTES: Final = 8 * 1024 * 1024
# Between two attempts to write, or to find out the outcome of a transaction.
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 5.0
# How long a run that is cancelled again waits for the end of a transaction.
LONGEST_TRANSACTION_END_S: Final = 10.0


class Outputs:
    """The records that one call of a handler sends, of `AIOKafkaConsumer.run` with `transactions`.

    If the handler returns, its outputs are written in one transaction with the offsets of the
    call's records. If it raises or is cancelled, they are dropped. In a handler that is a plain
    function, the producer's serializers are called in its thread.
    """

    __slots__ = ("_is_closed", "_lease", "_taken")

    def __init__(self, lease: ProducerLease) -> None:
        self._lease = lease
        self._taken: list[Output] = []
        self._is_closed = False

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Add a record, to be written after the handler has returned. Does not wait.

        Args:
            topic: The record's topic.
            value: Bytes, or an argument of the producer's `value_serializer`. None is a tombstone.
            key: Bytes, or an argument of the producer's `key_serializer`.
            partition: The partition's number. None: the partitioner decides.
            timestamp_ms: Milliseconds since the epoch. None: now.
            headers: Pairs of name and value (bytes).

        Raises:
            TypeError, ValueError: An argument is invalid.
            MessageSizeTooLargeError: The record is larger than `max_request_size`.
            IllegalStateError: The handler has already returned.
        """
        if self._is_closed:
            raise IllegalStateError(
                "the handler has returned: outputs can be sent only while the handler runs"
            )
        output = self._lease.encoded(topic, value, key, partition, timestamp_ms, headers)
        self._taken.append(output)

    def of_a_thread(self) -> Outputs:
        """Return outputs that a thread may send, which are none of these before `take`."""
        return Outputs(self._lease)

    def take(self, outputs: Outputs) -> None:
        """Add the outputs of a thread, and refuse further ones."""
        self._taken += outputs.close()

    def close(self) -> list[Output]:
        """Refuse further outputs, and return those so far."""
        self._is_closed = True
        return self._taken


class Entry:
    """The outputs of some records, written as a whole or not at all."""

    __slots__ = ("is_alone", "jobs", "outcome", "outputs", "size")

    def __init__(
        self,
        jobs: Sequence[Job],
        outputs: Sequence[Output],
        outcome: asyncio.Future[None] | None = None,
    ) -> None:
        self.jobs = jobs
        self.outputs = outputs
        self.size = sum(output.size for output in outputs)
        self.outcome = outcome  # of a caller that waits
        # It needs a transaction of its own, because it may be the one that was refused.
        self.is_alone = False

    @property
    def is_current(self) -> bool:
        """Whether its records are to be finished here, and no caller that waits was cancelled."""
        is_cancelled = self.outcome is not None and self.outcome.done()
        return not is_cancelled and all(job.is_current for job in self.jobs)

    def fail(self, error: BaseException) -> None:
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_exception(own_copy(error))


class GivenProducer:
    """The application's producer, lent to one outbox."""

    can_replace = False

    def __init__(self, producer: AIOKafkaProducer[Any, Any]) -> None:
        self._producer = producer
        self._lease: ProducerLease | None = None

    async def lend(self) -> ProducerLease:
        if self._lease is None:
            self._lease = self._producer.lend(
                "consumer.run(transactions=…) writes the outputs of handlers with this "
                "producer. In a handler, call outputs.send(). Elsewhere, use another producer"
            )
        return self._lease

    async def dismiss(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None


class Outbox:
    """Writes entries in transactions, one after the other.

    A producer that failed is replaced, if possible. The replacement ends its transaction, and the
    group's offsets show whether that was committed. If the application's producer fails, its
    partitions restart at the committed offsets, and the run receives the error.

    Args:
        source: If it can replace its producer, this is the outbox of dead letters: every entry has
            a caller that waits, and raises the error of a failed transaction, unless a rebalance
            was the reason. Otherwise the run is notified.
    """

    def __init__(
        self,
        source: GivenProducer,
        offsets: OffsetsInTransaction,
        run: Run,
        rng: random.Random,
    ) -> None:
        self._source = source
        self._is_of_letters: Final = source.can_replace
        self._offsets = offsets
        self._run = run
        self._rng = rng
        self._entries: deque[Entry] = deque()
        self._writing: Sequence[Entry] = ()
        # Records of lists that are handled again, the entries that wait for these, and by lane the
        # offset from which on entries wait.
        self._awaited: set[Job] = set()
        self._waiting: list[Entry] = []
        self._waits_from: dict[Hashable, int] = {}
        # Requested topics, for which entries wait, too, and those that brokers did not return yet.
        self._asked_for: dict[str, asyncio.Task[None]] = {}
        self._unanswered: dict[str, KafkaTimeoutError] = {}
        self._size = 0
        self._most_bytes = math.inf
        self._came = Event()
        # Blocked: no entry can be written until another one arrives.
        self._is_blocked = self._is_holding = self._is_closing = False
        self._error: BaseException | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S, rng)
        # The first producer, once it is open.
        self._lease: ProducerLease
        self._scope = TaskScope("transactions", on_failure=self._task_failed)
        self._task: asyncio.Task[None] | None = None

    # --- New entries ----------------------------------------------------------------------
    async def open(self) -> None:
        self._lease = await self._source.lend()
        self._most_bytes = self._lease.most_bytes
        if not self._is_of_letters:
            self._lease.on_end(self._came.set)
        self._task = self._scope.spawn(self._write_all(), name="writer")

    async def lease(self) -> ProducerLease:
        return await self._source.lend()

    def new_outputs(self) -> Outputs:
        return Outputs(self._lease)

    def put(self, entry: Entry) -> None:
        if self._is_closing:
            entry.fail(IllegalStateError("run() is ending, so outputs are no longer written"))
            return
        self._size += entry.size
        if not self._awaited or self._awaited.isdisjoint(entry.jobs):
            self._place(entry)
        else:
            self._awaited.difference_update(entry.jobs)
            self._place_anew(entry)
        self._is_blocked = False
        self._came.set()

    async def deliver(self, job: Job, output: Output) -> None:
        """Write a record in transactions, until one finishes `job`: a rebalance waits for this."""
        self._scope.raise_if_failed()
        entry = Entry([job], [output], asyncio.get_running_loop().create_future())
        self.put(entry)
        if entry.outcome is not None:
            await entry.outcome

    # --- Entries that wait for earlier records of their lanes -----------------------------
    def awaits(self, job: Job) -> bool:
        return job in self._awaited

    def look_again(self) -> None:
        if self._waits_from or self._waiting:
            self._place_anew()

    def _await(self, jobs: Iterable[Job]) -> None:
        """Let entries of later records of their lanes wait for these, which are handled again."""
        self._awaited.update(job for job in jobs if job.order_key is not None)
        self._place_anew()

    def _place_anew(self, *added: Entry) -> None:
        entries = (*self._entries, *added, *self._waiting)
        self._awaited = {job for job in self._awaited if job.is_current}
        self._entries, self._waiting, self._waits_from = deque(), [], {}
        self._wait_behind(self._awaited)
        for entry in entries:
            self._place(entry)
        self._end_requests()
        self._is_blocked = False
        self._came.set()

    def _place(self, entry: Entry) -> None:
        """Add an entry, or let it wait for a topic or for earlier records of its lanes."""
        knows = self._lease.knows
        is_free = not self._waits_from and all(knows(each.topic) for each in entry.outputs)
        # A worker that waits for a dead letter may have to handle the earlier record itself.
        waits = not is_free and entry.outcome is None and entry.is_current
        if waits and (self._asks_for_topics(entry) or self._is_behind(entry)):
            self._waiting.append(entry)
            self._wait_behind(entry.jobs)
        else:
            self._entries.append(entry)

    def _is_behind(self, entry: Entry) -> bool:
        waits_from = self._waits_from
        return any(job.offset > waits_from.get(job.order_key, math.inf) for job in entry.jobs)

    def _wait_behind(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if (lane := job.order_key) is not None:
                offset = job.offset
                self._waits_from[lane] = min(offset, self._waits_from.get(lane, offset))

    async def close(self) -> None:
        """Finish the transaction in progress, within a limit, and give the producer back."""
        self._is_closing = True
        try:
            if self._task is not None and self._is_holding:
                await _until_done(self._task, self._run.longest_end_s)
        finally:
            self._drop_all(IllegalStateError("run() has ended, so outputs are no longer written"))
            try:
                self._scope.cancel_all()
                if self._task is not None:
                    await _until_done(self._task, LONGEST_TRANSACTION_END_S)
                await self._scope.close()
            finally:
                await self._source.dismiss()

    # --- Contents -------------------------------------------------------------------------
    @property
    def is_full(self) -> bool:
        return self._size >= self._most_bytes

    @property
    def is_busy(self) -> bool:
        is_next = bool(self._entries) and not self._is_blocked
        return bool(self._writing) or is_next or bool(self._asked_for)

    # --- Entries that wait for topics -----------------------------------------------------
    def _asks_for_topics(self, entry: Entry) -> bool:
        """Whether topics of an entry are unknown. They are requested, so no transaction waits."""
        topics = dict.fromkeys(each.topic for each in entry.outputs)
        unknown = [topic for topic in topics if not self._lease.knows(topic)]
        for topic in [each for each in unknown if each not in self._asked_for]:
            self._asked_for[topic] = self._scope.spawn(self._ask_for(topic), name=f"find {topic}")
        return bool(unknown)

    async def _ask_for(self, topic: str) -> None:
        await asyncio.sleep(0)  # an eager task factory runs this task before it is noted
        error: Exception | None = None
        lease = await self._source.lend()
        try:
            await self._find(lease, topic)
        except Exception as refusal:  # noqa: BLE001 -- the record's, unless the producer failed
            error = refusal
        if self._asked_for.get(topic) is not asyncio.current_task():
            return  # its cancellation came at the same time
        self._forget_request(topic)
        if lease.fatal_error is not None:
            return  # everything ends
        if error is not None:
            self._refuse(
                {
                    entry: error
                    for entry in self._waiting
                    if any(output.topic == topic for output in entry.outputs)
                }
            )
        self._place_anew()

    async def _find(self, lease: ProducerLease, topic: str) -> None:
        """Wait while brokers do not respond: that is no error of the records."""
        while True:
            try:
                await lease.count_partitions(topic)
                return
            except KafkaTimeoutError as error:
                if self._asked_for.get(topic) is not asyncio.current_task():
                    return
                log.warning("the outputs for topic %s wait: %s", topic, error)
                self._unanswered[topic] = error
            await asyncio.sleep(FIRST_PAUSE_S)

    def _end_requests(self) -> None:
        """End the requests of topics for which no entry waits any more."""
        if self._asked_for:
            topics = {output.topic for entry in self._waiting for output in entry.outputs}
            for topic in [each for each in self._asked_for if each not in topics]:
                self._scope.cancel(self._forget_request(topic))

    def _forget_request(self, topic: str) -> asyncio.Task[None]:
        self._unanswered.pop(topic, None)
        return self._asked_for.pop(topic)

    def _all(self) -> Iterator[Entry]:
        yield from self._writing
        yield from self._entries
        yield from self._waiting

    def __contains__(self, job: Job) -> bool:
        return any(job in entry.jobs for entry in self._all())

    @property
    def record_count(self) -> int:
        return sum(len(entry.jobs) for entry in self._all())

    def undone(self) -> Iterator[Job]:
        waiting = self._waiting if self._asked_for else ()
        for entry in (*self._writing, *self._entries, *waiting):
            yield from entry.jobs

    def is_writing(self, partitions: Collection[TopicPartition]) -> bool:
        return any(job.cursor.tp in partitions for entry in self._writing for job in entry.jobs)

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the entries of these partitions, except those of the transaction in progress."""
        given_up = [
            entry
            for entry in (*self._entries, *self._waiting)
            if any(job.cursor.tp in partitions for job in entry.jobs)
        ]
        self._take(given_up)
        for entry in given_up:
            self._drop(entry, partitions)

    def _drop(self, entry: Entry, partitions: Collection[TopicPartition] = ()) -> None:
        error = CommitFailedError(
            "the outputs of a record were not committed, because the record's partition is no "
            "longer assigned to this member"
        )
        self._fail([entry], error)
        if entry.outcome is None:
            left = [each for each in entry.jobs if each.cursor.tp not in partitions]
            if left := [each for each in left if each.is_current]:
                self._await(left)
                self._run.handle_again(left)

    def troubles(self) -> Iterator[str]:
        if error := self._error or next(iter(self._unanswered.values()), None):
            yield (
                f"transactions cannot be committed, and {self.record_count} records wait for a "
                f"commit: {error}"
            )
        elif self._is_blocked and self._entries:
            yield (
                f"{self.record_count} finished records cannot be committed before earlier records "
                "are finished. Either the topic was deleted, or the commit metadata is full: its "
                "list of finished records has reached the brokers' offset.metadata.max.bytes"
            )

    # --- The task -------------------------------------------------------------------------
    async def _write_all(self) -> None:
        while not self._is_closing:
            fatal = None if self._is_of_letters else self._lease.fatal_error
            if fatal is not None:
                self._task_failed(own_copy(fatal))
                return
            if self._is_blocked or not self._entries:
                self._came.clear()
                await self._came.wait()
                continue
            pause_s = 0.0
            try:
                async with self._offsets.held():
                    self._is_holding = True
                    pause_s = await self._write_next()
            except KafkaError as error:  # the consumer is being stopped
                self._drop_all(error)
            finally:
                self._is_holding = False
            if pause_s:
                await asyncio.sleep(pause_s)

    async def _write_next(self) -> float:
        offsets: OffsetsByCursor = {}
        seeks: Seeks = {}
        lease: ProducerLease | None = None
        try:
            lease = await self._source.lend()
            self._writing, offsets = self._choose()
            seeks = seeks_of(offsets)
            if not self._writing:
                self._is_blocked = bool(self._entries)
                self._moved(())
                return 0.0
            refused = await self._write(lease, offsets, seeks)
        except Exception as error:  # noqa: BLE001 -- callers that wait for an entry raise it
            if self._is_about_metadata(error, offsets):
                self._offsets.note_refused_metadata(offsets)
                entries, self._writing = self._writing, ()
                self._put_back(entries)
                return 0.0
            is_over = lease is not None and lease.fatal_error is not None
            return self._not_written(error, is_over=is_over and not self._is_of_letters)
        except BaseException:
            self._offsets.begin_anew(seeks)
            entries, self._writing = self._writing, ()
            unknown = "the transaction was cancelled, so it is unknown whether it is committed"
            self._fail(entries, CommitFailedError(unknown))
            self._moved(entries)
            raise
        written, self._writing = self._writing, ()
        if refused:
            self._refused(written, refused)
            return 0.0
        # Without an await since it was noted, the consumer's next commit includes it.
        self._error = None
        self._backoff.reset()
        for entry in written:
            self._size -= entry.size
            for job in entry.jobs:
                self._run.finish(job)
            if entry.outcome is not None and not entry.outcome.done():
                entry.outcome.set_result(None)
        self._moved(written)
        return 0.0

    @staticmethod
    def _is_about_metadata(error: Exception, offsets: OffsetsByCursor) -> bool:
        cause = error.__cause__ if isinstance(error, TransactionAbortableError) else error
        has_metadata = any(each.metadata for each in offsets.values())
        return has_metadata and isinstance(cause, OffsetMetadataTooLargeError)

    def _moved(self, entries: Iterable[Entry]) -> None:
        self._run.outbox_moved(job for entry in entries for job in entry.jobs)

    async def _write(
        self, lease: ProducerLease, offsets: OffsetsByCursor, seeks: Seeks
    ) -> dict[int, Exception]:
        """Return the refused outputs, with errors."""
        # The generation of the offsets: a later one may have reassigned the partitions.
        group = self._offsets.group()
        by_tp = {
            cursor.tp: (*offset, cursor.epoch_before(offset.offset))
            for cursor, offset in offsets.items()
        }
        outputs = [output for entry in self._writing for output in entry.outputs]
        if self._is_of_letters:
            await self._offsets.tell_apart(offsets)
        try:
            refused = await lease.write(outputs, NamedOffsets(group, by_tp, is_told=False))
            if refused:
                return refused
        except KafkaError as error:
            if lease.fatal_error is None:
                raise
            if not self._is_of_letters:
                self._offsets.begin_anew(seeks)
                raise
            log.warning(
                "the producer that writes dead letters failed, and another producer replaces it: "
                "%s",
                error,
            )
            await self._source.dismiss()
            if not await self._is_committed_after_all(offsets):
                raise
        self._offsets.note_committed(group, by_tp)
        return {}

    async def _is_committed_after_all(self, offsets: OffsetsByCursor) -> bool:
        """Wait until a fenced producer's transaction is known to be committed or not."""
        backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S, self._rng)
        while True:
            try:
                await self._source.lend()
                return await self._offsets.are_committed(offsets)
            except KafkaError as error:
                if self._is_closing or not error.retriable:
                    raise
                log.warning(
                    "checking whether dead letters were written failed and is retried: %s",
                    error,
                )
                await asyncio.sleep(backoff.next_delay_s())

    # --- The entries of a transaction -------------------------------------------------------
    def _choose(self) -> tuple[Sequence[Entry], OffsetsByCursor]:
        first = self._first_of(self._entries)
        while gone := [each for each in first if not each.is_current]:
            self._take(gone)
            for entry in gone:
                self._drop(entry)
            first = self._first_of(self._entries)
        chosen, offsets = self._fitting(first)
        if self._is_of_letters:
            self._fail_left_out(first, chosen)
        elif first and not chosen:
            # The first entries wait for earlier records, whose entries arrived later.
            current = [each for each in self._entries if each.is_current]
            in_order = sorted(current, key=lambda each: each.jobs[0].offset)
            chosen, offsets = self._fitting(self._first_of(in_order))
        self._take(chosen)
        return chosen, offsets

    def _take(self, entries: Collection[Entry]) -> None:
        taken = set(entries)
        while taken and self._entries and self._entries[0] in taken:
            taken.remove(self._entries.popleft())
        if taken:
            self._entries = deque(each for each in self._entries if each not in taken)
            self._waiting = [each for each in self._waiting if each not in taken]
            self._end_requests()

    def _fail_left_out(self, entries: Collection[Entry], chosen: Collection[Entry]) -> None:
        kept = set(chosen)
        left_out = [each for each in entries if each not in kept]
        self._take(left_out)
        error = OffsetMetadataTooLargeError(
            "this record cannot be committed before earlier records are finished, because the list "
            "of finished records in the commit metadata has reached the brokers' "
            "offset.metadata.max.bytes"
        )
        self._fail(left_out, error)

    @staticmethod
    def _first_of(entries: Iterable[Entry]) -> list[Entry]:
        chosen: list[Entry] = []
        size = 0
        for entry in entries:
            if chosen and entry.is_alone:
                break
            chosen.append(entry)
            size += entry.size
            if entry.is_alone or len(chosen) >= MOST_ENTRIES or size >= MOST_BYTES:
                break
        return chosen

    def _fitting(self, entries: list[Entry]) -> tuple[list[Entry], OffsetsByCursor]:
        """Return the entries for which the metadata have room, and the offsets to commit."""
        while True:
            finished: dict[Cursor, Set[int]] = {}
            for entry in entries:
                for job in entry.jobs:
                    finished.setdefault(job.cursor, set()).add(job.offset)  # type: ignore[attr-defined]
            offsets: OffsetsByCursor = {}
            for cursor, records in finished.items():
                found = self._offsets.if_finished(cursor, records)
                finished[cursor] = frozenset() if found is None else found[1]
                if found is not None:
                    offsets[cursor] = found[0]
            fitting = [
                entry
                for entry in entries
                if all(job.offset in finished[job.cursor] for job in entry.jobs)
            ]
            if len(fitting) == len(entries):
                return fitting, offsets
            entries = fitting

    # --- Failures ---------------------------------------------------------------------------
    def _refused(self, entries: Sequence[Entry], refused: dict[int, Exception]) -> None:
        """Fail the entries that cannot be written, or isolate them. Put the others back."""
        numbers = iter(range(sum(len(entry.outputs) for entry in entries)))
        errors: dict[Entry, Exception] = {}
        for entry in entries:
            for _ in entry.outputs:
                if (error := refused.get(next(numbers))) is not None:
                    errors.setdefault(entry, error)
        if len(errors) > 1:
            # They may have been in one batch, with one invalid record.
            for entry in errors:
                entry.is_alone = True
            self._put_back(entries)
            return
        self._put_back([entry for entry in entries if entry not in errors])
        self._refuse(errors)

    def _refuse(self, errors: Mapping[Entry, Exception]) -> None:
        self._take(errors)
        for entry, error in errors.items():
            self._fail([entry], error)
            if entry.outcome is None:
                if len(entry.jobs) > 1:  # each is handled again, alone
                    self._await(entry.jobs)
                self._run.refused(entry.jobs, error)
        self._moved(errors)

    def _put_back(self, entries: Sequence[Entry]) -> None:
        self._entries.extendleft(reversed(entries))

    def _not_written(self, error: Exception, *, is_over: bool) -> float:
        """Return the pause before another attempt, or fail if a retry is pointless."""
        entries, self._writing = self._writing, ()
        cause = error.__cause__ if isinstance(error, TransactionAbortableError) else error
        # A new generation began during the transaction. This member may have kept the partitions,
        # or a rebalance waits for these entries.
        has_rebalanced = isinstance(cause, CommitFailedError)
        is_passing = has_rebalanced or (isinstance(cause, KafkaError) and cause.retriable)
        if self._is_of_letters and not has_rebalanced:
            self._fail(entries, error)
            if not entries:  # there is no producer
                self._drop_all(error)
            self._moved(entries)
            return 0.0
        self._put_back(entries)
        if is_over or not is_passing:
            self._task_failed(error)
            return 0.0
        log.warning(
            "a transaction failed, and another transaction will write its outputs: %s", error
        )
        self._error = error
        self._moved(entries)
        return self._backoff.next_delay_s()

    def _fail(self, entries: Iterable[Entry], error: BaseException) -> None:
        for entry in entries:
            self._size -= entry.size
            entry.fail(error)

    def _task_failed(self, error: BaseException) -> None:
        self._is_closing = True
        self._drop_all(error)
        if not self._is_of_letters:
            self._run.outbox_failed(error)

    def _drop_all(self, error: BaseException) -> None:
        entries = [*self._entries, *self._waiting]
        self._entries, self._waiting, self._waits_from = deque(), [], {}
        self._awaited.clear()
        self._end_requests()
        self._fail(entries, error)
        self._moved(entries)


async def _until_done(task: asyncio.Task[None], wait_s: float) -> None:
    """Wait for a task, at most `wait_s`. A cancellation is raised after that."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    cancellation: asyncio.CancelledError | None = None
    while not task.done() and (now := loop.time()) < until:
        try:
            await asyncio.wait([task], timeout=until - now)
        except asyncio.CancelledError as error:
            cancellation, until = error, min(until, loop.time() + LONGEST_TRANSACTION_END_S)
    if cancellation is not None:
        raise cancellation
