"""Members of share groups send heartbeats, to the embedded broker and to Kafka (KIP-932)."""

from __future__ import annotations

import pytest

from aiokafka_lite import errors
from tests.broker.groups.kip848.requests import ConsumerGroupRequests
from tests.broker.groups.share.requests import ShareGroupRequests, known_topic
from tests.support.cluster import KafkaHandle, unique
from tests.support.group_requests import GroupRequests, MemberOf

NONE = 0
FENCED = errors.FencedMemberEpochError.errno
GROUP_ID_NOT_FOUND = errors.GroupIdNotFound.errno
INVALID_REQUEST = errors.InvalidRequestError.errno
UNKNOWN_MEMBER = errors.UnknownMemberIdError.errno


# --- Joining, staying, leaving ---------------------------------------------------------------
async def test_partitions_of_a_new_group_come_with_a_later_heartbeat(
    group: ShareGroupRequests, topic: str
) -> None:
    member = group.of("a", topic)
    joined = await member.join()
    assert (joined.error_code, joined.error_message) == (NONE, None)
    assert (joined.member_id, joined.member_epoch, joined.heartbeat_interval_ms) == ("a", 2, 5_000)
    assert joined.assignment is not None
    assert joined.assignment.topic_partitions == []
    await member.until(lambda: member.count == 4)
    assert (member.epoch, member.held) == (3, {await group.topic_id(topic): [0, 1, 2, 3]})
    assert (await member.beat()).assignment is None


async def test_member_that_joins_a_group_gets_its_partitions_at_once(
    group: ShareGroupRequests, topic: str
) -> None:
    first, second = group.of("a", topic), group.of("b", topic)
    await first.join()
    await first.until(lambda: first.count == 4)
    await second.join()
    assert (second.epoch, second.count) == (4, 2)
    await first.beat()
    assert (first.epoch, first.count) == (4, 2)
    (topic_id,) = first.held
    assert sorted(first.held[topic_id] + second.held[topic_id]) == [0, 1, 2, 3]


async def test_more_members_than_partitions_share_them(
    cluster: KafkaHandle, group: ShareGroupRequests
) -> None:
    topic = await known_topic(cluster, partitions=1)
    first = group.of("a", topic)
    await first.join()
    await first.until(lambda: first.count == 1)
    for name in "bc":
        await (member := group.of(name, topic)).join()
        assert member.held == first.held
    assert (await first.beat()).assignment is None


async def test_joining_again_keeps_the_epoch(group: ShareGroupRequests, topic: str) -> None:
    member = group.of("a", topic)
    await member.join()
    await member.until(lambda: member.count == 4)
    held = member.held
    again = await member.join()
    assert (again.error_code, again.member_epoch, member.held) == (NONE, 3, held)
    assert again.assignment is not None


async def test_previous_epoch_is_accepted_and_others_are_fenced(
    group: ShareGroupRequests, topic: str
) -> None:
    member = group.of("a", topic)
    await member.join()
    await member.until(lambda: member.count == 4)
    retried = await group.beat("a", 2)
    assert (retried.error_code, retried.member_epoch, retried.assignment) == (NONE, 3, None)
    for epoch, how in (
        (1, "smaller member epoch (1) than the one known by the group coordinator (3), and it does "
            "not match the previous member epoch (2)"),
        (4, "greater member epoch (4) than the one known by the group coordinator (3)"),
    ):  # fmt: skip
        refused = await group.beat("a", epoch)
        assert (refused.error_code, refused.member_id) == (FENCED, None)
        assert refused.error_message == (
            f"The share group member has a {how}. The member must abandon all its partitions and "
            f"rejoin."
        )


async def test_leaving_member_gives_its_partitions_to_the_others(
    group: ShareGroupRequests, topic: str
) -> None:
    first, second = group.of("a", topic), group.of("b", topic)
    await first.join()
    await first.until(lambda: first.count == 4)
    await second.join()
    left = await second.leave()
    assert (left.error_code, left.member_id, left.member_epoch) == (NONE, "b", -1)
    assert (left.heartbeat_interval_ms, left.assignment) == (0, None)
    await first.until(lambda: first.count == 4)
    again = await second.leave()
    assert again.error_code == UNKNOWN_MEMBER
    assert again.error_message == f"Member b is not a member of group {group.group_id}."


async def test_unknown_members_are_refused(group: ShareGroupRequests) -> None:
    for epoch, what in ((3, "Share group"), (-1, "Group")):
        answer = await group.beat("a", epoch)
        assert answer.error_code == GROUP_ID_NOT_FOUND
        assert answer.error_message == f"{what} {group.group_id} not found."
    await group.of("a", "t").join()
    answer = await group.beat("b", 3)
    assert answer.error_code == UNKNOWN_MEMBER
    assert answer.error_message == f"Member b is not a member of group {group.group_id}."


