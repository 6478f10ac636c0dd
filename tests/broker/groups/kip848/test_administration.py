"""What administrators ask about groups of KIP-848, on the embedded broker and on Kafka."""

from __future__ import annotations

import pytest

from aiokafka_lite import errors
from aiokafka_lite.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from aiokafka_lite.protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from aiokafka_lite.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.broker.groups.kip848.requests import ConsumerGroupRequests
from tests.support.cluster import KafkaHandle, unique
from tests.support.group_requests import GroupRequests

NONE = 0
GROUP_ID_NOT_FOUND = errors.GroupIdNotFound.errno


@pytest.mark.parametrize("version", [0, 1])
async def test_described_group_shows_what_members_have_and_will_have(
    group: ConsumerGroupRequests, topic: str, version: int
) -> None:
    first = group.of("a", topics=[topic], instance_id="one", rack_id="r")
    await first.join()
    await group.of("b", topics=[topic]).join()
    await first.beat()
    described = await group.described(version)
    assert (described.error_code, described.error_message) == (NONE, None)
    assert (described.group_state, described.assignor_name) == ("Reconciling", "uniform")
    assert (described.group_epoch, described.assignment_epoch) == (3, 3)
    assert described.authorized_operations == -(2**31)
    members = {member.member_id: member for member in described.members}
    one, other = members["a"], members["b"]
    assert (one.instance_id, one.rack_id, one.member_epoch) == ("one", "r", 2)
    assert (one.client_id, one.client_host) == ("raw", "/127.0.0.1")
    assert (one.subscribed_topic_names, one.subscribed_topic_regex) == ([topic], "")
    assert one.member_type == (1 if version else -1)
    (held,) = one.assignment.topic_partitions  # what it has to give up counts
    assert (held.topic_name, sorted(held.partitions)) == (topic, [0, 1, 2, 3])
    (target,) = one.target_assignment.topic_partitions
    assert len(target.partitions) == 2
    assert (other.instance_id, other.rack_id, other.member_epoch) == (None, None, 3)
    assert other.assignment.topic_partitions == []
    (target,) = other.target_assignment.topic_partitions
    assert len(target.partitions) == 2


async def test_describe_says_what_everyone_may_do(group: ConsumerGroupRequests) -> None:
    await group.of("a", topics=["t"]).join()
    described = await group.described(operations=True)
    allowed = [bit for bit in range(31) if described.authorized_operations >> bit & 1]
    assert allowed == [3, 6, 8, 10, 11]


async def test_groups_of_the_other_kind_are_not_described(
    group: ConsumerGroupRequests, cluster: KafkaHandle, topic: str
) -> None:
    await group.of("a", topics=[topic]).join()
    classic = ConsumerGroupRequests(cluster)
    await classic.member()
    unknown = ConsumerGroupRequests(cluster)
    described = await classic.described()
    assert described.error_code == GROUP_ID_NOT_FOUND
    assert described.error_message == f"Group {classic.group_id} is not a consumer group."
    described = await unknown.described()
    assert described.error_code == GROUP_ID_NOT_FOUND
    assert described.error_message == f"Group {unknown.group_id} not found."
    async with cluster.raw() as client:
        request = DescribeGroupsRequest(groups=[group.group_id])
        (new,) = (await client.request(request, 6)).groups
        (old,) = (await client.request(request, 5)).groups
        nameless = ConsumerGroupDescribeRequest(group_ids=[""])
        (refused,) = (await client.request(nameless)).groups
    assert (new.error_code, new.group_state) == (GROUP_ID_NOT_FOUND, "Dead")
    assert new.error_message == f"Group {group.group_id} is not a classic group."
    assert (old.error_code, old.group_state) == (NONE, "Dead")
    assert refused.error_code == errors.InvalidGroupIdError.errno


