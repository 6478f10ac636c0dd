"""The coordinator reads and writes the blobs that members of the classic protocol exchange."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.members import ClassicGroupMember
from aiokafka_lite.broker.groups.kip848.machine import encode_assignment, owned_by, upgraded
from aiokafka_lite.errors import GroupIdNotFound
from aiokafka_lite.protocol.codec import decode_versioned, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import GroupMetadataValue
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tests.broker.groups.fakes import FakeTopics, unused_group


@pytest.fixture
def topics() -> FakeTopics:
    topics = FakeTopics()
    topics.create("t", 4)
    topics.create("u", 4)
    return topics


def subscription(*names: str, version: int = 3, rack_id: str | None = None) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=[*names], rack_id=rack_id), version)


def assignment(user_data: bytes | None = None, **partitions: list[int]) -> bytes:
    assigned = [TopicPartition(topic=name, partitions=held) for name, held in partitions.items()]
    return encode_versioned(
        ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=user_data), 0
    )


def group_of(assigned: bytes, *, protocol: str | None = "b", rack_id: str = "") -> ClassicGroup:
    """Return a group whose only member likes protocol "a" best."""
    group = unused_group()
    protocols = (("a", subscription("t")), ("b", subscription("u", rack_id=rack_id)))
    member = ClassicGroupMember("m", None, "c", "/h", 1, 2, protocols, assignment=assigned)
    group.restore(GroupMetadataValue(protocol_type="consumer", generation=7, protocol=protocol))
    group.members.add(member)
    return group


@pytest.mark.parametrize(("protocol", "topic"), [("b", "u"), (None, "t")])
def test_upgraded_member_has_the_subscription_of_the_groups_protocol(
    topics: FakeTopics, protocol: str | None, topic: str
) -> None:
    group, _ = upgraded(group_of(b"", protocol=protocol), topics.catalog)
    assert group.members["m"].topic_names == {topic}


def test_upgraded_group_goes_on_with_generation_and_partitions(topics: FakeTopics) -> None:
    group, _ = upgraded(group_of(assignment(u=[1, 3], gone=[0]), rack_id="r"), topics.catalog)
    member, topic_id = group.members["m"], topics.catalog.topics["u"].topic_id
    assert (group.epoch, group.target_epoch, group.target_timestamp_ms) == (7, 7, 0)
    assert (member.epoch, member.rack_id) == (7, "r")
    assert member.assigned == {topic_id: {1: 7, 3: 7}}
    assert group.targets["m"] == {topic_id: {1, 3}}


@pytest.mark.parametrize(
    ("assigned", "why"),
    [(assignment(b"of an assignor"), "unsupported custom assignor"), (b"?", "is malformed")],
)
def test_group_that_cannot_be_understood_is_not_upgraded(
    topics: FakeTopics, assigned: bytes, why: str
) -> None:
    with pytest.raises(GroupIdNotFound, match=why):
        upgraded(group_of(assigned), topics.catalog)


def test_partitions_of_topics_that_exist_no_more_are_not_owned(topics: FakeTopics) -> None:
    owned = [TopicPartition(topic=name, partitions=[2]) for name in ("u", "gone")]
    said = ConsumerProtocolSubscription(topics=["u"], owned_partitions=owned)
    assert owned_by(said, topics.catalog) == {topics.catalog.topics["u"].topic_id: [2]}


@pytest.mark.parametrize(
    ("first", "version"),
    [(subscription("t", version=version), version) for version in range(4)]
    + [(b"\x00\x09" + subscription("t")[2:], 3)],
)
def test_assignment_is_written_in_the_version_of_the_member(
    topics: FakeTopics, first: bytes, version: int
) -> None:
    held = {topics.catalog.topics["t"].topic_id: {3, 1}, b"?" * 16: {0}}
    protocols = (("a", first), ("b", subscription("t", version=1)))
    written = encode_assignment(held, topics.catalog, protocols)
    assert int.from_bytes(written[:2], "big") == version
    read = decode_versioned(ConsumerProtocolAssignment, written)
    assert [(each.topic, each.partitions) for each in read.assigned_partitions] == [("t", [1, 3])]
