"""DescribeTopicPartitions (key 75), version 0 (KIP-966).

Topics come in the order of their names, so that a cursor says what is still to come.

Reference: kafka.server.handlers.DescribeTopicPartitionsRequestHandler.
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import TOPIC_OPERATIONS
from aiokafka_lite.broker.slices import in_slices, sorted_in_slices
from aiokafka_lite.broker.topics import NO_LEADER, Partition, Topic, check_topic_name
from aiokafka_lite.errors import (
    BrokerResponseError,
    InvalidRequestError,
    InvalidTopicError,
    LeaderNotAvailableError,
    NoError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.cluster import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

# max.request.partition.size.limit of brokers.
MOST_PARTITIONS: Final = 2_000


@handler(DescribeTopicPartitionsRequest)
async def handle(
    ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Describe topics until the page is full."""
    cursor, asked_for_all = request.cursor, not request.topics
    asked = {topic.name async for topic in in_slices(request.topics)}
    names = await sorted_in_slices(list(ctx.cluster.topics) if asked_for_all else asked)
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        wrong = _wrong_cursor(request, cursor, names)
        if wrong is not None:
            return wrong
    room = max(min(MOST_PARTITIONS, request.response_partition_limit), 1)
    answer = DescribeTopicPartitionsResponse()
    async for name in in_slices(names):
        if room == 0:
            answer.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = ctx.cluster.topic(name)
        if topic is None:
            answer.topics.append(_unknown(name))
            continue
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        page = topic.partitions[first : first + room]
        answer.topics.append(_told(ctx, topic, page))
        room -= len(page)
        if first + len(page) < topic.partition_count:
            answer.next_cursor = Cursor(topic_name=name, partition_index=first + len(page))
            break
    return answer


def _wrong_cursor(
    request: DescribeTopicPartitionsRequest, cursor: Cursor, names: list[str]
) -> DescribeTopicPartitionsResponse | None:
    """Return the refusal of a cursor that no answer to this request can have had."""
    is_known = not request.topics or (names and names[0] == cursor.topic_name)
    if is_known and cursor.partition_index >= 0:
        return None
    name = request.topics[0].name if request.topics else cursor.topic_name
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(name=name, error_code=InvalidRequestError.errno)
        ]
    )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    error: type[BrokerResponseError] = UnknownTopicOrPartitionError
    try:
        check_topic_name(name)
    except InvalidTopicError:
        error = InvalidTopicError
    return DescribeTopicPartitionsResponseTopic(
        name=name, error_code=error.errno, topic_authorized_operations=TOPIC_OPERATIONS
    )


def _told(
    ctx: RequestContext, topic: Topic, partitions: list[Partition]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_told_partition(ctx, partition) for partition in partitions],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _told_partition(
    ctx: RequestContext, partition: Partition
) -> DescribeTopicPartitionsResponsePartition:
    has_leader = partition.leader_id != NO_LEADER
    nodes = ctx.cluster.nodes
    return DescribeTopicPartitionsResponsePartition(
        error_code=(NoError if has_leader else LeaderNotAvailableError).errno,
        partition_index=partition.index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.eligible),
        last_known_elr=[],
        offline_replicas=[node for node in partition.replicas if not nodes[node].is_up],
    )
