"""Whose records are finished by what, while several tasks read one consumer."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.consumer.assignment.cursor import Cursor, Range
from aiokafka_lite.consumer.assignment.readers import Hand, Readers
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support import inside
from tests.support.states import State
from tests.support.waiting import eventually, until

Record = ConsumerRecord[bytes | None, bytes | None]
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
COUNT = 20


@pytest.fixture
async def consumer() -> AsyncIterator[AIOKafkaConsumer]:
    """Commits at once what is finished of a topic with twenty records."""
    async with Broker() as broker:
        broker.create_topic("t", partitions=1)
        broker.produce_all("t", [NewRecord(b"%d" % number) for number in range(COUNT)])
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers,
            group_id="readers",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=10,
        )
        consumer.assign([A])
        async with consumer:
            yield consumer


class Worker:
    """A task that reads record by record, one each time that it is told."""

    def __init__(self, consumer: AIOKafkaConsumer, *, iterates: bool = False) -> None:
        self.had: list[int] = []
        self._consumer = consumer
        self._may_read = asyncio.Semaphore(0)
        self.task = asyncio.create_task(self._iterate() if iterates else self._work())

    async def _work(self) -> None:
        while True:
            await self._may_read.acquire()
            self.had.append((await self._consumer.getone()).offset)

    async def _iterate(self) -> None:
        await self._may_read.acquire()
        async for record in self._consumer:
            self.had.append(record.offset)
            await self._may_read.acquire()

    async def read(self) -> None:
        """Have it come back, and wait for its next record."""
        count = len(self.had)
        self._may_read.release()
        await until(lambda: len(self.had) > count)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def is_committed(consumer: AIOKafkaConsumer, offset: int | None) -> None:
    """Check what is committed, and stays so over some intervals."""
    await eventually(lambda: consumer.committed(A), offset)
    await asyncio.sleep(0.03)
    assert await consumer.committed(A) == offset


@pytest.mark.parametrize("iterates", [False, True], ids=["getone", "async-for"])
async def test_only_its_own_next_read_finishes_what_a_task_was_given(
    consumer: AIOKafkaConsumer, *, iterates: bool
) -> None:
    one, other = (Worker(consumer, iterates=iterates) for _ in range(2))
    await one.read()
    for _ in range(5):
        await other.read()
    assert (one.had, other.had) == ([0], [1, 2, 3, 4, 5])
    await is_committed(consumer, 0)
    await one.read()
    await is_committed(consumer, 5)
    await other.read()
    await is_committed(consumer, 6)
    for worker in (one, other):
        await worker.end()


async def test_a_task_that_ends_has_finished_and_one_that_fails_has_not(
    consumer: AIOKafkaConsumer,
) -> None:
    other = Worker(consumer)
    await other.read()

    async def read_one(error: BaseException | None) -> None:
        await consumer.getone()
        await asyncio.sleep(0.1)
        if error is not None:
            raise error

    await asyncio.create_task(read_one(None))
    await other.read()
    assert other.had == [0, 2]
    await is_committed(consumer, 2)
    with pytest.raises(ValueError, match="no"):
        await asyncio.create_task(read_one(ValueError("no")))
    for _ in range(3):
        await other.read()
    await is_committed(consumer, 3)
    await asyncio.create_task(read_one(None))  # stands in for the one that failed
    await other.read()
    await is_committed(consumer, 8)
    await other.end()


async def test_a_read_by_a_helper_task_is_a_read_of_who_waits_for_it(
    consumer: AIOKafkaConsumer,
) -> None:
    other = Worker(consumer)
    await other.read()
    assert (await consumer.getone()).offset == 1
    await other.read()
    await is_committed(consumer, 1)
    assert (await asyncio.create_task(consumer.getone())).offset == 3
    await other.read()
    await is_committed(consumer, 3)
    assert (await asyncio.create_task(consumer.getone())).offset == 5
    await is_committed(consumer, 4)
    await other.end()


async def test_who_starts_the_readers_hands_over_to_them(consumer: AIOKafkaConsumer) -> None:
    assert (await consumer.getone()).offset == 0
    one, other = (Worker(consumer) for _ in range(2))
    await one.read()
    await other.read()
    await one.read()
    await other.read()
    await is_committed(consumer, 3)
    for worker in (one, other):
        await worker.end()


async def test_a_worker_that_starts_another_one_keeps_its_record(
    consumer: AIOKafkaConsumer,
) -> None:
    other = Worker(consumer)
    await other.read()
    started: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    may_end = asyncio.Event()

    async def work() -> None:
        await consumer.getone()
        started.set_result(Worker(consumer))
        await may_end.wait()

    task = asyncio.create_task(work())
    third = await started
    for _ in range(2):
        await third.read()
        await other.read()
    assert (other.had, third.had) == ([0, 3, 5], [2, 4])
    await is_committed(consumer, 1)
    may_end.set()
    await task
    await is_committed(consumer, 4)
    for worker in (other, third):
        await worker.end()


async def test_the_only_worker_keeps_its_record_if_another_one_starts_without_its_context(
    consumer: AIOKafkaConsumer,
) -> None:
    assert (await consumer.getone()).offset == 0
    other = contextvars.Context().run(Worker, consumer)
    for _ in range(2):
        await other.read()
    await is_committed(consumer, 0)
    assert (await consumer.getone()).offset == 3
    await is_committed(consumer, 2)
    await other.end()


@pytest.mark.parametrize("at_a_time", [1, 2])
async def test_a_helper_that_only_reads_finishes_what_its_starter_had_before(
    consumer: AIOKafkaConsumer, at_a_time: int
) -> None:
    other = Worker(consumer)
    await other.read()

    async def read() -> int:
        return (await consumer.getone()).offset

    assert await read() == 1
    await other.read()
    found = await asyncio.gather(*(asyncio.create_task(read()) for _ in range(at_a_time)))
    assert sorted(found) == [3, 4][:at_a_time]
    await is_committed(consumer, 2)
    await other.read()
    await is_committed(consumer, 3)
    await other.end()


async def test_one_reader_that_reads_by_helper_tasks_finishes_as_by_its_own_reads(
    consumer: AIOKafkaConsumer,
) -> None:
    for offset in range(5):
        record = await asyncio.wait_for(consumer.getone(), 5)
        assert record.offset == offset
        await is_committed(consumer, offset)


async def test_a_commit_of_its_own_finishes_what_it_covers(consumer: AIOKafkaConsumer) -> None:
    one, other = (Worker(consumer) for _ in range(2))
    await one.read()
    await other.read()
    await consumer.commit({A: 1})
    await other.read()
    await is_committed(consumer, 2)
    for worker in (one, other):
        await worker.end()


async def test_once_others_have_nothing_left_a_task_reads_alone_again(
    consumer: AIOKafkaConsumer,
) -> None:
    one, other = (Worker(consumer) for _ in range(2))
    await one.read()
    await other.read()
    reads = inside.reads(consumer)
    assert reads.readers is not None
    await consumer.commit({A: 2})
    await one.read()
    # From here on records cost no more than those of a consumer with one reader.
    assert reads.readers is None
    for worker in (one, other):
        await worker.end()


async def test_after_a_seek_back_what_tasks_have_is_not_committed_twice_nor_too_early(
    consumer: AIOKafkaConsumer,
) -> None:
    one, other = (Worker(consumer) for _ in range(2))
    for worker in (one, other, one, other):
        await worker.read()
    assert (one.had, other.had) == ([0, 2], [1, 3])
    consumer.seek(A, 1)
    await other.read()
    assert other.had[-1] == 1
    await is_committed(consumer, 1)
    await other.read()
    await is_committed(consumer, 2)
    for worker in (one, other, one, other):
        await worker.read()
    await is_committed(consumer, other.had[-1] - 1)
    for worker in (one, other):
        await worker.end()


async def test_a_batch_is_finished_at_the_end_of_its_block_beside_other_tasks(
    consumer: AIOKafkaConsumer,
) -> None:
    other = Worker(consumer)
    await other.read()
    async with consumer.batch(max_records=3) as batch:
        assert [record.offset for record in batch] == [1, 2, 3]
        await is_committed(consumer, 0)
    await is_committed(consumer, 0)
    await other.read()
    await is_committed(consumer, 4)
    await other.end()


async def test_a_batch_that_fails_gives_back_its_own_records_and_no_other_tasks(
    consumer: AIOKafkaConsumer,
) -> None:
    other = Worker(consumer)
    await other.read()

    async def fail() -> None:
        async with consumer.batch(max_records=3) as batch:
            assert [record.offset for record in batch] == [1, 2, 3]
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fail()
    assert (await consumer.getone()).offset == 1
    await is_committed(consumer, 0)
    await other.read()
    assert other.had == [0, 2]
    await other.end()


# --- What each task has ------------------------------------------------------------------------
class Hands:
    """Tasks that take records of two partitions, and the partitions that their ends finish."""

    def __init__(self) -> None:
        self.cursor, self.other = Cursor(A), Cursor(B)
        self.ended: list[list[Cursor]] = []
        self.readers = Readers(lambda finished: self.ended.append(list(finished)))

    def own(self) -> Hand:
        """Return what the current task has."""
        return self.readers.hand_of(asyncio.current_task())

    async def read(
        self,
        offsets: Range,
        *,
        goes_on: bool = False,
        error: Exception | None = None,
        starter: asyncio.Task[object] | None = None,
    ) -> list[Cursor]:
        """Take records in a task that ends; return the partitions that its read finished."""

        async def take() -> list[Cursor]:
            finished.extend(self.readers.stand_in(asyncio.current_task(), starter))
            self.own().take(self.cursor, offsets)
            if goes_on:
                for _ in range(2):
                    await asyncio.sleep(0)
            if error is not None:
                raise error
            return finished

        finished: list[Cursor] = []
        task = asyncio.create_task(take())
        await asyncio.wait([task])
        for _ in range(2):
            await asyncio.sleep(0)
        assert task.exception() is error
        return finished


@pytest.mark.parametrize(
    ("goes_on", "error", "first", "awaited"),
    [
        (True, None, None, None),
        (False, None, 3, (3, 5)),
        (True, ValueError("no"), 3, None),
        (False, ValueError("no"), 3, None),
    ],
)
async def test_an_ended_task_has_finished_its_records_if_it_went_on_behind_its_read(
    goes_on: bool, error: Exception | None, first: int | None, awaited: Range | None
) -> None:
    hands = Hands()
    await hands.read(Range(3, 5), goes_on=goes_on, error=error)
    readers, cursor = hands.readers, hands.cursor
    assert (readers.first_of(cursor), readers.awaited(cursor)) == (first, awaited)
    assert hands.ended == [[cursor] if first is None else []]
    assert readers.is_alone(asyncio.current_task()) is (first is None)
    # A new task stands in for it, once.
    left = [] if first is None else [cursor]
    assert await hands.read(Range(5, 6), goes_on=True) == left
    assert readers.first_of(cursor) is None
    assert readers.stand_in(asyncio.current_task(), None) == []
    assert readers.stand_in(asyncio.current_task(), None) == []


async def test_a_read_of_a_helper_task_is_of_the_reader_that_has_started_it() -> None:
    hands, me = Hands(), asyncio.current_task()
    readers, cursor = hands.readers, hands.cursor
    hands.own().take(cursor, Range(0, 3))
    assert await hands.read(Range(3, 5), starter=me) == []
    assert hands.ended == [[cursor]]
    assert hands.own().ranges == {cursor: (3, 5)}
    assert readers.is_alone(me)
    assert await hands.read(Range(5, 7), goes_on=True, starter=me) == []
    assert readers.awaited(cursor) == (3, 5)
    assert await hands.read(Range(7, 9), starter=asyncio.create_task(asyncio.sleep(0))) == []
    assert readers.awaited(cursor) == (3, 9)
    assert not readers.is_alone(me)


async def test_what_is_committed_is_finished_whichever_task_has_it() -> None:
    hands = Hands()
    readers, cursor = hands.readers, hands.cursor
    await hands.read(Range(0, 2))
    hands.own().take(cursor, Range(4, 6))
    hands.own().take(hands.other, Range(0, 9))
    assert (readers.first_of(cursor), readers.awaited(cursor)) == (0, (0, 6))
    readers.finish_before(cursor, 1)
    assert readers.awaited(cursor) == (1, 6)
    readers.finish_before(cursor, 2)
    assert readers.awaited(cursor) == (4, 6)
    assert hands.own().ranges == {cursor: (4, 6), hands.other: (0, 9)}
    readers.finish_before(cursor, 6)
    assert hands.own().ranges == {hands.other: (0, 9)}
    assert set(hands.own().release()) == {hands.other}
    assert readers.first_of(hands.other) is None


async def test_a_task_that_reads_already_stands_in_for_nobody() -> None:
    hands, me = Hands(), asyncio.current_task()
    assert hands.readers.stand_in(me, None) == []
    await hands.read(Range(0, 3))
    assert hands.readers.stand_in(me, None) == []
    assert hands.readers.awaited(hands.cursor) == (0, 3)


async def test_what_a_helper_task_reads_after_its_starter_has_ended_is_in_hand() -> None:
    hands, may_read = Hands(), asyncio.Event()
    helpers: list[asyncio.Task[None]] = []

    async def read(starter: asyncio.Task[object] | None) -> None:
        hands.readers.stand_in(asyncio.current_task(), starter)
        await may_read.wait()
        hands.own().take(hands.cursor, Range(0, 3))

    async def start() -> None:
        hands.own()
        helpers.append(asyncio.create_task(read(asyncio.current_task())))
        await asyncio.sleep(0)

    await asyncio.create_task(start())
    may_read.set()
    await asyncio.wait(helpers)
    await asyncio.sleep(0)
    assert hands.readers.awaited(hands.cursor) == (0, 3)


async def test_readers_that_are_closed_are_kept_by_no_task() -> None:
    hands = Hands()
    hands.own()
    hands.readers.hand_of(None)
    kept = weakref.ref(hands)
    hands.readers.close()
    del hands
    gc.collect()
    assert kept() is None


async def test_a_task_that_ends_with_nothing_in_hand_finishes_nothing() -> None:
    hands = Hands()

    async def begin() -> None:
        hands.own()
        await asyncio.sleep(0)

    await asyncio.create_task(begin())
    await asyncio.sleep(0)
    assert hands.ended == []


async def test_a_task_that_goes_on_behind_each_of_its_reads_has_finished_their_records() -> None:
    hands = Hands()

    async def take_twice() -> None:
        for first in (0, 3):
            hands.own().take(hands.cursor, Range(first, first + 3))
            for _ in range(2):
                await asyncio.sleep(0)

    await asyncio.create_task(take_twice())
    await asyncio.sleep(0)
    assert hands.ended == [[hands.cursor]]


async def test_a_reader_that_ends_has_finished_what_a_helper_task_has_read_for_it() -> None:
    hands = Hands()

    async def read_by_a_helper() -> None:
        hands.own()
        await hands.read(Range(0, 3), starter=asyncio.current_task())

    await asyncio.create_task(read_by_a_helper())
    await asyncio.sleep(0)
    assert hands.ended == [[], [hands.cursor]]


async def test_a_task_is_not_alone_with_another_that_iterates() -> None:
    hands = Hands()
    hands.own().iterates = True
    hands.readers.hand_of(None)
    alone = [hands.readers.is_alone(task) for task in (asyncio.current_task(), None)]
    assert alone == [True, False]


async def test_offsets_of_a_partition_that_was_away_are_not_known() -> None:
    hands = Hands()
    readers, cursor, other = hands.readers, hands.cursor, hands.other
    hands.own().take(cursor, Range(0, 3))
    readers.hand_of(None)
    readers.replace(cursor, other)
    assert (readers.first_of(cursor), readers.first_of(other)) == (None, -1)
    assert readers.awaited(other) is None
    assert not readers.hand_of(None).ranges
    readers.replace(other, None)
    assert not hands.own().ranges


async def test_a_task_that_ends_after_the_last_of_the_others_is_not_told() -> None:
    hands = Hands()
    task = asyncio.create_task(hands.read(Range(0, 3), goes_on=True))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    hands.readers.close()
    await task
    assert not hands.ended
    assert hands.readers.is_alone(None)
    assert hands.readers.first_of(hands.cursor) is None


# --- Two tasks that read ------------------------------------------------------------------------
class Reading:
    """Partitions that the test's task reads, and another one that it has not started."""

    def __init__(self) -> None:
        self.state = State()
        self.state.assign_from_user([A, B])
        for cursor in self.state.assignment.values():
            self.state.start_at(cursor, 0)
        self._steps: asyncio.Queue[Callable[[], object] | None] = asyncio.Queue()
        self.other = contextvars.Context().run(asyncio.create_task, self._take_steps())

    async def _take_steps(self) -> None:
        while (step := await self._steps.get()) is not None:
            step()
            self._steps.task_done()

    async def elsewhere(self, step: Callable[[], object]) -> None:
        """Have the other task do something."""
        self._steps.put_nowait(step)
        await self._steps.join()

    async def end_other(self) -> None:
        self._steps.put_nowait(None)
        await asyncio.wait([self.other])
        await asyncio.sleep(0)

    def come_back(self) -> None:
        """Have the current task read, and find nothing."""
        self.state.reads.enter_get()
        self.state.reads.leave_get(0.0)

    def read(self, tp: TopicPartition, first: int, end: int) -> None:
        """Have the current task read, and return records to it."""
        self.come_back()
        self.state.reads.hand_out(self.state.partition(tp), first, end, ())

    def processed(self) -> dict[int, int]:
        """Return the processed offsets by partition."""
        found = self.state.finished.processed_offsets()
        return {tp.partition: offset.offset for tp, offset in found.items()}


