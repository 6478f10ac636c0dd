"""Batches that hold more than may be in memory: read in order, in pieces, whoever wrote them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import cramjam
import pytest

from aiokafka_lite import _compat, records
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import CorruptRecordException, DecompressionLimitError
from aiokafka_lite.records import Codec
from aiokafka_lite.records.compression import compress
from aiokafka_lite.structs import TopicPartition
from tests.support import tuning
from tests.support.cluster import KafkaHandle, unique
from tests.support.crafted import batch, raw_batch, record, varint
from tests.support.java import JavaTools
from tests.support.programs import started
from tests.support.reading import consumer_of, offsets_read, reading
from tests.support.rounds import LONG

MIB = 1 << 20
COUNT = 900 if LONG else 300
VALUE = b"one line of a log that is the same as the one before. " * 6500  # 350 kB
# Some of the records are stamped with old times.
CONFIGS = {"max.message.bytes": "10000000", "retention.ms": "-1"}
LINUX = Path("/proc/self/status").exists()


@cache
def large_batch(codec: Codec) -> bytes:
    """315 MB of records, 105 in the short form; compressed one by one, never in memory together."""
    if codec is Codec.LZ4:
        lz4 = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
        for number in range(COUNT):
            lz4.compress(record(number, value=varint(len(VALUE)) + VALUE))
        return raw_batch(bytes(lz4.finish()), count=COUNT, attributes=codec)
    stream = zlib.compressobj(1, wbits=31) if codec is Codec.GZIP else _compat.zstd.ZstdCompressor()
    payload = b"".join(
        stream.compress(record(number, value=varint(len(VALUE)) + VALUE)) for number in range(COUNT)
    )
    return raw_batch(payload + stream.flush(), count=COUNT, attributes=codec)


async def memory_to_read(servers: str, topic: str, way: str, count: int) -> float:
    """How many MiB a process grows by that reads a topic with small limits."""
    async with started(
        *(sys.executable, "-m", "tests.consumer.programs.reading_large"),
        *(servers, topic, way, str(count)),
        stdout=subprocess.PIPE,
    ) as program:
        output, _ = await program.communicate()
    assert program.returncode == 0
    return float(output)


# --- Memory -----------------------------------------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.skipif(not LINUX, reason="Linux tells the resident size")
@pytest.mark.parametrize(
    ("codec", "way"),
    [
        (Codec.ZSTD, "poll"),
        pytest.param(Codec.ZSTD, "getmany", marks=pytest.mark.slow),
        pytest.param(Codec.ZSTD, "async for", marks=pytest.mark.slow),
        (Codec.ZSTD, "batches"),
        (Codec.GZIP, "async for"),
        (Codec.LZ4, "poll"),
    ],
)
async def test_a_batch_that_inflates_to_much_is_read_in_a_few_mib(
    kafka: KafkaHandle, codec: Codec, way: str
) -> None:
    if way == "batches":
        pytest.importorskip("pyarrow", reason="rows are for pyarrow: pip install pyarrow")
    topic = await kafka.create_topic(unique("large"), configs=CONFIGS)
    await kafka.produce_batch(topic, 0, large_batch(codec))
    # max_buffered_bytes, max_batch_bytes, the batch as it came, and blocks of 4 MiB of LZ4.
    assert await memory_to_read(kafka.bootstrap_servers, topic, way, COUNT) < 45


@pytest.mark.few_rows(1)
@pytest.mark.real_kafka
@pytest.mark.skipif(not LINUX, reason="Linux tells the resident size")
@pytest.mark.parametrize("codec", ["zstd", pytest.param("gzip", marks=pytest.mark.slow), "lz4"])
async def test_a_large_batch_of_librdkafka_is_read_in_a_few_mib(
    real_kafka: str, codec: str
) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    kafka = KafkaHandle("real", real_kafka)
    topic = await kafka.create_topic(unique("large"), configs=CONFIGS)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": real_kafka,
            "compression.type": codec,
            "linger.ms": 60_000,
            "batch.size": 400_000_000,
            "message.max.bytes": 400_000_000,
            "queue.buffering.max.kbytes": 400_000,
        }
    )
    for _ in range(COUNT):
        producer.produce(topic, VALUE, partition=0)
    assert await asyncio.to_thread(producer.flush, 60) == 0
    grown_mib = await memory_to_read(real_kafka, topic, "poll", COUNT)
    assert grown_mib < 45
    await kafka.delete_topic(topic)


@pytest.mark.few_rows(1)
@pytest.mark.java
@pytest.mark.parametrize(
    "codec", ["zstd", pytest.param("gzip", marks=pytest.mark.slow), "lz4", "snappy"]
)
async def test_large_batches_of_java_are_read_in_pieces(
    java_tools: JavaTools, codec: str, tmp_path: Path
) -> None:
    count = 60
    lines = tmp_path / "lines"
    lines.write_bytes(VALUE)
    async with Broker() as broker:
        broker.create_topic("t", configs=CONFIGS)
        written = await java_tools.run(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "t", "--num-records", str(count), "--payload-file", str(lines)),
            *("--throughput", "-1", "--producer-props"),
            f"bootstrap.servers={broker.bootstrap_servers}",
            f"compression.type={codec}",
            *("batch.size=30000000", "linger.ms=5000", "max.request.size=40000000"),
            "buffer.memory=60000000",
        )
        assert written.returncode == 0, written.stderr
        log = memoryview(broker.partition("t", 0).log.read(0, 100 * MIB))
        counts = [header.count for header, _ in records.iter_batches(log)]
        assert max(counts) * len(VALUE) > 10 * MIB
        async with consumer_of(broker, "t", max_batch_bytes=MIB) as consumer:
            found: list[bytes | None] = []
            async with timeout(30):
                while len(found) < count:
                    for some in (await consumer.poll()).values():
                        found += [each.value for each in some]
        assert found == [VALUE] * count
    assert broker.failure is None


# --- Positions --------------------------------------------------------------------------------
@pytest.fixture
async def consumer() -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of a batch of 40 records of 1 MiB, and of two small batches around it."""
    large = records.build_batch([(1, None, bytes(MIB), ())] * 40, codec="zstd", base_offset=2)
    async with Broker() as broker:
        broker.create_topic("t", configs=CONFIGS)
        for each in (batch(2), large, batch(2, base_offset=42)):
            broker.partition("t", 0).append(each)
        settings = {"max_batch_bytes": 2 * MIB, "group_id": "g", "enable_auto_commit": False}
        async with consumer_of(broker, "t", **settings) as consumer:
            yield consumer


