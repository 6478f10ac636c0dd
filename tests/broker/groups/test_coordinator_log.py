"""The records of the offsets topic: partition, bytes, and what a log of Kafka's gives."""

from __future__ import annotations

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker.groups.coordinator_log import (
    CoordinatorLog,
    CoordinatorRecord,
    decode_record,
    encode_record,
)
from aiokafka_lite.broker.groups.offsets import offset_key
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, java_hash, partition_for
from aiokafka_lite.errors import KafkaError, KafkaProtocolError
from aiokafka_lite.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitValue,
)
from aiokafka_lite.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokafka_lite.structs import TopicPartition
from tests.broker.groups.fakes import MemoryLog
from tests.support.cluster import KafkaHandle
from tests.support.for_each import for_each
from tests.support.group_requests import GroupRequests

FETCH_BY_NAME = 12
TOPIC_ID = bytes(range(16))
KEY = offset_key("g", TopicPartition("t", 3))
GROUP_KEY = GroupMetadataKey(group="g")


@for_each(
    [
        ("", 0),
        ("hello", 99162322),
        ("group-of-workers", -587790643),
        ("polygenelubricants", -(2**31)),
        ("ü😀", 2015071),
    ]
)
def test_hash_is_javas(text: str, value: int) -> None:
    assert java_hash(text) == value


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("hello", 99162322 % 50), ("group-of-workers", 587790643 % 50), ("polygenelubricants", 0)],
)
def test_partition_of_a_group_is_kafkas(group_id: str, partition: int) -> None:
    assert partition_for(group_id, 50) == partition


@for_each(
    [
        (
            CoordinatorRecord(
                KEY,
                OffsetCommitValue(
                    offset=5,
                    leader_epoch=2,
                    metadata="m",
                    commit_timestamp=7,
                    expire_timestamp=-1,
                    topic_id=TOPIC_ID,
                ),
            ),
            "0001 0001 67 0001 74 00000003",
            "0004 0000000000000005 00000002 02 6d 0000000000000007 01 00 10" + TOPIC_ID.hex(),
        ),
        (
            CoordinatorRecord(
                KEY,
                OffsetCommitValue(offset=5, metadata="m", commit_timestamp=7, expire_timestamp=9),
            ),
            "0001 0001 67 0001 74 00000003",
            "0001 0000000000000005 0001 6d 0000000000000007 0000000000000009",
        ),
        (CoordinatorRecord(KEY, None), "0001 0001 67 0001 74 00000003", None),
        (
            CoordinatorRecord(
                GroupMetadataKey(group="g"),
                GroupMetadataValue(
                    protocol_type="consumer",
                    generation=4,
                    protocol="range",
                    leader="m",
                    current_state_timestamp=7,
                    members=[
                        MemberMetadata(
                            member_id="m",
                            group_instance_id=None,
                            client_id="c",
                            client_host="/h",
                            rebalance_timeout=1,
                            session_timeout=2,
                            subscription=b"s",
                            assignment=b"a",
                        )
                    ],
                ),
            ),
            "0002 0001 67",
            "0003 0008 636f6e73756d6572 00000004 0005 72616e6765 0001 6d 0000000000000007 00000001"
            "0001 6d ffff 0001 63 0002 2f68 00000001 00000002 00000001 73 00000001 61",
        ),
        (CoordinatorRecord(GROUP_KEY, None), "0002 0001 67", None),
    ],
    ["commit", "commit that expires", "tombstone", "group", "group tombstone"],
)
def test_bytes_are_those_that_kafka_writes(
    record: CoordinatorRecord, key: str, value: str | None
) -> None:
    expected = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    assert encode_record(record) == expected
    assert decode_record(*expected) == record


def test_records_of_newer_brokers_are_passed_over() -> None:
    assert decode_record(b"\x00\x0fwhatever", b"\x00\x00") is None


