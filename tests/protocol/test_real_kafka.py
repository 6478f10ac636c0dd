"""A real Kafka understands every request and is understood."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aiokafka_lite.protocol.codec import decode_key, decode_versioned, encode_key, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    GROUP_KEY_CLASSES,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from aiokafka_lite.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    TopicPartition,
)
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.messages.transactions import AddPartitionsToTxnRequest
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.records import decode_all
from tests.support.cluster import KafkaHandle, unique
from tests.support.samples import NEWER, REQUEST_CLASSES, filled, name_of, versions
from tests.support.wire import RawClient

pytestmark = pytest.mark.real_kafka
ANSWER_TIME_S = 10


def _requests(cls: type[Request[Response]], version: int) -> Iterator[Request[Response]]:
    """Requests that change nothing at the broker: what they name does not exist there."""
    for request in (filled(cls, version), filled(cls, version, has_nulls=True), cls()):
        if isinstance(request, AddPartitionsToTxnRequest) and request == cls():
            continue  # without transactions Kafka never answers
        if isinstance(request, ProduceRequest) and not request.acks:
            request.acks = 1
        yield request.from_version(version)


@pytest.mark.parametrize("cls", REQUEST_CLASSES, ids=name_of)
async def test_every_version_is_understood_both_ways(
    cls: type[Request[Response]], real_kafka: str
) -> None:
    async with RawClient(real_kafka) as client:
        answer = await client.request(ApiVersionsRequest(client_software_name="n"), 0)
    spoken = {k.api_key: range(k.min_version, k.max_version + 1) for k in answer.api_keys}
    common = [version for version in versions(cls) if version in spoken[cls.api_key]]
    assert common[-1] == cls.max_version or cls.__name__ in NEWER
    for version in common:
        for request in _requests(cls, version):
            # One connection each: Kafka closes it if it cannot read the request.
            async with RawClient(real_kafka) as client:
                await asyncio.wait_for(client.request(request, version), ANSWER_TIME_S)


async def _commit_in_a_group(kafka: KafkaHandle, group: str, topic: str) -> None:
    """Join as the only member, take the assignment, commit offset 42."""
    protocol = JoinGroupRequestProtocol(
        name="range",
        metadata=encode_versioned(ConsumerProtocolSubscription(topics=[topic]), 3),
    )
    join = JoinGroupRequest(
        group_id=group,
        protocol_type="consumer",
        protocols=[protocol],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
    )
    assigned = TopicPartition(topic=topic, partitions=[0])
    async with kafka.raw() as client:
        await client.request(FindCoordinatorRequest(coordinator_keys=[group]))
        while not join.member_id:  # a new cluster has to make the offsets topic first
            join.member_id = (await client.request(join)).member_id
            await asyncio.sleep(0 if join.member_id else 0.1)
        joined = await client.request(join)
        share = SyncGroupRequestAssignment(
            member_id=joined.member_id,
            assignment=encode_versioned(
                ConsumerProtocolAssignment(assigned_partitions=[assigned]), 3
            ),
        )
        synced = await client.request(
            SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[share],
            )
        )
        assert synced.error_code == 0
        partition = OffsetCommitRequestPartition(committed_offset=42, committed_metadata="m")
        committed = await client.request(
            OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=joined.generation_id,
                member_id=joined.member_id,
                topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
            ),
            9,
        )
        assert committed.topics[0].partitions[0].error_code == 0


async def _offsets_records(kafka: KafkaHandle) -> list[tuple[bytes, bytes | None]]:
    """Read the whole offsets topic."""
    name = "__consumer_offsets"
    async with kafka.raw() as client:
        metadata = await client.request(MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
        (topic,) = metadata.topics
        offsets = dict.fromkeys(range(len(topic.partitions)), 0)
        found: list[tuple[bytes, bytes | None]] = []
        while True:
            partitions = [
                FetchPartition(partition=p, fetch_offset=offset, partition_max_bytes=2**20)
                for p, offset in offsets.items()
            ]
            request = FetchRequest(
                max_wait_ms=10,
                topics=[FetchTopic(topic=name, topic_id=topic.topic_id, partitions=partitions)],
            )
            before = dict(offsets)
            for answered in (await client.request(request)).responses[0].partitions:
                for record in decode_all(memoryview(answered.records or b"")):
                    if record.offset >= offsets[answered.partition_index]:
                        found.append((bytes(record.key or b""), record.value))
                        offsets[answered.partition_index] = record.offset + 1
            if offsets == before:
                return found


async def test_what_kafkas_coordinator_wrote_is_read_and_written_alike(real_kafka: str) -> None:
    kafka = KafkaHandle("real", real_kafka)
    group, topic = unique("group"), await kafka.create_topic()
    await _commit_in_a_group(kafka, group, topic)
    offset: OffsetCommitValue | None = None
    metadata: GroupMetadataValue | None = None
    for key_bytes, value_bytes in await _offsets_records(kafka):
        key = decode_key(GROUP_KEY_CLASSES, key_bytes)
        if not isinstance(key, OffsetCommitKey | GroupMetadataKey) or value_bytes is None:
            continue
        if key.group != group:
            continue
        assert encode_key(key) == key_bytes
        version = int.from_bytes(value_bytes[:2], "big")
        match key:
            case OffsetCommitKey():
                assert (key.topic, key.partition) == (topic, 0)
                offset = decode_versioned(OffsetCommitValue, value_bytes)
                assert encode_versioned(offset, version) == value_bytes
            case GroupMetadataKey():
                metadata = decode_versioned(GroupMetadataValue, value_bytes)
                assert encode_versioned(metadata, version) == value_bytes
    assert offset is not None
    assert (offset.offset, offset.metadata) == (42, "m")
    assert metadata is not None
    (member,) = metadata.members
    subscription = decode_versioned(ConsumerProtocolSubscription, member.subscription)
    assert subscription.topics == [topic]
