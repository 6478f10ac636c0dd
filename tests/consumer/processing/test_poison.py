"""A record that always fails, and a database that is down, told apart in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiokafka_lite.consumer.events.kinds import CircuitClosed, CircuitOpened, RecordDead
from aiokafka_lite.consumer.processing.handling import DeadRecord, Handling
from aiokafka_lite.consumer.processing.lanes import Order
from aiokafka_lite.consumer.processing.run import Run
from aiokafka_lite.processing import CircuitBreaker, Retry
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import Record
from tests.support.buffers import A, B, Buffers, batch, no_transactions
from tests.support.events import events_so_far

pytestmark = pytest.mark.virtual_time


class Case:
    """A run over partitions of some records each, with dead letters that only count.

    Args:
        handler: What handles a record.
        counts: How many records each partition has.
        is_keeping: Whether there are dead letters at all.
    """

    def __init__(
        self,
        handler: Callable[[Record], Awaitable[object]],
        counts: dict[TopicPartition, int],
        *,
        order: Order = "partition",
        attempts: int | None = 3,
        is_keeping: bool = True,
        **settings: Any,
    ) -> None:
        self.buffers = Buffers(*counts)
        for number, (tp, count) in enumerate(counts.items()):
            self.buffers.put({tp: batch(0, count)}, node_id=number)
        self.count = sum(counts.values())
        self.done: list[tuple[int, int]] = []
        self.dead: list[DeadRecord] = []
        self.dead_at: list[float] = []
        self._handler = handler
        handling = Handling(
            concurrency=10,
            order=order,
            batch_size=None,
            max_uncommitted=10_000,
            retry=Retry(attempts=attempts, first_delay_ms=100),
            dead_letter=self._bury if is_keeping else None,
            breaker=CircuitBreaker(**settings),
        )
        self.run = Run(
            self.buffers.state,
            self.buffers.buffer,
            self._handle,
            handling,
            budget=self.buffers.budget,
            hold_s=5.0,
            rng=random.Random(1),
            deliver=no_transactions,
        )

    @property
    def is_over(self) -> bool:
        return len(self.done) + len(self.dead) == self.count

    async def _bury(self, record: DeadRecord) -> None:
        self.dead.append(record)
        self.dead_at.append(now())

    async def _handle(self, record: Record) -> None:
        await self._handler(record)
        self.done.append((record.partition, record.offset))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        with self.run.opened():
            task = asyncio.ensure_future(self.run.run())
            try:
                yield task
            finally:
                await self.run.end(now())
                await asyncio.wait([task])

    async def patiently(self, limit_s: float) -> None:
        """Wait until all records are done or dead, so long at most."""
        for _ in range(int(limit_s * 10)):
            if self.is_over:
                return
            await asyncio.sleep(0.1)


def now() -> float:
    return asyncio.get_running_loop().time()


def bad(*places: tuple[int, int]) -> Callable[[Record], Awaitable[None]]:
    """A handler that always fails for some records."""

    async def handle(record: Record) -> None:
        if (record.partition, record.offset) in places:
            raise ConnectionError("it looks as if something were down")

    return handle


@pytest.mark.parametrize("order", ["partition", "key"])
async def test_a_poison_pill_that_is_alone_is_dead_after_some_probes(order: Order) -> None:
    # With order="key" it is the only record of the topic.
    count = 100 if order == "partition" else 1
    case = Case(bad((0, 0)), {A: count}, order=order)
    async with case.running():
        await case.patiently(60)
    assert [each.record.offset for each in case.dead] == [0]
    assert case.dead[0].attempts == 3 + CircuitBreaker().probes
    assert len(case.done) == count - 1
    assert case.dead_at[0] < 20


async def test_several_poison_pills_one_after_the_other_all_end() -> None:
    case = Case(bad((0, 3), (0, 4), (0, 5)), {A: 100})
    async with case.running():
        await case.patiently(3600)
    assert [each.record.offset for each in case.dead] == [3, 4, 5]
    assert len(case.done) == 97
    # Each that fails beside it makes it more likely that nothing is wrong with the record.
    assert case.dead_at[1] - case.dead_at[0] > 2 * case.dead_at[0]


async def test_poison_pills_at_the_head_of_every_partition_all_end() -> None:
    case = Case(bad((0, 0), (1, 0)), {A: 50, B: 50})
    async with case.running():
        await case.patiently(3600)
    assert sorted((each.record.partition, each.record.offset) for each in case.dead) == [
        (0, 0),
        (1, 0),
    ]
    assert len(case.done) == 98


async def test_records_that_have_succeeded_since_give_a_poison_pill_no_more_tries() -> None:
    failed: set[int] = set()

    async def handle(record: Record) -> None:
        if record.offset == 5 or record.offset not in failed:
            failed.add(record.offset)
            raise ConnectionError("it looks as if something were down")

    case = Case(handle, {A: 6})
    async with case.running():
        await case.patiently(3600)
    assert len(case.done) == 5
    assert [each.attempts for each in case.dead] == [3 + CircuitBreaker().probes]


async def test_without_dead_letters_a_poison_pill_ends_run_by_its_error() -> None:
    case = Case(bad((0, 0)), {A: 5}, is_keeping=False)
    async with case.running() as task:
        with pytest.raises(ConnectionError, match="as if something"):
            await task


@pytest.mark.parametrize("what_fails", ["everything for some seconds", "one record"])
async def test_a_pause_of_handling_and_its_end_are_events(what_fails: str) -> None:
    is_down = what_fails != "one record"

    async def handle(record: Record) -> None:
        if now() < 10 if is_down else record.offset == 0:
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 10})
    with case.buffers.state.events.subscribe() as events:
        async with case.running():
            await case.patiently(600)
        opened, closed, *dead = [
            event
            for event in events_so_far(events)
            if isinstance(event, CircuitOpened | CircuitClosed | RecordDead)
        ]
    assert isinstance(opened, CircuitOpened)
    assert "the database is down" in opened.reason
    assert isinstance(closed, CircuitClosed)
    assert 5 < closed.open_s < 30
    assert [type(event) for event in dead] == ([] if is_down else [RecordDead])
    assert len(case.done) == (10 if is_down else 9)


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_database_that_is_down_for_ten_minutes_with_traffic_kills_nothing(
    attempts: int,
) -> None:
    async def handle(record: Record) -> None:
        if now() < 600:
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 500, B: 500}, order="key", attempts=attempts)
    async with case.running():
        await case.patiently(700)
    assert not case.dead
    assert len(case.done) == 1000


async def test_a_database_that_is_down_for_ten_minutes_without_traffic_costs_few_letters() -> None:
    async def handle(record: Record) -> None:
        if now() < 600:
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 100})
    async with case.running():
        await case.patiently(1500)
    assert len(case.dead) <= 4
    assert case.is_over


async def test_without_an_end_of_attempts_nothing_is_ever_dead() -> None:
    case = Case(bad((0, 0)), {A: 3}, attempts=None)
    async with case.running():
        await case.patiently(3600)
    assert not case.dead
    assert not case.done


async def test_a_third_of_bad_records_holds_up_no_others() -> None:
    places = {(0, offset) for offset in range(0, 600, 3)}

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.1)
        await bad(*places)(record)

    case = Case(handle, {A: 700}, order=None)
    async with case.running():
        await case.patiently(120)
    assert {(each.record.partition, each.record.offset) for each in case.dead} == places
    assert len(case.done) == 500


async def test_a_record_that_has_not_failed_is_tried_before_those_that_have() -> None:
    case = Case(bad(*((0, offset) for offset in range(15))), {A: 15}, order=None, min_calls=10)
    async with case.running():
        await asyncio.sleep(60)
        case.buffers.put({A: batch(15, 5)}, node_id=0)
        # The longest pause before a record is tried, and a fifth of it.
        await asyncio.sleep(CircuitBreaker().max_pause_ms / 1000 * 1.2 + 0.1)
    assert sorted(case.done) == [(0, offset) for offset in range(15, 20)]
