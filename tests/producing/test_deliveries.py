"""Transactions commit deliveries: records, under the assignment that they were returned of."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.delivery.batch import Batch
from aiokafka_lite.errors import (
    AutoCommitError,
    BatchRevokedError,
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    CommitFailedError,
    CoordinatorLoadInProgressError,
    FencedMemberEpochError,
    IllegalGenerationError,
    IllegalOperation,
    IllegalStateError,
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortableError,
)
from aiokafka_lite.events import TopicDeleted, TopicRecreated
from aiokafka_lite.processing import Retry
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing.producer import TransactionBlock
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.producing.copying import Copying
from tests.producing.sending import producer_of, values_in
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import next_of
from tests.support.protocols import WAYS
from tests.support.reading import committed
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, eventually, until

pytestmark = pytest.mark.virtual_time_if_embedded

RECORDS = 20


@pytest.fixture(params=WAYS)
def protocol(request: pytest.FixtureRequest) -> Mapping[str, object]:
    return WAYS[request.param]


@pytest.fixture
async def copying(kafka: KafkaHandle) -> Copying:
    copying = Copying(kafka, await kafka.create_topic(partitions=2), await kafka.create_topic())
    for number in range(2):
        await kafka.produce(copying.source, number, rows(RECORDS * number, RECORDS))
    return copying


@asynccontextmanager
async def on_broker(**settings: Any) -> AsyncIterator[tuple[Broker, Copying]]:
    """A broker to which a test says what to do, with one partition of records."""
    async with Broker(**settings) as broker:
        broker.create_topic("source")
        broker.create_topic("copies")
        for _, value in rows(0, RECORDS):
            broker.produce("source", value)
        yield broker, Copying(KafkaHandle("embedded", broker.bootstrap_servers), "source", "copies")
    assert broker.failure is None


def sorted_values(count: int = 2 * RECORDS) -> list[bytes]:
    return sorted(value or b"" for _, value in rows(0, count))


async def copy_until_all_is_there(
    copying: Copying, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    """Copy as the documentation does, until all is committed and nothing more comes."""
    tps = [TopicPartition(copying.source, number) for number in range(2)]
    is_over = is_at_end = False
    async with timeout(60):
        while not is_over:
            try:
                async with (
                    consumer.batch(timeout_ms=0 if is_at_end else 1_000) as batch,
                    producer.transaction() as tx,
                ):
                    for record in batch:
                        await tx.send(copying.copies, record.value, partition=0)
                    tx.commit_offsets(consumer)
                    is_over = is_at_end and not batch
            except (CommitFailedError, TransactionAbortableError):
                pass
            is_at_end = await are_read_and_committed(consumer, tps)


async def are_read_and_committed(consumer: AIOKafkaConsumer, tps: list[TopicPartition]) -> bool:
    """Whether the consumer stands at the end of these partitions, and so does its group."""
    positions = consumer.positions()
    if any(tp not in positions or positions[tp].offset != RECORDS for tp in tps):
        return False
    return all([await consumer.committed(tp) == RECORDS for tp in tps])


async def copy_the_rest(
    broker: Broker, copying: Copying, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    """Copy until all is committed."""
    while broker.committed(copying.group).get(copying.tp, 0) < RECORDS:
        async with consumer.batch(timeout_ms=5_000) as batch, producer.transaction() as tx:
            for record in batch:
                await tx.send(copying.copies, record.value)
            tx.commit_offsets(batch)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values(RECORDS)


# --- Rebalances --------------------------------------------------------------------------------
@pytest.mark.few_rows(5)
@pytest.mark.parametrize("names", ["consumer", "batch", "offsets"])
async def test_a_transaction_does_not_commit_under_a_later_assignment_than_its_records(
    copying: Copying, protocol: Mapping[str, object], names: str
) -> None:
    async with copying.both(rebalance_hold_ms=200, **protocol) as (consumer, producer):
        await until(lambda: len(consumer.assignment()) == 2)

        async def copy_slowly() -> None:
            async with consumer.batch() as batch, producer.transaction() as tx:
                assert batch
                for record in batch:
                    await tx.send(copying.copies, record.value, partition=0)
                positions = consumer.positions()
                async with copying.consumer(**protocol):
                    await until(lambda: len(consumer.assignment()) < 2)
                await until(lambda: len(consumer.assignment()) == 2)
                if names == "offsets":
                    tx.commit_offsets(positions, consumer.group_metadata())
                else:
                    tx.commit_offsets(consumer if names == "consumer" else batch)

        async with timeout(60):
            with pytest.raises(CommitFailedError):
                await copy_slowly()
            await copy_until_all_is_there(copying, consumer, producer)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


async def test_a_read_before_a_rebalance_is_not_committed_with_one_after_it(
    copying: Copying, protocol: Mapping[str, object]
) -> None:
    """Without a batch: the first read's partition has gone and come back before the second."""
    async with copying.both(rebalance_hold_ms=200, **protocol) as (consumer, producer):
        await until(lambda: len(consumer.assignment()) == 2)
        first = await consumer.getmany(timeout_ms=5_000)
        assert first
        async with copying.consumer(**protocol):
            await until(lambda: len(consumer.assignment()) < 2)
        await until(lambda: len(consumer.assignment()) == 2)
        second = await consumer.getmany(timeout_ms=5_000)

        async def commit() -> None:
            async with producer.transaction() as tx:
                for records in (*first.values(), *second.values()):
                    for record in records:
                        await tx.send(copying.copies, record.value, partition=0)
                tx.commit_offsets(consumer)

        consumer.delivery()  # which alone tells nobody
        with pytest.raises(BatchRevokedError) as caught:
            await commit()
        assert caught.value.partitions
        # Once it was told: what is read from now on is committed.
        await consumer.seek_to_beginning()
        await copy_until_all_is_there(copying, consumer, producer)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


