"""The records of groups of KIP-848 are those that Kafka writes for the same requests."""

from __future__ import annotations

import asyncio
from typing import TypeAlias, get_args

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.groups.coordinator_log import (
    CoordinatorLog,
    CoordinatorRecord,
    decode_record,
    encode_record,
)
from aiokafka_lite.broker.groups.kip848.group import (
    NOT_OWNED,
    ConsumerGroup,
    ConsumerGroupMember,
)
from aiokafka_lite.protocol.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TopicPartitions,
)
from tests.broker.groups.kip848.driven import Driven
from tests.broker.groups.kip848.requests import ConsumerGroupRequests, known_topic
from tests.broker.groups.written import decoded, written_about
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator


async def life_of_a_group(group: ConsumerGroupRequests, topic: str) -> None:
    """Have members come, share, return and go, in steps that leave no room for chance."""
    first = group.of("a", topics=[topic], instance_id="one", rack_id="r")
    await first.join()
    second = group.of("b", topics=[topic], assignor="range")
    await second.join()
    await first.beat()
    await first.beat()
    await second.beat()
    await first.leave(-2)
    heir = group.of("c", topics=[topic], instance_id="one", rack_id="r")
    await heir.join()
    await second.leave()
    await heir.beat()
    third = group.of("d", topics=[], regex=f"{topic}|x")
    await third.join()
    await group.until(lambda described: described.group_epoch == 5)  # the topics are found
    for member in (heir, heir, third, third):
        await member.beat()
    await heir.leave()
    await third.leave()
    assert await group.delete() == 0


def plain(record: CoordinatorRecord, topic: str) -> object:
    """Return a record without what differs from broker to broker."""
    key = (type(record.key).__name__, getattr(record.key, "member_id", ""))
    match record.value:
        case None:
            return key, None
        case ConsumerGroupMetadataValue(epoch=epoch):
            return key, epoch
        case ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch):
            return key, epoch
        case ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics):
            return key, [item.partitions for item in topics]
        case ConsumerGroupCurrentMemberAssignmentValue() as value:
            parts = (value.assigned_partitions, value.partitions_pending_revocation)
            held = [[(i.partitions, i.assignment_epochs) for i in items] for items in parts]
            return key, value.member_epoch, value.previous_member_epoch, value.state, held
        case ConsumerGroupRegularExpressionValue(topics=topics):
            return key, [name == topic for name in topics]
        case ConsumerGroupMemberMetadataValue() as value:
            names = [name == topic for name in value.subscribed_topic_names]
            return key, value.instance_id, value.rack_id, value.client_id, value.client_host, names
    raise AssertionError(record)


async def lived(kafka: KafkaHandle) -> Theirs:
    await await_coordinator(kafka)
    group = ConsumerGroupRequests(kafka)
    if kafka.kind == "real":
        await group.assign_at_once()
    topic = await known_topic(kafka)
    await life_of_a_group(group, topic)
    return group.group_id, topic, await written_about(kafka, group.group_id)


Theirs: TypeAlias = "tuple[str, str, list[tuple[bytes, bytes | None]]]"


@pytest.fixture(scope="module")
def theirs(real_kafka: str) -> Theirs:
    """A group's id, its topic and its records, as a real Kafka has them."""
    return asyncio.run(lived(KafkaHandle("real", real_kafka)))


@pytest.mark.real_kafka
async def test_the_same_requests_leave_the_same_records(theirs: Theirs) -> None:
    _, topic, written = theirs
    async with Broker() as broker:
        _, our_topic, ours = await lived(KafkaHandle("embedded", broker.bootstrap_servers))
    expected = [plain(record, topic) for record in decoded(written)]
    assert len(expected) > 40
    assert [plain(record, our_topic) for record in decoded(ours)] == expected


@pytest.mark.real_kafka
def test_kafkas_records_are_written_back_byte_by_byte(theirs: Theirs) -> None:
    _, _, written = theirs
    kinds = set()
    for key, value in written:
        record = decode_record(key, value)
        assert record is not None
        kinds.add(type(record.key))
        assert encode_record(record) == (key, value)
    assert kinds == {*get_args(ConsumerGroupKey)}


@pytest.mark.real_kafka
def test_groups_that_kafka_stored_are_restored(theirs: Theirs) -> None:
    group_id, _, written = theirs
    group = ConsumerGroup(group_id)
    seen: list[str] = []
    for key, value, _ in decoded(written):
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            break
        assert not isinstance(key, OffsetCommitKey | GroupMetadataKey)
        assert not isinstance(value, OffsetCommitValue | GroupMetadataValue)
        group.replay(key, value)
        if group.state.value not in seen[-1:]:
            seen.append(group.state.value)
    assert group.members == {}
    assert {"Assigning", "Reconciling", "Stable", "Empty"} <= {*seen}


def test_partition_stays_with_the_newer_epoch_of_two_members_that_claim_it() -> None:
    """A log that is compacted while it is read lacks records: KAFKA-19862."""
    group, topic_id = ConsumerGroup("g"), bytes(16)

    def assign(member_id: str, epoch: int, *partitions: int) -> None:
        group.replay(
            ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=member_id),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=epoch,
                previous_member_epoch=epoch - 1,
                state=0,
                assigned_partitions=[TopicPartitions(topic_id=topic_id, partitions=[*partitions])],
                partitions_pending_revocation=[],
            ),
        )

    assign("a", 5, 0)  # the record that "a" has revoked it is missing
    assign("b", 6, 0)
    assign("c", 4, 0)
    assert group.held_in(topic_id, 0) == 6
    assign("a", 7, 1)
    assert [group.held_in(topic_id, partition) for partition in (0, 1)] == [6, 7]
    assign("b", 8)
    assert group.held_in(topic_id, 0) == NOT_OWNED


def test_static_id_stays_with_the_successor_when_the_former_member_is_removed_later() -> None:
    group = ConsumerGroup("g")
    for member_id in "ab":
        record = group.member_record(ConsumerGroupMember(member_id, instance_id="one"))
        group.replay(record.key, record.value)  # type: ignore[arg-type]
    for record in group.member_tombstones("a"):
        group.replay(record.key, None)  # type: ignore[arg-type]
    former = group.static_member("one")
    assert former is not None
    assert former.member_id == "b"


@pytest.mark.parametrize(("epoch", "since"), [(5, 5), (-2, 0)])
@pytest.mark.parametrize("epochs", [None, [1]])
def test_partitions_without_epochs_are_held_since_the_members_own(
    epoch: int, since: int, epochs: list[int] | None
) -> None:
    group = ConsumerGroup("g")
    held = TopicPartitions(topic_id=bytes(16), partitions=[0, 3], assignment_epochs=epochs)
    group.replay(
        ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="a"),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=epoch,
            previous_member_epoch=epoch,
            state=0,
            assigned_partitions=[held],
            partitions_pending_revocation=[],
        ),
    )
    assert group.members["a"].assigned == {bytes(16): {0: since, 3: since}}


async def test_record_of_brokers_before_4_1_is_removed_with_the_next_subscription() -> None:
    driven = Driven()
    driven.join("a")
    key = ConsumerGroupPartitionMetadataKey(group_id="g")
    driven.group.replay(key, ConsumerGroupPartitionMetadataValue(topics=[]))
    driven.join("b")
    partition = driven.coordinator.partition_for("g")
    log = CoordinatorLog(
        lambda index: driven.services.partition("", index),
        partition_count=lambda: 2,
        clock=lambda: 0,
    )
    driven.join("c")
    written = [record[:2] for chunk in log.read(partition) for record in chunk]
    assert written.count((key, None)) == 1
    await driven.close()
