"""Heartbeats as seen from outside: when they are sent, and what their answers change."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.config import parse_address
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.recovery import Interruption
from aiokafka_lite.events import Lost
from aiokafka_lite.structs import TopicPartition
from tests.support import inside, tuning
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import events_so_far
from tests.support.listeners import Acting, Calls, beat_count, listening
from tests.support.other_member import throw_out
from tests.support.protocols import HEARTBEAT, in_both_protocols
from tests.support.proxy import Proxy, send_through
from tests.support.reading import reading
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, until
from tests.support.worker import Worker


async def test_heartbeats_are_answered_while_the_listener_takes_partitions(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()

    async def take_long(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> None:
        beats = beat_count(consumer)
        await until(lambda: beat_count(consumer) >= beats + 3)

    listener = Acting(assigned=take_long)
    async with listening(kafka, topic, listener, heartbeat_interval_ms=20):
        assert listener.results == [None]


@pytest.mark.virtual_time
@in_both_protocols
async def test_a_beat_tells_of_the_member_when_it_is_sent_not_when_it_is_answered(
    protocol: str,
) -> None:
    """The coordinator heard of it somewhere in between: the session may end so much earlier."""
    async with Broker() as broker:
        broker.create_topic("t")
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {"group_id": "g", "group_protocol": protocol, "heartbeat_interval_ms": 20}
        async with reading(handle, "t", **settings) as consumer:  # type: ignore[arg-type]
            kind = HEARTBEAT[protocol]
            with broker.on(kind).delay(0.4, times=None):
                since = broker.requests.total
                await until(lambda: broker.requests.of(kind, since=since))
                beats = beat_count(consumer)
                await until(lambda: beat_count(consumer) >= beats + 2)
                age_s = consumer.metrics()["last_heartbeat_age_seconds"]
                assert isinstance(age_s, float)
                assert age_s >= 0.4


async def test_a_beat_that_is_answered_opens_the_gate_only_for_its_own_reason() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        settings = {"heartbeat_interval_ms": 20}
        async with Worker(broker.bootstrap_servers, "g", ["t"], settings) as worker:
            gate, membership = worker.state.gate, worker.membership
            await until(lambda: not gate.holds, worker)
            for hold in (Hold.LISTENER, Hold.CUT_OFF, Hold.LOST):
                gate.hold(hold)
            beats = membership.status.heartbeat_count
            await until(lambda: membership.status.heartbeat_count >= beats + 2, worker)
            assert gate.holds == {Hold.LISTENER, Hold.LOST}
            # When the partitions are given back there is nothing left to hold.
            worker.member.interrupt(worker.member.identity, Interruption.GROUP_REBALANCES)
            await until(lambda: not gate.holds, worker)


@pytest.mark.parametrize("way", ["getmany", "getone", "async for"])
async def test_nothing_is_handed_out_once_a_heartbeat_has_said_that_the_member_is_unknown(
    kafka: KafkaHandle, way: str
) -> None:
    topic, group = await kafka.create_topic(), unique("g")
    await kafka.produce(topic, 0, rows(0, 20_000))

    async def get(consumer: AIOKafkaConsumer) -> None:
        if way == "getmany":
            assert await consumer.getmany(timeout_ms=int(PATIENCE_S * 1000), max_records=1)
        else:
            await (consumer.getone() if way == "getone" else anext(aiter(consumer)))

    async with (
        listening(kafka, topic, Calls(), group_id=group, enable_auto_commit=False) as consumer,
        timeout(PATIENCE_S),
    ):
        await get(consumer)
        with consumer.events() as events:
            await throw_out(kafka, group, inside.member_id(consumer))
            while True:
                has_been_told = consumer.metrics()["heartbeat_failures_total"] != 0
                await get(consumer)
                if any(isinstance(event, Lost) for event in events_so_far(events)):
                    break
                assert not has_been_told  # there is more buffered than can have been handed out
                await asyncio.sleep(0)


def impatient(
    kafka: KafkaHandle, topic: str, protocol: str
) -> AbstractAsyncContextManager[AIOKafkaConsumer]:
    """A member that beats often, and soon gives up waiting for an answer."""
    return reading(
        kafka,
        topic,
        group_id=topic,
        group_protocol=protocol,
        heartbeat_interval_ms=20,
        request_timeout_ms=1_000,
        retry_backoff_ms=10,
    )


def lines_with(caplog: pytest.LogCaptureFixture, words: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if words in record.getMessage()]


async def until_failed(consumer: AIOKafkaConsumer, count: int) -> None:
    failures = "heartbeat_failures_total"
    await until(lambda: consumer.metrics()[failures] in range(count, 1_000))


@pytest.mark.real_if_long
@in_both_protocols
async def test_of_heartbeats_that_fail_one_line_is_logged_and_one_when_brokers_are_back(
    kafka: KafkaHandle,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = await kafka.create_topic()
    async with Proxy(parse_address(kafka.bootstrap_servers)) as proxy:
        send_through(monkeypatch, proxy)
        async with impatient(kafka, topic, protocol) as consumer:
            await until(lambda: beat_count(consumer) > 0)
            with caplog.at_level(logging.WARNING, "aiokafka_lite"):
                await proxy.stop_listening()
                proxy.end_all()
                await until_failed(consumer, 2)
                (line,) = lines_with(caplog, "heartbeat failed")
                assert f"group {topic}: a heartbeat failed, " in line.getMessage()
                assert "KafkaConnectionError: " in line.getMessage()
                assert not lines_with(caplog, "are reachable again")
                await proxy.listen()
                await until(lambda: consumer.health().is_ok)
                await until(lambda: lines_with(caplog, "are reachable again"))
                (line,) = lines_with(caplog, "brokers are reachable again: connected to node ")
                assert kafka.bootstrap_servers in line.getMessage()
                assert line.levelno == logging.WARNING


@pytest.mark.real_if_long
@in_both_protocols
async def test_every_heartbeat_that_fails_for_want_of_a_broker_says_why(
    kafka: KafkaHandle,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tuning.log_every_event(monkeypatch)
    topic = await kafka.create_topic()
    async with Proxy(parse_address(kafka.bootstrap_servers)) as proxy:
        send_through(monkeypatch, proxy)
        async with impatient(kafka, topic, protocol) as consumer:
            await until(lambda: beat_count(consumer) > 0)
            with caplog.at_level(logging.WARNING, "aiokafka_lite"):
                await proxy.stop_listening()
                proxy.end_all()
                await until(
                    lambda: lines_with(
                        caplog, f"did not answer {HEARTBEAT[protocol]}Request in time"
                    )
                )
                for line in lines_with(caplog, "heartbeat failed"):
                    assert "KafkaConnectionError: " in line.getMessage()
                await proxy.listen()
                await until(lambda: consumer.health().is_ok)
