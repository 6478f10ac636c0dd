"""Requests of a share group's members, by hand, with defaults for what tests do not care about."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, TypeAlias

from aiokafka_lite._compat import Self
from aiokafka_lite.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from aiokafka_lite.protocol.messages.share import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from aiokafka_lite.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from tests.broker.wire import topic_id
from tests.support.cluster import KafkaHandle, unique
from tests.support.wire import RawClient

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
GROUP_RESOURCE = 32
NO_ERROR = 0
NOT_READY = (14, 15, 16)  # what a coordinator answers while it loads

Acks: TypeAlias = Sequence[tuple[int, int, "int | Sequence[int]"]]
"""First and last offset, and a type for all or one for each."""


def batches(acks: Acks) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(
            first_offset=first,
            last_offset=last,
            acknowledge_types=[types] if isinstance(types, int) else list(types),
        )
        for first, last, types in acks
    ]


class Acquired(NamedTuple):
    """What one fetch got: an error, or ranges (first offset, last offset, delivery count)."""

    ranges: list[tuple[int, int, int]]
    error_code: int = NO_ERROR
    ack_error_code: int = NO_ERROR
    records: bytes = b""


class ShareGroup:
    """A share group of a topic, whose members are `ShareMember`s."""

    def __init__(self, kafka: KafkaHandle, topic: str, id_of_topic: bytes) -> None:
        self.kafka = kafka
        self.topic = topic
        self.topic_id = id_of_topic
        self.group_id = unique("share")

    async def configure(self, **settings: str | int) -> None:
        """Set configs of the group: auto_offset_reset="earliest" is share.auto.offset.reset."""
        named = {f"share.{name.replace('_', '.')}": value for name, value in settings.items()}
        assert await self.alter(named) == NO_ERROR

    async def alter(self, settings: Mapping[str, str | int]) -> int:
        """Set configs of the group, and return the error code."""
        configs = [
            AlterableConfig(name=name, config_operation=0, value=str(value))
            for name, value in settings.items()
        ]
        resource = AlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=self.group_id, configs=configs
        )
        async with self.kafka.raw() as client:
            answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
        return answer.responses[0].error_code

    async def start(self, **settings: str | int) -> str:
        """Have the group's partitions initialised, by a member that stays. Return its id."""
        settings = {"auto_offset_reset": "earliest", "assignment_interval_ms": 0, **settings}
        await self.configure(**settings)
        member_id = str(uuid.uuid4())
        async with self.kafka.raw() as client:
            epoch = 0
            for _ in range(400):
                answer = await self.beat(
                    client, member_id, epoch, [self.topic] if not epoch else None
                )
                if answer.error_code in NOT_READY:
                    await asyncio.sleep(0.02)
                    continue
                assert answer.error_code == NO_ERROR, answer.error_message
                epoch = answer.member_epoch
                if answer.assignment is not None and answer.assignment.topic_partitions:
                    return member_id
                await asyncio.sleep(0.02)
        raise TimeoutError("the group gets no assignment")

    async def leave(self, member_id: str) -> None:
        """Let the member of `start` leave the group."""
        async with self.kafka.raw() as client:
            assert (await self.beat(client, member_id, -1)).error_code == NO_ERROR

    async def beat(
        self, client: RawClient, member_id: str, epoch: int, topics: list[str] | None = None
    ) -> ShareGroupHeartbeatResponse:
        return await client.request(
            ShareGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=member_id,
                member_epoch=epoch,
                subscribed_topic_names=topics,
            )
        )

    def member(self, address: str | None = None) -> ShareMember:
        return ShareMember(self, address or self.kafka.bootstrap_servers)


