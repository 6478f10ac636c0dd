"""What brokers may send, or refuse to, and what it costs: bombs, cut batches, unknown errors."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer.buffer.decode import INFLATE_ON_LOOP_S
from aiokafka_lite.errors import (
    CorruptRecordException,
    DecompressionLimitError,
    KafkaError,
    RecordTooLargeError,
    UnknownError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support import tuning
from tests.support.buffers import Buffers, batch
from tests.support.cluster import KafkaHandle
from tests.support.crafted import raw_batch, record, varint
from tests.support.reading import consumer_of, reading

MIB = 1 << 20


# --- Bombs ------------------------------------------------------------------------------------
def bombs(count: int, size_bytes: int, codec: str = "zstd") -> bytes:
    """Batches of one record each, of zeros, some kilobytes in all."""
    return b"".join(
        records.build_batch([(1, None, bytes(size_bytes), ())], codec=codec, base_offset=offset)
        for offset in range(count)
    )


async def test_a_get_decompresses_no_more_than_may_be_buffered() -> None:
    partitions = [TopicPartition("t", number) for number in range(42)]
    buffers = Buffers(*partitions, most_held_bytes=4 * MIB)
    view = bombs(9, MIB)
    assert len(view) < MIB // 100
    buffers.put(dict.fromkeys(partitions, view))
    found: dict[TopicPartition, list[int]] = {tp: [] for tp in partitions}
    tracemalloc.start()
    try:
        while sum(map(len, found.values())) < 9 * 42:
            got = await buffers.gets.many((), 0, None)
            sizes = [len(record.value or b"") for some in got.values() for record in some]
            assert 0 < sum(sizes) <= 6 * MIB  # the limit, and a batch or two
            for tp, some in got.items():
                found[tp] += [record.offset for record in some]
            del got
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20 * MIB  # of 378
    assert found == {tp: list(range(9)) for tp in partitions}
    assert buffers.budget.used_bytes == 0


async def test_cancelled_gets_do_not_pile_up_what_they_decompressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning.decompress(monkeypatch, in_thread=True)  # so that every batch is an await
    partitions = [TopicPartition("t", number) for number in range(16)]
    buffers = Buffers(*partitions, most_held_bytes=4 * MIB)
    buffers.put(dict.fromkeys(partitions, bombs(4, MIB)))
    for _ in range(30):
        getting = asyncio.ensure_future(buffers.gets.many((), 0, None))
        for _ in range(40):
            await asyncio.sleep(0.0005)
            if getting.done():
                break
        getting.cancel()
        await asyncio.wait([getting])
        if not getting.cancelled():
            continue
        decoded = [chunk.decoded for tp in partitions for chunk in buffers.partition(tp).chunks]
        held = sum(len(record.value or b"") for some in decoded for record in some)
        assert held <= 6 * MIB


async def test_bombs_beyond_the_cap_are_errors_one_a_get_and_cost_no_more_than_it() -> None:
    partitions = [TopicPartition("t", number) for number in range(3)]
    buffers = Buffers(*partitions)
    stream = gzip.compress(record(0, value=varint(66 * MIB) + bytes(66 * MIB)), 1)
    bomb = raw_batch(stream, count=1, base_offset=2, attributes=1)
    buffers.put({tp: batch(0, 2) + bomb for tp in partitions})
    del bomb
    tracemalloc.start()
    try:
        assert await buffers.poll() == {key: [0, 1] for key in partitions}
        failed = set()
        for _ in partitions:
            with pytest.raises(DecompressionLimitError) as raised:
                await buffers.poll()
            failed.add(raised.value.tp)
            assert (raised.value.offset, raised.value.next_offset) == (2, 3)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert failed == set(partitions)
    assert peak_bytes < 20 * MIB  # nothing of the record is kept to find that it is too large


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
async def test_a_few_bytes_that_become_a_large_record_are_decompressed_in_a_thread(
    codec: str,
) -> None:
    tp = TopicPartition("t", 0)
    buffers = Buffers(tp)
    buffers.put({tp: bombs(1, 16 * MIB, codec) + batch(1, 1)})
    chunk = buffers.partition(tp).chunks[0]
    assert chunk.inflate_estimate_s < INFLATE_ON_LOOP_S
    polling = asyncio.ensure_future(buffers.poll())
    for _ in range(3):
        await asyncio.sleep(0)
    assert (chunk.inflating is not None, chunk.decoded) == (True, [])
    assert await polling == {tp: [0, 1]}


# --- Batches that are cut, or stay corrupt ------------------------------------------------------
@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with three records, each a batch, in each of the two partitions of "t"."""
    async with Broker() as broker:
        broker.create_topic("t", 2)
        for number in range(6):
            broker.produce("t", b"%d" % number, partition=number % 2)
        yield broker


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("damage", "error_class"),
    [("records", RecordTooLargeError), ("crc", CorruptRecordException)],
)
async def test_a_partition_that_cannot_be_read_is_not_asked_for_in_a_hot_loop(
    broker: Broker, damage: str, error_class: type[KafkaError]
) -> None:
    loop = asyncio.get_running_loop()
    with broker.on("Fetch", partition=0).corrupt(damage, times=None) as rule:  # type: ignore[arg-type]
        async with consumer_of(broker, "t", fetch_max_wait_ms=10) as consumer:
            consumer.pause(TopicPartition("t", 1))
            began = loop.time()
            errors = 0
            while errors < 3:
                try:
                    await consumer.poll(timeout_ms=2_000)
                except error_class as error:
                    errors += 1
                    assert (error.tp, error.offset) == (TopicPartition("t", 0), 0)  # noqa: PT017
            assert rule.hits <= 3 + 2 * (loop.time() - began)
            consumer.resume(TopicPartition("t", 1))
            others: list[int] = []
            while len(others) < 3:
                try:
                    for found in (await consumer.poll(timeout_ms=2_000)).values():
                        others += [record.offset for record in found]
                except error_class:
                    continue
            assert others == [0, 1, 2]


