"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords, on the embedded broker and a real one."""

from __future__ import annotations

import pytest

from aiokafka_lite.errors import (
    InvalidTopicError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from aiokafka_lite.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.broker.wire import fetch, fetch_partition, list_offset, once_settled
from tests.support.cluster import KafkaHandle, unique
from tests.support.group_requests import await_coordinator
from tests.support.wire import RawClient

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6

T0 = 1_700_000_000_000


async def timed_topic(kafka: KafkaHandle) -> str:
    """Create a topic whose records come from T0 +0, +10, +20 | +50, +50 | +30 (offsets 0 to 5)."""
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        await list_offset(client, topic, LATEST)
    for offsets in ((0, 10, 20), (50, 50), (30,)):
        from aiokafka_lite import records

        batch = records.build_batch([(T0 + each, b"k", b"v", ()) for each in offsets])
        await kafka.produce_batch(topic, 0, batch)
    return topic


async def test_every_version_knows_start_and_end(kafka: KafkaHandle) -> None:
    for version in range(1, 12):
        topic = await timed_topic(kafka)
        async with kafka.raw() as client:
            for timestamp, offset in ((EARLIEST, 0), (LATEST, 6)):
                found = await list_offset(client, topic, timestamp, version=version)
                assert (found.error_code, found.offset, found.timestamp) == (0, offset, -1)
                assert found.leader_epoch == (0 if version >= 4 else -1)


@pytest.mark.parametrize(
    ("after_ms", "expected"),
    [
        (-1000, (0, 0)),
        (0, (0, 0)),
        (1, (1, 10)),
        (20, (2, 20)),
        (21, (3, 50)),
        (50, (3, 50)),
        (51, None),
    ],
)
async def test_time_finds_the_first_record_not_older(
    kafka: KafkaHandle, after_ms: int, expected: tuple[int, int] | None
) -> None:
    topic = await timed_topic(kafka)
    async with kafka.raw() as client:
        found = await list_offset(client, topic, T0 + after_ms)
    offset, timestamp = (-1, -1) if expected is None else (expected[0], T0 + expected[1])
    assert (found.error_code, found.offset, found.timestamp) == (0, offset, timestamp)
    assert found.leader_epoch == (-1 if expected is None else 0)


async def test_max_timestamp_is_the_first_of_the_newest(kafka: KafkaHandle) -> None:
    topic, empty = await timed_topic(kafka), await kafka.create_topic()
    async with kafka.raw() as client:
        found = await list_offset(client, topic, MAX_TIMESTAMP)
        nothing = await list_offset(client, empty, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (3, T0 + 50)
    assert (nothing.error_code, nothing.offset, nothing.timestamp) == (0, -1, -1)


async def test_tiers_that_there_are_not(kafka: KafkaHandle) -> None:
    topic = await timed_topic(kafka)
    async with kafka.raw() as client:
        local = await list_offset(client, topic, EARLIEST_LOCAL)
        tiered = await list_offset(client, topic, LATEST_TIERED)
        pending = await list_offset(client, topic, EARLIEST_PENDING_UPLOAD)
    assert (local.error_code, local.offset) == (0, 0)
    assert (tiered.error_code, tiered.offset) == (0, -1)
    assert (pending.error_code, pending.offset) == (0, -1)


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (EARLIEST_PENDING_UPLOAD, 10),
     (-7, 11)],
)  # fmt: skip
async def test_special_timestamps_need_their_version(
    kafka: KafkaHandle, timestamp: int, version: int
) -> None:
    topic = await timed_topic(kafka)
    async with kafka.raw() as client:
        found = await list_offset(client, topic, timestamp, version=version)
    assert (found.error_code, found.offset) == (UnsupportedVersionError.errno, -1)


async def test_lookup_errors(kafka: KafkaHandle) -> None:
    topic = await timed_topic(kafka)
    async with kafka.raw() as client:
        unknown = await list_offset(client, unique("missing"), LATEST)
        beyond = await list_offset(client, topic, LATEST, partition=3)
        epoch = await list_offset(client, topic, LATEST, leader_epoch=9)
        committed = await list_offset(client, topic, LATEST, isolation_level=1)
    assert unknown.error_code == UnknownTopicOrPartitionError.errno
    assert beyond.error_code == UnknownTopicOrPartitionError.errno
    assert (epoch.error_code, epoch.offset) == (UnknownLeaderEpochError.errno, -1)
    assert (committed.error_code, committed.offset) == (0, 6)


