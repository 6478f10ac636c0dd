"""Faults and the log of requests, from synchronous tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import confluent_kafka
import pytest

from aiokafka_lite.broker.thread import BrokerThread, ThreadConnectionRule, ThreadRule
from aiokafka_lite.errors import (
    CorruptRecordException,
    NotLeaderForPartitionError,
    RebalanceInProgressError,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest
from tests.support.wire import RawClient

COUNT = 50


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A broker for blocking clients, with records in "t"."""
    with BrokerThread() as thread:
        thread.create_topic("t")
        for number in range(COUNT):
            thread.produce("t", b"%d" % number)
        yield thread
    thread.raise_if_failed()


def read_all(broker: BrokerThread) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "check.crcs": True,
            "retry.backoff.ms": 10,
            "fetch.error.backoff.ms": 10,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.max.ms": 50,
            "socket.timeout.ms": 1_000,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        read: list[bytes | None] = []
        while len(read) < COUNT:
            batch = consumer.consume(COUNT, timeout=0.5)
            read += [message.value() for message in batch if message.error() is None]
        return read
    finally:
        consumer.close()


def test_confluent_kafka_survives(broker: BrokerThread) -> None:
    """One fault after the other stands in the way of the first records."""
    on_fetch = broker.on("Fetch")
    rules: list[ThreadRule | ThreadConnectionRule] = [
        broker.on_connect().refuse(),
        broker.on_connect().close_after(10),
        broker.on("ApiVersions").delay(0.05),
        broker.on("Metadata").disconnect(),
        on_fetch.fail(NotLeaderForPartitionError, times=2),
        on_fetch.fail(CorruptRecordException),
        on_fetch.disconnect(),
        on_fetch.disconnect(reset=True),
        on_fetch.disconnect(after_bytes=60),
        on_fetch.throttle(0.01, mute=True),
        on_fetch.split(piece_bytes=100),
    ]
    assert read_all(broker) == [b"%d" % number for number in range(COUNT)]
    assert [rule for rule in rules if not rule.is_over and rule is not rules[-1]] == []


def test_rules_are_used_from_other_threads(broker: BrokerThread) -> None:
    mark = broker.requests.total
    with broker.on("Heartbeat").hold() as held:
        asking = asyncio.new_event_loop()

        async def ask() -> int:
            async with RawClient(broker.bootstrap_servers) as client:
                heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
                pending = asyncio.ensure_future(client.request(heartbeat))
                await asyncio.to_thread(held.reached, 1)
                (seen,) = broker.requests.of("Heartbeat", since=mark)
                assert seen.answered_at is None
                with pytest.raises(RuntimeError, match="to_thread"):
                    held.reached(1)
                held.release()
                return (await pending).error_code

        try:
            assert asking.run_until_complete(ask()) == 16
        finally:
            asking.close()
        assert held.is_over
    (seen,) = broker.requests.wait_for("Heartbeat", since=mark)
    assert seen.error_codes == {16}
    broker.on("Heartbeat").fail(RebalanceInProgressError, times=None)
    broker.clear_faults()
    assert not broker.broker.faults.is_armed
    with broker.on("Heartbeat").fail(RebalanceInProgressError, times=None) as rule:
        assert not rule.is_over
    assert (rule.is_over, rule.hits, broker.requests.total) == (True, 0, len(broker.requests))
    with pytest.raises(TimeoutError, match="has not reached"):
        broker.on("Heartbeat").silence().reached(1, timeout_s=0.01)
    with pytest.raises(TimeoutError, match="0 requests of JoinGroup"):
        broker.requests.wait_for("JoinGroup", timeout_s=0.01)
    broker.requests.clear()
    assert list(broker.requests) == []
    assert len(broker.requests) == 0