TP = TopicPartition("t", 0)


async def test_positions_and_limits_hold_within_a_large_batch(consumer: AIOKafkaConsumer) -> None:
    offsets: list[int] = []
    while len(offsets) < 44:
        for some in (await consumer.poll(max_records=3)).values():
            assert len(some) <= 3
            offsets += [each.offset for each in some]
        assert await consumer.position(TP) == len(offsets)
        await consumer.commit()
        assert await consumer.committed(TP) == len(offsets)
    assert offsets == list(range(44))


@pytest.mark.parametrize("start", [1, 3, 25, 41, 42])
async def test_reading_begins_within_a_large_batch(consumer: AIOKafkaConsumer, start: int) -> None:
    await consumer.getone()
    consumer.seek(TP, start)
    assert await offsets_read(consumer, 44 - start) == {0: list(range(start, 44))}


async def test_cancelled_reads_of_a_large_batch_lose_and_repeat_nothing(
    consumer: AIOKafkaConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.decompress(monkeypatch, in_thread=True)
    offsets: list[int] = []
    async with timeout(30):
        while len(offsets) < 44:
            reading_one = asyncio.ensure_future(consumer.getone())
            for _ in range(len(offsets) % 5):
                await asyncio.sleep(0)
            reading_one.cancel()
            await asyncio.wait([reading_one])
            if not reading_one.cancelled():
                offsets.append(reading_one.result().offset)
            else:
                offsets.append((await consumer.getone()).offset)
    assert offsets == list(range(44))


# --- Errors -----------------------------------------------------------------------------------
async def test_a_record_beyond_the_limit_is_refused_with_the_setting_that_raises_it(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(unique("large"), configs=CONFIGS)
    rows: list[tuple[bytes | None, bytes]] = [(None, bytes(size)) for size in (10, 6 * MIB, 10)]
    await kafka.produce(topic, 0, rows, codec="zstd")
    await kafka.produce(topic, 0, [(None, b"after")])
    async with reading(kafka, topic, max_batch_bytes=5 * MIB) as consumer:
        assert (await consumer.getone()).offset == 0
        with pytest.raises(DecompressionLimitError, match=r"raise .* max_batch_bytes") as caught:
            await asyncio.wait_for(consumer.getone(), 10)
        assert (caught.value.offset, caught.value.next_offset) == (1, 3)
        consumer.seek(TopicPartition(topic, 0), 3)
        assert (await asyncio.wait_for(consumer.getone(), 10)).value == b"after"
    async with reading(kafka, topic, max_batch_bytes=7 * MIB) as consumer:
        assert await offsets_read(consumer, 4) == {0: [0, 1, 2, 3]}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY])
async def test_a_large_batch_that_ends_early_is_read_up_to_there(codec: Codec) -> None:
    payload = b"".join(record(n, value=varint(MIB) + bytes(MIB)) for n in range(8))
    stream = compress(codec, payload)
    broken = raw_batch(stream[: len(stream) * 3 // 4], count=8, attributes=codec)
    async with Broker() as broker:
        broker.create_topic("t", configs=CONFIGS)
        for each in (broken, batch(2, base_offset=8)):
            broker.partition("t", 0).append(each)
        async with consumer_of(broker, "t") as consumer:
            readable, error = await read_to_error(consumer)
        assert readable == list(range(len(readable)))
        # Of snappy all blocks are looked at before the first is decompressed.
        assert 3 <= len(readable) <= 7 if codec is not Codec.SNAPPY else not readable
        assert (error.tp, error.offset, error.next_offset) == (TP, len(readable), 8)
        async with consumer_of(broker, "t", on_bad_record="skip") as consumer:
            wanted = [*readable, 8, 9]
            assert await offsets_read(consumer, len(wanted)) == {0: wanted}


async def read_to_error(consumer: AIOKafkaConsumer) -> tuple[list[int], CorruptRecordException]:
    """The offsets ahead of an error, and the error."""
    offsets: list[int] = []
    async with timeout(20):
        while True:
            try:
                got = await consumer.poll()
            except CorruptRecordException as error:
                return offsets, error
            for some in got.values():
                offsets += [each.offset for each in some]