async def test_offsets_from_before_a_loss_are_not_sent_though_the_group_would_take_them() -> None:
    """The member has joined again under its id, and reads the same records."""
    async with on_broker() as (broker, copying):
        settings: dict[str, object] = {"group_protocol": "consumer", "heartbeat_interval_ms": 50}
        async with copying.both(**settings) as (consumer, producer):
            record = await consumer.getone()
            group = consumer.group_metadata()
            broker.on("ConsumerGroupHeartbeat").fail(FencedMemberEpochError, 1)
            tp = TopicPartition(record.topic, record.partition)
            again = await consumer.getone()
            while (again.topic, again.partition, again.offset) != (*tp, record.offset):
                again = await consumer.getone()
            with pytest.raises(BatchRevokedError):
                async with producer.transaction() as tx:
                    tx.commit_offsets({tp: record.offset + 1}, group)
            assert not any(each.api == "TxnOffsetCommit" for each in broker.requests)


@pytest.mark.parametrize("names", ["batch", "offsets"])
async def test_offsets_that_are_in_flight_at_a_loss_are_committed_only_if_they_are_not_read_again(
    names: str,
) -> None:
    """The group gets them after the member, which has joined again under its id, has read on."""
    async with on_broker() as (broker, copying):
        settings: dict[str, object] = {"group_protocol": "consumer", "heartbeat_interval_ms": 50}
        async with copying.both(**settings) as (consumer, producer), copying.producer() as other:
            broker.on("TxnOffsetCommit").delay(2)

            async def copy(by: AIOKafkaProducer) -> None:
                async with consumer.batch(5) as batch, by.transaction() as tx:
                    for record in batch:
                        await tx.send("copies", record.value)
                    if names == "batch":
                        tx.commit_offsets(batch)
                    else:
                        tx.commit_offsets({copying.tp: 5}, consumer.group_metadata())

            late = asyncio.ensure_future(copy(producer))
            await until(lambda: any(each.api == "TxnOffsetCommit" for each in broker.requests))
            broker.on("ConsumerGroupHeartbeat").fail(FencedMemberEpochError, 1)
            await until(lambda: inside.event_counts(consumer).get("lost") == 1)
            await copy(other)
            with pytest.raises(BatchRevokedError):
                await late
            await copy_the_rest(broker, copying, consumer, producer)


