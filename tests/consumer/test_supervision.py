"""No background task dies unnoticed: a bug is raised by every get, what passes is tried again."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.connection import Connection, Exchange
from aiokafka_lite.client.frames import FrameReader
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.consumer.fetching.answer import Answers
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.consumer.membership.classic.heartbeat import Heartbeat
from aiokafka_lite.consumer.membership.classic.membership import ClassicMembership
from aiokafka_lite.consumer.membership.classic.rebalance import Rebalance
from aiokafka_lite.consumer.membership.listener import ListenerCalls
from aiokafka_lite.consumer.positions.resolver import PositionResolver
from aiokafka_lite.errors import ConsumerStoppedError, KafkaConnectionError
from aiokafka_lite.protocol.messages.heartbeat import HeartbeatRequest
from aiokafka_lite.structs import TopicPartition

TP = TopicPartition("t", 0)
TIMEOUT_S = 10.0
Trigger = Callable[[Broker, AIOKafkaConsumer], Awaitable[object] | None]


class Listener(ConsumerRebalanceListener):
    """Has something to be called."""

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        pass

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        pass


class Place(NamedTuple):
    """Where a task calls something that a bug is planted in, and what has it called."""

    owner: type
    method: str
    trigger: Trigger
    scope: str


async def new_records(broker: Broker, _: AIOKafkaConsumer) -> None:
    broker.produce("t", b"more")


async def subscribe_anew(_: Broker, consumer: AIOKafkaConsumer) -> None:
    consumer.subscribe(["t", "u"], listener=Listener())


async def reset(_: Broker, consumer: AIOKafkaConsumer) -> None:
    state = consumer._engine.state
    state.request_reset(state.partition(TP), -2)


async def refresh(_: Broker, consumer: AIOKafkaConsumer) -> None:
    consumer._engine.running.cluster.invalidate()


async def cut(broker: Broker, _: AIOKafkaConsumer) -> None:
    broker.on("Fetch").disconnect()
    broker.produce("t", b"answers the fetch under way")


async def nothing(_: Broker, __: AIOKafkaConsumer) -> None:
    pass


PLACES = {
    "fetch: an answer": Place(Answers, "_settle_partition", new_records, "fetch"),
    "fetch: the task": Place(Source, "_recover", cut, "fetch"),
    "positions": Place(PositionResolver, "_resolve_once", reset, "positions"),
    "group": Place(Rebalance, "join_and_sync", subscribe_anew, "group"),
    "heartbeat": Place(Heartbeat, "_send", nothing, "group"),
    "listener": Place(ListenerCalls, "_guarded", subscribe_anew, "group"),
    "auto-commit": Place(Commits, "_commit", new_records, "group"),
    "cluster refresh": Place(Cluster, "_ask_for_metadata", refresh, "cluster"),
    "connect": Place(Connection, "_negotiate", cut, "cluster"),
    "connection: bytes came": Place(FrameReader, "next_frame", nothing, "cluster"),
    "connection: an answer": Place(Exchange, "answered", nothing, "cluster"),
    "connection: a deadline": Place(Connection, "_check_deadlines", nothing, "cluster"),
}


# Where nothing deals with what passes by itself, so that only a restart does.
PASSING = {
    "fetch": Place(Source, "_recover", cut, "fetch"),
    "positions": Place(PositionResolver, "_resolve_once", reset, "positions"),
    "group": Place(ClassicMembership, "_hold", subscribe_anew, "group"),
    "heartbeat": Place(Heartbeat, "_sleep_until_due", nothing, "group"),
    "auto-commit": Place(Commits, "not_committed_yet", nothing, "group"),
    "cluster refresh": Place(Cluster, "_ask_for_metadata", refresh, "cluster"),
}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t", 1)
        broker.create_topic("u", 1)
        broker.produce("t", b"first")
        yield broker


@pytest.fixture
async def consumer(broker: Broker) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
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


def plant(
    monkeypatch: pytest.MonkeyPatch, place: Place, error: Exception, times: int | None = None
) -> None:
    """Have a method raise, so many times."""
    original = inspect.getattr_static(place.owner, place.method)
    real = getattr(place.owner, place.method)
    left = times

    def fail(*arguments: object, **named: object) -> object:
        nonlocal left
        if left == 0:
            return real(*arguments, **named)
        if left is not None:
            left -= 1
        raise error

    async def fail_later(*arguments: object, **named: object) -> object:
        result = fail(*arguments, **named)
        return await result if inspect.isawaitable(result) else result

    stand_in = fail_later if inspect.iscoroutinefunction(real) else fail
    if isinstance(original, staticmethod):
        stand_in = staticmethod(stand_in)
    monkeypatch.setattr(place.owner, place.method, stand_in)


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


@pytest.mark.parametrize("name", PLACES)
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
        connection = consumer._engine.running.cluster.pool.usable(1)
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
        scopes = {scope.name: scope.failure for scope in consumer._engine.running.scopes}
        assert isinstance(scopes[place.scope], ZeroDivisionError)
        await asyncio.wait_for(consumer.stop(timeout=0.2), TIMEOUT_S)
    with pytest.raises(ConsumerStoppedError):
        await consumer.getone()
    assert complaints == []  # nothing was left to the event loop


@pytest.mark.parametrize("name", PASSING)
async def test_a_task_that_fails_for_now_is_restarted_and_shows(
    broker: Broker, consumer: AIOKafkaConsumer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = PASSING[name]
    plant(monkeypatch, place, KafkaConnectionError("for now"), times=2)
    await place.trigger(broker, consumer)  # type: ignore[misc]

    def degraded() -> dict[str, BaseException]:
        running = consumer._engine.running
        return {task: error for scope in running.scopes for task, error in scope.degraded.items()}

    await poll_until(consumer, lambda _: any(task.startswith(name) for task in degraded()))
    broker.produce("t", b"last")
    await poll_until(consumer, lambda seen: b"last" in seen)
    assert consumer._engine.state.events.counts["task_restarted"] == 1
    for scope in consumer._engine.running.scopes:
        scope.raise_if_failed()


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
        with pytest.raises(RuntimeError, match="cancelled by somebody else"):
            await asyncio.wait_for(polling, TIMEOUT_S)
        await asyncio.wait_for(consumer.stop(timeout=0.2), TIMEOUT_S)


async def test_a_callback_of_the_application_that_cancels_itself_is_no_bug(
    consumer: AIOKafkaConsumer, broker: Broker
) -> None:
    class Cancelled(Listener):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:  # type: ignore[override]
            raise asyncio.CancelledError

    consumer.subscribe(["t", "u"], listener=Cancelled())
    broker.produce("u", b"go on")
    await poll_until(consumer, lambda seen: b"go on" in seen)
