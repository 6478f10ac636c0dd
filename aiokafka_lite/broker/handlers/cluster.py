"""Handlers that describe the cluster, its topics, coordinators and supported versions.

A request in an unsupported version cannot be decoded, so the processor answers it. Kafka:
kafka.server.handlers.DescribeTopicPartitionsRequestHandler."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Set
from typing import Final, TypeVar

from aiokafka_lite.broker.groups.coordinator_log import ErrorType
from aiokafka_lite.broker.handlers.base import (
    CLUSTER_OPERATIONS,
    HANDLERS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    RequestContext,
    code_of,
    handler,
)
from aiokafka_lite.broker.slices import LoopSlices, in_slices, sorted_in_slices
from aiokafka_lite.broker.topics import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Node,
    Partition,
    Topic,
    check_topic_name,
)
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorNotAvailableError,
    IllegalSaslStateError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailableError,
    MismatchedEndpointTypeError,
    NoError,
    RebootstrapRequiredError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedEndpointTypeError,
)
from aiokafka_lite.protocol.messages.cluster import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Coordinator,
    FinalizedFeatureKey,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from aiokafka_lite.protocol.schema import ZERO_UUID

FIRST_WITH_SOFTWARE_NAME: Final = 3
FIRST_WITH_LEVEL_0: Final = 4  # as the lowest level of a feature
NO_NODE: Final = -1
# Kafka counts the changes of levels. Here levels are settings and do not change.
FEATURES_EPOCH: Final = 0
_LEGAL_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


# The features of the cluster (KIP-584) and their highest levels. The lowest are 0, for unused.
FEATURES: Final[Mapping[str, int]] = {
    "group.version": 1,  # KIP-848
    "share.version": 2,  # KIP-932, KIP-1191
    "transaction.version": 2,
}


@handler(ApiVersionsRequest)
def api_versions(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if ctx.api_version >= FIRST_WITH_SOFTWARE_NAME and not (
        _LEGAL_SOFTWARE_NAME.fullmatch(request.client_software_name)
        and _LEGAL_SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=InvalidRequestError.errno)
    if request.cluster_id not in (None, ctx.cluster.cluster_id) or request.node_id not in (
        NO_NODE,
        ctx.node.id,
    ):
        return ApiVersionsResponse(error_code=RebootstrapRequiredError.errno)
    session = ctx.connection.sasl
    if session is not None and not session.note_versions():
        return ApiVersionsResponse(error_code=IllegalSaslStateError.errno)
    levels = {**FEATURES, "transaction.version": ctx.cluster.config.transaction_version}
    return ApiVersionsResponse(
        supported_features=[
            SupportedFeatureKey(name=name, min_version=0, max_version=highest)
            for name, highest in FEATURES.items()
            if ctx.api_version >= FIRST_WITH_LEVEL_0
        ],
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in levels.items()
            if level
        ],
        api_keys=[
            ApiVersion(
                api_key=key,
                min_version=entry.advertised_min_version,
                max_version=entry.request.max_version,
            )
            for key, entry in sorted(HANDLERS.items())
        ],
    )


class EndpointType(enum.IntEnum):
    BROKERS = 1
    CONTROLLERS = 2


@handler(DescribeClusterRequest)
def describe_cluster(
    ctx: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type == EndpointType.CONTROLLERS:
        return DescribeClusterResponse(
            error_code=MismatchedEndpointTypeError.errno,
            error_message="the request asks for controllers, but this node is a broker, which "
            "lists only brokers",
        )
    if request.endpoint_type != EndpointType.BROKERS:
        return DescribeClusterResponse(
            error_code=UnsupportedEndpointTypeError.errno,
            error_message=f"endpoint_type must be {EndpointType.BROKERS:d} (brokers) or "
            f"{EndpointType.CONTROLLERS:d} (controllers), not {request.endpoint_type}",
        )
    return DescribeClusterResponse(
        cluster_id=ctx.cluster.cluster_id,
        controller_id=ctx.cluster.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=at.id, host=at.host, port=at.port, rack=at.rack)
            for at in map(ctx.address_of, ctx.cluster.live_nodes)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


# In the list of coordinators, Kafka leaves the messages empty.
FIRST_WITHOUT_MESSAGES: Final = 4
UNKNOWN_NODE: Final = Node(-1, "", -1)


SHARE_PARTITION: Final = 2

# By the type of the key.
INTERNAL_TOPIC_OF: Final[Mapping[int, str]] = {
    0: GROUP_METADATA_TOPIC,
    1: TRANSACTION_STATE_TOPIC,
    SHARE_PARTITION: SHARE_STATE_TOPIC,
}
# A group, a topic id and a partition.
_SHARE_KEY: Final = re.compile(r"[^:]+:[\w-]{22}:\d+", re.ASCII)


@handler(FindCoordinatorRequest)
async def find_coordinator(
    ctx: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Return the coordinator of each key. The first request creates the internal topic.

    The coordinator is the leader of the key's partition in this topic.
    """
    topic = INTERNAL_TOPIC_OF.get(request.key_type)
    error: ErrorType = InvalidRequestError
    if topic is not None:
        try:
            await ctx.cluster.open_internal_topic(topic)
            error = NoError
        except KafkaStorageError:
            error = CoordinatorNotAvailableError
    keys = in_slices(request.coordinator_keys)
    return FindCoordinatorResponse(
        coordinators=[_coordinator(ctx, request.key_type, key, error) async for key in keys]
    )


def _coordinator(ctx: RequestContext, key_type: int, key: str, error: ErrorType) -> Coordinator:
    address = UNKNOWN_NODE
    if key_type == SHARE_PARTITION and not _SHARE_KEY.fullmatch(key):
        error = InvalidRequestError
    if error is NoError:
        topic = INTERNAL_TOPIC_OF[key_type]
        node = ctx.cluster.nodes.get(ctx.cluster.catalog.coordinator_of(topic, key))
        if node is None:
            error = CoordinatorNotAvailableError
        else:
            address = ctx.address_of(node)
    message = ""
    if ctx.api_version < FIRST_WITHOUT_MESSAGES:
        message = error.message if error is NoError else error.description
    return Coordinator(
        key=key,
        error_code=error.errno,
        error_message=message,
        node_id=address.id,
        host=address.host,
        port=address.port,
    )


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
