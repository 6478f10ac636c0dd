"""The records of share groups are those that Kafka writes for the same requests."""

from __future__ import annotations

from typing import get_args

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.groups.coordinator_log import (
    CoordinatorRecord,
    decode_record,
    encode_record,
)
from aiokafka_lite.broker.groups.share.group import ShareGroup
from aiokafka_lite.protocol.messages.coordinator_records import (
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataValue,
    OffsetCommitValue,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
)
from tests.broker.groups.share.requests import ShareGroupRequests, known_topic
from tests.broker.groups.written import decoded, written_about
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator


async def life_of_a_group(kafka: KafkaHandle) -> tuple[str, str, list[tuple[bytes, bytes | None]]]:
    """Return the group's id, its topic, and its records."""
    await await_coordinator(kafka)
    group = ShareGroupRequests(kafka)
    if kafka.kind == "real":
        await group.assign_at_once()
    topic = await known_topic(kafka)
    first, second = group.of("a", topic, rack_id="r"), group.of("b", topic)
    await first.join()
    await first.until(lambda: first.count == 4)
    await second.join()
    await first.beat()
    await second.beat(topics=[])
    await first.beat()
    await first.leave()
    await second.leave()
    assert await group.delete() == 0
    return group.group_id, topic, await written_about(kafka, group.group_id)


def plain(record: CoordinatorRecord, topic: str) -> object:
    """Return a record without what differs from broker to broker."""
    key = (type(record.key).__name__, getattr(record.key, "member_id", ""))
    match record.value:
        case None:
            return key, None
        case ShareGroupMetadataValue(epoch=epoch):
            return key, epoch
        case ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch):
            return key, epoch
        case ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics):
            # Kafka may keep a topic of which a member has lost all partitions.
            return key, [len(item.partitions) for item in topics if item.partitions]
        case ShareGroupCurrentMemberAssignmentValue() as value:
            held = [len(item.partitions) for item in value.assigned_partitions]
            return key, value.member_epoch, value.previous_member_epoch, value.state, held
        case ShareGroupMemberMetadataValue() as value:
            names = [name == topic for name in value.subscribed_topic_names]
            return key, value.rack_id, value.client_id, value.client_host, names
    raise AssertionError(record)


@pytest.mark.real_kafka
async def test_the_same_requests_leave_the_same_records(real_kafka: str) -> None:
    group_id, topic, written = await life_of_a_group(KafkaHandle("real", real_kafka))
    async with Broker() as broker:
        _, our_topic, ours = await life_of_a_group(
            KafkaHandle("embedded", broker.bootstrap_servers)
        )
    theirs = decoded(written)
    assert [plain(record, our_topic) for record in decoded(ours)] == [
        plain(record, topic) for record in theirs
    ]
    assert {type(record.key) for record in theirs} == {*get_args(ShareGroupKey)}
    for key, value in written:
        record = decode_record(key, value)
        assert record is not None
        assert encode_record(record) == (key, value)
    group = ShareGroup(group_id)
    states = []
    for stored in theirs:
        assert isinstance(stored.key, ShareGroupKey)
        if isinstance(stored.key, ShareGroupMetadataKey) and stored.value is None:
            break
        assert not isinstance(stored.value, OffsetCommitValue | GroupMetadataValue)
        group.replay(stored.key, stored.value)
        states.append(group.state.value)
    assert {*states} == {"Empty", "Stable"}
    assert group.is_empty
