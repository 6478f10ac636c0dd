"""poll_arrow and batches against a broker: the same tests on the embedded one and a real Kafka."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import ConsumerStoppedError, IllegalStateError
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import committed, reading
from tests.support.rows import rows
from tests.support.transactions import write_transactions
from tests.support.waiting import eventually

pytest.importorskip("pyarrow", reason="rows are for pyarrow: pip install pyarrow")

import pyarrow as pa

from aiokafka_lite.records.arrow import DEFAULT_SCHEMA

NO_BROKER = "127.0.0.1:1"


async def table(
    consumer: AIOKafkaConsumer,
    count: int,
    *,
    max_rows: int | None = None,
    schema: pa.Schema | None = None,
) -> pa.Table:
    """The next `count` rows."""
    found: list[pa.RecordBatch] = []
    while sum(map(len, found)) < count:
        batch = await consumer.poll_arrow(timeout_ms=10_000, max_rows=max_rows, schema=schema)
        assert batch.num_rows, f"only {sum(map(len, found))} of {count} rows came"
        batch.validate(full=True)
        found.append(batch)
    return pa.Table.from_batches(found)


def offsets_of(found: pa.Table, partition: int = 0) -> list[object]:
    both = zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True)
    return [offset for of, offset in both if of == partition]


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_poll_arrow_reads_every_record_in_order(
    kafka: KafkaHandle, decoder: str, codec: str
) -> None:
    topic = await kafka.create_topic(partitions=2)
    for partition in range(2):
        for first in range(0, 300, 100):
            await kafka.produce(topic, partition, rows(first, 100), codec=codec)
    async with reading(kafka, topic) as consumer:
        found = await table(consumer, 600, max_rows=70)
    assert found.schema == DEFAULT_SCHEMA
    assert set(found["topic"].to_pylist()) == {topic}
    for partition in range(2):
        assert offsets_of(found, partition) == list(range(300))
    key_by_value = dict(zip(found["value"].to_pylist(), found["key"].to_pylist(), strict=True))
    assert key_by_value == {value: key for key, value in rows(0, 300)}


async def test_rows_are_what_records_are(kafka: KafkaHandle, decoder: str) -> None:
    topic = await kafka.create_topic()
    headers = (("trace", b"1"), ("é", None))
    batches: list[list[tuple[bytes | None, bytes | None]]] = [
        [(b"k", b"v"), (None, b""), (b"", None)],
        [(None, None)],
    ]
    await kafka.produce(topic, 0, batches[0], timestamp_ms=1_700_000_000_123, headers=headers)
    await kafka.produce(topic, 0, batches[1], timestamp_ms=1_700_000_000_456)
    async with reading(kafka, topic) as consumer:
        found = (await table(consumer, 4)).to_pylist()
        await consumer.seek_to_beginning()
        taken = [await consumer.getone() for _ in range(4)]
    for row, record in zip(found, taken, strict=True):
        assert row["timestamp"].timestamp() * 1000 == record.timestamp
        assert row["headers"] == ([{"key": k, "value": v} for k, v in record.headers] or None)
        for name in ("topic", "partition", "offset", "timestamp_type", "key", "value"):
            assert row[name] == getattr(record, name)


@pytest.mark.real_if_long
async def test_columns_come_as_the_schema_wants_them(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 10), timestamp_ms=1_700_000_000_123)
    schema = pa.schema(
        [
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    async with reading(kafka, topic) as consumer:
        found = await table(consumer, 10, schema=schema)
        assert found.schema == schema
        assert found["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000] * 10
        assert (await consumer.poll_arrow(timeout_ms=0)).schema == DEFAULT_SCHEMA
        assert (await consumer.poll_arrow(timeout_ms=0, schema=schema)).schema == schema


@pytest.mark.real_if_long
async def test_batches_go_on_until_the_consumer_is_stopped(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 100))
    seen: list[int] = []
    async with reading(kafka, topic) as consumer:

        async def iterate() -> None:
            async for batch in consumer.batches(max_rows=30):
                assert 0 < batch.num_rows <= 30
                seen.extend(batch.column("offset").to_pylist())

        iterating = asyncio.ensure_future(iterate())

        async def seen_count() -> int:
            return len(seen)

        await eventually(seen_count, 100)
        await kafka.produce(topic, 0, rows(100, 5))
        await eventually(seen_count, 105)
        await consumer.stop()
        await asyncio.wait_for(iterating, 10)
        with pytest.raises(ConsumerStoppedError):
            consumer.batches()
        with pytest.raises(ConsumerStoppedError):
            await consumer.poll_arrow()
    assert seen == list(range(105))


@pytest.mark.real_if_long
async def test_rows_that_come_while_waiting_are_handed_out(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:
        assert (await consumer.poll_arrow(timeout_ms=50)).num_rows == 0
        waiting = asyncio.ensure_future(consumer.poll_arrow())
        await kafka.produce(topic, 0, rows(0, 1))
        assert (await waiting).column("offset").to_pylist() == [0]


@pytest.mark.real_if_long
async def test_gets_may_be_mixed_and_cancelled_and_each_record_comes_once(
    kafka: KafkaHandle, decoder: str
) -> None:
    topic = await kafka.create_topic()
    for first in range(0, 1_000, 250):
        await kafka.produce(topic, 0, rows(first, 250), codec="lz4")
    seen: list[int] = []
    async with reading(kafka, topic) as consumer:
        while len(seen) < 1_000:
            try:
                seen.extend(
                    (await asyncio.wait_for(consumer.poll_arrow(max_rows=30), 0.003))
                    .column("offset")
                    .to_pylist()
                )
            except asyncio.TimeoutError:
                continue
            for batch in (await consumer.poll(timeout_ms=0, max_records=20)).values():
                seen += [record.offset for record in batch]
            if len(seen) < 1_000:
                seen.append((await consumer.getone()).offset)
    assert seen == list(range(1_000))


@pytest.mark.real_if_long
async def test_seek_goes_into_the_middle_of_a_batch(kafka: KafkaHandle, decoder: str) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 100), codec="gzip")
    async with reading(kafka, topic) as consumer:
        assert offsets_of(await table(consumer, 10, max_rows=10)) == list(range(10))
        consumer.seek(tp, 95)
        assert offsets_of(await table(consumer, 5)) == [95, 96, 97, 98, 99]
        assert await consumer.position(tp) == 100


@pytest.mark.real_kafka
async def test_read_committed_gives_exactly_the_committed_rows(real_kafka: str) -> None:
    kafka = KafkaHandle("real", real_kafka)
    topic = await kafka.create_topic()
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, write_transactions, real_kafka, topic)
    async with reading(kafka, topic, isolation_level="read_committed") as consumer:
        found = await table(consumer, 10)
        assert found["value"].to_pylist() == [
            b"%c%d" % (name, i) for name in b"ac" for i in range(5)
        ]
        assert (await consumer.poll_arrow(timeout_ms=200)).num_rows == 0


# --- commits -------------------------------------------------------------------------------------


@pytest.mark.real_if_long
async def test_rows_are_committed_as_records_are(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp, group = TopicPartition(topic, 0), unique("group")
    await kafka.produce(topic, 0, rows(0, 10))
    async with reading(kafka, topic, group_id=group, auto_commit_interval_ms=20) as consumer:

        async def auto_committed() -> int | None:
            return await consumer.committed(tp)

        await table(consumer, 3, max_rows=3)
        await table(consumer, 4, max_rows=4)
        await eventually(auto_committed, 3)  # rows 3 to 6 are still in our hands
        await asyncio.sleep(0.1)
        assert await auto_committed() == 3
    assert await committed(kafka, group, tp) == 7


@pytest.mark.real_if_long
async def test_a_body_that_fails_leaves_its_rows_to_be_read_again(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp, group = TopicPartition(topic, 0), unique("group")
    await kafka.produce(topic, 0, rows(0, 10))

    async def fail_at_second() -> None:
        async with reading(kafka, topic, group_id=group) as consumer:
            async for batch in consumer.batches(max_rows=4):
                if 4 in batch.column("offset").to_pylist():
                    raise KeyError(4)

    with pytest.raises(KeyError):
        await fail_at_second()
    assert await committed(kafka, group, tp) == 4


# --- what cannot be done -------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["key_deserializer", "value_deserializer"])
async def test_a_consumer_with_deserialisers_has_no_rows(which: str) -> None:
    arguments = {which: bytes.decode}
    consumer = AIOKafkaConsumer(bootstrap_servers=NO_BROKER, **arguments)  # type: ignore[arg-type]
    with pytest.raises(IllegalStateError, match="leave out key_deserializer and"):
        await consumer.poll_arrow()  # type: ignore[misc]  # so type checkers say, too
    with pytest.raises(IllegalStateError, match="bytes"):
        consumer.batches()  # type: ignore[misc]
    await consumer.stop()


async def test_arguments_that_cannot_be_used_are_refused() -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=NO_BROKER)
    for max_rows in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="max_rows must be a positive int"):
            await consumer.poll_arrow(max_rows=max_rows)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_rows must be a positive int"):
            consumer.batches(max_rows=max_rows)  # type: ignore[arg-type]
    wrong = pa.schema([("value", pa.string())])
    with pytest.raises(ValueError, match="'value' must be binary"):
        await consumer.poll_arrow(schema=wrong)
    with pytest.raises(ValueError, match="'value' must be binary"):
        consumer.batches(schema=wrong)
    with pytest.raises(IllegalStateError, match="start"):
        await consumer.poll_arrow()
    await consumer.stop()


def test_without_pyarrow_the_error_names_the_extra() -> None:
    code = """
import asyncio, sys
sys.modules["pyarrow"] = None
from aiokafka_lite import AIOKafkaConsumer

async def main():
    consumer = AIOKafkaConsumer()
    for _ in range(2):
        try:
            consumer.batches()
        except ModuleNotFoundError as error:
            print(error)
    await consumer.stop()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'aiokafka-lite[arrow]'") == 2