class ShareMember:
    """A share session at one node: use it in an `async with`, which has its connection."""

    def __init__(self, group: ShareGroup, address: str) -> None:
        self.group = group
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.client = RawClient(address)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.client.__aexit__(kind, error, traceback)

    async def ask(
        self,
        acks: Mapping[int, Acks] | None = None,
        *,
        epoch: int | None = None,
        partitions: Sequence[int] = (),
        forget: Sequence[int] = (),
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        max_records: int = 500,
        batch_size: int = 500,
        mode: int = 0,
        is_renew: bool = False,
        version: int = 2,
        topic_id: bytes | None = None,
    ) -> ShareFetchResponse:
        """Send a ShareFetch request as it is told."""
        acks = acks or {}
        wanted = topic_id or self.group.topic_id
        parts = [
            FetchPartition(
                partition_index=index, acknowledgement_batches=batches(acks.get(index, ()))
            )
            for index in (*partitions, *(index for index in acks if index not in partitions))
        ]
        used = self.epoch if epoch is None else epoch
        answer = await self.client.request(
            ShareFetchRequest(
                group_id=self.group.group_id,
                member_id=self.member_id,
                share_session_epoch=used,
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                max_records=max_records,
                batch_size=batch_size,
                share_acquire_mode=mode,
                is_renew_ack=is_renew,
                topics=[FetchTopic(topic_id=wanted, partitions=parts)] if parts else [],
                forgotten_topics_data=(
                    [ForgottenTopic(topic_id=wanted, partitions=list(forget))] if forget else []
                ),
            ),
            version,
        )
        if answer.error_code == NO_ERROR and epoch is None:
            self.epoch += 1
        return answer

    async def acknowledge_as_is(
        self,
        acks: Mapping[int, Acks],
        *,
        epoch: int | None = None,
        is_renew: bool = False,
        version: int = 2,
        topic_id: bytes | None = None,
    ) -> ShareAcknowledgeResponse:
        """Send a ShareAcknowledge request as it is told."""
        parts = [
            AcknowledgePartition(partition_index=index, acknowledgement_batches=batches(each))
            for index, each in acks.items()
        ]
        wanted = topic_id or self.group.topic_id
        answer = await self.client.request(
            ShareAcknowledgeRequest(
                group_id=self.group.group_id,
                member_id=self.member_id,
                share_session_epoch=self.epoch if epoch is None else epoch,
                is_renew_ack=is_renew,
                topics=[AcknowledgeTopic(topic_id=wanted, partitions=parts)] if parts else [],
            ),
            version,
        )
        if answer.error_code == NO_ERROR and epoch is None:
            self.epoch += 1
        return answer

    # One partition

    async def fetch(
        self, acks: Acks = (), *, partition: int = 0, max_wait_ms: int = 0, **how: int | bool
    ) -> Acquired:
        """Fetch one partition, and acknowledge records of it."""
        answer = await self.ask(
            {partition: acks} if acks else None,
            partitions=[partition],
            max_wait_ms=max_wait_ms,
            **how,  # type: ignore[arg-type]
        )
        if answer.error_code:
            return Acquired([], answer.error_code)
        return acquired(answer, partition)

    async def poll(self, acks: Acks = (), *, tries: int = 100, **how: int | bool) -> Acquired:
        """Fetch until there are records. A real broker initialises a share partition meanwhile."""
        for _ in range(tries):
            got = await self.fetch(acks, **how)
            acks = ()
            if got.ranges or got.error_code:
                return got
            await asyncio.sleep(0.02)
        return got

    async def acknowledge(
        self, *acks: tuple[int, int, int | Sequence[int]], is_renew: bool = False
    ) -> int:
        """Acknowledge records of partition 0, and return the error code."""
        answer = await self.acknowledge_as_is({0: acks}, is_renew=is_renew)
        if answer.error_code:
            return answer.error_code
        ((result,),) = (topic.partitions for topic in answer.responses)
        return result.error_code

    async def close(self) -> ShareAcknowledgeResponse:
        """Close the session, without the connection."""
        return await self.acknowledge_as_is({}, epoch=-1)


def answered(answer: ShareFetchResponse) -> dict[int, PartitionData]:
    return {data.partition_index: data for topic in answer.responses for data in topic.partitions}


def acquired(answer: ShareFetchResponse, partition: int = 0) -> Acquired:
    data = answered(answer).get(partition)
    if data is None:
        return Acquired([])
    return Acquired(
        [
            (each.first_offset, each.last_offset, each.delivery_count)
            for each in data.acquired_records
        ],
        data.error_code,
        data.acknowledge_error_code,
        bytes(data.records or b""),
    )


async def share_group(kafka: KafkaHandle, partitions: int = 1, **configs: str) -> ShareGroup:
    """Return a group of a new topic."""
    topic = await kafka.create_topic(None, partitions, configs)
    async with kafka.raw() as client:
        return ShareGroup(kafka, topic, await topic_id(client, topic))


async def produce(group: ShareGroup, *counts: int, partition: int = 0) -> None:
    """Produce batches of so many records."""
    for count in counts:
        rows = [(None, b"%d" % number) for number in range(count)]
        await group.kafka.produce(group.topic, partition, rows)
