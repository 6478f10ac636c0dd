"""Transactions on both brokers: what counts, what does not, and who may go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    CommitFailedError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    ProducerFencedError,
    TransactionAbortableError,
)
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.structs import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)
from tests.producing.sending import as_values, producer_of, send_numbers, values_in
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import committed, reading


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    return await kafka.create_topic(partitions=2)


@pytest.fixture
async def producer(kafka: KafkaHandle) -> AsyncIterator[AIOKafkaProducer]:
    async with producer_of(kafka, transactional_id=unique("tx")) as producer:
        yield producer


async def committed_in(kafka: KafkaHandle, topic: str, partition: int = 0) -> list[bytes | None]:
    return await values_in(kafka, topic, partition, isolation_level="read_committed")


# --- What counts -------------------------------------------------------------------------------
async def test_a_transaction_counts_as_a_whole(
    kafka: KafkaHandle, topic: str, producer: AIOKafkaProducer
) -> None:
    async with producer.transaction() as tx:
        await send_numbers(producer, topic, range(3))
        placed = await tx.send_and_wait(topic, b"other", partition=1)
        assert placed.offset == 0
        async with reading(kafka, isolation_level="read_committed") as reader:
            tp = TopicPartition(topic, 1)
            assert await reader.end_offsets([tp]) == {tp: 0}
    assert await committed_in(kafka, topic) == as_values(range(3))
    assert await committed_in(kafka, topic, 1) == [b"other"]


async def test_many_transactions_follow_each_other(
    kafka: KafkaHandle, topic: str, producer: AIOKafkaProducer
) -> None:
    for start in range(0, 50, 5):
        async with producer.transaction():
            await send_numbers(producer, topic, range(start, start + 5))
    assert await committed_in(kafka, topic) == as_values(range(50))


async def test_what_is_aborted_is_read_by_nobody_who_reads_committed_records(
    kafka: KafkaHandle, topic: str, producer: AIOKafkaProducer
) -> None:
    await producer.begin_transaction()
    await asyncio.gather(*await send_numbers(producer, topic, range(3)))
    await producer.abort_transaction()
    async with producer.transaction():
        await send_numbers(producer, topic, range(3, 6))
    assert await committed_in(kafka, topic) == as_values(range(3, 6))
    assert await values_in(kafka, topic) == as_values(range(6))


async def test_an_exception_aborts_and_is_raised(
    kafka: KafkaHandle, topic: str, producer: AIOKafkaProducer
) -> None:
    async def fail() -> None:
        async with producer.transaction() as tx:
            await tx.send_and_wait(topic, b"lost", partition=0)
            await tx.send(topic, b"not even sent", partition=0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with producer.transaction() as tx:
        await tx.send(topic, b"kept", partition=0)
    assert await committed_in(kafka, topic) == [b"kept"]


async def test_a_cancellation_inside_the_block_aborts(
    kafka: KafkaHandle, topic: str, producer: AIOKafkaProducer
) -> None:
    is_inside = asyncio.Event()

    async def work() -> None:
        async with producer.transaction() as tx:
            await tx.send_and_wait(topic, b"lost", partition=0)
            is_inside.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await is_inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with producer.transaction() as tx:
        await tx.send(topic, b"kept", partition=0)
    assert await committed_in(kafka, topic) == [b"kept"]


async def test_a_commit_that_is_cancelled_before_it_is_asked_for_aborts(
    kafka: KafkaHandle, topic: str, producer: AIOKafkaProducer
) -> None:
    await producer.begin_transaction()
    await send_numbers(producer, topic, range(3))
    commit = asyncio.ensure_future(producer.commit_transaction())
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    async with producer.transaction():  # the one before is over
        await send_numbers(producer, topic, range(3, 5))
    assert await committed_in(kafka, topic) == as_values(range(3, 5))


async def test_a_stop_aborts_what_is_open(kafka: KafkaHandle, topic: str) -> None:
    async with producer_of(kafka, transactional_id=unique("tx")) as producer:
        await producer.begin_transaction()
        await asyncio.gather(*await send_numbers(producer, topic, range(3)))
    assert await committed_in(kafka, topic) == []
    async with reading(kafka, topic, isolation_level="read_committed") as consumer:
        tp = TopicPartition(topic, 0)
        assert (await consumer.end_offsets([tp]))[tp] == 4  # nothing hangs: the marker is there


# --- What is not allowed -----------------------------------------------------------------------
async def test_a_stop_aborts_a_transaction_whose_commit_fails_meanwhile(
    kafka: KafkaHandle, producer: AIOKafkaProducer
) -> None:
    topic = await kafka.create_topic(partitions=2, configs={"max.message.bytes": "2000"})
    stopping: list[asyncio.Task[None]] = []

    async def lose() -> None:
        async with timeout(20), producer.transaction() as tx:
            await tx.send_and_wait(topic, b"aborted", partition=1)
            await tx.send(topic, bytes(5000), partition=0)
            stopping.append(asyncio.create_task(producer.stop()))

    with pytest.raises(KafkaError):
        await lose()
    await stopping[0]
    await kafka.produce(topic, 1, [(None, b"later")])
    assert await committed_in(kafka, topic, 1) == [b"later"]


@pytest.mark.real_if_long
async def test_records_are_sent_in_transactions_only(
    topic: str, producer: AIOKafkaProducer
) -> None:
    batch = producer.create_batch()
    batch.append(timestamp=None, key=None, value=b"v")
    for send in (producer.send(topic, b"v"), producer.send_batch(batch, topic, partition=0)):
        with pytest.raises(IllegalOperation, match="not in transaction"):
            await send
    for call in (producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(IllegalOperation):
            await call()
    async with producer.transaction():
        with pytest.raises(IllegalStateError, match="one transaction at a time"):
            await producer.begin_transaction()
    block = producer.transaction()
    async with block:
        pass
    with pytest.raises(IllegalStateError, match="entered only once"):
        await block.__aenter__()


@pytest.mark.real_if_long
async def test_transactions_need_a_transactional_id(kafka: KafkaHandle) -> None:
    async with producer_of(kafka) as producer:
        with pytest.raises(IllegalOperation, match="transactional_id"):
            await producer.begin_transaction()
        with pytest.raises(IllegalOperation, match="transactional_id"):
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")


async def test_a_later_producer_with_the_same_id_fences_an_earlier_one(
    kafka: KafkaHandle, topic: str
) -> None:
    name = unique("tx")
    async with (
        producer_of(kafka, transactional_id=name) as old,
        producer_of(kafka, transactional_id=name) as new,
    ):
        await old.begin_transaction()
        with pytest.raises(KafkaError):
            await old.send_and_wait(topic, b"zombie", partition=0)
        with pytest.raises(ProducerFencedError, match="create another producer"):
            await old.abort_transaction()
        for _ in range(2):
            with pytest.raises(ProducerFencedError, match="another producer"):
                await old.begin_transaction()
            with pytest.raises(ProducerFencedError, match="another producer"):
                await old.send(topic, b"zombie")
        async with new.transaction() as tx:
            await tx.send(topic, b"new", partition=0)
    assert await committed_in(kafka, topic) == [b"new"]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_block_of_a_producer_that_is_fenced_says_so(
    kafka: KafkaHandle, topic: str, waits: bool
) -> None:
    name = unique("tx")

    async def write() -> None:
        async with old.transaction() as tx:
            if waits:
                await tx.send_and_wait(topic, b"zombie", partition=0)
            else:
                await tx.send(topic, b"zombie", partition=0)

    async with (
        producer_of(kafka, transactional_id=name) as old,
        producer_of(kafka, transactional_id=name),
    ):
        with pytest.raises(ProducerFenced, match="another producer"):  # aiokafka's name
            await write()
        assert isinstance(old.fatal_error, ProducerFencedError)
        with pytest.raises(ProducerFencedError):
            await old.begin_transaction()
    assert await committed_in(kafka, topic) == []


@pytest.mark.parametrize("waits", [True, False])
async def test_every_call_of_a_producer_that_is_fenced_says_so(
    kafka: KafkaHandle, topic: str, waits: bool
) -> None:
    """Programs that have no block catch aiokafka's error, and stop the producer."""
    name = unique("tx")
    async with (
        producer_of(kafka, transactional_id=name) as old,
        producer_of(kafka, transactional_id=name),
    ):
        await old.begin_transaction()
        future = await old.send(topic, b"zombie", partition=0)
        if waits:
            with pytest.raises(ProducerFenced, match="another producer"):
                await future
        calls = [old.commit_transaction, old.abort_transaction, old.begin_transaction, old.flush]
        for call in calls:
            with pytest.raises(ProducerFenced, match="another producer"):
                await call()
        with pytest.raises(ProducerFenced, match="another producer"):
            await future
        assert isinstance(old.fatal_error, ProducerFencedError)