@pytest.mark.parametrize(
    ("protocol", "refusal"),
    [("classic", IllegalGenerationError), ("consumer", FencedMemberEpochError)],
)
async def test_a_member_that_its_group_has_dropped_learns_it_by_the_refusal_of_its_offsets(
    protocol: str, refusal: type[BrokerResponseError]
) -> None:
    """Without that the same records would be copied, and aborted, until the next heartbeat."""
    async with on_broker() as (broker, copying):
        settings: dict[str, object] = {
            "group_protocol": protocol,
            "session_timeout_ms": 60_000,
            "heartbeat_interval_ms": 20_000,
        }
        async with copying.both(**settings) as (consumer, producer):
            await consumer.getone()
            await consumer.seek_to_beginning()
            broker.on("TxnOffsetCommit").fail(refusal)

            async def copy() -> None:
                async with consumer.batch(5) as batch, producer.transaction() as tx:
                    for record in batch:
                        await tx.send("copies", record.value)
                    tx.commit_offsets(batch)

            with pytest.raises(CommitFailedError):
                await copy()
            async with timeout(30):
                await until(lambda: inside.event_counts(consumer).get("lost") == 1)
                await until(lambda: inside.event_counts(consumer)["assigned"] == 2)
                for _ in range(RECORDS // 5):
                    await copy()
        assert await copying.read_copies() == [value for _, value in rows(0, RECORDS)]


async def test_offsets_of_two_members_of_a_group_are_committed_in_their_own_names(
    copying: Copying, protocol: Mapping[str, object]
) -> None:
    async with copying.both(**protocol) as (one, producer):
        async with copying.consumer(**protocol) as other, timeout(30):
            await until(lambda: len(one.assignment()) == len(other.assignment()) == 1)
            record, group = await other.getone(), other.group_metadata()
        await until(lambda: len(one.assignment()) == 2)
        mine = next(tp for tp in one.assignment() if tp.partition != record.partition)

        async def copy() -> None:
            async with producer.transaction() as tx:
                tp = TopicPartition(record.topic, record.partition)
                tx.commit_offsets({tp: record.offset + 1}, group)
                tx.commit_offsets({mine: 1}, one.group_metadata())

        with pytest.raises(CommitFailedError):
            await copy()
    assert await copying.committed() in (None, 0)


@pytest.mark.parametrize("names", ["consumer", "batch", "offsets", "offsets, before"])
async def test_offsets_of_a_deleted_topic_are_not_committed_to_the_next_of_its_name(
    copying: Copying, names: str
) -> None:
    async with copying.both(metadata_max_age_ms=500) as (consumer, producer):
        events = consumer.events()

        async def copy() -> None:
            async with consumer.batch(5) as batch, producer.transaction() as tx:
                for record in batch:
                    await tx.send(copying.copies, record.value, partition=0)
                named, group = consumer.positions(), consumer.group_metadata()
                if names == "offsets, before":
                    tx.commit_offsets(named, group)
                await copying.kafka.delete_topic(copying.source)
                async for event in events:
                    if isinstance(event, TopicDeleted):
                        break
                if names == "offsets":
                    tx.commit_offsets(named, group)
                elif names != "offsets, before":
                    tx.commit_offsets(consumer if names == "consumer" else batch)

        async with timeout(30):
            with pytest.raises(CommitFailedError, match="deleted"):
                await copy()
            await copying.kafka.create_topic(copying.source, partitions=2)
            for number in range(2):
                await copying.kafka.produce(copying.source, number, rows(RECORDS * number, RECORDS))
            await until(lambda: len(consumer.assignment()) == 2)
            while len(await copying.read_copies()) < 2 * RECORDS:
                await copy_until_all_is_there(copying, consumer, producer)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


@pytest.mark.parametrize("names", ["consumer", "batch", "offsets", "offsets, at once"])
async def test_offsets_of_a_recreated_topic_are_not_committed_before_anybody_has_noticed(
    copying: Copying, names: str
) -> None:
    """Nothing is fetched meanwhile, and metadata are five minutes old at most."""
    await check_that_a_recreated_topic_gets_no_offsets(copying, names)


@pytest.mark.parametrize("names", ["consumer", "batch", "offsets", "offsets, at once"])
async def test_neither_are_they_by_requests_that_name_topics(names: str) -> None:
    async with on_broker(transaction_version=1) as (_, copying):
        await check_that_a_recreated_topic_gets_no_offsets(copying, names)


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_retry", [False, True])
async def test_a_topic_that_no_broker_confirms_holds_offsets_up_within_the_delivery_timeout(
    *, is_retry: bool
) -> None:
    loop = asyncio.get_running_loop()
    async with on_broker(transaction_version=1) as (broker, copying):
        in_time = {"request_timeout_ms": 5_000, "delivery_timeout_ms": 5_000}
        async with (
            copying.consumer() as consumer,
            producer_of(copying.kafka, transactional_id="tx", **in_time) as producer,
        ):
            await consumer.getone()
            broker.on("AddOffsetsToTxn").delay(3.0)
            if is_retry:
                broker.on("TxnOffsetCommit").fail(CoordinatorLoadInProgressError, times=None)
            await producer.begin_transaction()
            began = loop.time()
            offsets = {copying.tp: 1}
            sending = asyncio.ensure_future(
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            )
            await until(
                lambda: bool(
                    broker.requests.of("TxnOffsetCommit" if is_retry else "AddOffsetsToTxn")
                )
            )
            with broker.on("Metadata").hold():
                with pytest.raises(KafkaTimeoutError, match="no broker confirmed in time"):
                    await sending
                assert loop.time() - began <= 5.0
            await producer.abort_transaction()


async def check_that_a_recreated_topic_gets_no_offsets(copying: Copying, names: str) -> None:
    async with copying.both(fetch_max_wait_ms=1) as (consumer, producer):

        async def copy() -> None:
            async with consumer.batch(5) as batch, producer.transaction() as tx:
                for record in batch:
                    await tx.send(copying.copies, record.value, partition=0)
                named, group = consumer.positions(), consumer.group_metadata()
                consumer.pause()
                await copying.kafka.delete_topic(copying.source)
                await copying.kafka.create_topic(copying.source, partitions=2)
                if names == "offsets, at once":
                    await producer.send_offsets_to_transaction(named, group)
                elif names == "offsets":
                    tx.commit_offsets(named, group)
                else:
                    tx.commit_offsets(consumer if names == "consumer" else batch)

        async with timeout(30):
            with pytest.raises(CommitFailedError):
                await copy()
            consumer.resume()
            for number in range(2):
                await copying.kafka.produce(copying.source, number, rows(RECORDS * number, RECORDS))
            while len(await copying.read_copies()) < 2 * RECORDS:
                await copy_until_all_is_there(copying, consumer, producer)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


@pytest.mark.few_rows(5)
@pytest.mark.parametrize(
    ("names_offsets", "later"),
    [(False, 0), (False, 1), (True, 1)],
    ids=["same partition", "other partition", "other partition, by name"],
)
async def test_offsets_of_a_recreated_topic_are_not_committed_with_those_of_the_new_one(
    copying: Copying, protocol: Mapping[str, object], later: int, names_offsets: bool
) -> None:
    tps = [TopicPartition(copying.source, number) for number in range(2)]
    settings = {"metadata_max_age_ms": 100, **protocol}
    async with copying.both(**settings) as (consumer, producer):
        events = consumer.events()

        async def copy() -> None:
            async with producer.transaction() as tx:
                consumer.pause(tps[1])
                await commit_next(tx, tps[0])
                await copying.kafka.delete_topic(copying.source)
                await copying.kafka.create_topic(copying.source, partitions=2)
                await next_of(events, TopicRecreated)
                await copying.kafka.produce(copying.source, later, rows(RECORDS, RECORDS))
                await until(lambda: consumer.assignment() == {*tps})
                consumer.resume(*tps)
                await commit_next(tx, tps[later])

        async def commit_next(tx: TransactionBlock[Any, Any], tp: TopicPartition) -> None:
            async with consumer.batch(5) as batch:
                pass
            if names_offsets:
                tx.commit_offsets({tp: batch[-1].offset + 1}, consumer.group_metadata())
            else:
                tx.commit_offsets(batch)

        with pytest.raises(CommitFailedError):
            await copy()
    for tp in tps:
        assert await committed(copying.kafka, copying.group, tp) in (None, 0)


async def test_a_deleted_topic_is_not_created_by_a_commit_of_its_offsets() -> None:
    settings = {"allow_auto_create_topics": False}
    async with (
        timeout(PATIENCE_S),
        on_broker(transaction_version=1) as (broker, copying),
        copying.both(**settings) as (consumer, producer),
    ):
        await consumer.getone()
        consumer.pause()

        async def copy() -> None:
            async with producer.transaction() as tx:
                await tx.send("copies", b"copy")
                broker.delete_topic("source")
                tx.commit_offsets({copying.tp: 1}, consumer.group_metadata())

        with pytest.raises(CommitFailedError, match="deleted"):
            await copy()
        assert not broker.has_topic("source")


@pytest.mark.virtual_time
@pytest.mark.parametrize(("names_topics", "most"), [(True, 3), (False, 1)])
async def test_brokers_are_asked_for_topic_ids_once_a_second_if_requests_name_topics(
    names_topics: bool, most: int
) -> None:
    """And not once a transaction. From version 6 on TxnOffsetCommit has topic ids itself."""
    async with on_broker(transaction_version=1 if names_topics else 2) as (broker, copying):
        async with copying.both() as (consumer, producer):
            before = len(broker.requests.of("Metadata"))
            for _ in range(RECORDS):
                async with consumer.batch(1) as batch, producer.transaction() as tx:
                    await tx.send("copies", batch[0].value)
                    tx.commit_offsets(batch)
            asked = len(broker.requests.of("Metadata")) - before
        assert await copying.read_copies() == [value for _, value in rows(0, RECORDS)]
        commits = {each.api_version for each in broker.requests.of("TxnOffsetCommit")}
        assert commits == {4 if names_topics else 6}
        assert asked <= most  # one for the producer, which writes to a topic that it does not know


async def test_an_abort_does_not_wait_for_offsets_of_a_topic_that_does_not_exist(
    copying: Copying,
) -> None:
    async with copying.producer() as producer:
        absent = {TopicPartition(unique("absent"), 0): 5}
        with pytest.raises(asyncio.TimeoutError):
            async with producer.transaction(), timeout(0.3):
                await producer.send_offsets_to_transaction(absent, copying.group)
        async with timeout(10):
            async with producer.transaction() as tx:
                await tx.send(copying.copies, b"next", partition=0)
            while await copying.read_copies() != [b"next"]:  # it is readable a moment later
                pass


# --- Cancellations -----------------------------------------------------------------------------
async def test_a_block_that_is_cancelled_while_it_commits_counts_as_it_turns_out() -> None:
    async with on_broker() as (broker, copying):
        async with copying.both() as (consumer, producer):
            outcomes: list[bool | None] = []

            async def copy() -> None:
                async with consumer.batch(5) as batch:
                    tx = producer.transaction()
                    try:
                        async with tx:
                            for record in batch:
                                await tx.send("copies", record.value)
                            tx.commit_offsets(batch)
                    finally:
                        outcomes.append(tx.is_committed)

            with broker.on("EndTxn").hold() as rule:
                task = asyncio.ensure_future(copy())
                await rule.reached()
                task.cancel()
                await asyncio.sleep(0.05)
                task.cancel()
                assert not task.done()  # it waits for the outcome, however often it is cancelled
            with pytest.raises(asyncio.CancelledError):
                await task
            assert outcomes == [True]
            assert (await consumer.getone()).offset == 5
        assert await copying.read_copies() == [value for _, value in rows(0, 5)]
        assert broker.committed(copying.group) == {TopicPartition("source", 0): 5}


@pytest.mark.virtual_time
async def test_a_transaction_that_ends_after_unsubscribe_is_not_undone() -> None:
    async with Broker() as broker, timeout(60):
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        copying = Copying(kafka, await kafka.create_topic(), await kafka.create_topic())
        await kafka.produce(copying.source, 0, rows(0, 2 * RECORDS))
        async with copying.both(
            enable_auto_commit=True, max_poll_records=RECORDS, auto_commit_interval_ms=3_600_000
        ) as (consumer, producer):
            async with consumer.batch() as batch:  # what is finished and not committed yet
                assert len(batch) == RECORDS
            with broker.on("EndTxn").hold() as held:

                async def copy() -> None:
                    async with consumer.batch() as batch, producer.transaction() as tx:
                        for record in batch:
                            await tx.send(copying.copies, record.value, partition=0)
                        tx.commit_offsets(batch)

                task = asyncio.create_task(copy())
                await held.reached()
                consumer.unsubscribe()
                await asyncio.sleep(1)
            await task
            await asyncio.sleep(1)
            assert await copying.committed() == 2 * RECORDS


async def test_a_block_that_is_cancelled_before_it_commits_aborts_and_its_records_come_again() -> (
    None
):
    async with on_broker() as (broker, copying):
        async with copying.both() as (consumer, producer):

            async def copy() -> None:
                async with consumer.batch(5) as batch, producer.transaction() as tx:
                    for record in batch:
                        await tx.send("copies", record.value)
                    tx.commit_offsets(consumer)

            with broker.on("TxnOffsetCommit").hold() as rule:
                task = asyncio.ensure_future(copy())
                await rule.reached()
                task.cancel()
                await asyncio.sleep(0.05)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await consumer.getone()).offset == 0
            async with producer.transaction() as tx:  # nothing is left of it
                await tx.send("copies", b"next")
        assert await copying.read_copies() == [b"next"]


