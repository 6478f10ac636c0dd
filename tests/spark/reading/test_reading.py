"""Ranges come out exactly: on the embedded broker and on a real Kafka."""

from __future__ import annotations

import gzip
import random
from itertools import pairwise

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.spark import reading
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.spark.reading import read_ranges
from aiokafka_lite.spark.schema import default_schema
from tests.spark.reading.conftest import Row, offsets, options_for, read
from tests.support.cluster import KafkaHandle, unique
from tests.support.crafted import FIRST_TIMESTAMP, batch, message
from tests.support.threads import wait


class Filled:
    """A topic of one partition, and the rows it has."""

    def __init__(self, topic: str, rows: list[Row]) -> None:
        self.topic = topic
        self.rows = rows

    def range(self, start: int, end: int) -> KafkaOffsetRange:
        return KafkaOffsetRange(self.topic, 0, start, end)


async def fill(kafka: KafkaHandle, sizes: list[int], codec: str = "none") -> Filled:
    """Fill a new topic, a batch for each size."""
    topic = await kafka.create_topic()
    rows: list[Row] = []
    for size in sizes:
        keyed = [(b"k%d" % n, b"v" * (n % 90)) for n in range(len(rows), len(rows) + size)]
        first = await kafka.produce(topic, 0, keyed, codec=codec)
        rows += [(0, first + n, key, value) for n, (key, value) in enumerate(keyed)]
    return Filled(topic, rows)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_any_split_of_a_range_gives_the_same_rows(kafka: KafkaHandle, codec: str) -> None:
    filled = await fill(kafka, [1, 50, 200, 7], codec)
    total = len(filled.rows)
    options = options_for(kafka.bootstrap_servers)
    rng = random.Random(7)
    for _ in range(8):
        cuts = sorted({0, total, *(rng.randrange(total) for _ in range(5))})
        ranges = [filled.range(*pair) for pair in pairwise(cuts)]
        for each in ranges:
            rows = await wait(read, options, [each])
            assert rows == filled.rows[each.start : each.end]


async def test_many_small_ranges_share_batches(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=20)
    for partition in range(20):
        await kafka.produce(topic, partition, [(None, b"%d" % partition)] * 5)
    ranges = [KafkaOffsetRange(topic, partition, 1, 4) for partition in range(20)]
    options = options_for(kafka.bootstrap_servers)

    def batches() -> list[int]:
        schema = default_schema(include_headers=False)
        return [batch.num_rows for batch in read_ranges(ranges, options, schema)]

    assert sum(await wait(batches)) == 60
    assert len(await wait(batches)) <= 2
    rows = await wait(read, options, ranges)
    assert sorted(rows) == [(p, o, None, b"%d" % p) for p in range(20) for o in (1, 2, 3)]