@pytest.fixture
async def reading() -> AsyncIterator[Reading]:
    reading = Reading()
    yield reading
    await reading.end_other()


async def test_a_task_reads_alone_again_when_the_other_ones_partition_is_taken_away(
    reading: Reading,
) -> None:
    state = reading.state
    reading.read(A, 0, 1)
    await reading.elsewhere(lambda: reading.read(B, 0, 3))
    assert state.reads.are_several_reading()
    assert state.works.unfinished([A, B]) == {A: (0, 1), B: (0, 3)}
    state.change([B], [])
    assert not state.reads.are_several_reading()
    assert state.reads.readers is None
    assert state.reads.reader is not None
    assert state.reads.reader() is asyncio.current_task()


async def test_a_task_does_not_read_alone_while_another_one_waits(reading: Reading) -> None:
    reading.read(A, 0, 1)
    await reading.elsewhere(reading.state.reads.enter_get)
    assert reading.state.reads.are_several_reading()
    await reading.elsewhere(lambda: reading.state.reads.leave_get(0.0))
    assert not reading.state.reads.are_several_reading()


async def test_what_the_first_task_reads_one_by_one_is_brought_back_when_a_second_one_reads(
    reading: Reading,
) -> None:
    closed: list[bool] = []
    reading.state.reads.set_settler(lambda: None, lambda: closed.append(True))
    reading.read(A, 0, 1)
    assert closed == []
    await reading.elsewhere(reading.come_back)
    assert closed == [True]


