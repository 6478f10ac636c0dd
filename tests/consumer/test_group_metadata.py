"""As whom a consumer holds its partitions, and how far it has handed them out: for transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    FencedMemberEpochError,
    IllegalOperation,
    IllegalStateError,
    UnknownMemberIdError,
)
from aiokafka_lite.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tests.support.reading import consumer_of
from tests.support.waiting import until

TP = TopicPartition("t", 0)
LOSSES = [
    ("classic", "Heartbeat", UnknownMemberIdError, "JoinGroup"),
    ("consumer", "ConsumerGroupHeartbeat", FencedMemberEpochError, "ConsumerGroupHeartbeat"),
]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t")
        for number in range(5):
            broker.produce("t", b"%d" % number)
        yield broker
    assert broker.failure is None


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_member_says_who_it_is(broker: Broker, protocol: str) -> None:
    async with consumer_of(
        broker, "t", group_id="g", group_protocol=protocol, group_instance_id="i"
    ) as consumer:
        metadata = consumer.group_metadata()
        assert (metadata.group_id, metadata.group_instance_id) == ("g", "i")
        assert metadata.member_id
        assert metadata.generation_id > 0


@pytest.mark.parametrize(("protocol", "beat", "error", "join"), LOSSES)
async def test_a_member_that_has_lost_its_partitions_says_nothing(
    broker: Broker, protocol: str, beat: str, error: type[UnknownMemberIdError], join: str
) -> None:
    async with consumer_of(
        broker, "t", group_id="g", group_protocol=protocol, heartbeat_interval_ms=50
    ) as consumer:
        broker.on(beat).fail(error)
        with broker.on(join).hold() as rule:
            await rule.reached()
            await until(lambda: says_nothing(consumer))


def says_nothing(consumer: object) -> bool:
    try:
        consumer.group_metadata()  # type: ignore[attr-defined]
    except CommitFailedError:
        return True
    return False


async def test_there_is_none_without_a_group_before_the_start_and_after_the_stop(
    broker: Broker,
) -> None:
    async with consumer_of(broker, "t") as consumer:
        with pytest.raises(IllegalOperation, match="group_id"):
            consumer.group_metadata()
    consumer = consumer_of(broker, "t", group_id="g")
    with pytest.raises(IllegalStateError, match="not started"):
        consumer.group_metadata()
    await consumer.stop()
    with pytest.raises(ConsumerStoppedError):
        consumer.group_metadata()


async def test_partitions_assigned_by_hand_are_held_as_nobody(broker: Broker) -> None:
    async with consumer_of(broker, group_id="g") as consumer:
        consumer.assign([TP])
        assert consumer.group_metadata() == ConsumerGroupMetadata("g")


async def test_positions_are_behind_what_was_handed_out(broker: Broker) -> None:
    async with consumer_of(broker, "t", group_id="g") as consumer:
        await consumer.getmany(timeout_ms=5_000, max_records=3)
        assert consumer.positions() == {TP: OffsetAndMetadata(3, "")}
        await consumer.commit()
        assert await consumer.committed(TP) == 3
    async with consumer_of(broker) as consumer:
        consumer.assign([TP])
        assert consumer.positions() == {}  # it is not known yet
        await asyncio.wait_for(consumer.position(TP), 10)
        assert consumer.positions() == {TP: OffsetAndMetadata(0, "")}
