"""A leader survives what other members say of themselves, be it unreadable or absurd."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from aiokafka_lite.consumer.assignors import (
    AbstractPartitionAssignor,
    ConsumerProtocolMemberMetadata,
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
)
from aiokafka_lite.consumer.assignors.blobs import decode_assignment, encode_subscription
from aiokafka_lite.consumer.assignors.sticky import StickyPartitionAssignor
from aiokafka_lite.errors import MemberIdRequired
from aiokafka_lite.protocol.codec import encode
from aiokafka_lite.protocol.messages.group_members import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    StickyUserData,
    SyncGroupRequest,
)
from aiokafka_lite.protocol.messages.group_members import TopicPartition as PreviousShare
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import tps
from tests.support.waiting import PATIENCE_S, until
from tests.support.wire import RawClient
from tests.support.worker import Worker

ASSIGNORS: Final = [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]

UNREADABLE: Final = [b"", b"\x00"]
# Kafka's own coordinator completes no rebalance (UNKNOWN_SERVER_ERROR) while a member says that it
# wants more topics than it has sent bytes: that, and the like, reaches no leader there.
WORSE: Final = [
    b"\x00\x00\x7f\xff\xff\xff",  # more topics than bytes
    b"\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00",  # a negative number of them
    b"\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00",  # no such version
    b"\x00\x00\x00\x00\x00\x01\x00\x02\xff\xfe\x00\x00\x00\x00",  # no UTF-8
]


class RawMember:
    """A member by hand that says whatever it likes."""

    def __init__(self, client: RawClient, group_id: str, assignor: str, says: bytes) -> None:
        self._client = client
        self._group_id = group_id
        self._protocol = JoinGroupRequestProtocol(name=assignor, metadata=says)
        self.member_id = ""

    async def join(self) -> JoinGroupResponse:
        while True:
            joined = await self._client.request(
                JoinGroupRequest(
                    group_id=self._group_id,
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    member_id=self.member_id,
                    protocol_type="consumer",
                    protocols=[self._protocol],
                )
            )
            self.member_id = joined.member_id
            if joined.error_code != MemberIdRequired.errno:
                assert not joined.error_code
                return joined

    async def share(self, topic: str) -> set[TopicPartition]:
        """Join, and return what the leader gives of a topic."""
        joined = await asyncio.wait_for(self.join(), PATIENCE_S)
        assert joined.leader != self.member_id
        synced = await self._client.request(
            SyncGroupRequest(
                group_id=self._group_id,
                generation_id=joined.generation_id,
                member_id=self.member_id,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol_name,
            )
        )
        assert not synced.error_code
        return set(decode_assignment(synced.assignment, frozenset({topic})).partitions())

    async def leave(self) -> None:
        member = MemberIdentity(member_id=self.member_id)
        await self._client.request(LeaveGroupRequest(group_id=self._group_id, members=[member]))


def leader_of(
    kafka: KafkaHandle, group_id: str, topic: str, assignor: type[AbstractPartitionAssignor]
) -> Worker:
    settings = {"partition_assignment_strategy": (assignor,)}
    return Worker(kafka.bootstrap_servers, group_id, [topic], settings)


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_a_peer_whose_subscription_is_unreadable_gets_nothing(
    kafka: KafkaHandle, assignor: type[AbstractPartitionAssignor]
) -> None:
    topic, group_id = await kafka.create_topic(partitions=4), unique("g")
    everything = tps(topic, 0, 1, 2, 3)
    async with leader_of(kafka, group_id, topic, assignor) as leader, kafka.raw() as client:
        for says in UNREADABLE + (WORSE if kafka.kind == "embedded" else []):
            peer = RawMember(client, group_id, str(assignor.name), says)
            assert await peer.share(topic) == set()
            await until(lambda: leader.membership.is_settled, leader)
            assert leader.partitions == everything
            await peer.leave()
        assert not leader.errors


@pytest.mark.real_if_long
@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_topics_that_cannot_be_or_are_named_twice_disturb_nobody(
    kafka: KafkaHandle, assignor: type[AbstractPartitionAssignor]
) -> None:
    topic, group_id = await kafka.create_topic(partitions=4), unique("g")
    absurd = ["", "no such name!", "x" * 300, "..", topic, topic]
    says = encode_subscription(ConsumerProtocolMemberMetadata(0, absurd))
    async with leader_of(kafka, group_id, topic, assignor) as leader, kafka.raw() as client:
        peer = RawMember(client, group_id, str(assignor.name), says)
        given = await peer.share(topic)
        await until(lambda: leader.membership.is_settled, leader)
        assert len(given) == len(leader.partitions) == 2
        assert given | leader.partitions == tps(topic, 0, 1, 2, 3)
        await peer.leave()
        await until(lambda: len(leader.partitions) == 4, leader)
        assert not leader.errors


@pytest.mark.real_if_long
@pytest.mark.parametrize(
    "claimed",
    [[-1, -5], [2**31 - 1], [0, 0, 0, 1, 1, 2, 3], None],
    ids=["negative", "beyond the last", "all, and twice", "unreadable"],
)
async def test_what_a_peer_claims_to_have_is_believed_within_reason(
    kafka: KafkaHandle, claimed: list[int] | None
) -> None:
    topic, group_id = await kafka.create_topic(partitions=4), unique("g")
    user_data = b"\xff\xff\xff"
    if claimed is not None:
        shares = [PreviousShare(topic=topic, partitions=claimed)] * 2
        said = StickyUserData(previous_assignment=shares, generation=2**31 - 1)
        user_data = bytes(encode(said, 1))
    says = encode_subscription(ConsumerProtocolMemberMetadata(0, [topic], user_data))
    assignor = StickyPartitionAssignor
    async with leader_of(kafka, group_id, topic, assignor) as leader, kafka.raw() as client:
        peer = RawMember(client, group_id, str(assignor.name), says)
        given = await peer.share(topic)
        await until(lambda: leader.membership.is_settled, leader)
        assert len(given) == len(leader.partitions) == 2
        assert given | leader.partitions == tps(topic, 0, 1, 2, 3)
        await peer.leave()
