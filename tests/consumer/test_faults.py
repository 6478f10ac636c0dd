"""Consumers, ours and aiokafka's, in front of a broker that fails in every way it can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import aiokafka
import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.faults import Rule
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    CorruptRecordException,
    FencedMemberEpochError,
    FetchSessionIdNotFound,
    IllegalGenerationError,
    InvalidFetchSessionEpoch,
    LeaderNotAvailableError,
    NotCoordinatorForGroupError,
    NotLeaderForPartitionError,
    OffsetNotAvailableError,
    RebalanceInProgressError,
    RequestTimedOutError,
    UnknownError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.protocols import offering

COUNT = 40
Fault = Callable[[Broker], Rule]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with records in both partitions of "t"."""
    async with Broker() as broker:
        broker.create_topic("t", 2)
        for number in range(COUNT):
            broker.produce("t", b"%d" % number, partition=number % 2)
        yield broker
    assert broker.failure is None


def consumer_of(
    broker: Broker, *, group: bool = False, protocol: str = "classic"
) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g" if group else None,
        group_protocol=protocol,
        auto_offset_reset="earliest",
        retry_backoff_ms=10,
        request_timeout_ms=1_000,
        fetch_max_wait_ms=50,
        max_poll_interval_ms=10_000,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=20,
    )


ON_THE_WAY: dict[str, Fault] = {
    "not leader": lambda b: b.on("Fetch").fail(NotLeaderForPartitionError, times=3),
    "one partition unknown": lambda b: b.on("Fetch", partition=1).fail(
        UnknownTopicOrPartitionError, times=2
    ),
    "unknown error": lambda b: b.on("Fetch").fail(UnknownError, times=2),
    "timed out there": lambda b: b.on("Fetch").fail(RequestTimedOutError, times=3),
    "offset not available": lambda b: b.on("Fetch").fail(OffsetNotAvailableError, times=2),
    "session forgotten": lambda b: b.on("Fetch").fail(FetchSessionIdNotFound, times=2),
    "session out of step": lambda b: b.on("Fetch").fail(InvalidFetchSessionEpoch),
    "whole answer refused": lambda b: b.on("Fetch").fail(UnknownError, at="answer"),
    "checksum broken once": lambda b: b.on("Fetch").corrupt("crc"),
    "closed": lambda b: b.on("Fetch").disconnect(times=2),
    "reset": lambda b: b.on("Fetch").disconnect(reset=True),
    "answer cut": lambda b: b.on("Fetch").disconnect(after_bytes=50),
    "answer lost": lambda b: b.on("Fetch").disconnect(handled=True),
    "one byte at a time": lambda b: b.on("Fetch").split(piece_bytes=1),
    "cut in the head": lambda b: b.on("Fetch").split(at=[1, 4, 5, 8, 9], pause_s=0.001),
    "trickle": lambda b: b.on("Fetch").trickle(50_000),
    "throttled": lambda b: b.on("Fetch").throttle(0.05, mute=True),
    "correlation id": lambda b: b.on("Fetch").wrong_correlation_id(),
    "length lies": lambda b: b.on("Fetch").corrupt("length", by=-5),
    "silent": lambda b: b.on("Fetch").silence(),
    "no leader yet": lambda b: b.on("Metadata").fail(LeaderNotAvailableError, times=2),
    "partitions without leader": lambda b: b.on("Metadata").fail(
        LeaderNotAvailableError, at="partition"
    ),
    "list offsets refused": lambda b: b.on("ListOffsets").fail(NotLeaderForPartitionError, times=2),
    "list offsets lost": lambda b: b.on("ListOffsets").disconnect(handled=True),
    "versions late": lambda b: b.on("ApiVersions").delay(0.05),
}


async def read_all(consumer: AIOKafkaConsumer) -> list[bytes]:
    seen: list[bytes] = []
    async with _compat.timeout(20):
        while len(seen) < COUNT:
            for batch in (await consumer.poll(timeout_ms=1_000)).values():
                seen += [record.value or b"" for record in batch]
    return seen


def in_any_order() -> list[bytes]:
    return sorted(b"%d" % number for number in range(COUNT))


@pytest.mark.parametrize("fault", ON_THE_WAY)
async def test_records_come_all_and_once(broker: Broker, fault: str) -> None:
    rule = ON_THE_WAY[fault](broker)
    async with consumer_of(broker) as consumer:
        assert sorted(await read_all(consumer)) == in_any_order()
    assert rule.hits >= 1
    assert rule.is_over