async def test_a_block_that_is_left_while_it_aborts_knows_that_it_is_not_committed() -> None:
    async with on_broker() as (broker, copying):
        async with copying.both() as (consumer, producer):
            tx = producer.transaction()

            async def copy() -> None:
                async with consumer.batch(5) as batch, tx:
                    await tx.send_and_wait("copies", batch[0].value)
                    tx.commit_offsets(batch)
                    assert tx.is_committed is None
                    raise CommitFailedError

            with broker.on("EndTxn").hold() as rule:
                task = asyncio.ensure_future(copy())
                await rule.reached()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert tx.is_committed is False
            assert (await consumer.getone()).offset == 0
        assert await copying.read_copies() == []


@pytest.mark.real_time
async def test_copies_are_exact_though_every_turn_may_time_out(
    copying: Copying, protocol: Mapping[str, object]
) -> None:
    async with copying.both(**protocol) as (consumer, producer):
        for turn in range(60):
            try:
                async with (
                    timeout(0.002 + 0.0005 * turn),
                    consumer.batch(3) as batch,
                    producer.transaction() as tx,
                ):
                    for record in batch:
                        await tx.send(copying.copies, record.value, partition=0)
                    tx.commit_offsets(batch)
            except (asyncio.TimeoutError, CommitFailedError, TransactionAbortableError):
                pass
        await copy_until_all_is_there(copying, consumer, producer)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


@pytest.mark.parametrize("names", ["batch", "offsets"])
@pytest.mark.parametrize("is_committed", [True, False])
async def test_records_are_read_from_the_committed_offset_where_the_outcome_is_not_known(
    is_committed: bool, names: str
) -> None:
    async with on_broker() as (broker, copying):
        lost = producer_of(
            broker, transactional_id="t", delivery_timeout_ms=700, request_timeout_ms=300
        )
        async with copying.consumer(auto_offset_reset="latest") as consumer, lost:
            await consumer.seek_to_beginning()
            tx = lost.transaction()

            async def copy() -> None:
                async with consumer.batch(5) as batch, tx:
                    for record in batch:
                        await tx.send("copies", record.value)
                    if names == "batch":
                        tx.commit_offsets(batch)
                    else:
                        tx.commit_offsets({copying.tp: 5}, consumer.group_metadata())

            with (
                broker.on("EndTxn").silence(times=None, handled=is_committed),
                pytest.raises(KafkaError),
            ):
                await copy()
            assert tx.is_committed is None
            # Its successor ends the transaction; until then nothing is read.
            async with producer_of(broker, transactional_id="t"), timeout(10):
                assert (await consumer.getone()).offset == (5 if is_committed else 0)