async def test_small_fetches_and_large_records_lose_nothing(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    sizes = [10, 200_000, 10, 700_000, 0, 300_000, 5]
    for size in sizes:
        await kafka.produce(topic, 0, [(None, b"x" * size), (None, b"y")])
    options = options_for(kafka.bootstrap_servers, kafka__max__partition__fetch__bytes="1000")
    rows = await wait(read, options, [KafkaOffsetRange(topic, 0, 0, 2 * len(sizes))])
    assert [len(value or b"") for *_, value in rows[::2]] == sizes
    assert offsets(rows) == list(range(2 * len(sizes)))


@pytest.mark.real_if_long
async def test_batch_that_becomes_very_large_is_read(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    size = 65 << 20  # a consumer of an application would want to be asked
    await kafka.produce(topic, 0, [(None, b"x" * size), (None, b"y")], codec="zstd")
    rows = await wait(
        read, options_for(kafka.bootstrap_servers), [KafkaOffsetRange(topic, 0, 0, 2)]
    )
    assert [len(value or b"") for _, _, _, value in rows] == [size, 1]


async def test_thread_reads_what_no_thread_reads(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = await fill(kafka, [400] * 12)
    options = options_for(kafka.bootstrap_servers, kafka__max__partition__fetch__bytes="30000")
    whole = [filled.range(0, len(filled.rows))]
    assert await wait(read, options, whole) == filled.rows
    monkeypatch.setattr(reading, "THREAD_FROM_BYTES", 0)
    assert await wait(read, options, whole) == filled.rows


async def test_small_range_starts_no_thread(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = await fill(kafka, [400, 400])
    monkeypatch.setattr(reading, "prefetched", None)
    options = options_for(kafka.bootstrap_servers)
    assert await wait(read, options, [filled.range(0, 800)]) == filled.rows


@pytest.mark.parametrize("is_threaded", [False, True])
async def test_closing_early_leaves_a_cluster_that_reads_on(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch, is_threaded: bool
) -> None:
    monkeypatch.setattr(reading, "THREAD_FROM_BYTES", 0 if is_threaded else 1 << 60)
    monkeypatch.setattr(reading, "ROWS_PER_BATCH", 100)
    filled = await fill(kafka, [400] * 12)
    options = options_for(kafka.bootstrap_servers, kafka__max__partition__fetch__bytes="30000")
    whole = [filled.range(0, len(filled.rows))]

    def take_some() -> int:
        batches = read_ranges(whole, options, default_schema(include_headers=False))
        taken: int = sum(next(batches).num_rows for _ in range(9))
        batches.close()  # type: ignore[attr-defined] # it is a generator
        return taken

    assert await wait(take_some) == 900
    assert await wait(read, options, whole) == filled.rows


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_transactions_are_read_as_isolation_says(kafka: KafkaHandle, isolation: str) -> None:
    topic = await kafka.create_topic()

    def produce() -> None:
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": unique("tx")}
        producer = Producer(settings)
        producer.init_transactions(20)
        for number in range(4):
            producer.begin_transaction()
            for _ in range(3):
                producer.produce(topic, b"%d" % number, partition=0)
            producer.flush(20)
            if number % 2:
                producer.abort_transaction(20)
            else:
                producer.commit_transaction(20)

    await wait(produce)
    # Three records and a marker each; the last offset is a marker.
    options = options_for(kafka.bootstrap_servers, kafka__isolation__level=isolation)
    values = [value for *_, value in await wait(read, options, [KafkaOffsetRange(topic, 0, 0, 16)])]
    wanted = [b"0", b"2"] if isolation == "read_committed" else [b"0", b"1", b"2", b"3"]
    assert values == [value for value in wanted for _ in range(3)]
    part = [KafkaOffsetRange(topic, 0, 5, 10)]  # from within an aborted one into a committed one
    assert offsets(await wait(read, options, part)) == (
        [8, 9] if isolation == "read_committed" else [5, 6, 8, 9]
    )


async def test_headers_and_timestamps_are_those_of_the_records(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    headers = (("a", b"1"), ("a", None), ("ü", b""))
    await kafka.produce(topic, 0, [(None, None)], headers=headers, timestamp_ms=1_234_567)
    await kafka.produce(topic, 0, [(b"", b"")], timestamp_ms=2)
    options = options_for(kafka.bootstrap_servers)

    def rows() -> list[dict[str, object]]:
        schema = default_schema(include_headers=True)
        batches = read_ranges([KafkaOffsetRange(topic, 0, 0, 2)], options, schema)
        return [row for batch in batches for row in batch.to_pylist()]

    first, second = await wait(rows)
    assert first["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": None},
        {"key": "ü", "value": b""},
    ]
    assert (first["key"], first["value"], first["topic"]) == (None, None, topic)
    assert first["timestamp"].timestamp() == 1234.567  # type: ignore[attr-defined]
    assert second["headers"] is None
    assert (second["key"], second["value"], second["timestampType"]) == (b"", b"", 0)


def test_records_of_the_old_formats_are_rows_as_the_connector_has_them(
    kafka_broker: BrokerThread,
) -> None:
    inner = b"".join(message(offset, b"v%d" % offset, magic=1) for offset in range(3))
    wrapper = message(6, gzip.compress(inner), magic=1, attributes=1)  # offsets 4 to 6
    without_time = message(7, b"v7", magic=0)
    old_log = wrapper + without_time + batch(2, base_offset=8)
    kafka_broker.produce_all("old", [NewRecord(b"", partition=0) for _ in range(10)])
    kafka_broker.on("Fetch").rewrite_batch(lambda tp, new: old_log, times=None)
    options = options_for(kafka_broker.bootstrap_servers)
    schema = default_schema(include_headers=True)
    (rows,) = read_ranges([KafkaOffsetRange("old", 0, 5, 10)], options, schema)
    rows.validate(full=True)
    named = rows.to_pydict()
    assert named["offset"] == [5, 6, 7, 8, 9]
    assert named["value"] == [b"v1", b"v2", b"v7", b"v0", b"v1"]
    assert named["headers"] == [None] * 5
    # Java's clients have -1 for both where there is none.
    assert named["timestampType"] == [0, 0, -1, 0, 0]
    first = FIRST_TIMESTAMP
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [
        timestamp * 1000 for timestamp in (first, first, -1, first, first + 1)
    ]
