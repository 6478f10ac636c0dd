"""Requests about one group of KIP-848, by hand, with defaults for what tests do not care about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from typing_extensions import Unpack

from aiokafka_lite.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    DescribedGroup,
)
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests

Held = Mapping[bytes, Sequence[int]]


class Said(TypedDict, total=False):
    """What a heartbeat may say; what is left out is as before."""

    topics: Sequence[str] | None
    regex: str | None
    owned: Held | None
    instance_id: str | None
    rack_id: str | None
    rebalance_ms: int
    assignor: str | None


class Member:
    """A member that sends heartbeats when it is told to, and remembers what it was told."""

    def __init__(
        self, group: ConsumerGroupRequests, member_id: str, **joined: Unpack[Said]
    ) -> None:
        self.group = group
        self.member_id = member_id
        self.joined = joined
        self.epoch = 0
        self.held: dict[bytes, list[int]] = {}

    @property
    def count(self) -> int:
        """How many partitions it has."""
        return sum(len(partitions) for partitions in self.held.values())

    async def join(self) -> ConsumerGroupHeartbeatResponse:
        """Join, or join again."""
        self.epoch, self.held = 0, {}
        return self._take(await self.group.beat(self.member_id, 0, **self.joined))

    async def beat(self, **said: Unpack[Said]) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat that says what the member has."""
        said.setdefault("owned", self.held)
        if "instance_id" in self.joined:
            said.setdefault("instance_id", self.joined["instance_id"])
        return self._take(await self.group.beat(self.member_id, self.epoch, **said))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Send heartbeats until their answers have made something so."""
        for _ in range(200):
            if condition():
                return
            assert (await self.beat()).error_code == 0
            await asyncio.sleep(0.01)
        raise TimeoutError(f"member {self.member_id} does not get there")

    async def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        """Leave; with the epoch -2 only for now."""
        return await self.group.beat(
            self.member_id, epoch, instance_id=self.joined.get("instance_id")
        )

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.held = {
                    item.topic_id: sorted(item.partitions)
                    for item in answer.assignment.topic_partitions
                }
        return answer


class ConsumerGroupRequests(GroupRequests):
    """Sends requests about a group of its own."""

    async def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        version: int = 1,
        topics: Sequence[str] | None = None,
        regex: str | None = None,
        owned: Held | None = None,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_ms: int = -1,
        assignor: str | None = None,
    ) -> ConsumerGroupHeartbeatResponse:
        if epoch == 0:
            rebalance_ms = 30_000 if rebalance_ms == -1 else rebalance_ms
            owned = {} if owned is None else owned
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance_id,
            rack_id=rack_id,
            rebalance_timeout_ms=rebalance_ms,
            subscribed_topic_names=None if topics is None else [*topics],
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [TopicPartitions(topic_id=t, partitions=[*held]) for t, held in owned.items()],
        )
        async with self.kafka.raw() as client:
            return await client.request(request, version)

    def of(self, member_id: str, **joined: Unpack[Said]) -> Member:
        """Make a member that has not joined yet."""
        return Member(self, member_id, **joined)

    async def settle(self, *members: Member) -> None:
        """Have members send heartbeats until the group is stable."""
        for _ in range(100):
            for member in members:
                answer = await member.beat()
                assert answer.error_code == 0, answer
            if (await self.described()).group_state == "Stable":
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"{self.group_id} does not become stable")

    async def until(self, condition: Callable[[DescribedGroup], bool]) -> None:
        """Wait until the group has got somewhere by itself."""
        for _ in range(500):
            if condition(await self.described()):
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"{self.group_id} does not get there")

    async def described(self, version: int = 1, *, operations: bool = False) -> DescribedGroup:
        """Describe the group."""
        request = ConsumerGroupDescribeRequest(
            group_ids=[self.group_id], include_authorized_operations=operations
        )
        async with self.kafka.raw() as client:
            (group,) = (await client.request(request, version)).groups
        return group


async def known_topic(kafka: KafkaHandle, partitions: int = 4) -> str:
    """Create a topic; a real Kafka's coordinator gets to know it later than its leaders do."""
    topic = await kafka.create_topic(partitions=partitions)
    if kafka.kind == "real":
        probe = ConsumerGroupRequests(kafka)
        await probe.assign_at_once()
        member = probe.of("probe", topics=[topic])
        await member.join()
        await member.until(lambda: member.count == partitions)
        await member.leave()
        await probe.delete()
    return topic