@pytest.mark.parametrize("at", ["partition", "answer"])
async def test_an_error_code_that_nobody_knows_is_asked_again_with_pauses(
    broker: Broker, at: str
) -> None:
    loop = asyncio.get_running_loop()
    with broker.on("Fetch").fail(999, times=None, at=at) as rule:  # type: ignore[arg-type]
        async with consumer_of(broker, "t", fetch_max_wait_ms=10, retry_backoff_ms=100) as consumer:
            began = loop.time()
            raised = 0
            while loop.time() - began < 0.5:
                try:
                    await consumer.poll(timeout_ms=100)
                except UnknownError as error:
                    assert "999" in str(error)  # noqa: PT017
                    raised += 1
            assert rule.hits <= 2 * (2 + (loop.time() - began) / 0.1)
            assert (raised > 0) == (at == "partition")
            assert consumer.assignment()
    async with consumer_of(broker, "t", fetch_max_wait_ms=10) as consumer:
        assert (await consumer.getone()).offset == 0


# --- Answers that contradict the question --------------------------------------------------------
@pytest.mark.virtual_time
@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
async def test_records_before_the_offset_asked_for_are_not_returned_again(
    broker: Broker, times: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    tp = TopicPartition("t", 0)
    loop = asyncio.get_running_loop()
    async with consumer_of(broker, "t", fetch_max_wait_ms=10) as consumer:
        consumer.pause(TopicPartition("t", 1))
        assert [(await consumer.getone()).offset for _ in range(3)] == [0, 1, 2]
        older = broker.on("Fetch", partition=0).rewrite_batch(lambda *_: batch(0, 3), times=times)
        with older as rule:
            broker.produce("t", b"next", partition=0)
            began = loop.time()
            if times is None:
                assert await consumer.poll(timeout_ms=3_000) == {}
                assert rule.hits < 10 * (loop.time() - began)
                assert "before the requested offset" in consumer.explain(tp)
                assert not consumer.health().is_ok
                rule.remove()
            assert (await asyncio.wait_for(consumer.getone(), 5)).offset == 3
    told = [each for each in caplog.records if "before the requested offset" in each.message]
    assert len(told) == 1


# --- A fetch that fails ------------------------------------------------------------------------
async def test_a_fetch_that_fails_loses_nothing_of_what_is_buffered_ahead(broker: Broker) -> None:
    async with consumer_of(broker, "t", fetch_max_wait_ms=10) as consumer:
        first = await consumer.getone()
        broker.on("Fetch").fail(3, times=3)
        broker.on("Fetch").disconnect(times=2)
        seen = [(first.partition, first.offset)]
        for number in range(6, 10):
            broker.produce("t", b"%d" % number, partition=number % 2)
        while len(seen) < 10:
            for tp, found in (await consumer.poll(timeout_ms=5_000)).items():
                seen += [(tp.partition, record.offset) for record in found]
        for partition in range(2):
            assert [o for p, o in seen if p == partition] == [0, 1, 2, 3, 4]


# --- Sizes (KIP-74) ------------------------------------------------------------------------------
async def test_a_batch_larger_than_a_fetch_comes_whole(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    large = b"x" * 300_000
    for partition in range(2):
        for value in (b"0", large, b"2"):
            await kafka.produce(topic, partition, [(None, value)])
    async with reading(
        kafka, topic, fetch_max_bytes=1_000, max_partition_fetch_bytes=1_000
    ) as consumer:
        seen: dict[int, list[bytes | None]] = {0: [], 1: []}
        while sum(map(len, seen.values())) < 6:
            for tp, found in (await consumer.poll(timeout_ms=10_000)).items():
                seen[tp.partition] += [record.value for record in found]
        assert seen == {0: [b"0", large, b"2"], 1: [b"0", large, b"2"]}
