"""No background task dies unnoticed: a bug is raised by every get, what passes is tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import ConsumerStoppedError, KafkaConnectionError
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.bugs import PASSING, PLACES, Listener, plant
from tests.support.protocols import in_both_protocols

TIMEOUT_S = 10.0


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t", 1)
        broker.create_topic("u", 1)
        broker.produce("t", b"first")
        yield broker


@pytest.fixture
def protocol() -> str:
    """The protocol by which the consumer is in its group."""
    return "classic"


@pytest.fixture
async def consumer(broker: Broker, protocol: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        group_protocol=protocol,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        heartbeat_interval_ms=20,
        auto_commit_interval_ms=20,
        retry_backoff_ms=10,
    )
    consumer.subscribe(["t"], listener=Listener())
    await consumer.start()
    assert (await consumer.getone()).value == b"first"
    yield consumer
    await consumer.stop()


async def poll_on(consumer: AIOKafkaConsumer) -> None:
    """Poll for ever: only an exception ends it."""
    while True:
        await consumer.poll(timeout_ms=1_000)


async def poll_until(
    consumer: AIOKafkaConsumer, is_reached: Callable[[set[bytes | None]], bool]
) -> None:
    """Poll until a condition holds, which is told the values seen since."""
    seen: set[bytes | None] = set()
    async with _compat.timeout(TIMEOUT_S):
        while not is_reached(seen):
            for batch in (await consumer.poll(timeout_ms=5)).values():
                seen |= {record.value for record in batch}


@pytest.mark.parametrize(("name", "protocol"), [(n, p.protocol) for n, p in PLACES.items()])
async def test_a_bug_in_a_background_task_is_raised_by_every_get_until_the_stop(
    broker: Broker,
    consumer: AIOKafkaConsumer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    place = PLACES[name]
    loop = asyncio.get_running_loop()
    complaints: list[object] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    if name == "connection: a deadline":  # the timer that is set now rings whatever is answered
        connection = inside.cluster(consumer).pool.usable(1)
        assert connection is not None
        connection.send(HeartbeatRequest(), timeout_s=0.1)
    plant(monkeypatch, place, ZeroDivisionError("a bug"))
    with caplog.at_level(logging.CRITICAL):
        await place.trigger(broker, consumer)  # type: ignore[misc]
        began = loop.time()
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await asyncio.wait_for(poll_on(consumer), TIMEOUT_S)
        assert loop.time() - began < 5.0
        for get in (consumer.getone, consumer.getmany, consumer.poll, consumer.__anext__):
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await get()
        assert isinstance(inside.failures(consumer)[place.scope], ZeroDivisionError)
        await asyncio.wait_for(consumer.stop(timeout=0.2), TIMEOUT_S)
    with pytest.raises(ConsumerStoppedError):
        await consumer.getone()
    assert complaints == []  # nothing was left to the event loop


@pytest.mark.parametrize(("name", "protocol"), [(n, p.protocol) for n, p in PASSING.items()])
async def test_a_task_that_fails_for_now_is_restarted_and_shows(
    broker: Broker, consumer: AIOKafkaConsumer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = PASSING[name]
    plant(monkeypatch, place, KafkaConnectionError("for now"), times=2)
    await place.trigger(broker, consumer)  # type: ignore[misc]
    await poll_until(
        consumer,
        lambda _: any(
            task.startswith(name.partition(",")[0]) for task in inside.degraded_tasks(consumer)
        ),
    )
    broker.produce("t", b"last")
    await poll_until(consumer, lambda seen: b"last" in seen)
    assert consumer.metrics()["task_restarts_total"] == 1
    assert set(inside.failures(consumer).values()) == {None}


@in_both_protocols
@pytest.mark.parametrize("name", ["fetch", "positions", "group", "heartbeat", "cluster refresh"])
async def test_a_task_that_somebody_cancels_is_not_gone_silently(
    consumer: AIOKafkaConsumer, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    def victims() -> list[asyncio.Task[object]]:
        return [t for t in asyncio.all_tasks() if f":{name}" in t.get_name()]

    await poll_until(consumer, lambda _: bool(victims()))
    polling = asyncio.ensure_future(consumer.poll())
    await asyncio.sleep(0)
    with caplog.at_level(logging.CRITICAL):
        victims()[0].cancel()
        with pytest.raises(RuntimeError, match="cancelled by code outside aiokafka_lite"):
            await asyncio.wait_for(polling, TIMEOUT_S)
        await asyncio.wait_for(consumer.stop(timeout=0.2), TIMEOUT_S)


@in_both_protocols
async def test_a_callback_of_the_application_that_cancels_itself_is_no_bug(
    consumer: AIOKafkaConsumer, broker: Broker
) -> None:
    class Cancelled(Listener):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:  # type: ignore[override]
            raise asyncio.CancelledError

    consumer.subscribe(["t", "u"], listener=Cancelled())
    broker.produce("u", b"go on")
    await poll_until(consumer, lambda seen: b"go on" in seen)
