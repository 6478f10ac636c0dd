"""Requests about one share group, by hand, with defaults for what tests do not care about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aiokafka_lite.protocol.messages.share import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from aiokafka_lite.protocol.messages.share_groups import DescribedGroup, ShareGroupDescribeRequest
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests


class ShareMember:
    """A member that sends heartbeats when it is told to, and remembers what it was told."""

    def __init__(
        self, group: ShareGroupRequests, member_id: str, topics: Sequence[str], rack_id: str | None
    ) -> None:
        self.group = group
        self.member_id = member_id
        self.topics = topics
        self.rack_id = rack_id
        self.epoch = 0
        self.held: dict[bytes, list[int]] = {}

    @property
    def count(self) -> int:
        """How many partitions it has."""
        return sum(len(partitions) for partitions in self.held.values())

    async def join(self) -> ShareGroupHeartbeatResponse:
        """Join, or join again."""
        return self._take(
            await self.group.beat(self.member_id, 0, topics=self.topics, rack_id=self.rack_id)
        )

    async def beat(self, topics: Sequence[str] | None = None) -> ShareGroupHeartbeatResponse:
        return self._take(await self.group.beat(self.member_id, self.epoch, topics=topics))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Send heartbeats until their answers have made something so."""
        for _ in range(300):
            if condition():
                return
            assert (await self.beat()).error_code == 0
            await asyncio.sleep(0.01)
        raise TimeoutError(f"member {self.member_id} does not get there")

    async def leave(self) -> ShareGroupHeartbeatResponse:
        return await self.group.beat(self.member_id, -1)

    def _take(self, answer: ShareGroupHeartbeatResponse) -> ShareGroupHeartbeatResponse:
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.held = {
                    item.topic_id: sorted(item.partitions)
                    for item in answer.assignment.topic_partitions
                }
        return answer


class ShareGroupRequests(GroupRequests):
    """Sends requests about a share group of its own."""

    type = "share"

    async def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: Sequence[str] | None = None,
        rack_id: str | None = None,
    ) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=member_id,
            member_epoch=epoch,
            rack_id=rack_id,
            subscribed_topic_names=None if topics is None else [*topics],
        )
        async with self.kafka.raw() as client:
            return await client.request(request)

    def of(self, member_id: str, *topics: str, rack_id: str | None = None) -> ShareMember:
        """Make a member that has not joined yet."""
        return ShareMember(self, member_id, topics, rack_id)

    async def described(self, *, operations: bool = False) -> DescribedGroup:
        request = ShareGroupDescribeRequest(
            group_ids=[self.group_id], include_authorized_operations=operations
        )
        async with self.kafka.raw() as client:
            (group,) = (await client.request(request)).groups
        return group


async def known_topic(kafka: KafkaHandle, partitions: int = 4) -> str:
    """Create a topic; a real Kafka's coordinator gets to know it later than its leaders do."""
    topic = await kafka.create_topic(partitions=partitions)
    if kafka.kind == "real":
        probe = ShareGroupRequests(kafka)
        await probe.assign_at_once()
        member = probe.of("probe", topic)
        await member.join()
        await member.until(lambda: member.count == partitions)
        await member.leave()
        await probe.delete()
    return topic