async def test_a_later_producer_aborts_what_an_earlier_one_left_open(
    kafka: KafkaHandle, topic: str
) -> None:
    name = unique("tx")
    async with producer_of(kafka, transactional_id=name) as old:
        await old.begin_transaction()
        await old.send_and_wait(topic, b"left open", partition=0)
        async with producer_of(kafka, transactional_id=name) as new, new.transaction() as tx:
            await tx.send(topic, b"new", partition=0)
        with pytest.raises(ProducerFencedError):
            await old.commit_transaction()
    assert await committed_in(kafka, topic) == [b"new"]


async def test_a_lost_record_keeps_the_whole_transaction_from_counting(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(configs={"max.message.bytes": "2000"})
    async with producer_of(kafka, transactional_id=unique("tx")) as producer:

        async def lose() -> None:
            async with producer.transaction() as tx:
                await tx.send_and_wait(topic, b"before", partition=0)
                await tx.send(topic, bytes(3_000), partition=0)

        with pytest.raises(TransactionAbortableError) as caught:
            await lose()
        assert isinstance(caught.value.__cause__, MessageSizeTooLargeError)
        await producer.begin_transaction()
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, bytes(3_000), partition=0)
        with pytest.raises(TransactionAbortableError, match="abort_transaction"):
            await producer.send(topic, b"after", partition=0)
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as tx:
            await tx.send(topic, b"kept", partition=0)
    assert await committed_in(kafka, topic) == [b"kept"]


