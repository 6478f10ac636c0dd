"""`async for` over a consumer: which of the two per-message paths runs, and that both read all."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
from typing import Any, TypeAlias

import pytest

from aiokafka_lite._implementation import SETTING
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.delivery import _iteration_py
from aiokafka_lite.errors import RecordTooLargeError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle
from tests.support.extensions import BROKEN, NOT_BUILT
from tests.support.iterations import ITERATIONS, Iteration
from tests.support.reading import reading
from tests.support.rows import rows

Record: TypeAlias = ConsumerRecord

compiled_only = pytest.mark.skipif(
    "compiled" not in ITERATIONS, reason="the extension is not built"
)


async def test_async_for_reads_every_record_in_order(
    kafka: KafkaHandle, decoder: str, iteration: Iteration
) -> None:
    topic = await kafka.create_topic()
    for first in range(0, 1_000, 100):
        await kafka.produce(topic, 0, rows(first, 100))
    values = []
    async with reading(kafka, topic, consumer_class=iteration.consumer) as consumer:
        async for record in consumer:
            values.append((record.offset, record.key, record.value))
            if len(values) == 1_000:
                break
    assert values == [(i, b"%d" % i, b"value %d" % i) for i in range(1_000)]


@pytest.mark.real_if_long
async def test_the_ways_to_read_go_on_where_another_stopped(
    kafka: KafkaHandle, iteration: Iteration
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 50))
    async with reading(kafka, topic, consumer_class=iteration.consumer) as consumer:
        found: list[int] = []
        while len(found) < 50:
            found.append((await anext(consumer)).offset)
            found.append((await consumer.getone()).offset)
            found.append((await consumer.getone(tp)).offset)
            async for record in consumer:
                found.append(record.offset)
                break
            for batch in (await consumer.poll(timeout_ms=0, max_records=1)).values():
                found += [record.offset for record in batch]
            assert await consumer.position(tp) == found[-1] + 1
        assert found == list(range(50))


@pytest.mark.real_if_long
async def test_a_record_that_is_too_large_is_logged_and_skipped(
    kafka: KafkaHandle, iteration: Iteration, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic, consumer_class=iteration.consumer) as consumer:
        assert [(await anext(consumer)).offset for _ in range(3)] == [0, 1, 2]
        error = RecordTooLargeError("too large").at(tp, 3, 4)
        inside.put_error(consumer, tp, error)
        with caplog.at_level(logging.ERROR), pytest.raises(RecordTooLargeError):
            await consumer.getone()
        assert not caplog.records
        assert await consumer.position(tp) == 3
        await kafka.produce(topic, 0, rows(3, 2))
        assert (await anext(consumer)).offset == 4
        assert "record skipped" in caplog.text


@pytest.mark.real_if_long
async def test_stop_ends_the_iteration_of_every_task(
    kafka: KafkaHandle, iteration: Iteration
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    found: list[int] = []
    is_all_there = asyncio.Event()
    async with reading(kafka, topic, consumer_class=iteration.consumer) as consumer:

        async def read_all() -> None:
            async for record in consumer:
                found.append(record.offset)
                if len(found) == 5:
                    is_all_there.set()

        tasks = [asyncio.ensure_future(read_all()) for _ in range(3)]
        await is_all_there.wait()
        await consumer.stop()
        await asyncio.gather(*tasks)
        assert found == [0, 1, 2, 3, 4]
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)


async def test_instrumentation_may_wrap_the_gets_of_the_class(iteration: Iteration) -> None:
    """As OpenTelemetry does: it replaces the methods on the class, and puts them back."""
    wrapped: Any = iteration.consumer
    originals = {name: getattr(wrapped, name) for name in ("getone", "__anext__")}
    traced: list[tuple[str, int]] = []

    def trace(name: str) -> Any:
        async def traced_get(self: AIOKafkaConsumer, *arguments: TopicPartition) -> Record:
            record: Record = await originals[name](self, *arguments)
            traced.append((name, record.offset))
            return record

        return traced_get

    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic()
        await kafka.produce(topic, 0, rows(0, 20))
        async with reading(kafka, topic, consumer_class=iteration.consumer) as consumer:
            for name in originals:
                setattr(wrapped, name, trace(name))
            try:
                await consumer.getone()
                async for record in consumer:
                    if record.offset == 3:
                        break
            finally:
                for name, original in originals.items():
                    setattr(wrapped, name, original)
            assert (await consumer.getone()).offset == 4
            async for record in consumer:
                if record.offset == 7:
                    break
    assert traced == [("getone", 0), ("__anext__", 1), ("__anext__", 2), ("__anext__", 3)]


async def test_an_unclosed_consumer_that_was_read_from_says_so_at_once(
    iteration: Iteration,
) -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def abandon() -> None:
        consumer = iteration.consumer("t")
        with pytest.raises(Exception, match="not started"):
            await anext(consumer)
        gc.collect()  # the exception's traceback; from now on counting references is enough
        gc.disable()

    try:
        with pytest.warns(ResourceWarning, match="Unclosed"):
            await abandon()
    finally:
        gc.enable()
    assert len(told) == 1


# --- Which one runs -----------------------------------------------------------------------

NAME = "aiokafka_lite.consumer.delivery._iteration"
REPORT = """
import asyncio
from aiokafka_lite import AIOKafkaConsumer
print(asyncio.iscoroutinefunction(AIOKafkaConsumer.__anext__))
"""


def run(prepare: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys\n{prepare}\n{REPORT}"
    env = {name: value for name, value in os.environ.items() if name != SETTING}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
    )


def test_the_plain_path_runs_where_the_extension_is_not_built() -> None:
    result = run(NOT_BUILT.format(name=NAME))
    assert (result.stdout.strip(), result.stderr) == ("True", "")


def test_a_broken_extension_is_not_hidden() -> None:
    result = run(BROKEN.format(name=NAME))
    assert result.returncode != 0
    assert "undefined symbol" in result.stderr


@compiled_only
def test_the_compiled_path_runs_where_the_extension_is_built() -> None:
    assert run("").stdout.strip() == "False"
    assert not issubclass(AIOKafkaConsumer, _iteration_py.RecordIterator)


@compiled_only
def test_a_consumer_that_was_not_initialised_says_so() -> None:
    consumer = AIOKafkaConsumer.__new__(AIOKafkaConsumer)
    with pytest.raises(RuntimeError, match="__init__"):
        consumer.__anext__()  # type: ignore[unused-coroutine]