@for_each(
    [
        (None, b""),
        (b"", b""),
        (b"\x00\x01\x00\x09g", b""),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03", b"\x00"),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03", b"\x00\x04\x00"),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03", b"\x00\x63"),
    ]
)
def test_damaged_records_are_told(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(KafkaError):
        decode_record(key, value)


def test_records_are_appended_as_one_batch_and_read_back() -> None:
    partition = MemoryLog()
    log = CoordinatorLog(lambda _: partition, partition_count=lambda: 1, clock=lambda: 1234)
    assert log.is_empty(0)
    written = [CoordinatorRecord(KEY, None), CoordinatorRecord(GROUP_KEY, None)]
    log.append("g", written)
    log.append("g", written[:1])
    assert not log.is_empty(0)
    assert [len(chunk) for chunk in log.read(0)] == [2, 1]
    assert [record for chunk in log.read(0) for record in chunk] == [*written, written[0]]
    ((header, _),) = records.iter_batches(partition.read(0, 1 << 20))
    assert (header.count, header.max_timestamp) == (2, 1234)


def test_large_batch_is_read_in_pieces() -> None:
    partition = MemoryLog()
    log = CoordinatorLog(lambda _: partition, partition_count=lambda: 1, clock=lambda: 1234)
    log.append("g", [CoordinatorRecord(KEY, None)] * 250)
    assert [len(chunk) for chunk in log.read(0)] == [100, 100, 50]


def test_log_that_ends_early_is_an_error() -> None:
    partition = MemoryLog()
    log = CoordinatorLog(lambda _: partition, partition_count=lambda: 1, clock=lambda: 1234)
    log.append("g", [CoordinatorRecord(KEY, None)])
    partition.high_watermark += 1
    with pytest.raises(
        KafkaProtocolError, match=r"at offset 1, which is below the high watermark \(2\)"
    ):
        list(log.read(0))


async def test_every_record_has_the_bytes_of_kafkas_own(cluster: KafkaHandle) -> None:
    """Whatever the broker has written about a group reads and writes back to the same bytes."""
    group = GroupRequests(cluster)
    topic = await cluster.create_topic()
    member = await group.member("static")
    await group.commit(topic, 5, member=member, metadata="ü", leader_epoch=3)
    await group.leave((member.member_id, None))
    await group.commit(topic, 6, metadata=None)
    await group.commit(topic, 7, version=3, retention_ms=60_000)
    found = await _records_of(cluster, group.group_id)
    for key, value in found:
        record = decode_record(key, value)
        assert record is not None
        assert encode_record(record) == (key, value)
    kinds = [key[1] for key, _ in found]
    versions = [None if value is None else value[1] for _, value in found]
    assert list(zip(kinds, versions, strict=True)) == [
        (2, 3),  # the group is there
        (2, 3),  # its assignment
        (1, 4),
        (2, 3),  # it is empty
        (1, 4),
        (1, 1),
    ]


async def _records_of(cluster: KafkaHandle, group_id: str) -> list[tuple[bytes, bytes | None]]:
    """Read what the log of the offsets topic has about a group."""
    found: list[tuple[bytes, bytes | None]] = []
    offset = 0
    async with cluster.raw() as client:
        topics = [MetadataRequestTopic(name=GROUP_METADATA_TOPIC)]
        (topic,) = (await client.request(MetadataRequest(topics=topics))).topics
        partition = partition_for(group_id, len(topic.partitions))
        while True:
            wanted = FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
            )
            answer = await client.request(
                FetchRequest(
                    max_wait_ms=0,
                    min_bytes=0,
                    topics=[FetchTopic(topic=GROUP_METADATA_TOPIC, partitions=[wanted])],
                ),
                FETCH_BY_NAME,
            )
            (data,) = answer.responses[0].partitions
            assert data.error_code == 0
            taken = records.decode_all(memoryview(data.records or b""))
            if not taken:
                return found
            offset = taken[-1].offset + 1
            marker = group_id.encode()
            found += [(r.key, r.value) for r in taken if r.key is not None and marker in r.key]
