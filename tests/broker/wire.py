"""Requests by hand, for tests of what a broker answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from aiokafka_lite.errors import CoordinatorLoadInProgressError, NotLeaderForPartitionError
from aiokafka_lite.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from aiokafka_lite.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.messages.transactions import InitProducerIdRequest
from tests.support.wire import RawClient

# The last versions in which topics go by name.
FETCH_BY_NAME = 12
PRODUCE_BY_NAME = 12

WHOLE_MEGABYTE = 1 << 20


async def topic_metadata(client: RawClient, topic: str) -> MetadataResponseTopic:
    """Return what Metadata says about a topic, without creating it."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    (described,) = (await client.request(request)).topics
    return described


async def topic_id(client: RawClient, topic: str) -> bytes:
    """Return a topic's id."""
    return (await topic_metadata(client, topic)).topic_id


async def produce(
    client: RawClient,
    topic: str,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int = PRODUCE_BY_NAME,
    topic_id: bytes = bytes(16),
) -> PartitionProduceResponse:
    """Send one record set and return the partition's answer."""
    data = TopicProduceData(
        name=topic,
        topic_id=topic_id,
        partition_data=[PartitionProduceData(index=partition, records=records)],
    )
    request = ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data])

    async def attempt() -> PartitionProduceResponse:
        answer = await client.request(request, version)
        ((result,),) = (topic.partition_responses for topic in answer.responses)
        return result

    return await once_settled(attempt, lambda result: result.error_code)


R = TypeVar("R")

# What a real broker answers while it opens a new topic's logs, or gets its first producer ids.
NOT_SETTLED = (NotLeaderForPartitionError.errno, CoordinatorLoadInProgressError.errno)


async def once_settled(attempt: Callable[[], Awaitable[R]], error_code: Callable[[R], int]) -> R:
    """Return the first answer that is not one of a broker that is still getting ready."""
    for _ in range(200):
        answer = await attempt()
        if error_code(answer) not in NOT_SETTLED:
            return answer
        await asyncio.sleep(0.02)
    raise TimeoutError("the broker does not get ready")


async def new_producer_id(client: RawClient) -> int:
    """Return the id of a new idempotent producer, whose epoch is 0."""
    answer = await once_settled(
        lambda: client.request(InitProducerIdRequest(transactional_id=None)),
        lambda answer: answer.error_code,
    )
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return answer.producer_id


def fetch_partition(
    partition: int = 0,
    offset: int = 0,
    *,
    max_bytes: int = WHOLE_MEGABYTE,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> FetchPartition:
    """Make one partition of a Fetch request."""
    return FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=leader_epoch,
        last_fetched_epoch=last_fetched_epoch,
    )


def fetch_request(
    topics: Mapping[str, Sequence[FetchPartition]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Mapping[str, Sequence[int]] | None = None,
    isolation_level: int = 0,
) -> FetchRequest:
    """Make a Fetch request that names topics."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=name, partitions=[*parts]) for name, parts in topics.items()],
        forgotten_topics_data=[
            ForgottenTopic(topic=name, partitions=[*parts])
            for name, parts in (forgotten or {}).items()
        ],
    )


async def fetch(
    client: RawClient,
    topic: str,
    part: FetchPartition,
    *,
    version: int = FETCH_BY_NAME,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    isolation_level: int = 0,
) -> PartitionData:
    """Fetch one partition without a session and return its data."""
    request = fetch_request(
        {topic: [part]},
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
    )

    async def attempt() -> PartitionData:
        answer = await client.request(request, version)
        assert answer.error_code == 0
        ((data,),) = (topic.partitions for topic in answer.responses)
        return data

    return await once_settled(attempt, lambda data: data.error_code)


def answered(response: FetchResponse) -> dict[tuple[str, int], PartitionData]:
    """Return a response's partitions by topic and number."""
    return {
        (topic.topic, data.partition_index): data
        for topic in response.responses
        for data in topic.partitions
    }


async def list_offset(
    client: RawClient,
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    version: int | None = None,
    leader_epoch: int = -1,
    isolation_level: int = 0,
) -> ListOffsetsPartitionResponse:
    """Look up one offset."""
    wanted = ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=leader_epoch
    )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )

    async def attempt() -> ListOffsetsPartitionResponse:
        answer = await client.request(request, version)
        ((result,),) = (topic.partitions for topic in answer.topics)
        return result

    return await once_settled(attempt, lambda result: result.error_code)


async def until_closed(client: RawClient, timeout_s: float = 5) -> None:
    """Wait until the broker closes the connection."""
    try:
        await asyncio.wait_for(client.receive(), timeout_s)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    raise AssertionError("the broker answered instead of closing the connection")


async def eventually(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Wait until something that the broker does in its own time is so."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came true"
        await asyncio.sleep(0.001)
