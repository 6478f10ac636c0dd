"""Faults of aiokafka's consumer, each proved by running, that ours does not have.

====================================================  =============================================
fault of aiokafka 0.14                                tested by
====================================================  =============================================
a cancelled or raising get ends max_poll_interval_ms  here
a committed offset 0 is taken for none                here
offsets_for_times changes its argument                here
an error for the application parks the group's work   here
one JoinGroup for each assignor                       here; test_one_join_names_every_assignor
commits of a deleted topic are retried for ever       test_a_commit_to_a_deleted_topic_ends_in_time…
a record that cannot be deserialised is in the way    test_deserialisers_are_applied_and_their_err…
stop() waits for ever without a broker                test_stop_returns_in_time_without_a_broker_…
any auto_offset_reset is accepted                     test_values_that_cannot_be_used_are_refused
pausing loses what is buffered                        test_pause_keeps_what_is_buffered
unknown fetch errors are retried without a pause      test_errors_that_do_not_pass_are_raised_and_…
metadata is waited for that nobody fetches any more   test_close_fails_those_who_wait_for_a_refresh
sticky assignors share their memory                   test_two_consumers_of_a_process_share_nothing
====================================================  =============================================
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from types import MappingProxyType

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import (
    AbstractPartitionAssignor,
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
)
from aiokafka_lite.errors import DeserializationError, GroupAuthorizationFailedError
from aiokafka_lite.protocol.messages.group_members import JoinGroupRequest
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import JOIN, goodbyes, in_both_protocols
from tests.support.reading import reading
from tests.support.rows import rows


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with the topics "t" and "u", and one record in each."""
    async with Broker() as broker:
        for topic in ("t", "u"):
            broker.create_topic(topic)
            broker.produce(topic, b"value")
        yield broker


def member_of(broker: Broker, **arguments: object) -> AIOKafkaConsumer:
    settings: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 20,
        **arguments,
    }
    return AIOKafkaConsumer("t", **settings)  # type: ignore[arg-type]


def refuse(value: bytes | None) -> object:
    raise ValueError(value)


# --- max_poll_interval_ms ------------------------------------------------------------------
@in_both_protocols
async def test_after_a_cancelled_get_max_poll_interval_still_counts(
    broker: Broker, protocol: str
) -> None:
    settings = {"group_protocol": protocol, "max_poll_interval_ms": 200}
    async with member_of(broker, **settings) as consumer:
        await consumer.getone()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.getone(), 0.02)
        await broker.wait_until(lambda: bool(goodbyes(broker)))
        broker.produce("t", b"later")
        assert (await consumer.getone()).value == b"later"  # back for records, it joins again


@in_both_protocols
async def test_after_a_get_that_raised_max_poll_interval_still_counts(
    broker: Broker, protocol: str
) -> None:
    settings = {"group_protocol": protocol, "max_poll_interval_ms": 200}
    async with member_of(broker, **settings, value_deserializer=refuse) as consumer:
        with pytest.raises(DeserializationError):
            await consumer.getone()
        await broker.wait_until(lambda: bool(goodbyes(broker)))


# --- Offsets -------------------------------------------------------------------------------
async def test_seek_to_committed_goes_to_offset_0(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, group_id=unique("group"), enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        await consumer.commit({tp: 0})
        consumer.seek(tp, 2)
        assert await consumer.seek_to_committed() == {tp: 0}
        assert await consumer.position(tp) == 0
        assert (await consumer.getone()).offset == 0


async def test_offsets_for_times_leaves_its_argument_alone(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 1))
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with reading(kafka, topic) as consumer:
        asked = {first: 0, second: int(time.time() * 1000)}
        before = dict(asked)
        found = await consumer.offsets_for_times(asked)
        assert asked == before
        assert found[first] is not None
        assert found[second] is None
        assert await consumer.offsets_for_times(MappingProxyType(asked)) == found


# --- The group's work ----------------------------------------------------------------------
@pytest.mark.virtual_time
@in_both_protocols
async def test_the_group_goes_on_while_nobody_takes_its_error(
    broker: Broker, protocol: str
) -> None:
    async with member_of(broker, group_protocol=protocol) as consumer:
        with broker.on(JOIN[protocol]).fail(GroupAuthorizationFailedError) as rule:
            consumer.subscribe(["t", "u"])
            await rule.reached()
            both = {TopicPartition("t", 0), TopicPartition("u", 0)}
            await broker.wait_until(lambda: consumer.assignment() == both)
        with pytest.raises(GroupAuthorizationFailedError):
            await consumer.getone()
        assert {(await consumer.getone()).topic for _ in range(2)} == {"t", "u"}


@pytest.mark.parametrize(
    "strategy",
    [(RangePartitionAssignor,), (RangePartitionAssignor, RoundRobinPartitionAssignor)],
    ids=["one", "two"],
)
async def test_joining_takes_no_more_requests_with_more_assignors(
    broker: Broker, strategy: Sequence[type[AbstractPartitionAssignor]]
) -> None:
    async with member_of(broker, partition_assignment_strategy=strategy):
        joins = [seen.request for seen in broker.requests.of("JoinGroup")]
    assert len(joins) == 2  # the first is told its member id (KIP-394)
    for join in joins:
        assert isinstance(join, JoinGroupRequest)
        assert [protocol.name for protocol in join.protocols] == [a.name for a in strategy]
