"""A handle on the cluster a test runs against, the same for the embedded and the real one."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from aiokafka_lite import records
from aiokafka_lite.errors import for_code
from aiokafka_lite.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseBroker,
    MetadataResponsePartition,
)
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.support.wire import RawClient

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
KeyValue: TypeAlias = tuple[bytes | None, bytes | None]

# The last version that names topics instead of giving ids.
PRODUCE_BY_NAME = 12
LATEST = -1  # the ListOffsets timestamp of the log's end

_counter = itertools.count(1)


def unique(prefix: str) -> str:
    """A name that no other test, run or process uses."""
    return f"{prefix}-{os.getpid()}-{time.time_ns() % 10**9}-{next(_counter)}"


class KafkaHandle:
    """What tests ask of a cluster: its address, topics, records."""

    def __init__(self, kind: Literal["embedded", "real"], bootstrap_servers: str) -> None:
        self.kind = kind
        self.bootstrap_servers = bootstrap_servers
        self._created: list[str] = []

    def raw(self) -> RawClient:
        """A connection for requests by hand; use it in an `async with`."""
        return RawClient(self.bootstrap_servers)

    async def create_topic(
        self,
        name: str | None = None,
        partitions: int = 1,
        configs: dict[str, str] | None = None,
        *,
        replicas: Sequence[int] = (),
    ) -> str:
        """Create a topic (of a unique name by default), wait for its leaders, return its name.

        Where there are `replicas`, each partition is on these nodes, and the first of them leads.
        """
        name = name or unique("topic")
        settings = [CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()]
        topic = CreatableTopic(
            name=name,
            num_partitions=-1 if replicas else partitions,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                for index in range(partitions if replicas else 0)
            ],
            configs=settings,
        )
        async with self.raw() as client:
            answer = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
            for result in answer.topics:
                if result.error_code:
                    raise for_code(result.error_code)(f"{name}: {result.error_message}")
            self._created.append(name)
            (created,) = answer.topics
            await self._await_leaders(client, name, partitions, created.topic_id)
        return name

    async def _await_leaders(
        self, client: RawClient, name: str, partitions: int, topic_id: bytes = b""
    ) -> None:
        """Wait for the leaders of a topic, not of one that was deleted a moment ago."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        for _ in range(200):
            cluster = await client.request(request)
            (topic,) = cluster.topics
            led = [p for p in topic.partitions if p.error_code == 0 and p.leader_id >= 0]
            is_this = topic.topic_id == topic_id or not any(topic_id)
            is_led = is_this and topic.error_code == 0 and len(led) == partitions
            # A real broker may name a leader before that leader is ready to serve.
            if is_led and await self._serves_all(cluster.brokers, name, led):
                return
            await asyncio.sleep(0.02)
        raise TimeoutError(f"topic {name} got no leaders")

    async def _serves_all(
        self,
        brokers: Sequence[MetadataResponseBroker],
        name: str,
        led: Sequence[MetadataResponsePartition],
    ) -> bool:
        """Whether each leader answers for its partitions."""
        for broker in brokers:
            partitions = [
                ListOffsetsPartition(partition_index=each.partition_index, timestamp=LATEST)
                for each in led
                if each.leader_id == broker.node_id
            ]
            if not partitions:
                continue
            topic = ListOffsetsTopic(name=name, partitions=partitions)
            async with RawClient(f"{broker.host}:{broker.port}") as leader:
                answer = await leader.request(ListOffsetsRequest(topics=[topic]))
            if any(p.error_code for topic in answer.topics for p in topic.partitions):
                return False
        return True

    async def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, and wait for their leaders."""
        async with self.raw() as client:
            topic = CreatePartitionsTopic(name=name, count=total, assignments=None)
            request = CreatePartitionsRequest(topics=[topic], timeout_ms=10_000)
            for result in (await client.request(request)).results:
                if result.error_code:
                    raise for_code(result.error_code)(f"{name}: {result.error_message}")
            await self._await_leaders(client, name, total)

    async def delete_created(self) -> None:
        """Delete the topics that were created here, unless they are deleted already."""
        if self._created:
            topics = [DeleteTopicState(name=name) for name in self._created]
            async with self.raw() as client:
                await client.request(DeleteTopicsRequest(topics=topics, timeout_ms=10_000))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        async with self.raw() as client:
            state = DeleteTopicState(name=name)
            answer = await client.request(DeleteTopicsRequest(topics=[state], timeout_ms=10_000))
            for result in answer.responses:
                if result.error_code:
                    raise for_code(result.error_code)(name)

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete a partition's records before an offset."""
        wanted = DeleteRecordsPartition(partition_index=partition, offset=before)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=10_000
        )
        async with self.raw() as client:
            answer = await client.request(request)
        for result in answer.topics[0].partitions:
            if result.error_code:
                raise for_code(result.error_code)(f"{topic}/{partition}")

    async def produce(
        self,
        topic: str,
        partition: int,
        rows: Iterable[KeyValue],
        *,
        codec: str = "none",
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> int:
        """Produce one batch with acks=all and return its base offset."""
        stamp = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        batch = records.build_batch(
            [(stamp, key, value, tuple(headers)) for key, value in rows], codec=codec
        )
        return await self.produce_batch(topic, partition, batch)

    async def produce_batch(self, topic: str, partition: int, batch: bytes) -> int:
        """Produce a record set as it is, with acks=all, and return its base offset.

        A real broker may name a new topic's leader before that leader is ready: such answers
        are tried again for some seconds.
        """
        data = TopicProduceData(
            name=topic,
            partition_data=[PartitionProduceData(index=partition, records=memoryview(batch))],
        )
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
        async with self.raw() as client:
            for _ in range(100):
                answer = await client.request(request, PRODUCE_BY_NAME)
                (result,) = answer.responses[0].partition_responses
                if not result.error_code:
                    return result.base_offset
                error = for_code(result.error_code)
                if not error.invalid_metadata:
                    break
                await asyncio.sleep(0.05)
        raise error(f"{topic}-{partition}: {result.error_message}")