async def end_of_epoch(
    client: RawClient, topic: str, epoch: int, *, current: int = -1, version: int | None = None
) -> EpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )

    async def attempt() -> EpochEndOffset:
        ((result,),) = (each.partitions for each in (await client.request(request, version)).topics)
        return result

    return await once_settled(attempt, lambda result: result.error_code)


async def test_end_of_an_epoch(kafka: KafkaHandle) -> None:
    for version in range(2, 5):
        topic = await timed_topic(kafka)
        async with kafka.raw() as client:
            current = await end_of_epoch(client, topic, 0, version=version)
            later = await end_of_epoch(client, topic, 4, version=version)
            undefined = await end_of_epoch(client, topic, -1, version=version)
            fenced = await end_of_epoch(client, topic, 0, current=9, version=version)
            unknown = await end_of_epoch(client, unique("missing"), 0, version=version)
        assert (current.error_code, current.leader_epoch, current.end_offset) == (0, 0, 6)
        for nothing in (later, undefined):
            assert (nothing.error_code, nothing.leader_epoch, nothing.end_offset) == (0, -1, -1)
        assert fenced.error_code == UnknownLeaderEpochError.errno
        assert unknown.error_code == UnknownTopicOrPartitionError.errno


async def delete_records(
    client: RawClient, topic: str, offset: int, *, partition: int = 0, version: int | None = None
) -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=10_000
    )

    async def attempt() -> DeleteRecordsPartitionResult:
        ((result,),) = (each.partitions for each in (await client.request(request, version)).topics)
        return result

    return await once_settled(attempt, lambda result: result.error_code)


async def test_deleted_records_cannot_be_read(kafka: KafkaHandle) -> None:
    for version in range(3):
        topic = await timed_topic(kafka)
        async with kafka.raw() as client:
            nothing = await delete_records(client, topic, 0, version=version)
            assert (nothing.error_code, nothing.low_watermark) == (0, 0)
            deleted = await delete_records(client, topic, 4, version=version)
            assert (deleted.error_code, deleted.low_watermark) == (0, 4)
            assert (await list_offset(client, topic, EARLIEST)).offset == 4
            gone = await fetch(client, topic, fetch_partition(offset=3))
            kept = await fetch(client, topic, fetch_partition(offset=4))
            assert gone.error_code == OffsetOutOfRangeError.errno
            assert (kept.error_code, kept.log_start_offset) == (0, 4)
            # Times are those of records that are left: 4 has the same as the deleted 3.
            assert (await list_offset(client, topic, T0)).offset == 4

            again = await delete_records(client, topic, 2, version=version)
            assert (again.error_code, again.low_watermark) == (0, 4)
            everything = await delete_records(client, topic, -1, version=version)
            assert (everything.error_code, everything.low_watermark) == (0, 6)
            assert (await list_offset(client, topic, T0)).offset == -1
            end = await fetch(client, topic, fetch_partition(offset=6))
            assert (end.error_code, end.high_watermark, end.log_start_offset) == (0, 6, 6)
        assert await kafka.produce(topic, 0, [(b"k", b"v")]) == 6


async def test_deletion_errors(kafka: KafkaHandle) -> None:
    topic = await timed_topic(kafka)
    compacted = await kafka.create_topic(configs={"cleanup.policy": "compact"})
    await await_coordinator(kafka)  # which brings __consumer_offsets into being
    async with kafka.raw() as client:
        results = [
            await delete_records(client, topic, 7),
            await delete_records(client, topic, -2),
            await delete_records(client, topic, 1, partition=5),
            await delete_records(client, compacted, 0),
            await delete_records(client, "__consumer_offsets", 0),
        ]
    assert [(result.error_code, result.low_watermark) for result in results] == [
        (OffsetOutOfRangeError.errno, -1),
        (OffsetOutOfRangeError.errno, -1),
        (UnknownTopicOrPartitionError.errno, -1),
        (PolicyViolationError.errno, -1),
        (InvalidTopicError.errno, -1),
    ]
