"""The loop's default executor is the application's: a consumer needs none of its threads."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from aiokafka_lite import _compat, _threads
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.membership.classic import rebalance
from aiokafka_lite.records import Codec
from aiokafka_lite.structs import ConsumerRecord
from tests.support import tuning
from tests.support.waiting import until

COUNT = 20
TIMEOUT_S = 10.0


@pytest.fixture
async def full_executor() -> AsyncIterator[ThreadPoolExecutor]:
    """The default executor has one thread, which the application never gives back."""
    loop = asyncio.get_running_loop()
    is_over = threading.Event()
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    working = loop.run_in_executor(None, is_over.wait)
    yield executor
    is_over.set()
    await working


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with a compressed batch in each of the partitions of "t"."""
    async with Broker() as broker:
        broker.create_topic("t", 4)
        for number in range(4):
            records = [NewRecord(b"%d" % each, partition=number) for each in range(COUNT)]
            broker.produce_all("t", records, codec=Codec.GZIP)
        yield broker
    assert broker.failure is None


def consumer_of(broker: Broker, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 20,
        **settings,
    }
    return AIOKafkaConsumer("t", **arguments)  # type: ignore[arg-type]


async def read_all(consumer: AIOKafkaConsumer) -> int:
    count = 0
    while count < 4 * COUNT:
        count += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
    return count


@pytest.mark.usefixtures("full_executor")
async def test_records_are_decompressed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.decompress(monkeypatch, in_thread=True)
    async with consumer_of(broker) as consumer:
        assert await asyncio.wait_for(read_all(consumer), TIMEOUT_S) == 4 * COUNT


async def test_threads_of_the_executor_may_wait_for_records(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.decompress(monkeypatch, in_thread=True)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))
    async with consumer_of(broker) as consumer:

        def read() -> ConsumerRecord:
            asked = asyncio.run_coroutine_threadsafe(consumer.getone(), loop)
            return asked.result(TIMEOUT_S)

        records = await asyncio.gather(*(loop.run_in_executor(None, read) for _ in range(2)))
        assert len({(record.partition, record.offset) for record in records}) == 2


@pytest.mark.usefixtures("full_executor")
async def test_a_leader_assigns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "ON_LOOP_S", 0.0)
    async with (
        consumer_of(broker, group_id="g", group_protocol="classic") as first,
        consumer_of(broker, group_id="g", group_protocol="classic") as second,
        _compat.timeout(TIMEOUT_S),
    ):
        while not (first.assignment() and second.assignment()):
            await asyncio.gather(first.getmany(timeout_ms=20), second.getmany(timeout_ms=20))


@pytest.mark.usefixtures("full_executor")
async def test_names_are_resolved(broker: Broker) -> None:
    port = broker.bootstrap_servers.partition(":")[2]
    async with consumer_of(broker, bootstrap_servers=f"localhost:{port}") as consumer:
        assert await asyncio.wait_for(read_all(consumer), TIMEOUT_S) == 4 * COUNT


# --- If our own threads do not begin ----------------------------------------------------------
@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Our own threads are at work until the event is set."""
    is_over = threading.Event()
    busy = ThreadPoolExecutor(1)
    working = busy.submit(is_over.wait)
    monkeypatch.setattr(_threads, "_executors", {"compute": busy, "resolve": busy})
    monkeypatch.setattr(_threads, "BEGIN_S", 0.01)
    yield is_over
    is_over.set()
    working.result(TIMEOUT_S)
    busy.shutdown()


async def test_what_no_thread_begins_is_done_once_on_the_loop(no_thread: threading.Event) -> None:
    done_by: list[int] = []
    await asyncio.wait_for(
        _threads.compute(lambda: done_by.append(threading.get_ident())), TIMEOUT_S
    )
    assert done_by == [threading.get_ident()]
    no_thread.set()
    await asyncio.sleep(0.05)  # the thread finds it done
    assert len(done_by) == 1


async def test_threads_that_have_been_ended_do_no_more_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, is_over = _threads.OwnThreads("test"), threading.Event()
    done: list[str] = []
    is_begun = threading.Event()

    def wait() -> None:
        is_begun.set()
        done.append(f"{is_over.wait(TIMEOUT_S)}")

    running = threads.run(wait)
    await asyncio.to_thread(is_begun.wait)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError("too many")))
        waiting = threads.run(lambda: done.append("waiting"))
    assert threads.close() == 2
    with pytest.raises(RuntimeError, match="have been ended"):
        threads.run(lambda: done.append("late"))
    is_over.set()
    await until(lambda: not [each for each in threading.enumerate() if "lite-test" in each.name])
    assert done == ["True"]
    assert running.cancelled()
    assert waiting.cancelled()


async def test_an_error_in_a_thread_leaves_no_reference_cycle() -> None:
    class FailedError(Exception): ...

    failures: list[weakref.ref[FailedError]] = []

    def fail() -> None:
        error = FailedError()
        failures.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    threads = _threads.OwnThreads("test")
    gc.disable()
    try:
        for run in (threads.run, _threads.compute):
            with pytest.raises(FailedError):
                await run(fail)
        await until(lambda: not any(each() for each in failures))
    finally:
        gc.enable()
        threads.close()


@pytest.mark.usefixtures("no_thread")
async def test_an_error_on_the_loop_is_raised_by_whoever_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        await _threads.compute(lambda: 1 // 0)


async def test_an_error_in_a_thread_is_raised_by_whoever_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        await _threads.compute(lambda: 1 // 0)


async def test_where_no_thread_can_be_started_it_is_done_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = ThreadPoolExecutor(1)
    over.shutdown()
    monkeypatch.setattr(_threads, "_executors", {"compute": over})
    assert await _threads.compute(threading.get_ident) == threading.get_ident()


@pytest.mark.usefixtures("no_thread")
async def test_what_was_cancelled_before_it_began_is_not_done() -> None:
    done: list[None] = []
    computing = _threads.compute(lambda: done.append(None))
    computing.cancel()
    await asyncio.sleep(0.05)
    assert not done
