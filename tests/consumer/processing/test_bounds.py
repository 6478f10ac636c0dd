"""`run(until=…)` ends at the offsets that were the ends, when all before them is finished."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timezone

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer.processing.bounds import RunBounds, RunSummary, until_of
from aiokafka_lite.errors import DeserializationError, UnknownTopicOrPartitionError
from aiokafka_lite.processing import Outputs, Retry
from aiokafka_lite.structs import ConsumerRecord, OffsetAndTimestamp, TopicPartition
from tests.consumer.processing.running import PATIENCE_S, member
from tests.consumer.processing.shaping import A, B, Shaped
from tests.support.cluster import KafkaHandle, unique
from tests.support.for_each import for_each
from tests.support.rows import rows

Record = ConsumerRecord[bytes | None, bytes | None]


def values(count: int, prefix: str = "v") -> list[tuple[bytes | None, bytes | None]]:
    return [(b"k%d" % (n % 7), f"{prefix}{n}".encode()) for n in range(count)]


@pytest.mark.real_if_long
async def test_all_records_before_the_ends_are_finished_and_none_after_them_begins(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(unique("until"), 3)  # one partition stays empty
    dead_letters = await kafka.create_topic(unique("dead"), 1)
    await kafka.produce(topic, 0, values(300))
    await kafka.produce(topic, 1, values(40))
    group, failed, late = unique("until"), Counter[bytes | None](), Counter[bytes | None]()

    async def handle(record: Record) -> None:
        if record.offset == 0:
            await kafka.produce(topic, record.partition, values(3_000, "late"))
        if record.value in (b"v5", b"v9"):
            failed[record.value] += 1
            if record.value == b"v5" or failed[record.value] == 1:
                raise ValueError(record.value)
        late[record.value] += 1

    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        retry = Retry(attempts=3, first_delay_ms=300)
        summary = await consumer.run(
            handle, until="end", retry=retry, dead_letter=dead_letters, breaker=None
        )
        assert consumer.paused() == set()
    assert not any((value or b"").startswith(b"late") for value in late)
    assert (summary.records, summary.finished, summary.dead, summary.failed) == (340, 338, 2, 7)
    assert summary.is_complete
    assert summary.topics == {topic: 340}
    assert "338 of 340 records finished" in str(summary)

    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        for partition, end in ((0, 300), (1, 40)):
            assert await consumer.committed(TopicPartition(topic, partition)) == end
        late.clear()
        summary = await consumer.run(handle_none_of(late), until="end", concurrency=7)
        assert summary.records == summary.finished == late.total() == 6_000


def handle_none_of(seen: Counter[bytes | None]):  # type: ignore[no-untyped-def]
    async def handle(record: Record) -> None:
        assert not (record.value or b"").startswith(b"v")
        seen[record.value] += 1

    return handle


@pytest.mark.real_if_long
async def test_ends_of_transactions_are_reached_though_no_record_is_at_them(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(unique("until"), 1)
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
    )
    seen: list[bytes | None] = []

    async def handle(record: Record) -> None:
        seen.append(record.value)

    async with timeout(PATIENCE_S), producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"committed", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted", partition=0)
        await producer.abort_transaction()
        consumer = member(kafka, topic, unique("until"), isolation_level="read_committed")
        async with consumer:
            summary = await consumer.run(handle, until="end")
            assert (seen, summary.records) == ([b"committed"], 1)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"open", partition=0)
        consumer = member(kafka, topic, unique("until"), isolation_level="read_committed")
        async with consumer:  # to the last stable offset
            assert (await consumer.run(handle, until="end")).records == 1
        await producer.abort_transaction()


async def test_a_time_ends_before_the_first_record_with_it(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(unique("until"), 1)
    begin = round(time.time()) * 1000 - 10_000  # brokers delete old records
    async with timeout(PATIENCE_S):
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for at in (begin, begin + 1_000, begin + 2_000):
                await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=at)
        second = datetime.fromtimestamp(begin / 1000 + 1, timezone.utc)
        for until in (begin + 1_000, second):
            consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
            consumer.assign([TopicPartition(topic, 0)])
            async with consumer:
                await consumer.seek_to_beginning()
                seen: list[int] = []

                async def handle(record: Record, seen: list[int] = seen) -> None:
                    seen.append(record.timestamp)

                assert (await consumer.run(handle, until=until)).records == 1
                assert seen == [begin]
                assert await consumer.position(TopicPartition(topic, 0)) == 1
                assert (await consumer.run(handle, until="end")).records == 2


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_members_of_a_group_process_each_record_once_and_all_return(
    kafka: KafkaHandle, protocol: str
) -> None:
    topic = await kafka.create_topic(unique("until"), 6)
    for partition in range(6):
        await kafka.produce(topic, partition, values(50))
    seen: Counter[tuple[int, int]] = Counter()
    group, began = unique("until"), asyncio.Event()

    async def handle(record: Record) -> None:
        began.set()
        await asyncio.sleep(0.02)
        seen[record.partition, record.offset] += 1

    async def take_part() -> RunSummary:
        async with member(kafka, topic, group, group_protocol=protocol) as consumer:
            return await consumer.run(handle, until="end", concurrency=2)

    async with timeout(60):
        first = asyncio.ensure_future(take_part())
        await began.wait()
        summaries = [await take_part(), await first]
    assert set(seen.values()) == {1}
    assert sum(each.finished for each in summaries) == len(seen) == 300
    assert all(each.finished and each.is_complete for each in summaries)


async def test_partitions_of_a_deleted_topic_are_not_waited_for(kafka: KafkaHandle) -> None:
    kept, deleted = [await kafka.create_topic(unique("until"), 1) for _ in range(2)]
    await kafka.produce(kept, 0, values(5))
    await kafka.produce(deleted, 0, values(5))

    async def handle(record: Record) -> None:
        if record.topic == deleted:
            await asyncio.sleep(1)
        elif record.offset == 4:
            await kafka.delete_topic(deleted)

    async with timeout(PATIENCE_S):
        consumer = member(kafka, kept, unique("until"), metadata_max_age_ms=300)
        consumer.subscribe([kept, deleted])
        async with consumer:
            summary = await consumer.run(handle, until="end", order="partition")
    assert summary.is_complete
    assert summary.topics[kept] == 5


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_the_end_of_a_recreated_topic_is_looked_up_again(
    kafka: KafkaHandle, protocol: str
) -> None:
    topic = await kafka.create_topic(unique("until"), 2)
    for partition in range(2):
        await kafka.produce(topic, partition, values(50))
    new: list[Record] = []

    async def handle(record: Record) -> None:
        if record.value != b"new":
            if record.offset == record.partition == 0:
                await kafka.delete_topic(topic)
                await kafka.create_topic(topic, 1)
                await kafka.produce(topic, 0, [(b"k", b"new")] * 3)
            await asyncio.sleep(1)
        else:
            new.append(record)

    settings = {"metadata_max_age_ms": 300, "group_protocol": protocol}
    async with timeout(PATIENCE_S), member(kafka, topic, unique("until"), **settings) as consumer:
        summary = await consumer.run(handle, until="end", order="partition", max_uncommitted=10)
    assert summary.is_complete
    if protocol == "classic":  # the partition stays assigned
        assert [record.offset for record in new] == [0, 1, 2]


@pytest.mark.virtual_time
async def test_the_end_of_a_truncated_log_is_looked_up_again() -> None:
    tp, done = TopicPartition("t", 0), list[bytes | None]()
    async with Broker(nodes=2) as broker:
        broker.create_topic("t")
        for _ in range(50):
            broker.produce("t", b"v")

        async def handle(record: Record) -> None:
            done.append(record.value)
            if len(done) == 5:
                broker.truncate(tp, 3)
                broker.produce("t", b"w")

        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with timeout(PATIENCE_S), member(kafka, "t", unique("until")) as consumer:
            summary = await consumer.run(handle, until="end", order="partition", max_uncommitted=3)
        assert summary.is_complete
        assert done[-1] == b"w"
        assert len(done) < 50


@pytest.mark.virtual_time
async def test_a_log_that_is_truncated_after_the_end_keeps_its_end() -> None:
    tp, done = TopicPartition("t", 0), list[int]()
    async with Broker(nodes=2) as broker:
        broker.create_topic("t")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await kafka.produce("t", 0, rows(0, 10))

        async def handle(record: Record) -> None:
            done.append(record.offset)
            if len(done) == 1:
                await kafka.produce("t", 0, rows(10, 5))
                await asyncio.sleep(2)  # they are read, and kept back
                assert await consumer.position(tp) == 15
                broker.truncate(tp, 12)
                broker.produce("t", b"w")
                await asyncio.sleep(2)

        consumer = member(kafka, "t", unique("until"), metadata_max_age_ms=300)
        async with timeout(PATIENCE_S), consumer:
            summary = await consumer.run(handle, until="end", order="partition")
        assert summary.is_complete
        assert done == [*range(10)]


@pytest.mark.virtual_time
async def test_a_bad_record_after_the_end_is_no_error() -> None:
    async with Broker(num_partitions=1) as broker:
        for number in range(10):
            value = b"{" if number == 5 else b"{}"
            broker.produce("t", value, timestamp_ms=1_000 + number)
        for until_ms in (1_003, 1_005, 1_006):
            kafka = KafkaHandle("embedded", broker.bootstrap_servers)
            consumer = member(kafka, "t", unique("until"), value_deserializer=json.loads)
            done: list[int] = []

            async def handle(record: Record, done: list[int] = done) -> None:
                done.append(record.offset)

            async with timeout(PATIENCE_S), consumer:
                if until_ms == 1_006:
                    with pytest.raises(DeserializationError):
                        await consumer.run(handle, until=until_ms)
                else:
                    summary = await consumer.run(handle, until=until_ms)
                    assert summary.is_complete
                    assert len(done) == summary.finished == until_ms - 1_000
                    assert await consumer.position(TopicPartition("t", 0)) == until_ms - 1_000


@pytest.mark.virtual_time
async def test_records_stay_in_order_while_ends_are_looked_up_one_by_one() -> None:
    class Offsets:
        async def end_offsets(
            self, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, int]:
            await asyncio.sleep(0.5)
            if B in partitions:
                raise UnknownTopicOrPartitionError("t/1")
            return dict.fromkeys(partitions, 100)

        async def offsets_for_times(
            self, timestamps: Mapping[TopicPartition, int]
        ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
            raise NotImplementedError

    case = Shaped(A, B)
    core = case.buffers.state.core()
    case.run.end_at(RunBounds(core, Offsets(), None, lambda: True))
    async with case.running():
        for _ in range(7):
            case.put([b"k"] * 3)
            await asyncio.sleep(0.3)
        await case.until_over()
    assert [each.offset for each in case.done] == list(range(21))


async def test_a_stop_before_the_end_is_said_in_the_summary(kafka: KafkaHandle, topic: str) -> None:
    await kafka.produce(topic, 0, values(5))
    async with timeout(PATIENCE_S), member(kafka, topic, unique("until")) as consumer:

        async def handle(record: Record) -> None:
            if record.offset == 2:
                await consumer.stop()

        summary = await consumer.run(handle, until="end", order="partition")
    assert not summary.is_complete
    assert summary.finished == 3
    assert "stopped before the end" in str(summary)


@pytest.mark.real_if_long
async def test_lists_and_transactions_end_with_all_of_their_records(kafka: KafkaHandle) -> None:
    topic, copies = [await kafka.create_topic(unique("until"), 2) for _ in range(2)]
    for partition in range(2):
        await kafka.produce(topic, partition, values(105))
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
    )

    async def copy(records: list[Record], outputs: Outputs) -> None:
        assert len(records) <= 50
        for record in records:
            outputs.send(copies, record.value, key=record.key)

    seen: Counter[bytes | None] = Counter()

    async def note(records: list[Record]) -> None:
        seen.update(record.value for record in records)

    async with timeout(PATIENCE_S), producer:
        async with member(kafka, topic, unique("until")) as consumer:
            summary = await consumer.run(
                copy, until="end", transactions=producer, batch_size=50, batch_wait_ms=5_000
            )
            assert (summary.records, summary.finished) == (210, 210)
        for settings in ({}, {"isolation_level": "read_committed"}):
            async with member(kafka, copies, unique("until"), **settings) as consumer:
                seen.clear()
                summary = await consumer.run(note, until="end", batch_size=10)
                assert (summary.records, seen.total(), len(seen)) == (210, 210, 105)


@for_each(
    [("ends", TypeError), (True, TypeError), (1.5, TypeError), (-1, ValueError), ([], TypeError)]
)
def test_wrong_ends_are_refused(given: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="until must be"):
        until_of(given)
