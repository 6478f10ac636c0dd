"""Handlers of Metadata and DescribeTopicPartitions.

Reference: kafka.server.handlers.DescribeTopicPartitionsRequestHandler.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final, TypeVar

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    code_of,
)
from aiokafka_lite.broker.slices import LoopSlices, in_slices, sorted_in_slices
from aiokafka_lite.broker.topics import (
    INTERNAL_TOPICS,
    NO_LEADER,
    Partition,
    Topic,
    check_topic_name,
)
from aiokafka_lite.errors import (
    BrokerResponseError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaError,
    LeaderNotAvailableError,
    NoError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.cluster import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from aiokafka_lite.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokafka_lite.protocol.schema import ZERO_UUID

FIRST_WITH_REQUESTED_IDS: Final = 12

PartitionT = TypeVar(
    "PartitionT", MetadataResponsePartition, DescribeTopicPartitionsResponsePartition
)


@handler(MetadataRequest)
async def metadata(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    created_version = ctx.cluster.catalog.created_version
    described = await _described(ctx, request)
    if ctx.cluster.catalog.created_version != created_version:
        await ctx.cluster.disk.settled()
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=at.id, host=at.host, port=at.port, rack=at.rack)
            for at in map(ctx.address_of, ctx.cluster.live_nodes)
        ],
        cluster_id=ctx.cluster.cluster_id,
        controller_id=ctx.cluster.controller_id,
        topics=described,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


async def _described(ctx: RequestContext, request: MetadataRequest) -> list[MetadataResponseTopic]:
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    if request.topics is None:
        every_topic = tuple(ctx.cluster.topics.values())
        return [_describe(ctx, topic, operations) async for topic in in_slices(every_topic)]
    found: dict[str | bytes, MetadataResponseTopic] = {}
    slices = LoopSlices()  # in_slices would cost a call per topic, and most requests are small
    for wanted in request.topics:
        if slices.is_over:
            await slices.rest()
        by_id = wanted.topic_id != ZERO_UUID and ctx.api_version >= FIRST_WITH_REQUESTED_IDS
        key = wanted.topic_id if by_id else wanted.name or ""
        if key in found:
            continue
        if wanted.name and wanted.name in INTERNAL_TOPICS and _may_create(ctx, request):
            await ctx.cluster.open_internal_topic(wanted.name)
        topic = _by_id(ctx, wanted) if by_id else _by_name(ctx, request, wanted.name or "")
        found[key] = _describe(ctx, topic, operations) if isinstance(topic, Topic) else topic
    return list(found.values())


def _may_create(ctx: RequestContext, request: MetadataRequest) -> bool:
    return request.allow_auto_topic_creation and ctx.cluster.config.auto_create_topics


def _by_id(ctx: RequestContext, wanted: MetadataRequestTopic) -> Topic | MetadataResponseTopic:
    topic = ctx.cluster.topic_by_id(wanted.topic_id)
    if topic is not None:
        return topic
    return MetadataResponseTopic(
        name=None, topic_id=wanted.topic_id, error_code=UnknownTopicIdError.errno
    )


def _by_name(
    ctx: RequestContext, request: MetadataRequest, name: str
) -> Topic | MetadataResponseTopic:
    topic = ctx.cluster.topic(name)
    if topic is not None:
        return topic
    if not _may_create(ctx, request):
        return MetadataResponseTopic(name=name, error_code=_error_of_unknown(name).errno)
    try:
        return ctx.cluster.create_topic(name)
    except KafkaError as error:
        return MetadataResponseTopic(name=name, error_code=code_of(error))


def _error_of_unknown(name: str) -> type[BrokerResponseError]:
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return InvalidTopicError
    return UnknownTopicOrPartitionError


def _describe(ctx: RequestContext, topic: Topic, operations: int) -> MetadataResponseTopic:
    up = {node.id for node in ctx.cluster.live_nodes}
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(MetadataResponsePartition, each, up) for each in topic.partitions],
        topic_authorized_operations=operations,
    )


def _partition(kind: type[PartitionT], partition: Partition, up: Set[int]) -> PartitionT:
    has_leader = partition.leader_id != NO_LEADER
    return kind(
        error_code=(NoError if has_leader else LeaderNotAvailableError).errno,
        partition_index=partition.index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=[node for node in partition.replicas if node not in up],
    )


# max.request.partition.size.limit of brokers.
MOST_PARTITIONS: Final = 2_000


@handler(DescribeTopicPartitionsRequest)
async def describe_topic_partitions(
    ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Describe topics in the order of their names, until the page is full (KIP-966)."""
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
        if topic is None and asked_for_all:
            continue  # it was deleted between two steps
        if topic is None:
            answer.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    name=name,
                    error_code=_error_of_unknown(name).errno,
                    topic_authorized_operations=TOPIC_OPERATIONS,
                )
            )
            continue
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        page = topic.partitions[first : first + room]
        answer.topics.append(_page_of(ctx, topic, page))
        room -= len(page)
        if first + len(page) < topic.partition_count:
            answer.next_cursor = Cursor(topic_name=name, partition_index=first + len(page))
            break
    return answer


def _wrong_cursor(
    request: DescribeTopicPartitionsRequest, cursor: Cursor, names: list[str]
) -> DescribeTopicPartitionsResponse | None:
    """Return the refusal of a cursor that no response to this request can have had."""
    is_known = not request.topics or (names and names[0] == cursor.topic_name)
    if is_known and cursor.partition_index >= 0:
        return None
    name = request.topics[0].name if request.topics else cursor.topic_name
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(name=name, error_code=InvalidRequestError.errno)
        ]
    )


def _page_of(
    ctx: RequestContext, topic: Topic, partitions: list[Partition]
) -> DescribeTopicPartitionsResponseTopic:
    up = {node.id for node in ctx.cluster.live_nodes}
    described = DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    for partition in partitions:
        item = _partition(DescribeTopicPartitionsResponsePartition, partition, up)
        item.eligible_leader_replicas, item.last_known_elr = partition.eligible, []
        described.partitions.append(item)
    return described
