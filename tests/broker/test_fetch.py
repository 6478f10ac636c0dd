"""Fetch: limits, errors and long polls, on the embedded broker and on a real one."""

from __future__ import annotations

import asyncio
import time

import pytest

from aiokafka_lite import records
from aiokafka_lite.errors import (
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.fetch import FetchRequest, FetchResponse, FetchTopic
from tests.broker.wire import (
    FETCH_BY_NAME,
    answered,
    fetch,
    fetch_partition,
    fetch_request,
    topic_id,
    topic_metadata,
)
from tests.support.cluster import KafkaHandle, unique
from tests.support.frames import correlation_id_of
from tests.support.wire import RawClient

ROWS = [(b"k", b"x" * 100)]


async def filled_topic(kafka: KafkaHandle, batches: int = 3, partitions: int = 1) -> str:
    """Create a topic with batches of ten records of the same size in each partition."""
    topic = await kafka.create_topic(partitions=partitions)
    for partition in range(partitions):
        for _ in range(batches):
            await kafka.produce(topic, partition, ROWS * 10)
    return topic


def offsets_in(view: object) -> list[int]:
    assert isinstance(view, memoryview)
    return [header.base_offset for header, _ in records.iter_batches(view)]


async def test_every_version_reads_what_was_written(kafka: KafkaHandle) -> None:
    for version in range(4, 19):
        topic = await filled_topic(kafka)
        async with kafka.raw() as client:
            by_id = await topic_id(client, topic)
            request = fetch_request({topic: [fetch_partition()]})
            request.topics[0].topic_id = by_id
            answer = await client.request(request, version)
        ((result,),) = (each.partitions for each in answer.responses)
        assert answer.responses[0].topic == (topic if version <= 12 else "")
        assert answer.responses[0].topic_id == (by_id if version > 12 else bytes(16))
        assert (result.error_code, result.high_watermark, result.last_stable_offset) == (0, 30, 30)
        assert result.log_start_offset == (0 if version >= 5 else -1)
        assert result.aborted_transactions is None
        assert offsets_in(result.records) == [0, 10, 20]


async def test_read_committed_names_no_aborted_transactions(kafka: KafkaHandle) -> None:
    topic = await filled_topic(kafka, 1)
    async with kafka.raw() as client:
        data = await fetch(client, topic, fetch_partition(), isolation_level=1)
    assert (data.last_stable_offset, data.aborted_transactions) == (10, [])


async def test_reading_starts_with_the_batch_that_holds_the_offset(kafka: KafkaHandle) -> None:
    topic = await filled_topic(kafka)
    async with kafka.raw() as client:
        data = await fetch(client, topic, fetch_partition(offset=15))
    assert offsets_in(data.records) == [10, 20]


async def test_end_of_log_is_empty_and_no_error(kafka: KafkaHandle) -> None:
    topic = await filled_topic(kafka, 1)
    async with kafka.raw() as client:
        data = await fetch(client, topic, fetch_partition(offset=10))
    assert (data.error_code, data.high_watermark, bytes(data.records or b"")) == (0, 10, b"")


@pytest.mark.parametrize("offset", [11, 1000, -1])
async def test_offset_out_of_range(kafka: KafkaHandle, offset: int) -> None:
    topic = await filled_topic(kafka, 1)
    async with kafka.raw() as client:
        data = await fetch(client, topic, fetch_partition(offset=offset), max_wait_ms=5000)
    assert data.error_code == OffsetOutOfRangeError.errno
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (-1, -1, -1)
    assert (bytes(data.records or b""), data.aborted_transactions) == (b"", None)


async def test_unknown_partitions_do_not_hurt_the_others(kafka: KafkaHandle) -> None:
    topic, missing = await filled_topic(kafka, 1), unique("missing")
    request = fetch_request(
        {missing: [fetch_partition()], topic: [fetch_partition(7), fetch_partition()]}
    )
    async with kafka.raw() as client:
        result = answered(await client.request(request, FETCH_BY_NAME))
    codes = {key: data.error_code for key, data in result.items()}
    unknown = UnknownTopicOrPartitionError.errno
    assert codes == {(missing, 0): unknown, (topic, 7): unknown, (topic, 0): 0}
    assert result[missing, 0].high_watermark == -1
    assert offsets_in(result[topic, 0].records) == [0]


async def test_unknown_topic_id(kafka: KafkaHandle) -> None:
    request = fetch_request({"": [fetch_partition()]}, max_wait_ms=5000)
    request.topics[0].topic_id = b"0123456789abcdef"
    async with kafka.raw() as client:
        answer = await client.request(request)
    ((data,),) = (topic.partitions for topic in answer.responses)
    assert (answer.error_code, data.error_code) == (0, UnknownTopicIdError.errno)


async def test_leader_epoch_of_the_client_is_checked(kafka: KafkaHandle) -> None:
    topic = await filled_topic(kafka, 1)
    async with kafka.raw() as client:
        (partition,) = (await topic_metadata(client, topic)).partitions
        current = partition.leader_epoch
        same = await fetch(client, topic, fetch_partition(leader_epoch=current))
        newer = await fetch(client, topic, fetch_partition(leader_epoch=current + 1))
    assert (same.error_code, newer.error_code) == (0, UnknownLeaderEpochError.errno)
    assert FencedLeaderEpochError.errno == 74  # older epochs: see test_topics


async def test_last_fetched_epoch_that_the_log_does_not_know(kafka: KafkaHandle) -> None:
    topic = await filled_topic(kafka, 1)
    async with kafka.raw() as client:
        same = await fetch(client, topic, fetch_partition(last_fetched_epoch=0))
        unknown = await fetch(client, topic, fetch_partition(last_fetched_epoch=5))
        beyond = await fetch(client, topic, fetch_partition(offset=11, last_fetched_epoch=0))
        at_end = await fetch(client, topic, fetch_partition(offset=10, last_fetched_epoch=0))
    for data in (same, at_end):
        assert (data.error_code, data.diverging_epoch.epoch) == (0, -1)
    assert unknown.error_code == OffsetOutOfRangeError.errno
    assert (beyond.diverging_epoch.epoch, beyond.diverging_epoch.end_offset) == (0, 10)
    assert (beyond.error_code, bytes(beyond.records or b"")) == (0, b"")


async def test_first_batch_is_sent_whatever_its_size(kafka: KafkaHandle) -> None:
    topic = await filled_topic(kafka)
    async with kafka.raw() as client:
        by_partition = await fetch(client, topic, fetch_partition(max_bytes=1))
        by_request = await fetch(client, topic, fetch_partition(), max_bytes=1)
        nothing = await fetch(client, topic, fetch_partition(max_bytes=0), max_bytes=0)
    for data in (by_partition, by_request, nothing):
        assert offsets_in(data.records) == [0]


async def test_max_bytes_is_shared_by_the_partitions_in_order(kafka: KafkaHandle) -> None:
    topic = await filled_topic(kafka, 3, partitions=3)
    async with kafka.raw() as client:
        (whole,) = {len(await _raw_records(client, topic, p)) for p in range(3)}
        parts = [fetch_partition(partition) for partition in (2, 0, 1)]
        request = fetch_request({topic: parts}, max_bytes=whole + whole // 2)
        result = answered(await client.request(request, FETCH_BY_NAME))
    assert list(result) == [(topic, 2), (topic, 0), (topic, 1)]
    assert len(result[topic, 2].records or b"") == whole
    assert offsets_in(result[topic, 0].records) == [0]
    assert not len(result[topic, 1].records or b"")


async def _raw_records(client: RawClient, topic: str, partition: int) -> bytes:
    return bytes((await fetch(client, topic, fetch_partition(partition))).records or b"")


async def test_long_poll_ends_when_records_arrive(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        started = time.monotonic()
        poll = asyncio.create_task(
            fetch(client, topic, fetch_partition(), max_wait_ms=20_000, min_bytes=1)
        )
        await asyncio.sleep(0.05)
        assert not poll.done()
        await kafka.produce(topic, 0, ROWS)
        data = await poll
    assert offsets_in(data.records) == [0]
    assert time.monotonic() - started < 10


async def test_long_poll_waits_for_min_bytes_over_all_partitions(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with kafka.raw() as client:
        await kafka.produce(topic, 0, ROWS)
        one = len((await fetch(client, topic, fetch_partition())).records or b"")
        request = fetch_request(
            {topic: [fetch_partition(0), fetch_partition(1)]},
            max_wait_ms=20_000,
            min_bytes=2 * one,
        )
        poll = asyncio.create_task(client.request(request, FETCH_BY_NAME))
        await asyncio.sleep(0.05)
        assert not poll.done()
        await kafka.produce(topic, 1, ROWS)
        result = answered(await poll)
    assert all(offsets_in(data.records) == [0] for data in result.values())


async def test_long_poll_without_records_ends_at_max_wait(kafka: KafkaHandle) -> None:
    topic = await filled_topic(kafka, 1)
    async with kafka.raw() as client:
        started = time.monotonic()
        empty = await fetch(client, topic, fetch_partition(offset=10), max_wait_ms=150)
        little = await fetch(client, topic, fetch_partition(), max_wait_ms=150, min_bytes=1_000_000)
    assert not len(empty.records or b"")
    assert offsets_in(little.records) == [0]
    assert 0.3 <= time.monotonic() - started < 5


async def test_long_poll_ends_when_its_topic_is_deleted(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        poll = asyncio.create_task(
            fetch(client, topic, fetch_partition(), max_wait_ms=20_000, min_bytes=1)
        )
        await asyncio.sleep(0.05)
        await kafka.delete_topic(topic)
        data = await asyncio.wait_for(poll, 10)
    assert data.error_code != 0


async def test_long_poll_does_not_hold_up_other_connections(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as waiting, kafka.raw() as client:
        poll = asyncio.create_task(
            fetch(waiting, topic, fetch_partition(), max_wait_ms=20_000, min_bytes=1)
        )
        for _ in range(5):
            assert (await topic_metadata(client, topic)).error_code == 0
        assert not poll.done()
        await kafka.produce(topic, 0, ROWS)
        await poll


async def test_answers_leave_in_the_order_of_the_requests(kafka: KafkaHandle) -> None:
    topic = await filled_topic(kafka, 1)
    slow = fetch_request({topic: [fetch_partition(offset=10)]}, max_wait_ms=200)
    fast = fetch_request({topic: [fetch_partition()]})
    requests = (slow, fast, slow, fast, fast)
    frames = [
        framing.encode_request(request, FETCH_BY_NAME, number, "raw")
        for number, request in enumerate(requests)
    ]
    async with kafka.raw() as client:
        answers = await client.pipeline(frames)
    assert [correlation_id_of(answer) for answer in answers] == [0, 1, 2, 3, 4]
    sizes = [_size_of(framing.response_decoder(FetchRequest, FETCH_BY_NAME)(a)) for a in answers]
    assert [size > 0 for size in sizes] == [False, True, False, True, True]


def _size_of(answer: FetchResponse) -> int:
    return sum(len(data.records or b"") for data in answered(answer).values())


async def test_empty_fetch_is_answered_at_once(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        answer = await asyncio.wait_for(
            client.request(fetch_request({}, max_wait_ms=20_000), FETCH_BY_NAME), 10
        )
        nothing_in_it = FetchTopic(topic=unique("missing"), partitions=[])
        request = fetch_request({}, max_wait_ms=20_000)
        request.topics.append(nothing_in_it)
        also = await asyncio.wait_for(client.request(request, FETCH_BY_NAME), 10)
    for each in (answer, also):
        assert (each.error_code, each.session_id, each.responses) == (0, 0, [])
