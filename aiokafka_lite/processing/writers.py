"""How dead letters are written: each by itself, or with its offset in a transaction.

::

    plain            send ── acknowledged ── finished ── committed, some time later
                                          ^ a crash here: written again by the next owner

    transactional    begin ── send ── offsets ── committed ── finished
                                               ^ a crash up to here: nobody has seen any of it
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from aiokafka_lite._event import Event
from aiokafka_lite._tasks import TaskScope, own_copy
from aiokafka_lite.client.backoff import delay_after
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.commits.transactional import OffsetsByPartition, OffsetsInTransaction
from aiokafka_lite.consumer.processing.handling import DeadRecord
from aiokafka_lite.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka_lite.producing import AIOKafkaProducer

log = logging.getLogger(__name__)

Headers = Sequence[tuple[str, bytes]]
NewProducer = Callable[[], AIOKafkaProducer]

# In one transaction.
MOST_LETTERS: Final = 100
# Between two attempts to find out what became of a transaction.
FIRST_LOOK_S: Final = 0.1
LAST_LOOK_S: Final = 5.0


class Letter(NamedTuple):
    """A dead letter: the arguments of a producer's `send`."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    timestamp_ms: int
    headers: Headers


class Writer(Protocol):
    """Writes dead letters, from `open` to `close`."""

    async def open(self) -> None:
        """Connect; what it raises leaves nothing behind."""

    async def count_partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""

    async def write(self, dead: DeadRecord, letter: Letter) -> None:
        """Write a record; its end says that this is done for good."""

    async def close(self) -> None:
        """Disconnect."""


class PlainWriter:
    """Writes letters as they come.

    Args:
        make: Makes a producer.
        given: Is used instead, and stays started.
    """

    def __init__(self, make: NewProducer, given: AIOKafkaProducer | None) -> None:
        self._producer = make() if given is None else given
        self._is_own = given is None

    async def open(self) -> None:
        """Start a producer of its own."""
        if self._is_own:
            await self._producer.start()

    async def count_partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return len(await self._producer.partitions_for(topic))

    async def write(self, dead: DeadRecord, letter: Letter) -> None:
        """Send a letter, and wait for its acknowledgement."""
        await self._producer.send_and_wait(*letter)

    async def close(self) -> None:
        """Stop a producer of its own."""
        if self._is_own:
            await self._producer.stop()


class _Waiting(NamedTuple):
    """A letter that is to be written."""

    dead: DeadRecord
    letter: Letter
    outcome: asyncio.Future[None]


