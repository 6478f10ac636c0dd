"""Groups whose members change from one protocol to the other, one by one."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import errors
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.protocol.codec import decode_versioned, encode_versioned
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolAssignment,
    JoinGroupResponse,
    TopicPartition,
)
from tests.broker.groups.kip848.requests import ConsumerGroupRequests
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import MemberOf, await_coordinator, subscription

NONE = 0
REBALANCE_IN_PROGRESS = errors.RebalanceInProgressError.errno
UNKNOWN_MEMBER_ID = errors.UnknownMemberIdError.errno
INCONSISTENT = errors.InconsistentGroupProtocolError.errno


def assignment(topic: str, *partitions: int) -> bytes:
    assigned = [TopicPartition(topic=topic, partitions=[*partitions])] if partitions else []
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=assigned), 0)


def assigned(data: bytes) -> list[int]:
    """Return the partitions of the only topic of an assignment."""
    topics = decode_versioned(ConsumerProtocolAssignment, bytes(data)).assigned_partitions
    return sorted(partition for topic in topics for partition in topic.partitions)


async def classic_member(
    group: ConsumerGroupRequests, topic: str, instance_id: str | None = None
) -> MemberOf:
    """Be the only member of a classic group that consumes all four partitions."""
    protocols = [("range", subscription(topic))]
    if instance_id is None:
        joined = await group.join_with_id(protocols=protocols)
    else:
        joined = await group.join(instance_id=instance_id, protocols=protocols)
    member = MemberOf(joined.member_id, joined.generation_id, instance_id)
    everything = assignment(topic, 0, 1, 2, 3)
    synced = await group.sync(member, {member.member_id: everything})
    assert synced.error_code == NONE
    return member


async def join_again(
    group: ConsumerGroupRequests, topic: str, member: MemberOf
) -> tuple[MemberOf, list[int]]:
    """Join with a known id, sync, and return what the member may consume."""
    protocols = [("range", subscription(topic))]
    joined = await group.join(member.member_id, instance_id=member.instance_id, protocols=protocols)
    assert joined.error_code == NONE
    again = MemberOf(joined.member_id, joined.generation_id, member.instance_id)
    synced = await group.sync(again)
    assert synced.error_code == NONE
    return again, assigned(synced.assignment)


async def kind(group: ConsumerGroupRequests) -> tuple[str, str]:
    listed = await group.listed()
    assert listed is not None
    return listed.group_type, listed.group_state


async def test_classic_group_is_upgraded_and_downgraded_while_it_has_members(
    group: ConsumerGroupRequests, topic: str
) -> None:
    old = await classic_member(group, topic)
    assert await group.commit(topic, 5, member=old) == NONE
    # One of the new protocol joins: the group changes, the old member's partitions stay its own.
    new = group.of("new", topics=[topic])
    answer = await new.join()
    assert (answer.error_code, answer.member_epoch) == (NONE, old.generation + 1)
    assert new.count == 0
    assert await kind(group) == ("consumer", "Reconciling")
    described = await group.described()
    assert {m.member_id: m.member_type for m in described.members} == {old.member_id: 0, "new": 1}
    # The old member is asked to join again, gives up two partitions, and joins once more.
    assert await group.heartbeat(old) == REBALANCE_IN_PROGRESS
    old, held = await join_again(group, topic, old)
    assert (old.generation, len(held)) == (2, 2)
    await new.beat()
    assert new.count == 2
    assert await group.heartbeat(old) == NONE
    assert await kind(group) == ("consumer", "Stable")
    assert await group.commit(topic, 6, member=old, partition=held[0]) == NONE
    wrong = MemberOf(old.member_id, old.generation + 1)
    illegal = errors.IllegalGenerationError.errno
    assert await group.heartbeat(wrong) == illegal
    assert await group.commit(topic, 6, member=wrong) == illegal
    assert (await group.sync(wrong)).error_code == illegal
    assert await group.heartbeat(MemberOf("new", 2)) == UNKNOWN_MEMBER_ID
    # The last member of the new protocol leaves: the group is a classic one again.
    assert (await new.leave()).error_code == NONE
    assert await kind(group) == ("classic", "PreparingRebalance")
    await group.leave((old.member_id, None))
    assert await kind(group) == ("classic", "Empty")
    assert (await group.fetch(topic, held[0])).committed_offset in (5, 6)


async def test_classic_members_join_a_consumer_group(
    group: ConsumerGroupRequests, topic: str
) -> None:
    new = group.of("new", topics=[topic])
    await new.join()
    protocols = [("range", subscription(topic)), ("roundrobin", subscription(topic))]
    asked = await group.join(protocols=protocols)
    assert asked.error_code == errors.MemberIdRequired.errno
    joined = await group.join(asked.member_id, protocols=protocols)
    assert (joined.error_code, joined.generation_id) == (NONE, 3)
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert (joined.leader, joined.members) == ("", [])
    old = MemberOf(joined.member_id, joined.generation_id)
    synced = await group.sync(old)
    assert (synced.error_code, assigned(synced.assignment)) == (NONE, [])
    assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert await group.heartbeat(old) == NONE  # others have its partitions yet
    await new.beat()
    await new.beat()
    assert new.count == 2
    assert await group.heartbeat(old) == REBALANCE_IN_PROGRESS
    old, held = await join_again(group, topic, old)
    assert len(held) == 2
    left = await group.leave((old.member_id, None), ("nobody", None))
    assert [each.error_code for each in left.members] == [NONE, UNKNOWN_MEMBER_ID]
    await group.settle(new)
    assert new.count == 4


async def test_static_member_changes_the_protocol_and_keeps_its_partitions(
    group: ConsumerGroupRequests, topic: str
) -> None:
    old = await classic_member(group, topic, "one")
    new = group.of("new", topics=[topic], instance_id="one")
    answer = await new.join()
    assert answer.error_code == NONE
    await group.settle(new)
    assert new.count == 4
    assert await kind(group) == ("consumer", "Stable")
    assert await group.heartbeat(old) == errors.FencedInstanceIdError.errno
    # And back: it is the only member, so the group is a classic one then.
    back = await group.join(instance_id="one", protocols=[("range", subscription(topic))])
    assert back.error_code == NONE
    assert (await kind(group))[0] == "classic"
    assert (await new.beat()).error_code == errors.GroupIdNotFound.errno


async def test_members_with_other_protocols_are_refused(
    group: ConsumerGroupRequests, topic: str
) -> None:
    old = await classic_member(group, topic)
    await group.of("new", topics=[topic]).join()
    asked = await group.join(protocols=[("other", subscription(topic))])
    assert asked.error_code == INCONSISTENT
    asked = await group.join(protocols=[("range", subscription(topic))], protocol_type="connect")
    assert asked.error_code == INCONSISTENT
    wrong = await group.sync(MemberOf(old.member_id, 1), protocol="roundrobin")
    assert wrong.error_code == INCONSISTENT


async def test_group_of_something_else_is_not_upgraded(group: ConsumerGroupRequests) -> None:
    first = await group.join(protocol_type="connect", protocols=[("p", b"")])
    joined = await group.join(first.member_id, protocol_type="connect", protocols=[("p", b"")])
    assert joined.error_code == NONE
    answer = await group.of("new", topics=["t"]).join()
    assert answer.error_code == errors.GroupIdNotFound.errno
    assert answer.error_message == (
        f"Cannot upgrade classic group {group.group_id} to consumer group because the group does "
        f"not use the consumer embedded protocol."
    )


async def test_parked_members_join_the_upgraded_group(
    group: ConsumerGroupRequests, topic: str
) -> None:
    await classic_member(group, topic)
    protocols = [("range", subscription(topic))]
    asked = await group.join(protocols=protocols)

    async def parked() -> JoinGroupResponse:
        return await group.join(asked.member_id, protocols=protocols)

    joining = asyncio.create_task(parked())
    await group.until_state("PreparingRebalance")
    assert (await group.of("new", topics=[topic]).join()).error_code == NONE
    assert (await joining).error_code == REBALANCE_IN_PROGRESS
    again = await group.join(asked.member_id, protocols=protocols)
    assert again.error_code == NONE


# -- the embedded broker's settings -------------------------------------------------------------


async def served(policy: str) -> tuple[Broker, ConsumerGroupRequests, str]:
    broker = Broker(config=BrokerConfig(group_consumer_migration_policy=policy))
    await broker.start()
    kafka = KafkaHandle("embedded", broker.bootstrap_servers)
    await await_coordinator(kafka)
    return broker, ConsumerGroupRequests(kafka), await kafka.create_topic(partitions=4)


async def test_policy_keeps_groups_as_they_are() -> None:
    broker, group, topic = await served("disabled")
    await classic_member(group, topic)
    answer = await group.of("new", topics=[topic]).join()
    assert answer.error_code == errors.GroupIdNotFound.errno
    assert answer.error_message is not None
    assert "online upgrade is disabled" in answer.error_message
    other = ConsumerGroupRequests(group.kafka)
    await other.of("new", topics=[topic]).join()
    assert (await other.join(protocols=[("range", subscription(topic))])).error_code == INCONSISTENT
    await broker.stop()
    assert broker.failure is None


async def test_policy_upgrade_does_not_downgrade() -> None:
    broker, group, topic = await served("upgrade")
    old = await classic_member(group, topic)
    new = group.of("new", topics=[topic])
    await new.join()
    await new.leave()
    assert (await kind(group))[0] == "consumer"
    assert await group.heartbeat(old) == REBALANCE_IN_PROGRESS
    await broker.stop()
    assert broker.failure is None


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="bidirectional, upgrade, downgrade, disabled"):
        BrokerConfig(group_consumer_migration_policy="maybe")