async def test_groups_are_listed_by_type_and_state(
    group: ConsumerGroupRequests, cluster: KafkaHandle, topic: str
) -> None:
    await group.of("a", topics=[topic]).join()
    classic, empty = GroupRequests(cluster), ConsumerGroupRequests(cluster)
    await classic.member()
    leaver = empty.of("a", topics=[topic])
    await leaver.join()
    await leaver.leave()
    ours = {group.group_id: "new", classic.group_id: "classic", empty.group_id: "empty"}

    async def listed(*types: str, states: tuple[str, ...] = ()) -> set[str]:
        request = ListGroupsRequest(types_filter=[*types], states_filter=[*states])
        async with cluster.raw() as client:
            groups = (await client.request(request)).groups
        return {ours[each.group_id] for each in groups if each.group_id in ours}

    assert await listed() == {"new", "classic", "empty"}
    assert await listed("consumer") == {"new", "empty"}
    assert await listed("Classic") == {"classic"}
    assert await listed("consumer", "classic", states=("Stable",)) == {"new", "classic"}
    assert await listed(states=("empty",)) == {"empty"}
    entry = await group.listed()
    assert entry is not None
    assert (entry.protocol_type, entry.group_state) == ("consumer", "Stable")
    assert entry.group_type == "consumer"


async def test_only_empty_groups_are_deleted(group: ConsumerGroupRequests, topic: str) -> None:
    member = group.of("a", topics=[topic])
    await member.join()
    assert await group.delete() == errors.NonEmptyGroup.errno
    await member.leave()
    assert await group.commit(topic, 5) == NONE
    assert await group.delete() == NONE
    assert await group.listed() is None
    assert (await group.fetch(topic)).committed_offset == -1
    assert (await member.join()).member_epoch == 2  # a new group


async def test_offsets_of_topics_in_use_are_kept(
    group: ConsumerGroupRequests, cluster: KafkaHandle, topic: str
) -> None:
    other = await cluster.create_topic()
    member = group.of("a", topics=[topic])
    await member.join()
    await member.leave()
    for name in (topic, other):
        assert await group.commit(name, 5) == NONE
    await member.join()
    request = OffsetDeleteRequest(
        group_id=group.group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
            )
            for name in (topic, other)
        ],
    )
    async with cluster.raw() as client:
        answer = await client.request(request)
    results = {item.name: item.partitions[0].error_code for item in answer.topics}
    assert results == {topic: errors.GroupSubscribedToTopicError.errno, other: NONE}
    assert (await group.fetch(topic)).committed_offset == 5
    assert (await group.fetch(other)).committed_offset == -1


async def test_offsets_are_fetched_in_the_members_epoch(
    group: ConsumerGroupRequests, cluster: KafkaHandle, topic: str
) -> None:
    await group.of("a", topics=[topic]).join()

    async def fetched(member_id: str | None, epoch: int) -> int:
        wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
        asked = OffsetFetchRequestGroup(
            group_id=group.group_id, member_id=member_id, member_epoch=epoch, topics=[wanted]
        )
        async with cluster.raw() as client:
            answer = await client.request(OffsetFetchRequest(groups=[asked]), 9)
        return answer.groups[0].error_code

    assert await fetched("a", 2) == NONE
    assert await fetched(None, -1) == NONE
    assert await fetched("a", 1) == errors.StaleMemberEpochError.errno
    assert await fetched("a", 3) == errors.StaleMemberEpochError.errno
    assert await fetched("b", 2) == errors.UnknownMemberIdError.errno


# -- from one protocol to the other -------------------------------------------------------------


async def test_empty_classic_group_becomes_a_consumer_group(
    group: ConsumerGroupRequests, topic: str
) -> None:
    member = await group.member()
    assert await group.commit(topic, 5, member=member) == NONE
    await group.leave((member.member_id, None))
    joined = await group.of("a", topics=[topic]).join()
    assert (joined.error_code, joined.member_epoch) == (NONE, 2)
    assert (await group.fetch(topic)).committed_offset == 5
    entry = await group.listed()
    assert entry is not None
    assert entry.group_type == "consumer"


async def test_empty_consumer_group_becomes_a_classic_group(
    group: ConsumerGroupRequests, topic: str
) -> None:
    member = group.of("a", topics=[topic])
    await member.join()
    await member.leave()
    assert await group.commit(topic, 5) == NONE
    joined = await group.member()
    assert joined.generation == 1
    assert (await group.fetch(topic)).committed_offset == 5
    entry = await group.listed()
    assert entry is not None
    assert entry.group_type == "classic"


async def test_group_that_only_stores_offsets_takes_members_of_either_kind(
    cluster: KafkaHandle, topic: str
) -> None:
    group = ConsumerGroupRequests(cluster, unique("simple"))
    assert await group.commit(topic, 5) == NONE
    assert (await group.of("a", topics=[topic]).join()).error_code == NONE
    assert (await group.fetch(topic)).committed_offset == 5