@pytest.mark.virtual_time
@pytest.mark.few_rows(8)
@pytest.mark.parametrize("names", ["batch", "ended batch", "offsets", "run"])
@pytest.mark.parametrize("seek", ["back", "to the position", "forward", "to the beginning"])
async def test_a_seek_holds_though_the_outcome_of_a_transaction_before_it_is_not_known(
    seek: str, names: str
) -> None:
    places = {"back": 2, "to the position": 5, "forward": 7, "to the beginning": 0}
    async with on_broker() as (broker, copying):
        lost = producer_of(
            broker, transactional_id="t", delivery_timeout_ms=700, request_timeout_ms=300
        )
        async with copying.consumer() as consumer, lost:

            async def copy() -> None:
                if names == "run":
                    await consumer.run(process, transactions=lost)
                if names == "ended batch":
                    async with lost.transaction() as tx, consumer.batch(5) as batch:
                        tx.commit_offsets(batch)
                async with consumer.batch(5) as batch, lost.transaction() as tx:
                    if names == "batch":
                        tx.commit_offsets(batch)
                    else:
                        tx.commit_offsets({copying.tp: 5}, consumer.group_metadata())

            async def process(record: object, outputs: object) -> None:
                pass

            with broker.on("EndTxn").silence(times=None, handled=True) as rule:
                copied = asyncio.create_task(copy())
                await until(lambda: rule.hits)
                if seek == "to the beginning":
                    await consumer.seek_to_beginning(copying.tp)
                else:
                    consumer.seek(copying.tp, places[seek])
                with pytest.raises(KafkaError):
                    await copied
            assert (await consumer.getone()).offset == places[seek]


@pytest.mark.parametrize("commits", ["auto-commit", "transaction"])
async def test_a_commit_while_the_committed_offset_is_looked_up_does_not_go_back(
    commits: str,
) -> None:
    async with on_broker() as (broker, copying):
        lost = producer_of(
            broker, transactional_id="t", delivery_timeout_ms=700, request_timeout_ms=300
        )
        settings = {"auto_commit_interval_ms": 20, "enable_auto_commit": commits == "auto-commit"}
        async with copying.consumer(**settings) as consumer, lost:
            await until(lambda: "are buffered" in consumer.explain(copying.tp))
            with (
                broker.on("EndTxn").silence(times=None, handled=True),
                broker.on("OffsetFetch").hold(),
            ):
                with pytest.raises(KafkaError):
                    async with consumer.batch(5) as batch, lost.transaction() as tx:
                        tx.commit_offsets(batch)
                assert not await consumer.getmany(timeout_ms=100)
                if commits == "transaction":
                    async with copying.producer() as other, other.transaction() as tx:
                        tx.commit_offsets(consumer)
            assert broker.committed(copying.group) == {copying.tp: 5}


# --- Who decides what becomes of a block --------------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.parametrize("mode", ["implicit", "explicit"])
async def test_a_block_that_swallows_the_error_of_its_transaction_is_returned_again(
    copying: Copying, mode: str
) -> None:
    async with copying.both(ack_mode=mode) as (consumer, producer):
        async with consumer.batch(5) as batch:
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction() as tx:
                    for record in batch:
                        await tx.send(copying.copies, record.value, partition=0)
                    tx.commit_offsets(batch)
                    raise ZeroDivisionError
        await copy_until_all_is_there(copying, consumer, producer)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


@pytest.mark.real_if_long
async def test_the_latest_transaction_of_a_block_counts(copying: Copying) -> None:
    async with copying.both() as (consumer, producer):
        async with consumer.batch(5) as batch:
            for is_good in (False, True):
                with contextlib.suppress(ZeroDivisionError):
                    async with producer.transaction() as tx:
                        for record in batch:
                            await tx.send(copying.copies, record.value, partition=0)
                        tx.commit_offsets(batch)
                        if not is_good:
                            raise ZeroDivisionError
        await copy_until_all_is_there(copying, consumer, producer)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_good", [True, False])
async def test_a_block_that_is_left_first_ends_as_the_transaction_of_another_task(
    copying: Copying, is_good: bool
) -> None:
    async with copying.both() as (consumer, producer):
        is_given, is_left = asyncio.Event(), asyncio.Event()

        async def copy(batch: Batch[bytes | None, bytes | None]) -> None:
            async with producer.transaction() as tx:
                for record in batch:
                    await tx.send(copying.copies, record.value, partition=0)
                tx.commit_offsets(batch)
                is_given.set()
                await is_left.wait()
                if not is_good:
                    raise ZeroDivisionError

        async with consumer.batch(5) as batch:
            copied = asyncio.ensure_future(copy(batch))
            await is_given.wait()
        with pytest.raises(IllegalStateError, match="has ended"):
            await batch.commit()
        is_left.set()
        with contextlib.suppress(ZeroDivisionError):
            await copied
        await copy_until_all_is_there(copying, consumer, producer)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("names", ["consumer", "batch", "batch, later", "nothing"])
async def test_a_block_inside_of_a_transaction_is_returned_again_if_that_aborts(
    names: str, mode: str
) -> None:
    """The block ends first, and without an exception."""
    async with (
        on_broker() as (broker, copying),
        copying.both(ack_mode=mode) as (consumer, producer),
    ):

        async def copy() -> None:
            async with producer.transaction() as tx:
                for _ in range(3):  # more is read before it is known what becomes of the first
                    async with consumer.batch(5) as batch:
                        for record in batch:
                            await tx.send(copying.copies, record.value)
                        if names in ("consumer", "batch"):
                            tx.commit_offsets(batch if names == "batch" else consumer)
                    if names == "batch, later":
                        tx.commit_offsets(batch)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await copy()
        await copy_the_rest(broker, copying, consumer, producer)


async def test_a_block_inside_of_a_transaction_that_is_lost_already_is_returned_again() -> None:
    async with on_broker() as (broker, copying), copying.both() as (consumer, producer):

        async def copy() -> None:
            async with producer.transaction() as tx:
                with pytest.raises(InvalidTimestampError):
                    await tx.send_and_wait("copies", b"lost")
                async with consumer.batch(5):
                    pass

        broker.on("Produce").fail(InvalidTimestampError)
        with pytest.raises(TransactionAbortableError):
            await copy()
        await copy_the_rest(broker, copying, consumer, producer)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("names", ["consumer", "batch", "batch, later"])
async def test_blocks_inside_of_a_transaction_are_committed_with_it(names: str, mode: str) -> None:
    async with on_broker() as (broker, copying):
        async with (
            copying.both(ack_mode=mode) as (consumer, producer),
            producer.transaction() as tx,
        ):
            for _ in range(2):
                async with consumer.batch(5) as batch:
                    for record in batch:
                        await tx.send(copying.copies, record.value)
                    if names in ("consumer", "batch"):
                        tx.commit_offsets(batch if names == "batch" else consumer)
                if names == "batch, later":
                    tx.commit_offsets(batch)
        assert broker.committed(copying.group) == {copying.tp: 10}
        async with copying.both() as (consumer, producer):
            await copy_the_rest(broker, copying, consumer, producer)