async def test_contradictory_heartbeat_is_refused(group: ShareGroupRequests) -> None:
    for member_id, epoch, rack_id, why in (
        ("", 0, None, None),
        ("x" * 37, 0, None, None),
        (" ", 0, None, "MemberId can't be empty."),
        ("a", 0, " ", "RackId can't be empty."),
        ("a", -2, None, "MemberEpoch is invalid."),
        ("x" * 36, -2, None, "MemberEpoch is invalid."),
    ):
        answer = await group.beat(member_id, epoch, topics=["t"], rack_id=rack_id)
        assert (answer.error_code, answer.error_message) == (INVALID_REQUEST, why)
        assert answer.member_id is None


async def test_first_heartbeat_must_have_topics(cluster: KafkaHandle) -> None:
    group = ShareGroupRequests(cluster)
    without: list[list[str] | None] = [None, []]
    for topics in without:
        answer = await group.beat("a", 0, topics=topics)
        assert answer.error_code == INVALID_REQUEST
        assert answer.error_message == "SubscribedTopicNames must be set in first request."
    answer = await ShareGroupRequests(cluster, "").beat("a", 0, topics=["t"])
    assert answer.error_message == "GroupId can't be empty."


# --- Subscriptions and topics ----------------------------------------------------------------
async def test_member_may_unsubscribe_and_subscribe_again(
    group: ShareGroupRequests, topic: str
) -> None:
    member = group.of("a", topic)
    await member.join()
    await member.until(lambda: member.count == 4)
    await member.beat(topics=[])
    assert (member.epoch, member.count) == (4, 0)
    await member.beat(topics=[topic])
    assert (member.epoch, member.count) == (5, 4)


async def test_topic_is_assigned_when_it_is_created(
    cluster: KafkaHandle, group: ShareGroupRequests
) -> None:
    topic = unique("later")
    member = group.of("a", topic)
    await member.join()
    assert (await member.beat()).member_epoch == 2
    await cluster.create_topic(topic, partitions=2)
    await member.until(lambda: member.count == 2)


async def test_deleted_topic_is_revoked_and_a_new_one_of_its_name_assigned(
    cluster: KafkaHandle, group: ShareGroupRequests, topic: str
) -> None:
    other = await known_topic(cluster, partitions=1)
    member = group.of("a", topic, other)
    await member.join()
    await member.until(lambda: member.count == 5)
    old = await group.topic_id(other)
    await cluster.delete_topic(other)
    await member.until(lambda: member.count == 4)
    assert old not in member.held
    await cluster.create_topic(other, partitions=1)
    await member.until(lambda: member.count == 5)
    assert old not in member.held


# --- Groups of other types -------------------------------------------------------------------
async def test_group_of_another_type_is_no_share_group(cluster: KafkaHandle) -> None:
    classic, consumer, empty = (GroupRequests(cluster) for _ in range(3))
    topic = await cluster.create_topic()
    await classic.member()
    await ConsumerGroupRequests(cluster, consumer.group_id).of("a", topics=["t"]).join()
    assert await empty.commit(topic, 1) == NONE
    for other in (classic, consumer, empty):
        group = ShareGroupRequests(cluster, other.group_id)
        for epoch in (0, 3, -1):
            answer = await group.beat("m", epoch, topics=["t"])
            assert answer.error_code == GROUP_ID_NOT_FOUND
            assert answer.error_message == f"Group {group.group_id} is not a share group."
        described = await group.described()
        assert described.error_code == GROUP_ID_NOT_FOUND
        assert described.error_message == f"Group {group.group_id} is not a share group."


@pytest.mark.parametrize("is_empty", [False, True])
async def test_share_group_takes_no_members_and_offsets_of_other_types(
    cluster: KafkaHandle, group: ShareGroupRequests, topic: str, is_empty: bool
) -> None:
    member = group.of("a", topic)
    await member.join()
    if is_empty:
        await member.leave()
    joined = await group.join()
    assert joined.error_code == errors.InconsistentGroupProtocolError.errno
    assert (joined.member_id, joined.protocol_name) == ("", None)
    stranger = MemberOf("a", 2)
    assert await group.heartbeat(stranger) == UNKNOWN_MEMBER
    assert (await group.sync(stranger)).error_code == UNKNOWN_MEMBER
    (left,) = (await group.leave(("a", None))).members
    assert left.error_code == UNKNOWN_MEMBER
    consumer = ConsumerGroupRequests(cluster, group.group_id)
    for epoch in (0, 2, -1):
        answer = await consumer.beat("a", epoch, topics=[topic])
        assert answer.error_code == GROUP_ID_NOT_FOUND
        assert answer.error_message == f"Group {group.group_id} is not a consumer group."
    described = await consumer.described()
    assert described.error_message == f"Group {group.group_id} is not a consumer group."
    for committer in (None, stranger):
        assert await group.commit(topic, 3, member=committer) == GROUP_ID_NOT_FOUND
    assert await group.commit(topic, 3, version=8) == GROUP_ID_NOT_FOUND
    assert (await group.fetch(topic)).committed_offset == -1
    shown = await group.describe()
    assert (shown.error_code, shown.group_state) == (GROUP_ID_NOT_FOUND, "Dead")
    assert shown.error_message == f"Group {group.group_id} is not a classic group."
