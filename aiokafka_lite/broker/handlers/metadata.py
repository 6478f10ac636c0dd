"""Metadata (key 3), versions 0 to 13.

1 null asks for all topics, empty for none, rack, controller, internal topics; 2 cluster id;
3 throttle time; 4 whether topics may be created; 5 offline replicas; 7 leader epochs (KIP-320);
8 authorized operations (KIP-430); 9 flexible; 10 topic ids in answers (KIP-516); 11 the cluster's
operations moved to DescribeCluster; 12 topics asked for by id; 13 an error of the whole.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    code_of,
)
from aiokafka_lite.broker.slices import LoopSlices, in_slices
from aiokafka_lite.broker.topics import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER,
    Partition,
    Topic,
    check_topic_name,
)
from aiokafka_lite.errors import (
    BrokerResponseError,
    InvalidTopicError,
    KafkaError,
    LeaderNotAvailableError,
    NoError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
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


@handler(MetadataRequest)
async def handle(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Describe the cluster and the topics asked for, creating those that may be."""
    topic_count = len(ctx.cluster.topics)
    described = await _described(ctx, request)
    if len(ctx.cluster.topics) != topic_count:  # some were created
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
    """Describe each topic asked for, or say what is to be said instead."""
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    if request.topics is None:
        every_topic = tuple(ctx.cluster.topics.values())
        return [_describe(ctx, topic, operations) async for topic in in_slices(every_topic)]
    found: dict[str | bytes, MetadataResponseTopic] = {}
    slices = LoopSlices()  # most requests are small: nothing is to be called for each topic
    for wanted in request.topics:
        if slices.is_over:
            await slices.rest()
        by_id = wanted.topic_id != ZERO_UUID and ctx.api_version >= FIRST_WITH_REQUESTED_IDS
        key = wanted.topic_id if by_id else wanted.name or ""
        if key in found:
            continue
        if wanted.name in INTERNAL_TOPICS and _may_create(ctx, request):
            await _open(ctx, wanted.name)
        topic = _by_id(ctx, wanted) if by_id else _by_name(ctx, request, wanted.name or "")
        found[key] = _describe(ctx, topic, operations) if isinstance(topic, Topic) else topic
    return list(found.values())


async def _open(ctx: RequestContext, internal_topic: str) -> None:
    if internal_topic == GROUP_METADATA_TOPIC:
        await ctx.cluster.open_offsets_topic()
    else:
        await ctx.cluster.open_transaction_topic()


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
        return _unknown(name)
    try:
        return ctx.cluster.create_topic(name)
    except KafkaError as error:
        return MetadataResponseTopic(name=name, error_code=code_of(error))


def _unknown(name: str) -> MetadataResponseTopic:
    error: type[BrokerResponseError] = UnknownTopicOrPartitionError
    try:
        check_topic_name(name)
    except InvalidTopicError:
        error = InvalidTopicError
    return MetadataResponseTopic(name=name, error_code=error.errno)


def _describe(ctx: RequestContext, topic: Topic, operations: int) -> MetadataResponseTopic:
    up = {node.id for node in ctx.cluster.live_nodes}
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_describe_partition(partition, up) for partition in topic.partitions],
        topic_authorized_operations=operations,
    )


def _describe_partition(partition: Partition, up: Set[int]) -> MetadataResponsePartition:
    has_leader = partition.leader_id != NO_LEADER
    return MetadataResponsePartition(
        error_code=(NoError if has_leader else LeaderNotAvailableError).errno,
        partition_index=partition.index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=[node for node in partition.replicas if node not in up],
    )
