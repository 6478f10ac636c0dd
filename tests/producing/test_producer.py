"""A producer as an object: its arguments, its loop and process, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from collections.abc import Mapping

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import ForkedError, IllegalStateError, WrongLoopError
from aiokafka_lite.producing import AIOKafkaProducer
from tests.producing.sending import producer_of
from tests.support import inside
from tests.support.waiting import until


async def test_deprecated_arguments_warn_as_aiokafkas_do() -> None:
    given: Mapping[str, object] = {"api_version": "2.4.0", "loop": asyncio.get_running_loop()}
    for name, value in given.items():
        with pytest.warns(DeprecationWarning, match=f"{name}`? ") as warned:
            await AIOKafkaProducer(**{name: value}).stop()  # type: ignore[arg-type]
        assert [each.filename for each in warned] == [__file__]


async def test_a_batch_of_ones_own_is_serialized_like_other_records() -> None:
    producer = AIOKafkaProducer(
        key_serializer=str.encode, value_serializer=lambda number: b"%d" % number
    )
    batch = producer.create_batch()
    batch.append(timestamp=0, key="k", value=5)
    assert [(row.key, row.value) for row in batch.rows()] == [(b"k", b"5")]
    await producer.stop()


async def test_a_producer_stays_where_it_is() -> None:
    producer = AIOKafkaProducer()
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(producer)
    await producer.stop()


async def test_a_producer_is_started_once_and_keeps_to_its_loop() -> None:
    async with Broker() as broker:
        async with producer_of(broker) as producer:
            with pytest.raises(IllegalStateError, match="once"):
                await producer.start()
            loop = asyncio.get_running_loop()
            for call in (
                producer.send("t", b"v"),
                producer.partitions_for("t"),
                producer.flush(),
                producer.start(),
                producer.stop(),
            ):
                with pytest.raises(WrongLoopError, match="run_coroutine_threadsafe"):
                    await loop.run_in_executor(None, asyncio.run, call)
            assert 0 in await producer.partitions_for("t"), "it was not stopped"
        assert broker.failure is None


@pytest.mark.parametrize("is_debugged", [True, False])
async def test_a_producer_that_is_forgotten_says_so_and_leaves_nothing(
    *, is_debugged: bool
) -> None:
    loop = asyncio.get_running_loop()
    contexts: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: contexts.append(dict(context)))
    loop.set_debug(is_debugged)
    async with Broker() as broker:
        producer = producer_of(broker)
        await producer.start()
        with pytest.warns(ResourceWarning, match="Unclosed AIOKafkaProducer"):  # noqa: PT031 -- both
            del producer
            gc.collect()
        await until(lambda: broker.connection_count == 0)
    (context,) = contexts
    assert context["message"] == "Unclosed AIOKafkaProducer"
    assert ("source_traceback" in context) is is_debugged
    contexts.clear()
    gc.collect()


@pytest.mark.virtual_time
async def test_a_producer_that_is_told_of_a_fork_takes_and_sends_nothing() -> None:
    async def be_a_child(producer: AIOKafkaProducer, unstarted: AIOKafkaProducer) -> None:
        future = await producer.send("t", b"v")
        for each in (producer, unstarted):
            inside.note_fork(each)
        with pytest.raises(ForkedError, match="only the parent process sends it"):
            await future
        for call in (
            producer.flush,
            producer.stop,
            producer.start,
            unstarted.start,
            unstarted.stop,
            lambda: producer.send("t", b"w"),
            lambda: producer.partitions_for("t"),
        ):
            with pytest.raises(ForkedError):
                await call()
        await asyncio.sleep(2)

    async with Broker() as broker:
        broker.create_topic("t")
        producer = producer_of(broker, linger_ms=1_000)
        await producer.start()
        await be_a_child(producer, producer_of(broker))
        assert not broker.requests.of("Produce")
        for task in asyncio.all_tasks():
            if task.get_name().startswith("produce:"):
                task.cancel()
                await asyncio.wait([task])
    del producer  # which warns of nothing
    gc.collect()


async def test_a_stopped_producer_keeps_its_partitioner_no_longer() -> None:
    def first(key: bytes | None, every: list[int], available: list[int]) -> int:
        return every[0]

    kept = weakref.ref(first)
    async with Broker() as broker:
        producer = producer_of(broker, partitioner=first)
        async with producer:
            await producer.send_and_wait("t", b"v")
        del producer, first
        gc.collect()
        assert kept() is None


async def test_a_producer_whose_start_was_cancelled_has_nothing_to_stop() -> None:
    async with Broker() as broker:
        with broker.on("InitProducerId").silence(times=None) as rule:
            producer = producer_of(broker)
            starting = asyncio.ensure_future(producer.start())
            await rule.reached()
            starting.cancel()
            await asyncio.wait([starting])
        del producer, starting  # which warns of nothing
        gc.collect()
