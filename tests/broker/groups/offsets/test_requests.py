"""Commits, fetches and deletions of offsets: the same answers from this broker and from Kafka."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import errors
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.support.cluster import KafkaHandle, unique
from tests.support.group_requests import GroupRequests, MemberOf, subscription

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = errors.UnknownTopicOrPartitionError.errno
OFFSET_METADATA_TOO_LARGE = errors.OffsetMetadataTooLargeError.errno
ILLEGAL_GENERATION = errors.IllegalGenerationError.errno
INVALID_GROUP_ID = errors.InvalidGroupIdError.errno
UNKNOWN_MEMBER_ID = errors.UnknownMemberIdError.errno
REBALANCE_IN_PROGRESS = errors.RebalanceInProgressError.errno
NON_EMPTY_GROUP = errors.NonEmptyGroup.errno
GROUP_ID_NOT_FOUND = errors.GroupIdNotFound.errno
FENCED_INSTANCE_ID = errors.FencedInstanceIdError.errno
GROUP_SUBSCRIBED_TO_TOPIC = errors.GroupSubscribedToTopicError.errno
UNKNOWN_TOPIC_ID = errors.UnknownTopicIdError.errno


@pytest.fixture
async def topic(cluster: KafkaHandle) -> str:
    return await cluster.create_topic(partitions=2)


async def topic_id_of(cluster: KafkaHandle, topic: str) -> bytes:
    async with cluster.raw() as client:
        answer = await client.request(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
    return answer.topics[0].topic_id


# -- commit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 10))
async def test_anyone_may_commit_for_a_group_without_members(
    group: GroupRequests, topic: str, version: int
) -> None:
    assert await group.commit(topic, 42, leader_epoch=-1, metadata="m", version=version) == NONE
    committed = await group.fetch(topic)
    assert (committed.committed_offset, committed.metadata) == (42, "m")
    assert committed.committed_leader_epoch == -1
    listed = await group.listed()
    assert listed is not None
    assert (listed.group_state, listed.protocol_type) == ("Empty", "")


async def test_leader_epoch_is_kept(group: GroupRequests, topic: str) -> None:
    await group.commit(topic, 1, leader_epoch=7)
    assert (await group.fetch(topic)).committed_leader_epoch == 7


async def test_no_metadata_is_empty_metadata(group: GroupRequests, topic: str) -> None:
    assert await group.commit(topic, 1, metadata=None) == NONE
    assert (await group.fetch(topic)).metadata == ""


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("x" * 4096, NONE),
        ("x" * 4097, OFFSET_METADATA_TOO_LARGE),
        ("ü" * 4096, NONE),
        ("😀" * 2048, NONE),
        ("😀" * 2049, OFFSET_METADATA_TOO_LARGE),
    ],
    ids=["fits", "too long", "accents fit", "emoji fit", "emoji too long"],
)
async def test_metadata_has_a_maximum(
    group: GroupRequests, topic: str, metadata: str, error: int
) -> None:
    assert await group.commit(topic, 1, metadata=metadata) == error


async def test_offsets_of_unknown_partitions_are_refused(group: GroupRequests, topic: str) -> None:
    assert await group.commit(topic, 1, partition=2) == UNKNOWN_TOPIC_OR_PARTITION
    assert await group.commit(unique("missing"), 1) == UNKNOWN_TOPIC_OR_PARTITION
    assert await group.listed() is None


@pytest.mark.parametrize(("version", "error"), [(8, ILLEGAL_GENERATION), (9, GROUP_ID_NOT_FOUND)])
async def test_member_of_an_unknown_group_cannot_commit(
    group: GroupRequests, topic: str, version: int, error: int
) -> None:
    assert await group.commit(topic, 1, member=MemberOf("m", 0), version=version) == error


async def test_commit_checks_the_member(group: GroupRequests, topic: str) -> None:
    member = await group.member()
    assert await group.commit(topic, 1, member=member) == NONE
    assert await group.commit(topic, 2) == UNKNOWN_MEMBER_ID
    assert await group.commit(topic, 2, member=MemberOf("nobody", 1)) == UNKNOWN_MEMBER_ID
    late = member._replace(generation=0)
    assert await group.commit(topic, 2, member=late) == ILLEGAL_GENERATION
    no_generation = member._replace(generation=-1)
    assert await group.commit(topic, 2, member=no_generation) == ILLEGAL_GENERATION
    assert (await group.fetch(topic)).committed_offset == 1


async def test_commit_of_a_replaced_static_member_is_fenced(
    group: GroupRequests, topic: str
) -> None:
    old = await group.member("one")
    await group.join(instance_id="one")
    assert await group.commit(topic, 1, member=old) == FENCED_INSTANCE_ID


async def test_commit_waits_for_the_assignment(group: GroupRequests, topic: str) -> None:
    joined = await group.join_with_id()
    member = MemberOf(joined.member_id, joined.generation_id)
    assert await group.commit(topic, 1, member=member) == REBALANCE_IN_PROGRESS


async def test_commit_of_the_old_generation_is_accepted_while_members_join(
    group: GroupRequests, topic: str
) -> None:
    member = await group.member()
    joining = asyncio.create_task(group.join_with_id())
    await group.until_state("PreparingRebalance")
    assert await group.commit(topic, 5, member=member) == NONE
    await group.leave((member.member_id, None))
    await joining


async def test_commit_by_topic_id(group: GroupRequests, cluster: KafkaHandle, topic: str) -> None:
    topic_id = await topic_id_of(cluster, topic)
    request = OffsetCommitRequest(
        group_id=group.group_id,
        topics=[
            OffsetCommitRequestTopic(
                topic_id=an_id,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=9)
                    for index in (2, 1)
                ],
            )
            for an_id in (topic_id, b"\x01" * 16)
        ],
    )
    async with cluster.raw() as client:
        answer = await client.request(request, 10)
    results = {
        (found.topic_id, partition.partition_index): partition.error_code
        for found in answer.topics
        for partition in found.partitions
    }
    assert results == {
        (topic_id, 1): NONE,
        (topic_id, 2): UNKNOWN_TOPIC_OR_PARTITION,
        (b"\x01" * 16, 1): UNKNOWN_TOPIC_ID,
        (b"\x01" * 16, 2): UNKNOWN_TOPIC_ID,
    }
    assert (await group.fetch(topic, 1)).committed_offset == 9


async def test_empty_group_id_may_commit(cluster: KafkaHandle, topic: str) -> None:
    group = GroupRequests(cluster, "")
    assert await group.commit(topic, 3) == NONE
    assert (await group.fetch(topic)).committed_offset == 3


# -- fetch ------------------------------------------------------------------------------------


async def test_nothing_committed_is_no_error(group: GroupRequests, topic: str) -> None:
    for name in (topic, unique("missing")):
        nothing = await group.fetch(name)
        assert (nothing.error_code, nothing.committed_offset, nothing.metadata) == (NONE, -1, "")
        assert nothing.committed_leader_epoch == -1


@pytest.mark.parametrize("version", range(1, 8))
async def test_fetch_one_group(
    group: GroupRequests, cluster: KafkaHandle, topic: str, version: int
) -> None:
    await group.commit(topic, 11, partition=1)
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group.group_id, topics=[wanted])]
    )
    async with cluster.raw() as client:
        (answer,) = (await client.request(request, version)).groups
    assert answer.error_code == NONE
    (found,) = answer.topics
    assert found.name == topic
    assert {p.partition_index: p.committed_offset for p in found.partitions} == {0: -1, 1: 11}


@pytest.mark.parametrize("version", range(2, 8))
async def test_fetch_everything_of_one_group(
    group: GroupRequests, cluster: KafkaHandle, topic: str, version: int
) -> None:
    await group.commit(topic, 11, partition=1)
    async with cluster.raw() as client:
        wanted = OffsetFetchRequestGroup(group_id=group.group_id, topics=None)
        (answer,) = (await client.request(OffsetFetchRequest(groups=[wanted]), version)).groups
    (found,) = answer.topics
    assert (found.name, found.partitions[0].partition_index) == (topic, 1)
    assert found.partitions[0].committed_offset == 11


@pytest.mark.parametrize("version", [8, 9, 10])
@pytest.mark.parametrize("require_stable", [False, True])
async def test_fetch_several_groups(
    group: GroupRequests, cluster: KafkaHandle, topic: str, version: int, require_stable: bool
) -> None:
    await group.commit(topic, 21)
    other, unknown = GroupRequests(cluster), unique("unknown")
    await other.commit(topic, 22, partition=1)
    topic_id = await topic_id_of(cluster, topic)
    wanted = OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id=group.group_id, topics=[wanted]),
            OffsetFetchRequestGroup(group_id=other.group_id, topics=None),
            OffsetFetchRequestGroup(group_id=unknown, topics=None),
            OffsetFetchRequestGroup(group_id=unknown, topics=[]),
        ],
        require_stable=require_stable,
    )
    async with cluster.raw() as client:
        answer = await client.request(request, version)
    found = [
        (
            one.group_id,
            one.error_code,
            [
                (t.topic_id if version >= 10 else t.name, p.partition_index, p.committed_offset)
                for t in one.topics
                for p in t.partitions
            ],
        )
        for one in answer.groups
    ]
    name = topic_id if version >= 10 else topic
    assert sorted(found) == sorted(
        [
            (group.group_id, NONE, [(name, 0, 21)]),
            (other.group_id, NONE, [(name, 1, 22)]),
            (unknown, NONE, []),
            (unknown, NONE, []),
        ]
    )


async def test_fetch_by_an_unknown_topic_id(group: GroupRequests, cluster: KafkaHandle) -> None:
    wanted = OffsetFetchRequestTopics(topic_id=b"\x02" * 16, partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group.group_id, topics=[wanted])]
    )
    async with cluster.raw() as client:
        answer = await client.request(request, 10)
    (found,) = answer.groups[0].topics
    assert found.topic_id == b"\x02" * 16
    assert found.partitions[0].error_code == UNKNOWN_TOPIC_ID
    assert found.partitions[0].committed_offset == -1


async def test_fetch_of_a_member_that_is_none(group: GroupRequests, cluster: KafkaHandle) -> None:
    await group.member()
    wanted = OffsetFetchRequestGroup(
        group_id=group.group_id, member_id="nobody", member_epoch=5, topics=[]
    )
    async with cluster.raw() as client:
        answer = await client.request(OffsetFetchRequest(groups=[wanted]), 9)
    assert answer.groups[0].error_code == NONE


async def test_offsets_do_not_outlive_their_topic(
    group: GroupRequests, cluster: KafkaHandle, topic: str
) -> None:
    await group.commit(topic, 5)
    await cluster.delete_topic(topic)
    for _ in range(500):
        if (await group.fetch(topic)).committed_offset == -1:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the offset of a deleted topic is still there")


# -- delete -------------------------------------------------------------------------------------


async def delete(group: GroupRequests, topic: str, *partitions: int) -> OffsetDeleteResponse:
    request = OffsetDeleteRequest(
        group_id=group.group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions],
            )
        ],
    )
    async with group.kafka.raw() as client:
        return await client.request(request)


async def test_offsets_are_deleted(group: GroupRequests, topic: str) -> None:
    await group.commit(topic, 5)
    await group.commit(topic, 6, partition=1)
    answer = await delete(group, topic, 0, 2)
    results = {p.partition_index: p.error_code for p in answer.topics[0].partitions}
    assert (answer.error_code, results) == (NONE, {0: NONE, 2: UNKNOWN_TOPIC_OR_PARTITION})
    assert (await group.fetch(topic)).committed_offset == -1
    assert (await group.fetch(topic, 1)).committed_offset == 6


async def test_offsets_of_an_unknown_group_cannot_be_deleted(
    group: GroupRequests, topic: str
) -> None:
    assert (await delete(group, topic, 0)).error_code == GROUP_ID_NOT_FOUND


async def test_offsets_of_the_empty_group_id_cannot_be_deleted(
    cluster: KafkaHandle, topic: str
) -> None:
    assert (await delete(GroupRequests(cluster, ""), topic, 0)).error_code == INVALID_GROUP_ID


async def test_offsets_of_a_consumed_topic_cannot_be_deleted(
    group: GroupRequests, cluster: KafkaHandle, topic: str
) -> None:
    member = await group.member(protocols=[("range", subscription(topic))])
    other = await cluster.create_topic()
    await group.commit(topic, 5, member=member)
    await group.commit(other, 6, member=member)
    answer = await delete(group, topic, 0)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (
        NONE,
        GROUP_SUBSCRIBED_TO_TOPIC,
    )
    answer = await delete(group, other, 0)
    assert answer.topics[0].partitions[0].error_code == NONE
    await group.leave((member.member_id, None))
    answer = await delete(group, topic, 0)
    assert answer.topics[0].partitions[0].error_code == NONE
    assert (await group.fetch(topic)).committed_offset == -1


async def test_offsets_of_other_kinds_of_groups_need_an_empty_group(
    group: GroupRequests, topic: str
) -> None:
    joined = await group.join(instance_id="one", protocol_type="connect")
    assert joined.error_code == NONE
    assert (await delete(group, topic, 0)).error_code == NON_EMPTY_GROUP