async def test_a_run_forgets_who_has_read_before_it(reading: Reading) -> None:
    reading.read(A, 0, 1)
    await reading.elsewhere(lambda: reading.read(B, 0, 3))
    reading.state.works.open_processing(cast("Any", object()))
    told: list[bool] = []
    reading.state.observers.acted.add(lambda: told.append(True))
    await reading.end_other()
    assert (told, reading.processed()) == ([], {A.partition: 1, B.partition: 3})


@pytest.mark.parametrize("who", ["first", "second"])
async def test_a_task_does_not_read_alone_with_another_that_iterates(
    reading: Reading, who: str
) -> None:
    state = reading.state
    if who == "first":
        await reading.elsewhere(state.reads.note_reader)
        await reading.elsewhere(lambda: state.reads.note_reader(iterates=True))
        reading.read(A, 0, 1)
    else:
        reading.read(A, 0, 1)
        await reading.elsewhere(lambda: state.reads.note_reader(iterates=True))
    assert state.reads.readers is not None
    assert state.reads.are_several_reading()


async def test_a_seek_counts_at_once_when_no_task_has_records(reading: Reading) -> None:
    reading.read(A, 0, 5)
    await reading.elsewhere(lambda: reading.read(A, 5, 8))
    reading.come_back()
    assert reading.processed()[A.partition] == 5
    await reading.elsewhere(reading.come_back)
    assert reading.processed()[A.partition] == 8
    reading.state.seek(reading.state.partition(A), 500)
    assert reading.processed()[A.partition] == 500