@pytest.mark.parametrize("is_good", [True, False])
async def test_a_batch_that_is_committed_after_its_block_ends_as_the_transaction(
    is_good: bool,
) -> None:
    async with on_broker() as (broker, copying), copying.both() as (consumer, producer):

        async def copy() -> None:
            async with consumer.batch(5) as batch:
                pass
            async with producer.transaction() as tx:
                for record in batch:
                    await tx.send(copying.copies, record.value)
                tx.commit_offsets(batch)
                if not is_good:
                    raise ZeroDivisionError

        with contextlib.suppress(ZeroDivisionError):
            await copy()
        await copy_the_rest(broker, copying, consumer, producer)


async def test_a_transaction_does_not_commit_a_batch_that_is_returned_again() -> None:
    async with on_broker() as (broker, copying), copying.both() as (consumer, producer):
        with contextlib.suppress(ZeroDivisionError):
            async with consumer.batch(5) as batch:
                raise ZeroDivisionError
        async with producer.transaction() as tx:
            with pytest.raises(IllegalStateError, match="returned again"):
                tx.commit_offsets(batch)
        await copy_the_rest(broker, copying, consumer, producer)


async def test_who_has_read_on_behind_a_batch_that_an_abort_returns_again_cannot_commit() -> None:
    """Those records are returned again, too."""
    async with (
        on_broker() as (broker, copying),
        copying.both() as (consumer, producer),
        copying.producer() as other,
    ):
        async with consumer.batch(5) as first:
            pass

        async def copy_next() -> None:
            async with consumer.batch(5) as batch, other.transaction() as tx:
                with contextlib.suppress(ZeroDivisionError):
                    async with producer.transaction() as failing:
                        failing.commit_offsets(first)
                        raise ZeroDivisionError
                for record in batch:
                    await tx.send(copying.copies, record.value)
                tx.commit_offsets(batch)

        with pytest.raises(BatchRevokedError):
            await copy_next()
        await copy_the_rest(broker, copying, consumer, producer)


@pytest.mark.parametrize("is_read_on", [True, False])
@pytest.mark.parametrize("names", ["consumer", "offsets", "offsets, at once"])
async def test_a_transaction_refuses_records_that_auto_commit_may_commit(
    names: str, is_read_on: bool
) -> None:
    """Aborted, they would be committed by the next read, the stop or a rebalance."""
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 60_000}
    async with on_broker() as (broker, copying), copying.both(**settings) as (consumer, producer):
        record = await consumer.getone()
        if is_read_on:
            consumer.pause()
            await consumer.getmany(timeout_ms=0)
            consumer.resume()
        offsets = {TopicPartition(record.topic, record.partition): record.offset + 1}
        async with producer.transaction() as tx:

            async def name() -> None:
                if names == "offsets, at once":
                    await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                elif names == "offsets":
                    tx.commit_offsets(offsets, consumer.group_metadata())
                else:
                    tx.commit_offsets(consumer)

            with pytest.raises(AutoCommitError, match="enable_auto_commit=False") as caught:
                await name()
            assert isinstance(caught.value, KafkaError)
        assert await copying.committed() is None
        await consumer.seek_to_beginning()
        await copy_the_rest(broker, copying, consumer, producer)


async def name_offsets(
    consumer: AIOKafkaConsumer,
    producer: AIOKafkaProducer,
    tx: TransactionBlock[Any, Any],
    offset: int,
    *,
    is_at_once: bool,
) -> None:
    """Commit offsets in a transaction, of a group whose consumer may commit, too."""
    (tp,) = consumer.assignment()
    group = consumer.group_metadata()
    if is_at_once:
        await producer.send_offsets_to_transaction({tp: offset}, group)
    else:
        tx.commit_offsets({tp: offset}, group)


@asynccontextmanager
async def with_one_processed_batch(
    kafka: KafkaHandle, **settings: object
) -> AsyncIterator[tuple[Copying, AIOKafkaConsumer, AIOKafkaProducer]]:
    """A consumer that is to commit its first five records by itself."""
    copying = Copying(kafka, await kafka.create_topic(), await kafka.create_topic())
    await kafka.produce(copying.source, 0, rows(0, RECORDS))
    both = copying.both(enable_auto_commit=True, **settings)
    async with timeout(PATIENCE_S), both as (consumer, producer):
        async with consumer.batch(5):
            pass
        yield copying, consumer, producer


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_auto_commit_does_not_undo_offsets_that_a_transaction_commits_by_name(
    kafka: KafkaHandle, is_at_once: bool
) -> None:
    """The coordinator keeps the later one of two commits, and not the one that counts later."""
    settings = {"auto_commit_interval_ms": 200}
    async with with_one_processed_batch(kafka, **settings) as (copying, consumer, producer):
        async with consumer.batch(5) as batch, producer.transaction() as tx:
            assert batch[0].offset == 5
            await name_offsets(consumer, producer, tx, 10, is_at_once=is_at_once)
            await asyncio.sleep(0.5)
            await producer.send_and_wait(copying.copies, b"copy")
        await eventually(copying.committed, 10)
        async with consumer.batch(5) as batch, producer.transaction() as tx:
            await name_offsets(consumer, producer, tx, 15, is_at_once=is_at_once)
        await eventually(copying.committed, 15)
        async with consumer.batch(3):  # and goes on afterwards
            pass
        await eventually(copying.committed, 18)