# --- Offsets -----------------------------------------------------------------------------------
async def test_a_batch_that_is_too_large_is_not_sent_in_parts_after_a_record_was_lost(
    kafka: KafkaHandle, producer: AIOKafkaProducer
) -> None:
    topic = await kafka.create_topic(partitions=2, configs={"max.message.bytes": "2000"})
    in_one_batch: list[asyncio.Future[RecordMetadata]] = []

    async def lose() -> None:
        async with timeout(20), producer.transaction() as tx:
            await tx.send(topic, bytes(5000), partition=0)
            for _ in range(30):
                in_one_batch.append(await tx.send(topic, bytes(100), partition=1))  # noqa: PERF401

    with pytest.raises(TransactionAbortableError):
        await lose()
    errors = await asyncio.gather(*in_one_batch, return_exceptions=True)
    assert {type(error) for error in errors} == {TransactionAbortableError}
    causes = {type(error.__cause__) for error in errors if isinstance(error, KafkaError)}
    assert causes == {MessageSizeTooLargeError}
    async with producer.transaction() as tx:
        await tx.send(topic, b"next", partition=1)
    assert await committed_in(kafka, topic, 1) == [b"next"]


async def test_offsets_count_with_the_transaction(
    kafka: KafkaHandle, topic: str, producer: AIOKafkaProducer
) -> None:
    group, tp = unique("g"), TopicPartition(topic, 0)
    await producer.begin_transaction()
    await producer.send_offsets_to_transaction({tp: 7}, group)
    await producer.abort_transaction()
    assert await committed(kafka, group, tp) is None
    async with producer.transaction():
        await producer.send_offsets_to_transaction({tp: OffsetAndMetadata(8, "m")}, group)
    assert await committed(kafka, group, tp) == 8
    async with producer.transaction() as tx:
        tx.commit_offsets({tp: 9}, group)
    assert await committed(kafka, group, tp) == 9


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_copy_is_exact_though_transactions_are_aborted(
    kafka: KafkaHandle, protocol: str
) -> None:
    source, copy = await kafka.create_topic(partitions=2), await kafka.create_topic()
    for partition in range(2):
        rows = [(None, b"%d-%d" % (partition, number)) for number in range(30)]
        for start in range(0, 30, 5):
            await kafka.produce(source, partition, rows[start : start + 5])
    group, name = unique("g"), unique("tx")
    copied = 0
    for attempt in range(100):
        async with (
            copier(kafka, source, group, protocol) as consumer,
            producer_of(kafka, transactional_id=name) as producer,
        ):
            copied += await copy_some(consumer, producer, copy, attempt)
        if copied >= 60:
            break
    values = await committed_in(kafka, copy)
    assert len(values) == 60
    for partition in range(2):
        of_partition = [value for value in values if (value or b"").startswith(b"%d-" % partition)]
        assert of_partition == [b"%d-%d" % (partition, number) for number in range(30)]


