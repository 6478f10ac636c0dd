"""Requests about one group, by hand, with defaults for what a test does not care about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol.codec import encode_versioned
from aiokafka_lite.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from aiokafka_lite.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    ListedGroup,
    ListGroupsRequest,
)
from aiokafka_lite.protocol.messages.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
)
from tests.support.cluster import KafkaHandle, unique

COMMIT_BY_NAME = 9
FETCH_BY_NAME = 9
MEMBER_ID_REQUIRED = 79
GROUP_RESOURCE = 32


class MemberOf(NamedTuple):
    """A member that is in a stable group."""

    member_id: str
    generation: int
    instance_id: str | None = None


def subscription(*topics: str) -> bytes:
    """What a consumer says about the topics it wants."""
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 0)


async def await_coordinator(kafka: KafkaHandle) -> None:
    """Have the cluster make its offsets topic, and wait until all of it is loaded."""
    find = FindCoordinatorRequest(coordinator_keys=["any"])
    # Enough groups to meet every partition of a small offsets topic.
    fetch = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=f"ready-{n}", topics=None) for n in range(64)]
    )
    async with kafka.raw() as client:
        for _ in range(200):
            if (await client.request(find)).coordinators[0].error_code == 0:
                answers = (await client.request(fetch)).groups
                if not any(group.error_code for group in answers):
                    return
            await asyncio.sleep(0.05)
    raise TimeoutError("nobody coordinates groups")


@asynccontextmanager
async def embedded_or_real(
    request: pytest.FixtureRequest,
    until_ready: Callable[[KafkaHandle], Awaitable[None]] = await_coordinator,
) -> AsyncIterator[KafkaHandle]:
    """Run a fresh embedded broker, or use the run's real Kafka, as a fixture's parameter says."""
    if request.param == "real":
        handle = KafkaHandle("real", request.getfixturevalue("real_kafka"))
        await until_ready(handle)
        yield handle
        return
    async with Broker() as broker:
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        await until_ready(handle)
        yield handle
    assert broker.failure is None


class GroupRequests:
    """Sends requests about a group of its own; each parked one has its own connection."""

    type = "consumer"

    def __init__(self, kafka: KafkaHandle, group_id: str | None = None) -> None:
        self.kafka = kafka
        self.group_id = unique("group") if group_id is None else group_id

    async def join(
        self,
        member_id: str = "",
        *,
        version: int = 9,
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 30_000,
        rebalance_ms: int = 30_000,
    ) -> JoinGroupResponse:
        if protocols is None:
            protocols = [("range", subscription("some-topic"))]
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols],
        )
        async with self.kafka.raw() as client:
            return await client.request(request, version)

    async def join_with_id(
        self, *, protocols: Sequence[tuple[str, bytes]] | None = None
    ) -> JoinGroupResponse:
        """Get an id and join with it, as clients do since KIP-394."""
        refused = await self.join(protocols=protocols)
        assert refused.error_code == MEMBER_ID_REQUIRED
        return await self.join(refused.member_id, protocols=protocols)

    async def sync(
        self,
        member: MemberOf,
        assignments: Mapping[str, bytes] | None = None,
        *,
        version: int = 5,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=key, assignment=value)
                for key, value in (assignments or {}).items()
            ],
        )
        async with self.kafka.raw() as client:
            return await client.request(request, version)

    async def member(
        self,
        instance_id: str | None = None,
        *,
        protocols: Sequence[tuple[str, bytes]] | None = None,
    ) -> MemberOf:
        """Be the only member of a stable group."""
        if instance_id is None:
            joined = await self.join_with_id(protocols=protocols)
        else:
            joined = await self.join(instance_id=instance_id, protocols=protocols)
        assert joined.error_code == 0
        member = MemberOf(joined.member_id, joined.generation_id, instance_id)
        synced = await self.sync(member, {member.member_id: b"all"}, protocol=joined.protocol_name)
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
        return member

    async def heartbeat(self, member: MemberOf, *, version: int = 4) -> int:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
        )
        async with self.kafka.raw() as client:
            return (await client.request(request, version)).error_code

    async def leave(self, *members: tuple[str, str | None], version: int = 5) -> LeaveGroupResponse:
        request = LeaveGroupRequest(
            group_id=self.group_id,
            members=[MemberIdentity(member_id=m, group_instance_id=i) for m, i in members],
        )
        async with self.kafka.raw() as client:
            return await client.request(request, version)

    async def commit(
        self,
        topic: str,
        offset: int,
        *,
        member: MemberOf | None = None,
        partition: int = 0,
        leader_epoch: int = -1,
        metadata: str | None = "",
        version: int = COMMIT_BY_NAME,
        retention_ms: int = -1,
    ) -> int:
        """Commit one offset and return the error code."""
        member = member or MemberOf("", -1)
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=leader_epoch,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )
        async with self.kafka.raw() as client:
            answer = await client.request(request, version)
        return answer.topics[0].partitions[0].error_code

    async def fetch(self, topic: str, partition: int = 0) -> OffsetFetchResponsePartitions:
        """Return what the group has committed for one partition."""
        wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self.group_id, topics=[wanted])]
        )
        async with self.kafka.raw() as client:
            answer = await client.request(request, FETCH_BY_NAME)
        assert answer.groups[0].error_code == 0
        return answer.groups[0].topics[0].partitions[0]

    async def listed(self) -> ListedGroup | None:
        """Return the group's line of ListGroups."""
        async with self.kafka.raw() as client:
            answer = await client.request(ListGroupsRequest())
        assert answer.error_code == 0
        return next((g for g in answer.groups if g.group_id == self.group_id), None)

    async def describe(self) -> DescribedGroup:
        """Return what DescribeGroups says about the group."""
        async with self.kafka.raw() as client:
            answer = await client.request(DescribeGroupsRequest(groups=[self.group_id]))
        return answer.groups[0]

    async def delete(self) -> int:
        """Delete the group and return the error code."""
        async with self.kafka.raw() as client:
            answer = await client.request(DeleteGroupsRequest(groups_names=[self.group_id]))
        return answer.results[0].error_code

    async def assign_at_once(self) -> None:
        """Have a real Kafka compute assignments whenever there is a reason to (KIP-1263)."""
        setting = AlterableConfig(
            name=f"{self.type}.assignment.interval.ms", config_operation=0, value="0"
        )
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=GROUP_RESOURCE, resource_name=self.group_id, configs=[setting]
                )
            ]
        )
        async with self.kafka.raw() as client:
            (result,) = (await client.request(request)).responses
        assert result.error_code == 0, result.error_message

    async def topic_id(self, topic: str) -> bytes:
        """Return a topic's id."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        async with self.kafka.raw() as client:
            (found,) = (await client.request(request)).topics
        assert found.error_code == 0
        return found.topic_id

    async def until_state(self, state: str) -> None:
        """Wait until the group is in a state, say because a parked request has arrived."""
        for _ in range(500):
            listed = await self.listed()
            if listed is not None and listed.group_state == state:
                return
            await asyncio.sleep(0.01)
        raise TimeoutError(f"{self.group_id} did not become {state}")