@pytest.mark.real_if_long
@pytest.mark.parametrize("gives_up", ["stop", "unsubscribe", "rebalance"])
@pytest.mark.parametrize("is_aborted", [False, True])
async def test_a_last_commit_waits_for_the_transaction_that_commits_the_same_by_name(
    kafka: KafkaHandle, gives_up: str, is_aborted: bool
) -> None:
    settings = {"auto_commit_interval_ms": 60_000, "group_protocol": "classic"}
    async with with_one_processed_batch(kafka, **settings) as (copying, consumer, producer):
        ending: asyncio.Future[Any] | None = None
        with contextlib.suppress(ZeroDivisionError):
            async with producer.transaction() as tx:
                async with consumer.batch(5, max_hold_ms=100) as batch:
                    await tx.send(copying.copies, batch[0].value)
                    await name_offsets(consumer, producer, tx, 10, is_at_once=True)
                    if gives_up == "rebalance":
                        consumer.subscribe([copying.copies])
                    elif gives_up == "unsubscribe":
                        consumer.unsubscribe()
                if gives_up == "stop":
                    context = contextvars.Context()
                    ending = context.run(asyncio.ensure_future, consumer.stop())
                await asyncio.sleep(0.3)
                if is_aborted:
                    raise ZeroDivisionError
        if ending is not None:
            await ending
        if is_aborted:
            await eventually(copying.committed, 5)
        else:
            await eventually(copying.committed, 10)
            await asyncio.sleep(0.2)
            assert await copying.committed() == 10


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_at_once", [True, False])
async def test_a_commit_within_the_transaction_leaves_out_what_that_commits_by_name(
    kafka: KafkaHandle, is_at_once: bool
) -> None:
    copying = Copying(kafka, await kafka.create_topic(), await kafka.create_topic())
    await kafka.produce(copying.source, 0, rows(0, RECORDS))
    async with timeout(PATIENCE_S), copying.both() as (consumer, producer):
        await consumer.getmany(timeout_ms=5_000, max_records=5)
        async with producer.transaction() as tx:
            await name_offsets(consumer, producer, tx, 4, is_at_once=is_at_once)
            await consumer.commit()
            with pytest.raises(IllegalOperation, match="when the transaction has ended"):
                await consumer.commit({copying.tp: 3})
        await eventually(copying.committed, 4)
        await consumer.commit()
        assert await copying.committed() == 5


@pytest.mark.real_if_long
async def test_a_transaction_takes_records_and_named_offsets_of_one_consumer(
    kafka: KafkaHandle,
) -> None:
    """Neither waits for the other."""
    copying = Copying(kafka, await kafka.create_topic(partitions=2), await kafka.create_topic())
    for number in range(2):
        await kafka.produce(copying.source, number, rows(0, 5))
    async with timeout(PATIENCE_S), copying.both() as (consumer, producer):
        async with consumer.batch(5, max_records_per_partition=5) as batch:
            read = TopicPartition(copying.source, batch[0].partition)
            other = TopicPartition(copying.source, 1 - read.partition)
            async with producer.transaction() as tx:
                tx.commit_offsets(batch)
                tx.commit_offsets({other: 2}, consumer.group_metadata())
        assert await committed(kafka, copying.group, read) == len(batch)
        assert await committed(kafka, copying.group, other) == 2


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_at_once", [True, False])
async def test_named_offsets_of_a_block_that_fails_later_are_not_returned_again(
    copying: Copying, is_at_once: bool
) -> None:
    async with copying.both() as (consumer, producer):

        async def copy() -> None:
            async with consumer.batch(5, max_records_per_partition=5) as batch:
                tp = TopicPartition(copying.source, batch[0].partition)
                offsets, group = {tp: batch[2].offset + 1}, consumer.group_metadata()
                async with producer.transaction() as tx:
                    for record in batch[:3]:
                        await tx.send(copying.copies, record.value, partition=0)
                    if is_at_once:
                        await producer.send_offsets_to_transaction(offsets, group)
                    else:
                        tx.commit_offsets(offsets, group)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await copy()
        await copy_until_all_is_there(copying, consumer, producer)
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


async def test_a_batch_that_is_read_after_a_fatal_error_is_in_no_transaction() -> None:
    async with on_broker() as (broker, copying), copying.both() as (consumer, producer):

        async def fail() -> None:
            async with producer.transaction() as tx:
                await tx.send_and_wait("copies", b"lost")

        broker.on("Produce").fail(ClusterAuthorizationFailedError)
        with pytest.raises(ClusterAuthorizationFailedError):
            await fail()
        async with consumer.batch(5):
            pass
        assert (await consumer.getone()).offset == 5


# --- Records that are acknowledged one by one ---------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.parametrize("names", ["consumer", "batch"])
async def test_a_transaction_acknowledges_the_records_of_a_block(
    copying: Copying, names: str
) -> None:
    async with copying.both(ack_mode="explicit", rebalance_hold_ms=0) as (consumer, producer):
        seen = 0
        while seen < 2 * RECORDS:
            async with consumer.batch(10) as batch, producer.transaction() as tx:
                for record in batch:
                    await tx.send(copying.copies, record.value, partition=0)
                tx.commit_offsets(consumer if names == "consumer" else batch)
            assert not any(record.ack() for record in batch)  # the transaction has done that
            seen += len(batch)
    assert await copying.committed() == RECORDS
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()


@pytest.mark.real_if_long
async def test_a_record_that_is_refused_is_not_committed_with_its_block(copying: Copying) -> None:
    async with copying.both(ack_mode="explicit", rebalance_hold_ms=0) as (consumer, producer):
        async with (
            consumer.batch(5, max_records_per_partition=5) as batch,
            producer.transaction() as tx,
        ):
            batch[2].nack(delay_ms=60_000)
            tx.commit_offsets(batch)
        tp = TopicPartition(copying.source, batch[0].partition)
        assert await consumer.committed(tp) == batch[2].offset


@pytest.mark.real_if_long
@pytest.mark.parametrize("names", ["batch", "record", "consumer"])
async def test_a_record_that_is_refused_after_the_transaction_got_it_is_returned_again(
    copying: Copying, names: str
) -> None:
    async with copying.both(ack_mode="explicit", rebalance_hold_ms=0) as (consumer, producer):
        async with (
            consumer.batch(5, max_records_per_partition=5) as batch,
            producer.transaction() as tx,
        ):
            sources: dict[str, list[Any]] = {
                "batch": [batch],
                "record": list(batch),
                "consumer": [consumer],
            }
            for source in sources[names]:
                tx.commit_offsets(source)
            refused = batch[2]
            assert refused.nack()
        tp = TopicPartition(copying.source, refused.partition)
        assert await consumer.committed(tp) == refused.offset
        async with timeout(10):
            assert (await consumer.getone(tp)).offset == refused.offset


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_committed", [True, False])
async def test_an_acknowledgement_within_a_transaction_counts_as_that_turns_out(
    copying: Copying, is_committed: bool
) -> None:
    async with copying.both(ack_mode="explicit", rebalance_hold_ms=0) as (consumer, producer):
        with contextlib.suppress(ZeroDivisionError):
            async with (
                consumer.batch(5, max_records_per_partition=5) as batch,
                producer.transaction() as tx,
            ):
                tx.commit_offsets(batch)
                assert all(record.ack() for record in batch)
                if not is_committed:
                    raise ZeroDivisionError
        assert not is_committed or not any(record.ack() for record in batch)
        tp = TopicPartition(copying.source, batch[0].partition)
        async with timeout(10):
            assert (await consumer.getone(tp)).offset == (5 if is_committed else 0)


