"""A producer that is lent: the borrower writes transactions, and all others are refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.client.view import NO_EPOCH
from aiokafka_lite.errors import (
    ClusterAuthorizationFailedError,
    IllegalOperation,
    IllegalStateError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing.batch import Output
from aiokafka_lite.producing.group_offsets import OffsetsOfGroup
from aiokafka_lite.producing.lease import ProducerLease
from aiokafka_lite.structs import ConsumerGroupMetadata, TopicPartition
from tests.producing.sending import producer_of, values_in

pytestmark = pytest.mark.virtual_time
TP = TopicPartition("t", 0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(auto_create_topics=False) as broker:
        broker.create_topic("t", 1)
        yield broker
    assert broker.failure is None


@asynccontextmanager
async def lent(
    broker: Broker, **settings: object
) -> AsyncIterator[tuple[AIOKafkaProducer, ProducerLease]]:
    async with producer_of(broker, transactional_id="tx", **settings) as producer:
        yield producer, producer.lend("a test writes with it")


def output(value: bytes, topic: str = "t", partition: int = 0) -> Output:
    return Output(topic, None, value, partition, 0)


def up_to(offset: int) -> OffsetsOfGroup:
    return OffsetsOfGroup(ConsumerGroupMetadata("g"), {TP: (offset, "", NO_EPOCH)})


async def committed_in(broker: Broker) -> list[bytes | None]:
    return await values_in(broker, "t", isolation_level="read_committed")


async def test_records_and_offsets_are_committed_together(broker: Broker) -> None:
    async with lent(broker) as (_, lease):
        assert await lease.write([output(b"0"), output(b"1")], up_to(1)) == {}
        assert broker.committed("g") == {TP: 1}
        assert await committed_in(broker) == [b"0", b"1"]


async def test_others_cannot_use_a_producer_that_is_lent(broker: Broker) -> None:
    async with lent(broker) as (producer, lease):
        for call in (producer.begin_transaction(), producer.send("t", b"v")):
            with pytest.raises(IllegalOperation, match="a test writes with it"):
                await call
        with pytest.raises(IllegalOperation, match="a test writes with it"):
            producer.lend("another")
        lease.release()
        async with producer.transaction() as tx:
            await tx.send("t", b"v")
            with pytest.raises(IllegalStateError, match="has an open transaction"):
                producer.lend("another")
        assert await committed_in(broker) == [b"v"]


@pytest.mark.parametrize("refusal", ["unknown topic", "unknown partition", "broker"])
async def test_a_record_that_is_refused_is_named_and_nothing_is_committed(
    broker: Broker, refusal: str
) -> None:
    errors = {"broker": InvalidTimestampError}
    wrong = {
        "unknown topic": output(b"wrong", "missing"),
        "unknown partition": output(b"wrong", partition=1),
        "broker": output(b"wrong"),
    }
    async with lent(broker, request_timeout_ms=1_000) as (_, lease):
        assert await lease.write([output(b"0")], up_to(1)) == {}
        if refusal == "broker":
            broker.on("Produce").fail(InvalidTimestampError)
        outputs = [wrong[refusal]] if refusal == "broker" else [output(b"1"), wrong[refusal]]
        refused = await lease.write(outputs, up_to(2))
        error = errors.get(refusal, UnknownTopicOrPartitionError)
        assert {number: type(each) for number, each in refused.items()} == {len(outputs) - 1: error}
        assert await lease.write([output(b"2")], up_to(2)) == {}
        assert broker.committed("g") == {TP: 2}
        assert await committed_in(broker) == [b"0", b"2"]


async def test_the_error_of_a_record_aborts_those_that_wait_for_room(broker: Broker) -> None:
    async with lent(broker, buffer_memory=100) as (_, lease):
        broker.on("Produce").fail(OutOfOrderSequenceNumber)
        with pytest.raises(TransactionAbortableError) as caught:
            await lease.write([output(bytes(60)), output(bytes(60))], up_to(1))
        assert isinstance(caught.value.__cause__, OutOfOrderSequenceNumber)
        assert await lease.write([output(bytes(60)), output(bytes(60))], up_to(1)) == {}
        assert await committed_in(broker) == [bytes(60)] * 2


async def test_a_fatal_error_is_raised_by_the_write_and_told_to_the_borrower(
    broker: Broker,
) -> None:
    async with lent(broker) as (producer, lease):
        told = asyncio.Event()
        lease.on_end(told.set)
        assert lease.fatal_error is None
        broker.on("Produce").fail(ClusterAuthorizationFailedError)
        with pytest.raises(ClusterAuthorizationFailedError):
            await lease.write([output(b"0")], up_to(1))
        assert told.is_set()
        assert lease.fatal_error is producer.fatal_error
        with pytest.raises(ClusterAuthorizationFailedError):
            await lease.write([], up_to(1))


async def test_a_write_that_is_cancelled_before_its_commit_is_aborted(broker: Broker) -> None:
    broker.create_topic("other", 1)
    async with lent(broker) as (_, lease):
        with broker.on("Metadata").hold() as rule:
            writing = asyncio.ensure_future(lease.write([output(b"0", "other")], up_to(1)))
            await rule.reached()
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        assert await lease.write([output(b"1")], up_to(2)) == {}
        assert broker.committed("g") == {TP: 2}
        assert await values_in(broker, "other") == []


@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
async def test_a_write_that_is_cancelled_is_committed_only_if_its_end_was_sent(
    broker: Broker, api: str
) -> None:
    async with lent(broker) as (_, lease):
        with broker.on(api).hold() as rule:
            writing = asyncio.ensure_future(lease.write([output(b"0")], up_to(1)))
            await rule.reached()
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        if api != "EndTxn":
            assert await lease.write([], up_to(0)) == {}  # it waits for the abort
            assert broker.committed("g") == {TP: 0}
            assert await committed_in(broker) == []
        assert await lease.write([output(b"1")], up_to(2)) == {}
        assert broker.committed("g") == {TP: 2}
        assert await committed_in(broker) == [b"0", b"1"][api != "EndTxn" :]


async def test_a_write_that_fails_returns_once_its_transaction_is_aborted(broker: Broker) -> None:
    async with lent(broker) as (_, lease):
        broker.on("Produce").fail(InvalidTimestampError)
        with broker.on("EndTxn").hold() as held:
            writing = asyncio.ensure_future(lease.write([output(b"0")], up_to(1)))
            await held.reached()
            await asyncio.sleep(1)
            assert not writing.done()
        assert list(await writing) == [0]


async def test_a_write_that_waits_for_the_one_before_does_not_begin_when_the_producer_stops(
    broker: Broker,
) -> None:
    async with lent(broker) as (producer, lease):
        assert await lease.write([output(b"0")], up_to(1)) == {}
        with broker.on("EndTxn").hold() as held:
            first = asyncio.ensure_future(lease.write([output(b"1")], up_to(2)))
            await held.reached()
            second = asyncio.ensure_future(lease.write([output(b"2")], up_to(3)))
            await asyncio.sleep(0)
            stopping = asyncio.ensure_future(producer.stop())
            await asyncio.sleep(0)
        for writing in (first, second):
            with pytest.raises(ProducerClosed):
                await writing
        await stopping
        assert await committed_in(broker) == [b"0", b"1"]


async def test_a_producer_that_stops_ends_the_write_and_the_lease(broker: Broker) -> None:
    async with lent(broker) as (producer, lease):
        told = asyncio.Event()
        lease.on_end(told.set)
        with broker.on("Metadata").hold() as rule:
            writing = asyncio.ensure_future(lease.write([output(b"0")], up_to(1)))
            await rule.reached()
            await producer.stop(timeout=1)
        with pytest.raises(ProducerClosed):
            await writing
        assert told.is_set()
        assert isinstance(lease.fatal_error, ProducerClosed)


async def test_a_record_that_no_request_or_buffer_takes_is_refused_when_it_is_encoded(
    broker: Broker,
) -> None:
    for setting in ("max_request_size", "buffer_memory"):
        async with lent(broker, **{setting: 1_000}) as (_, lease):
            assert lease.most_bytes == (1_000 if setting == "buffer_memory" else 32 << 20)
            fitting = lease.encoded("t", bytes(965), None, 0, 0, None)
            assert (fitting.size, fitting.partition, fitting.timestamp_ms) == (1_000, 0, 0)
            with pytest.raises(MessageSizeTooLargeError, match=f"{setting}=1000"):
                lease.encoded("t", bytes(966), None, None, None, None)
    before_ms = int(time.time() * 1_000)
    encoded = lease.encoded("t", b"v", None, None, None, None)
    assert encoded.timestamp_ms is not None
    assert before_ms <= encoded.timestamp_ms <= time.time() * 1_000
    for topic, partition in (("", 0), (None, 0), ("t", True), ("t", "0"), ("t", -1)):
        with pytest.raises((TypeError, ValueError), match=r"topic|partition"):
            lease.encoded(topic, b"v", None, partition, None, None)


async def test_the_partitions_of_a_topic_are_counted_once_it_is_known(broker: Broker) -> None:
    broker.create_topic("wide", 3)
    async with lent(broker, request_timeout_ms=1_000) as (_, lease):
        assert not lease.knows("wide")
        assert await lease.count_partitions("wide") == 3
        assert lease.knows("wide")
        asked = len(broker.requests.of("Metadata"))
        assert await lease.count_partitions("wide") == 3
        assert len(broker.requests.of("Metadata")) == asked
        with pytest.raises(UnknownTopicOrPartitionError):
            await lease.count_partitions("missing")
