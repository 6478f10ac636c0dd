"""A coordinator whose members do what a test says, in invented time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiokafka_lite.broker.groups.classic.members import GroupClient, Join
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.coordinator_log import ErrorType
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.machine import ConsumerGroupSettings
from aiokafka_lite.protocol.codec import decode_versioned, encode_versioned
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    JoinGroupResponse,
    SyncGroupResponse,
    TopicPartition,
    TopicPartitions,
)
from tests.broker.groups.fakes import Services, elect_all, sync_call

CLIENT = GroupClient("c", "/h")
SESSION_S = 45
REBALANCE_MS = 60_000


class Reply(NamedTuple):
    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assigned: Mapping[bytes, Sequence[int]] | None = None


class Driven:
    """A coordinator whose members do what a test says, in invented time."""

    def __init__(self, settings: ConsumerGroupSettings | None = None) -> None:
        self.services = Services()
        self.services.consumer_settings = settings or ConsumerGroupSettings()
        self.topics = self.services.topics
        self.topic_id = self.topics.create("t", 4)
        self.coordinator = GroupCoordinator(self.services)
        elect_all(self.coordinator, self.services)
        self.held: dict[str, Mapping[bytes, Sequence[int]]] = {}
        self.epochs: dict[str, int] = {}

    @property
    def group(self) -> ConsumerGroup:
        group = self.coordinator.groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group

    @property
    def state(self) -> str:
        return self.group.state.value

    def count(self, member_id: str) -> int:
        return sum(map(len, self.held[member_id].values()))

    def join(
        self,
        member_id: str,
        *topics: str,
        instance_id: str | None = None,
        regex: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
    ) -> Reply:
        self.held[member_id] = {}
        names = topics or (() if regex else ("t",))
        return self._send(
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=member_id,
                instance_id=instance_id,
                rebalance_timeout_ms=rebalance_ms,
                subscribed_topic_names=[*names],
                subscribed_topic_regex=regex,
                topic_partitions=[],
            )
        )

    def beat(
        self,
        member_id: str,
        *,
        owned: bool = True,
        topics: Sequence[str] | None = None,
        regex: str | None = None,
    ) -> Reply:
        """Send a heartbeat; one that does not say what it owns has not revoked anything yet."""
        held = self.held[member_id] if owned else None
        return self._send(
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=member_id,
                member_epoch=self.epochs[member_id],
                subscribed_topic_names=None if topics is None else [*topics],
                subscribed_topic_regex=regex,
                topic_partitions=None
                if held is None
                else [
                    TopicPartitions(topic_id=topic_id, partitions=[*partitions])
                    for topic_id, partitions in held.items()
                ],
            )
        )

    def leave(self, member_id: str, epoch: int = -1, *, instance_id: str | None = None) -> None:
        beat = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, instance_id=instance_id
        )
        self.coordinator.consumer_group_heartbeat(beat, CLIENT)

    def settle(self, *member_ids: str) -> None:
        for _ in range(20):
            for member_id in member_ids:
                self.beat(member_id)
        assert self.state == "Stable"

    def _send(self, beat: ConsumerGroupHeartbeatRequest) -> Reply:
        answer = self.coordinator.consumer_group_heartbeat(beat, CLIENT)
        reply = Reply(answer.member_id or "", answer.member_epoch, answer.heartbeat_interval_ms)
        self.epochs[reply.member_id] = reply.epoch
        if answer.assignment is None:
            return reply
        topics = answer.assignment.topic_partitions
        self.held[reply.member_id] = {topic.topic_id: topic.partitions for topic in topics}
        return reply._replace(assigned=self.held[reply.member_id])

    def log_size(self) -> int:
        """Return how many batches the log of the group has."""
        return len(self.services.partition("", self.coordinator.partition_for("g")).batches)

    # -- members of the classic protocol ---------------------------------------------------------

    async def classic_join(
        self,
        member_id: str = "",
        *,
        owned: Sequence[int] = (),
        instance_id: str | None = None,
        rack_id: str | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = REBALANCE_MS,
    ) -> JoinGroupResponse:
        """Join with a subscription to the topic."""
        subscription = ConsumerProtocolSubscription(
            topics=["t"],
            owned_partitions=[TopicPartition(topic="t", partitions=[*owned])],
            rack_id=rack_id,
        )
        call = Join(
            "consumer", (("range", encode_versioned(subscription, 3)),), session_ms, rebalance_ms,
            member_id, instance_id, needs_known_member_id=False,
        )  # fmt: skip
        return await self.coordinator.join("g", call)

    async def classic_sync(
        self,
        joined: JoinGroupResponse,
        *,
        instance_id: str | None = None,
        assigned: Sequence[int] = (),
    ) -> SyncGroupResponse:
        """Sync after a join, as the leader with an assignment for itself."""
        topics = [TopicPartition(topic="t", partitions=[*assigned])]
        assignment = encode_versioned(ConsumerProtocolAssignment(assigned_partitions=topics), 1)
        assignments = {joined.member_id: assignment} if assigned else {}
        call = sync_call(
            joined.member_id, joined.generation_id, instance_id, "consumer", "range", assignments
        )
        return await self.coordinator.sync(call)

    def classic_heartbeat(
        self, joined: JoinGroupResponse, instance_id: str | None = None
    ) -> ErrorType:
        return self.coordinator.heartbeat("g", joined.member_id, instance_id, joined.generation_id)

    async def close(self) -> None:
        await self.coordinator.close()
        await self.services.scope.close()


def assigned_by(synced: SyncGroupResponse) -> list[int]:
    """Return the partitions of the topic in an assignment."""
    found = decode_versioned(ConsumerProtocolAssignment, synced.assignment).assigned_partitions
    return sorted(partition for topic in found for partition in topic.partitions)