@pytest.mark.real_if_long
async def test_a_batch_is_not_committed_beside_the_transaction_that_commits_it(
    copying: Copying,
) -> None:
    async with copying.both() as (consumer, producer), consumer.batch(5) as batch:
        async with producer.transaction() as tx:
            tx.commit_offsets(batch)
            with pytest.raises(IllegalOperation, match="transaction"):
                await batch.commit()
            await producer.abort_transaction()
        await batch.commit()
        assert await consumer.committed(TopicPartition(copying.source, batch[0].partition)) == 5


@pytest.mark.real_if_long
async def test_a_record_is_committed_by_itself(copying: Copying) -> None:
    async with copying.both(ack_mode="explicit", rebalance_hold_ms=0) as (consumer, producer):
        records = [await consumer.getone() for _ in range(3)]
        async with producer.transaction() as tx:
            tx.commit_offsets(records[0])
        tp = TopicPartition(records[0].topic, records[0].partition)
        assert await consumer.committed(tp) == records[0].offset + 1
        assert not records[0].ack()
        assert records[1].ack()


@pytest.mark.real_if_long
async def test_a_record_of_a_plain_consumer_is_not_committed_by_itself(copying: Copying) -> None:
    async with copying.both() as (consumer, producer):
        record = await consumer.getone()
        async with producer.transaction() as tx:
            with pytest.raises(RuntimeError, match="batch"):
                tx.commit_offsets(record)
            with pytest.raises(TypeError, match="cannot commit the offsets of 7"):
                tx.commit_offsets(7)  # type: ignore[arg-type]


# --- Handlers -----------------------------------------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.parametrize("names", ["record", "consumer"])
async def test_a_transaction_in_a_handler_commits_its_own_record(
    copying: Copying, caplog: pytest.LogCaptureFixture, names: str
) -> None:
    """One producer, so one transaction at a time; the other handlers wait."""
    done: list[tuple[int, int]] = []
    turn = asyncio.Lock()
    async with copying.both() as (consumer, producer):

        async def handle(record: ConsumerRecord) -> None:
            async with turn, producer.transaction() as tx:
                await tx.send(copying.copies, record.value, partition=0)
                tx.commit_offsets(record if names == "record" else consumer)
            done.append((record.partition, record.offset))
            if len(done) == 2 * RECORDS:
                asyncio.get_running_loop().create_task(consumer.stop())
            elif len(done) == 13:
                raise ZeroDivisionError  # behind its transaction, which counts

        async with timeout(30):
            await consumer.run(handle, concurrency=5)
    assert len(done) == len(set(done))
    assert sorted(value or b"" for value in await copying.read_copies()) == sorted_values()
    assert await copying.committed() == RECORDS
    assert "failed after its record was finished" in caplog.text


@pytest.mark.real_if_long
async def test_what_a_consumer_has_read_is_not_committed_from_outside_of_its_handlers(
    copying: Copying,
) -> None:
    async with copying.both() as (consumer, producer):
        is_handled = asyncio.Event()

        async def handle(record: ConsumerRecord) -> None:
            is_handled.set()

        running = asyncio.ensure_future(consumer.run(handle, retry=Retry()))
        await is_handled.wait()
        async with producer.transaction() as tx:
            with pytest.raises(IllegalOperation, match="is not a handler"):
                tx.commit_offsets(consumer)
        await consumer.stop()
        await running


# --- Blocks that are over -----------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_a_send_of_a_transaction_that_is_over_does_not_get_into_the_next(
    copying: Copying,
) -> None:
    async with copying.producer() as producer:
        first = producer.transaction()

        async def fail() -> None:
            async with first:
                await first.send(copying.copies, b"aborted", partition=0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        async with producer.transaction() as second:
            with pytest.raises(IllegalOperation, match="has ended"):
                await first.send_and_wait(copying.copies, b"late", partition=0)
            with pytest.raises(IllegalOperation, match="has ended"):
                first.commit_offsets({copying.tp: 3}, copying.group)
            await second.send(copying.copies, b"second", partition=0)
    assert (first.is_committed, second.is_committed) == (False, True)
    assert await copying.read_copies() == [b"second"]


@pytest.mark.real_if_long
async def test_a_send_that_waits_for_a_topic_does_not_get_into_the_next_transaction(
    copying: Copying,
) -> None:
    other = await copying.kafka.create_topic()
    async with copying.producer() as producer:
        await producer.begin_transaction()
        waiting = asyncio.ensure_future(producer.send_and_wait(other, b"of the first"))
        await asyncio.sleep(0)  # it asks for the topic's metadata
        await producer.abort_transaction()
        async with producer.transaction() as tx:
            with pytest.raises(IllegalOperation, match="has ended"):
                await waiting
            await tx.send(other, b"of the second")
    found = await values_in(copying.kafka, other, 0, isolation_level="read_committed")
    assert found == [b"of the second"]


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_good", [True, False])
async def test_a_block_ends_no_transaction_but_its_own(copying: Copying, is_good: bool) -> None:
    async with copying.producer() as producer:
        is_over, is_second_open = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with producer.transaction() as tx:
                await tx.send(copying.copies, b"first", partition=0)
                await producer.commit_transaction()
                is_over.set()
                await is_second_open.wait()
                if not is_good:
                    raise ZeroDivisionError

        running = asyncio.ensure_future(first())
        await is_over.wait()
        async with producer.transaction() as tx:
            is_second_open.set()
            with contextlib.suppress(ZeroDivisionError):
                await running
            await tx.send(copying.copies, b"second", partition=0)
    assert await copying.read_copies() == [b"first", b"second"]