def copier(kafka: KafkaHandle, source: str, group: str, protocol: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        source,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        group_protocol=protocol,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
    )


async def copy_some(
    consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, copy: str, attempt: int
) -> int:
    """Copy two batches in a transaction each; every other attempt loses its second one."""
    copied = 0
    for number in range(2):
        try:
            async with producer.transaction() as tx:
                batches = await consumer.getmany(timeout_ms=5_000, max_records=7)
                records = [record for batch in batches.values() for record in batch]
                for record in records:
                    await tx.send(copy, record.value)
                tx.commit_offsets(consumer)
                if number == 1 and attempt % 2 == 0:
                    await producer.flush()
                    raise ZeroDivisionError
            copied += len(records)
        except ZeroDivisionError:
            break
    return copied


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_copy_is_exact_though_the_group_rebalances(
    kafka: KafkaHandle, protocol: str
) -> None:
    source, copy = await kafka.create_topic(partitions=4), await kafka.create_topic()
    for partition in range(4):
        rows = [(None, b"%d-%d" % (partition, number)) for number in range(100)]
        for start in range(0, 100, 5):
            await kafka.produce(source, partition, rows[start : start + 5])
    group, members = unique("g"), []
    try:
        for number in range(4):
            members.append(
                asyncio.ensure_future(copy_all(kafka, source, copy, group, protocol, number))
            )
            await asyncio.wait(members, timeout=0.3)
            if number == 2:
                members[0].cancel()
        await read_until(kafka, copy, 400)
    finally:
        for member in members:
            member.cancel()
        await asyncio.wait(members)
    values = await committed_in(kafka, copy)
    assert len(values) == 400
    for partition in range(4):
        of_partition = [value for value in values if (value or b"").startswith(b"%d-" % partition)]
        assert of_partition == [b"%d-%d" % (partition, number) for number in range(100)]


async def copy_all(
    kafka: KafkaHandle, source: str, copy: str, group: str, protocol: str, number: int
) -> None:
    """Copy until cancelled, as a member of a group."""
    async with (
        copier(kafka, source, group, protocol) as consumer,
        producer_of(kafka, transactional_id=f"{group}-{number}") as producer,
    ):
        while True:
            try:
                async with consumer.batch(max_records=5) as batch, producer.transaction() as tx:
                    for record in batch:
                        await tx.send(copy, record.value, partition=0)
                    tx.commit_offsets(consumer)
            except (CommitFailedError, TransactionAbortableError):
                pass


async def read_until(kafka: KafkaHandle, topic: str, count: int) -> None:
    """Wait until so many records are committed."""
    async with reading(kafka, topic, isolation_level="read_committed") as consumer, timeout(60):
        while count > 0:
            count -= sum(map(len, (await consumer.getmany(timeout_ms=500)).values()))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_member_that_the_group_has_gone_on_without_commits_nothing(
    kafka: KafkaHandle, topic: str, producer: AIOKafkaProducer, protocol: str
) -> None:
    group, tp = unique("g"), TopicPartition(topic, 0)
    await kafka.produce(topic, 0, [(None, b"v")])
    async with copier(kafka, topic, group, protocol) as consumer:
        await consumer.getone()
        left = consumer.group_metadata()
        assert left.group_id == group
        assert left.member_id
        assert left.generation_id > 0
        positions = consumer.positions()
        assert positions[tp] == (1, "")
    async with copier(kafka, topic, group, protocol) as other:
        await other.getone()

        async def commit_late() -> None:
            async with producer.transaction() as tx:
                await tx.send(topic, b"zombie", partition=1)
                tx.commit_offsets(positions, left)

        with pytest.raises(CommitFailedError, match="rebalanced"):
            await commit_late()
        async with producer.transaction() as tx:
            tx.commit_offsets(other)
    assert await committed(kafka, group, tp) == 1
    assert await committed_in(kafka, topic, 1) == []


@pytest.mark.real_if_long
async def test_a_consumer_without_a_group_has_no_metadata(kafka: KafkaHandle, topic: str) -> None:
    async with reading(kafka, topic) as consumer:
        with pytest.raises(IllegalOperation, match="group_id"):
            consumer.group_metadata()
    async with reading(kafka, group_id="by-hand") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.group_metadata() == ConsumerGroupMetadata("by-hand")