IN_A_GROUP: dict[str, Fault] = {
    "no coordinator yet": lambda b: b.on("FindCoordinator").fail(15, times=2),
    "coordinators not offered": lambda b: b.on("ApiVersions").answer(
        offering(FindCoordinator=None)
    ),
    "committed offsets unstable": lambda b: b.on("OffsetFetch").fail(88, times=2, at="partition"),
    "committed offsets refused": lambda b: b.on("OffsetFetch").fail(
        CoordinatorLoadInProgressError, times=2
    ),
    "commit refused": lambda b: b.on("OffsetCommit").fail(CoordinatorLoadInProgressError, times=2),
    "commit answer lost": lambda b: b.on("OffsetCommit").disconnect(handled=True),
}
IN_A_CLASSIC_GROUP: dict[str, Fault] = {
    "coordinator moved": lambda b: b.on("JoinGroup").fail(NotCoordinatorForGroupError, times=2),
    "coordinator loads": lambda b: b.on("JoinGroup").fail(CoordinatorLoadInProgressError, times=2),
    "join lost": lambda b: b.on("JoinGroup").disconnect(),
    "join answer lost": lambda b: b.on("SyncGroup").disconnect(handled=True),
    "sync refused": lambda b: b.on("SyncGroup").fail(RebalanceInProgressError),
}
BEAT = "ConsumerGroupHeartbeat"
IN_A_KIP_848_GROUP: dict[str, Fault] = {
    "coordinator moved": lambda b: b.on(BEAT).fail(NotCoordinatorForGroupError, times=2),
    "coordinator loads": lambda b: b.on(BEAT).fail(CoordinatorLoadInProgressError, times=2),
    "join lost": lambda b: b.on(BEAT).disconnect(),
    "join answer lost": lambda b: b.on(BEAT).disconnect(handled=True),
}
GROUP_FAULTS: dict[str, dict[str, Fault]] = {
    "classic": {**IN_A_GROUP, **IN_A_CLASSIC_GROUP},
    "consumer": {**IN_A_GROUP, **IN_A_KIP_848_GROUP},
}
# Of a member's heartbeats.
BEAT_FAULTS: dict[str, dict[str, Fault]] = {
    "classic": {
        "generation fenced": lambda b: b.on("Heartbeat").fail(IllegalGenerationError),
        "member unknown": lambda b: b.on("Heartbeat").fail(UnknownMemberIdError),
        "heartbeat lost": lambda b: b.on("Heartbeat").disconnect(handled=True),
    },
    "consumer": {
        "epoch fenced": lambda b: b.on(BEAT).fail(FencedMemberEpochError),
        "heartbeat lost": lambda b: b.on(BEAT).disconnect(handled=True),
    },
}


def each_of(faults: dict[str, dict[str, Fault]]) -> pytest.MarkDecorator:
    cases = [(protocol, fault) for protocol, known in faults.items() for fault in known]
    return pytest.mark.parametrize(("protocol", "fault"), cases)


@each_of(GROUP_FAULTS)
async def test_a_group_member_recovers_and_commits(
    broker: Broker, protocol: str, fault: str
) -> None:
    rule = GROUP_FAULTS[protocol][fault](broker)
    async with consumer_of(broker, group=True, protocol=protocol) as consumer:
        await read_all_and_commit(broker, consumer)
    assert rule.is_over


@each_of(BEAT_FAULTS)
async def test_a_group_member_whose_heartbeat_fails_recovers_and_commits(
    broker: Broker, protocol: str, fault: str
) -> None:
    async with consumer_of(broker, group=True, protocol=protocol) as consumer:
        rule = BEAT_FAULTS[protocol][fault](broker)
        await rule.reached()
        await read_all_and_commit(broker, consumer)
    assert rule.is_over


async def read_all_and_commit(broker: Broker, consumer: AIOKafkaConsumer) -> None:
    assert set(await read_all(consumer)) == set(in_any_order())
    for _ in range(200):
        try:
            await consumer.commit()
            break
        except Exception:  # noqa: BLE001 — a rebalance may be under way
            await consumer.poll(timeout_ms=20)
    assert broker.committed("g") == {TopicPartition("t", n): COUNT // 2 for n in range(2)}


async def test_a_corrupt_batch_is_an_error_once_it_stays_so(broker: Broker) -> None:
    with broker.on("Fetch", partition=0).corrupt("crc", times=None):
        async with consumer_of(broker) as consumer:

            async def poll_on() -> None:
                while True:
                    await consumer.poll(timeout_ms=1_000)

            with pytest.raises(CorruptRecordException):
                await asyncio.wait_for(poll_on(), 10)


async def test_metadata_that_gets_lost_is_asked_for_again(broker: Broker) -> None:
    async with consumer_of(broker) as consumer:
        await read_all(consumer)
        lost = broker.on("Metadata").disconnect(times=2)
        broker.on("Fetch").fail(NotLeaderForPartitionError)
        broker.produce("t", b"more", partition=0)
        record = await asyncio.wait_for(consumer.getone(), 10)
        assert record.value == b"more"
        await lost.reached(2)
        broker.produce("t", b"and more", partition=0)
        assert (await asyncio.wait_for(consumer.getone(), 10)).value == b"and more"


async def test_stale_metadata_is_overcome() -> None:
    async with Broker(nodes=2) as cluster:
        cluster.create_topic("t", 1)
        cluster.produce("t", b"before")
        async with consumer_of(cluster) as consumer:
            assert (await consumer.getone()).value == b"before"
            with cluster.on("Metadata").stale_metadata() as rule:
                cluster.move_leader(TopicPartition("t", 0))
                cluster.produce("t", b"after")
                # The answer to Fetch names the new leader (KIP-951): metadata is not needed.
                record = await asyncio.wait_for(consumer.getone(), 10)
            assert record.value == b"after"
            assert rule.is_over


AIOKAFKA_SURVIVES = [
    *["not leader", "one partition unknown", "closed", "reset", "answer lost", "throttled"],
    *["one byte at a time", "trickle", "list offsets refused", "versions late"],
]


@pytest.mark.parametrize("fault", AIOKAFKA_SURVIVES)
async def test_aiokafka_survives(broker: Broker, fault: str) -> None:
    rule = ON_THE_WAY[fault](broker)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        retry_backoff_ms=10,
        request_timeout_ms=1_000,
        fetch_max_wait_ms=50,
    )
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition("t", number) for number in range(2)])
        seen: list[bytes] = []
        async with _compat.timeout(20):
            while len(seen) < COUNT:
                for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                    seen += [record.value for record in batch]
    finally:
        await consumer.stop()
    assert sorted(seen) == in_any_order()
    assert rule.hits >= 1
