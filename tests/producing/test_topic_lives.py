"""Topics that are deleted or recreated while records are sent to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import RecordMetadata
from tests.producing.sending import as_values, producer_of, read_all, values_in
from tests.support.cluster import KafkaHandle, unique


@pytest.fixture(params=["ids", "names"])
def ids(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    """Whether metadata have topic ids; brokers before Kafka 2.8 have none."""
    if request.param == "names":
        monkeypatch.setattr(MetadataRequest, "usable_max_version", property(lambda self: 9))
    return request.param


async def recreate(kafka: KafkaHandle, topic: str, partitions: int) -> None:
    """Delete a topic, and create another one under its name."""
    await kafka.delete_topic(topic)
    await kafka.create_topic(topic, partitions)


async def delete_while_sending(
    kafka: KafkaHandle, producer: AIOKafkaProducer, topic: str, partition: int
) -> asyncio.Future[RecordMetadata]:
    """Delete a topic; return the future of the first record that came too late."""
    await kafka.delete_topic(topic)
    while True:  # a real broker writes to it for a moment
        future = await producer.send(topic, bytes(200), partition=partition)
        await asyncio.wait([future], timeout=0.3)
        if not future.done():
            return future


async def send_keyed(
    producer: AIOKafkaProducer, topic: str, numbers: range
) -> Sequence[RecordMetadata | BaseException]:
    """Send each number under a key of its own; return what came of it."""
    futures = [await producer.send(topic, b"%d" % n, key=b"%d" % n) for n in numbers]
    async with timeout(20):
        return await asyncio.gather(*futures, return_exceptions=True)


async def all_in(kafka: KafkaHandle, topic: str) -> list[int]:
    """The numbers that a topic holds."""
    found = await read_all(kafka, topic)
    return sorted(int(record.value or b"") for records in found.values() for record in records)


async def until_settled(producer: AIOKafkaProducer, topic: str) -> None:
    """Send until the producer knows the new topic; what fails says that its partition is gone."""
    async with timeout(20):
        while True:
            placed = await send_keyed(producer, topic, range(1_000, 1_040))
            failed = [each for each in placed if isinstance(each, BaseException)]
            if not failed:
                return
            for each in failed:
                assert isinstance(each, UnknownTopicOrPartitionError), repr(each)
                assert "recreated with 2 partitions" in str(each)


# --- Recreated -------------------------------------------------------------------------------
async def test_a_topic_that_is_recreated_with_fewer_partitions_is_written_to(
    kafka: KafkaHandle, ids: object
) -> None:
    topic = await kafka.create_topic(partitions=8)
    async with producer_of(kafka) as producer:
        assert len(await send_keyed(producer, topic, range(40))) == 40
        await recreate(kafka, topic, 2)
        await until_settled(producer, topic)
        assert await producer.partitions_for(topic) == {0, 1}
        placed = await send_keyed(producer, topic, range(40))
        assert {each.partition for each in placed if isinstance(each, RecordMetadata)} == {0, 1}
        with pytest.raises(
            UnknownTopicOrPartitionError,
            match="has no partition 5: its highest partition number is 1",
        ):
            await producer.send(topic, b"v", partition=5)
    written = await all_in(kafka, topic)
    assert [n for n in written if n < 1_000] == list(range(40))


@pytest.mark.parametrize("partitions", [2, 4], ids=["as-many", "more"])
async def test_a_topic_that_is_recreated_is_written_to_once_and_in_order(
    kafka: KafkaHandle, ids: object, partitions: int
) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with producer_of(kafka) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, b"old %d" % number, partition=0)
        await recreate(kafka, topic, partitions)
        futures = []
        for number in range(50):
            futures.append(await producer.send(topic, b"%d" % number, partition=0))
            await asyncio.sleep(0)
        async with timeout(20):
            await asyncio.gather(*futures)
            # Without an id only metadata_max_age_ms brings news of more partitions.
            while ids == "ids" and await producer.partitions_for(topic) != set(range(partitions)):
                await producer.send_and_wait(topic, b"50", partition=1)
    assert await values_in(kafka, topic) == as_values(range(50))


async def test_records_that_wait_for_a_recreated_topic_go_to_it(
    kafka: KafkaHandle, ids: object
) -> None:
    topic, other = await kafka.create_topic(partitions=8), await kafka.create_topic()
    async with producer_of(kafka) as producer:
        await send_keyed(producer, topic, range(40))
        gone = await delete_while_sending(kafka, producer, topic, 7)
        futures = [
            await producer.send(topic, b"%d" % partition, partition=partition)
            for partition in range(8)
        ]
        await asyncio.wait(futures, timeout=0.3)
        assert not any(future.done() for future in futures)
        assert (await producer.send_and_wait(other, b"v")).offset == 0
        await kafka.create_topic(topic, 2)
        async with timeout(20):
            placed = await asyncio.gather(*futures, return_exceptions=True)
    assert [each.offset for each in placed if isinstance(each, RecordMetadata)] == [0, 0]
    assert isinstance(gone.exception(), UnknownTopicOrPartitionError)
    for partition, error in enumerate(placed[2:], start=2):
        assert isinstance(error, UnknownTopicOrPartitionError)
        assert f"{topic}-{partition} no longer exists" in str(error)


async def test_batches_in_flight_when_their_topic_is_recreated_are_written_once_and_in_order(
    ids: object,
) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        async with producer_of(broker, max_batch_size=100) as producer:
            await producer.send_and_wait("t", b"old", partition=0)
            with broker.on("Produce").hold() as rule:
                futures = [
                    await producer.send("t", b"%d" % number, partition=0) for number in range(50)
                ]
                await rule.reached()
                broker.recreate_topic("t")
            async with timeout(20):
                await asyncio.gather(*futures)
        assert await values_in(broker, "t") == as_values(range(50))


async def test_what_a_recreated_topic_took_before_the_producer_knew_is_not_written_twice(
    ids: object,
) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        async with producer_of(broker) as producer:
            for partition in range(2):
                await producer.send_and_wait("t", b"old", partition=partition)
            broker.recreate_topic("t", 1)
            broker.on("Produce").disconnect(handled=True)  # written, if it goes by name
            first = await producer.send("t", b"0", partition=0)
            gone = await producer.send("t", b"gone", partition=1)
            await asyncio.wait([gone])
            second = await producer.send("t", b"1", partition=0)
            async with timeout(20):
                await asyncio.gather(first, second)
            with pytest.raises(UnknownTopicOrPartitionError, match="t-1 no longer exists"):
                await gone
        assert await values_in(broker, "t") == [b"0", b"1"]


# --- Deleted ---------------------------------------------------------------------------------
async def test_records_for_a_deleted_topic_fail_and_others_are_written(
    kafka: KafkaHandle,
) -> None:
    topic, other = await kafka.create_topic(), await kafka.create_topic()
    async with producer_of(
        kafka, request_timeout_ms=1_000, delivery_timeout_ms=2_500, buffer_memory=600
    ) as producer:
        await producer.send_and_wait(topic, b"v")
        future = await delete_while_sending(kafka, producer, topic, 0)
        late = [asyncio.ensure_future(producer.send(topic, bytes(200))) for _ in range(3)]
        async with timeout(10):
            assert (await producer.send_and_wait(other, b"v")).offset == 0
            with pytest.raises(UnknownTopicOrPartitionError, match="was not found"):
                await producer.send(topic, b"v")
            with pytest.raises(UnknownTopicOrPartitionError, match="does not exist any more"):
                await future
            for each in late:
                with pytest.raises(UnknownTopicOrPartitionError, match=r"not exist|was deleted"):
                    await (await each)
        assert (await producer.send_and_wait(other, b"v")).offset == 1
        await kafka.create_topic(topic)
        async with timeout(20):
            while True:
                try:  # a real broker may take longer than the request timeout to tell of it
                    assert (await producer.send_and_wait(topic, b"v")).offset == 0
                    break
                except UnknownTopicOrPartitionError:
                    pass


async def test_a_deleted_topic_is_not_created_by_sending_to_another(kafka: KafkaHandle) -> None:
    topic, other = await kafka.create_topic(), unique("created-by-sending")
    async with producer_of(kafka) as producer:
        await producer.send_and_wait(topic, b"v")
        await kafka.delete_topic(topic)
        assert (await producer.send_and_wait(other, b"v")).offset == 0
    with pytest.raises(UnknownTopicOrPartitionError):
        await kafka.delete_topic(topic)


@pytest.mark.virtual_time
async def test_a_send_that_does_not_find_a_deleted_topic_leaves_its_records_waiting() -> None:
    async with Broker(auto_create_topics=False) as broker:
        broker.create_topic("t")
        async with producer_of(broker, request_timeout_ms=1_000) as producer:
            await producer.send_and_wait("t", b"old")
            broker.delete_topic("t")
            waiting = await producer.send("t", b"new", partition=0)
            await asyncio.sleep(3)
            with pytest.raises(UnknownTopicOrPartitionError, match="was not found"):
                await producer.send("t", b"refused", partition=0)
            broker.create_topic("t")
            async with timeout(20):
                assert (await waiting).offset == 0
        assert await values_in(broker, "t") == [b"new"]


# --- In a transaction ------------------------------------------------------------------------
async def test_a_transaction_whose_topic_is_recreated_is_aborted(
    kafka: KafkaHandle, ids: object
) -> None:
    topic = await kafka.create_topic(partitions=4)
    async with producer_of(kafka, transactional_id=unique("tx")) as producer:

        async def write() -> None:
            async with producer.transaction() as tx:
                for partition in range(4):
                    await tx.send_and_wait(topic, b"lost", partition=partition)
                await recreate(kafka, topic, 2)
                async with timeout(20):
                    while True:
                        await tx.send_and_wait(topic, b"lost", partition=3)

        with pytest.raises((TransactionAbortableError, UnknownTopicOrPartitionError)) as caught:
            await write()
        assert topic in str(caught.value)
        async with timeout(20), producer.transaction() as tx:
            await tx.send(topic, b"kept", partition=1)
    assert await values_in(kafka, topic, 1, isolation_level="read_committed") == [b"kept"]


async def test_a_transaction_does_not_go_on_in_a_topic_that_has_lost_its_records(
    ids: object,
) -> None:
    is_by_id = ids == "ids"
    async with Broker(transaction_version=2 if is_by_id else 1) as broker:
        broker.create_topic("t", 2)
        async with producer_of(broker, transactional_id="tx") as producer:

            async def write() -> None:
                async with producer.transaction() as tx:
                    await tx.send_and_wait("t", b"lost", partition=0)
                    # Sent by id, it is noticed though all partitions are there again.
                    broker.recreate_topic("t", 2 if is_by_id else 1)
                    await asyncio.wait([await tx.send("t", b"lost, too", partition=1)])
                    await tx.send("t", b"without the first", partition=0)

            with pytest.raises(TransactionAbortableError, match="recreated"):
                await write()
            async with producer.transaction() as tx:
                await tx.send("t", b"kept", partition=0)
        values = await values_in(broker, "t", isolation_level="read_committed")
        assert values == [b"kept"]


@pytest.mark.virtual_time
async def test_a_topic_that_is_recreated_during_a_commit_is_written_to_by_later_transactions() -> (
    None
):
    async with (
        Broker(transaction_version=1) as broker,
        producer_of(broker, transactional_id="tx") as producer,
    ):
        broker.create_topic("t")
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"before", partition=0)
        with broker.on("EndTxn").hold() as held:
            committing = asyncio.ensure_future(producer.commit_transaction())
            await held.reached()
            broker.recreate_topic("t")
            await producer.client.force_metadata_update()
        await committing
        # The commit's marker is in the new log, which takes no sequence but 0 then.
        with pytest.raises(TransactionAbortableError, match="OutOfOrderSequence"):
            await write(producer, b"refused")
        await write(producer, b"after")
        assert await values_in(broker, "t", isolation_level="read_committed") == [b"after"]


async def write(producer: AIOKafkaProducer, value: bytes) -> None:
    """Write a record in a transaction."""
    async with timeout(20), producer.transaction() as tx:
        await tx.send("t", value, partition=0)
