"""What `consumer.run` does after partitions or records went and came back, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiokafka_lite.consumer.processing.handling import Handling
from aiokafka_lite.consumer.processing.lanes import Job
from aiokafka_lite.consumer.processing.run import Run
from aiokafka_lite.errors import ConsumerStoppedError
from aiokafka_lite.processing import CircuitBreaker, Retry
from aiokafka_lite.structs import TopicPartition
from tests.support.buffers import A, B, Buffers, batch, no_transactions
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time


class Case:
    """A run of two partitions; handlers of what is `held` wait for an event."""

    def __init__(self, **settings: Any) -> None:
        self.buffers = Buffers(A, B)
        self.begun: list[tuple[int, list[int]]] = []
        self.done: list[tuple[int, int]] = []
        self.held: dict[TopicPartition, asyncio.Event] = {}
        self.failures: list[Exception] = []
        arguments: dict[str, Any] = {
            "concurrency": 2,
            "order": "partition",
            "batch_size": None,
            "max_uncommitted": 1000,
            "retry": Retry(attempts=5, first_delay_ms=30_000),
            "dead_letter": None,
            "breaker": None,
            **settings,
        }
        self.is_list = arguments["batch_size"] is not None
        self.run = Run(
            self.buffers.state,
            self.buffers.buffer,
            self._handle,
            Handling(**arguments),
            budget=self.buffers.budget,
            hold_s=5,
            rng=random.Random(1),
            deliver=no_transactions,
        )

    async def _handle(self, given: Any) -> None:
        records = given if self.is_list else [given]
        tp = TopicPartition(records[0].topic, records[0].partition)
        self.begun.append((tp.partition, [record.offset for record in records]))
        if tp in self.held:
            await self.held[tp].wait()
        if self.failures:
            raise self.failures.pop()
        self.done += [(record.partition, record.offset) for record in records]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with self.run.opened():
            task = asyncio.ensure_future(self.run.run())
            try:
                yield
            finally:
                await self.run.end(asyncio.get_running_loop().time())
                await task

    def take_away(self, tp: TopicPartition) -> None:
        """Revoke a partition; handlers that are at work on it have had their time."""
        self.buffers.state.begin_revocation([tp])
        self.run.give_up([tp], asyncio.get_running_loop().time())

    def give(self, *tps: TopicPartition) -> None:
        self.buffers.state.change(tps, tps)
        for tp in tps:
            self.buffers.state.seek(self.buffers.partition(tp), 0)


@pytest.mark.parametrize("batch_size", [None, 1])
async def test_handlers_that_a_rebalance_cuts_off_give_their_places_to_others(
    batch_size: int | None,
) -> None:
    case = Case(order=None, batch_size=batch_size)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        for _ in range(3):
            await until(lambda: len(case.begun) == 2)
            case.take_away(A)
            await asyncio.sleep(0.1)
            case.begun.clear()
            case.give(A)
            case.buffers.put({A: batch(0, 2)})
        await until(lambda: len(case.begun) == 2)
        case.take_away(A)
        await asyncio.sleep(0.1)
        case.buffers.state.change([A], [])
        case.buffers.put({B: batch(0, 10)})
        await until(lambda: len(case.done) == 10)
        assert case.run.counts()["at_work"] == 0
        budget = case.buffers.budget
        assert budget.limit_bytes - budget.room_bytes == 10 * len(b"0xxx")


async def test_a_retry_of_a_partition_that_went_holds_up_nothing_when_it_comes_back() -> None:
    case = Case()
    case.failures = [ConnectionError()]
    case.buffers.put({A: batch(0, 3)})
    async with case.running():
        await until(lambda: not case.failures)
        await asyncio.sleep(1)
        case.take_away(A)
        case.give(A)
        case.buffers.put({A: batch(0, 3)})
        await asyncio.sleep(1)
        assert case.done == [(0, 0), (0, 1), (0, 2)]
        assert case.run.counts()["waiting_for_retry"] == 0


async def test_a_paused_record_that_went_holds_up_nothing_when_it_comes_back() -> None:
    case = Case()
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: bool(case.begun))
        case.buffers.state.pause(case.buffers.partition(A))
        case.held[A].set()
        await until(lambda: case.done == [(0, 0)])
        case.take_away(A)
        case.give(A)
        case.buffers.put({A: batch(0, 2)})
        await until(lambda: case.done == [(0, 0), (0, 0), (0, 1)])


async def test_records_from_a_position_sought_in_a_rebalance_are_processed_when_finished() -> None:
    case = Case()
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 2)})
    state = case.buffers.state
    async with case.running():
        await until(lambda: bool(case.begun))
        state.begin_revocation([A])
        state.seek(case.buffers.partition(A), 5)
        state.change([A], [A], is_unbroken=True)
        case.held[A].set()
        await until(lambda: (0, 0) in case.done)
        case.held[A] = asyncio.Event()
        case.buffers.put({A: batch(5, 2)})
        await until(lambda: (0, [5]) in case.begun)
        await asyncio.sleep(0.1)
        assert state.processed_offsets()[A].offset == 5
        case.held[A].set()
        await until(lambda: (0, 6) in case.done)
        assert state.processed_offsets()[A].offset == 7


async def test_a_list_takes_no_records_of_before_a_seek() -> None:
    case = Case(batch_size=2)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 5)})
    async with case.running():
        await until(lambda: len(case.begun) == 1)
        case.buffers.state.seek(case.buffers.partition(A), 3)
        case.buffers.put({A: batch(3, 3)})
        await asyncio.sleep(0.1)
        case.held[A].set()
        await until(lambda: (0, 5) in case.done)
        assert case.begun == [(0, [0, 1]), (0, [2]), (0, [3, 4]), (0, [5])]


async def test_a_record_that_an_outbox_returns_begins_at_once() -> None:
    case = Case()
    case.failures = [ConnectionError()]
    case.buffers.put({A: batch(0, 1)})
    async with case.running():
        await until(lambda: not case.failures)
        await asyncio.sleep(1)
        progress = case.buffers.partition(A).progress
        assert progress is not None
        job = progress.holder_of_first()
        assert isinstance(job, Job)
        case.run.handle_again([job])
        await asyncio.sleep(1)
        assert case.done == [(0, 0)]


@pytest.mark.parametrize("batch_size", [None, 1])
async def test_a_probe_that_a_rebalance_cuts_off_is_followed_by_another(
    batch_size: int | None,
) -> None:
    case = Case(batch_size=batch_size, retry=Retry(), breaker=CircuitBreaker(min_calls=1))
    case.failures = [ConnectionError()]
    case.buffers.put({A: batch(0, 1)})
    async with case.running():
        await until(lambda: not case.failures)
        case.held[A] = asyncio.Event()
        await until(lambda: len(case.begun) == 2)
        case.take_away(A)
        cut_off_at = asyncio.get_running_loop().time()
        case.buffers.put({B: batch(0, 1)})
        await until(lambda: case.done == [(1, 0)])
        assert 0.8 <= asyncio.get_running_loop().time() - cut_off_at < 1.3
        assert not case.run.is_paused


async def test_nothing_keeps_a_run_that_has_ended() -> None:
    case = Case(breaker=CircuitBreaker(min_calls=1, first_pause_ms=30_000))
    case.failures = [ConnectionError()]
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: not case.failures)
        case.buffers.put({B: batch(0, 1)})
        await asyncio.sleep(1)
        assert case.begun == [(0, [0])]
        assert case.run.counts() == {
            "at_work": 0,
            "ready": 1,
            "waiting_for_retry": 1,
            "uncommitted": 3,
            "in_outbox": 0,
        }
    assert case.buffers.budget.room_bytes == case.buffers.budget.limit_bytes
    run = weakref.ref(case.run)
    del case.run
    gc.collect()
    assert run() is None


async def test_what_run_cannot_begin_with_is_its_failure() -> None:
    case, error = Case(), ValueError("no producer")
    with pytest.raises(ValueError, match="no producer"), case.run.opened():
        raise error
    assert case.buffers.state.run_failure is error


@pytest.mark.parametrize("error", [ConsumerStoppedError("stopped"), ValueError("a task failed")])
async def test_what_reads_raise_ends_run_and_a_stop_is_no_failure(error: Exception) -> None:
    case = Case()
    gate = case.buffers.state.gate
    is_stop = isinstance(error, ConsumerStoppedError)
    with case.run.opened():
        task = asyncio.ensure_future(case.run.run())
        await asyncio.sleep(1)
        if is_stop:
            gate.refuse(lambda: error)
        else:
            gate.die(error)
        await asyncio.wait([task], timeout=10)
        assert task.done()
        assert (task.exception() is None) is is_stop


async def test_no_more_records_are_taken_than_handlers_may_soon_begin() -> None:
    case = Case(order=None)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 6)})
    async with case.running():
        await until(lambda: len(case.begun) == 2)
        case.buffers.put({A: batch(6, 500)})
        await asyncio.sleep(1)
        assert case.run.counts()["uncommitted"] == 6  # two for each handler are ready
        case.held.pop(A).set()
        await until(lambda: len(case.done) == 506)