async def test_a_commit_finishes_what_lies_before_the_first_record_that_a_task_has(
    reading: Reading,
) -> None:
    reading.read(A, 0, 1)
    await reading.elsewhere(lambda: reading.read(A, 1, 3))
    await reading.elsewhere(lambda: reading.read(A, 3, 5))
    reading.state.finished.note_finished({A: OffsetAndMetadata(1, "")})
    assert reading.processed()[A.partition] == 3


async def test_a_rebalance_is_told_of_the_end_of_a_task_that_has_finished_its_records(
    reading: Reading,
) -> None:
    told: list[dict[int, int]] = []
    reading.read(A, 0, 1)
    await reading.elsewhere(lambda: reading.read(B, 0, 3))
    reading.state.observers.acted.add(lambda: told.append(reading.processed()))
    await reading.end_other()
    assert told == [{A.partition: 0, B.partition: 3}]


async def test_records_of_a_partition_that_came_back_are_in_hand_until_their_task_reads(
    reading: Reading,
) -> None:
    state = reading.state
    reading.read(A, 0, 1)
    await reading.elsewhere(lambda: reading.read(B, 0, 3))
    state.withhold([B])
    state.seek(state.partition(B), 1)
    state.change([B], [B], is_unbroken=True)
    reading.read(B, 1, 2)
    reading.come_back()
    assert B.partition not in reading.processed()
    await reading.elsewhere(reading.come_back)
    assert reading.processed()[B.partition] == 2