class TransactionalWriter:
    """Writes letters and commits their offsets, those that have come meanwhile in one transaction.

    A producer that can do nothing more is replaced by another one with the same transactional id.
    That ends the transaction of the one before; whether as committed, the group's offsets say.

    Args:
        make: Makes a producer with a transactional id.
        offsets: Of the consumer whose records these are.
        finish: Counts a record as finished.
        rng: For the lengths of pauses.
    """

    def __init__(
        self,
        make: NewProducer,
        offsets: OffsetsInTransaction,
        finish: Callable[[DeadRecord], None],
        rng: random.Random,
    ) -> None:
        self._make = make
        self._offsets = offsets
        self._finish = finish
        self._rng = rng
        self._producer: AIOKafkaProducer | None = None
        self._waiting: list[_Waiting] = []
        self._came = Event()
        self._is_writing = self._is_closing = False
        self._scope = TaskScope("dead letters")
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the producer, and the task that writes."""
        await self._started()
        self._task = self._scope.spawn(self._run(), name="transactions")

    async def count_partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return len(await (await self._started()).partitions_for(topic))

    async def write(self, dead: DeadRecord, letter: Letter) -> None:
        """Have a letter written in the next transaction, and wait until that is committed.

        When it is cancelled before that has begun, the letter is not written. Later it is, or not,
        and its record's offset is committed with it, or not.

        Raises:
            KafkaError: It was not written.
        """
        self._scope.raise_if_failed()
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(dead, letter, outcome)
        self._waiting.append(waiting)
        self._came.set()
        try:
            await outcome
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def close(self) -> None:
        """End the transaction that is under way, and stop the producer."""
        self._is_closing = True
        self._came.set()
        try:
            if self._task is not None and self._is_writing:
                await asyncio.wait([self._task])
        finally:
            _fail(self._waiting, IllegalStateError("no more dead letters are written"))
            await self._scope.close()
            await self._dismiss()

    # --- The task ---------------------------------------------------------------------------
    async def _run(self) -> None:
        while not self._is_closing:
            if not self._waiting:
                self._came.clear()
                await self._came.wait()
                continue
            try:
                async with self._offsets.held():
                    self._is_writing = True
                    await self._write_waiting()
            except KafkaError as error:
                _fail(self._waiting, error)
            finally:
                self._is_writing = False

    async def _write_waiting(self) -> None:
        """Write what waits, or the first of it."""
        taken, self._waiting = self._waiting[:MOST_LETTERS], self._waiting[MOST_LETTERS:]
        if not taken or (error := await self._try_to_write(taken)) is None:
            return
        if len(taken) == 1 or self._producer is None:
            _fail(taken, error)
            return
        # Which of them is refused is found by trying each alone.
        for waiting in taken:
            if (error := await self._try_to_write([waiting])) is not None:
                _fail([waiting], error)

    async def _try_to_write(self, taken: Sequence[_Waiting]) -> Exception | None:
        """Write letters in one transaction; return why they are not written."""
        try:
            offsets = self._offsets_with(taken)
            await self._write(taken, offsets)
        except Exception as error:  # noqa: BLE001 -- whoever waits for the letter raises it
            return error
        # No await in between: the next commit of the consumer says so, too.
        self._offsets.note_committed(offsets)
        for waiting in taken:
            self._finish(waiting.dead)
            if not waiting.outcome.done():
                waiting.outcome.set_result(None)
        return None

    def _offsets_with(self, taken: Sequence[_Waiting]) -> OffsetsByPartition:
        """Return the offsets that say that these records are finished.

        Raises:
            CommitFailedError: A rebalance has taken one of them away.
            OffsetMetadataTooLargeError: They cannot say so, before more has been finished.
        """
        finished: dict[Cursor, set[int]] = {}
        for waiting in taken:
            job = waiting.dead.job
            if job is None or not job.is_current:
                raise CommitFailedError("its partition is assigned no more")
            finished.setdefault(job.cursor, set()).add(job.record.offset)
        return self._offsets.if_finished(finished)

    async def _write(self, taken: Sequence[_Waiting], offsets: OffsetsByPartition) -> None:
        """Write letters and offsets in one transaction.

        Raises:
            KafkaError: Neither is written.
        """
        # As whom the offsets were looked at: a later generation may have given them to others.
        group = self._offsets.group()
        producer = await self._started()
        try:
            async with producer.transaction() as transaction:
                for waiting in taken:
                    await transaction.send(*waiting.letter)
                transaction.commit_offsets(offsets, group)
        except KafkaError as error:
            if producer.fatal_error is None:
                raise
            log.warning("the producer of dead letters is replaced, as it failed: %s", error)
            await self._dismiss()
            if not await self._is_committed_after_all(offsets):
                raise

    async def _is_committed_after_all(self, offsets: OffsetsByPartition) -> bool:
        """Whether the transaction of a producer that failed was committed; waits until it is known.

        Another producer with its transactional id makes sure that nothing more comes of it.
        """
        failures = 0
        while True:
            try:
                await self._started()
                return await self._offsets.are_committed(offsets)
            except KafkaError as error:
                if self._is_closing or not error.retriable:
                    raise
                log.warning("whether dead letters were written is not known yet: %s", error)
                delay_s = delay_after(failures, FIRST_LOOK_S, LAST_LOOK_S, self._rng)
                failures += 1
                await asyncio.sleep(delay_s)

    async def _started(self) -> AIOKafkaProducer:
        """Return the producer; start one if there is none."""
        if self._producer is None:
            producer = self._make()
            await producer.start()
            self._producer = producer
        return self._producer

    async def _dismiss(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()


def _fail(taken: Sequence[_Waiting], error: Exception) -> None:
    for waiting in taken:
        if not waiting.outcome.done():
            waiting.outcome.set_exception(own_copy(error))
