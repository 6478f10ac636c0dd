"""Handlers of ApiVersions, DescribeCluster and FindCoordinator.

A request in an unsupported version cannot be decoded, so the processor answers it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.broker.handlers.registry import HANDLERS, handler
from aiokafka_lite.broker.handlers.replies import CLUSTER_OPERATIONS, NOT_ASKED
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Node
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    IllegalSaslStateError,
    InvalidRequestError,
    KafkaStorageError,
    MismatchedEndpointTypeError,
    NoError,
    RebootstrapRequiredError,
    UnsupportedEndpointTypeError,
)
from aiokafka_lite.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Coordinator,
    FinalizedFeatureKey,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    SupportedFeatureKey,
)

FIRST_WITH_SOFTWARE_NAME: Final = 3
FIRST_WITH_LEVEL_0: Final = 4  # as the lowest level of a feature
NO_NODE: Final = -1
# Kafka counts the changes of levels. Here levels are settings and do not change.
FEATURES_EPOCH: Final = 0
_LEGAL_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


# The features of the cluster (KIP-584) and their highest levels. The lowest are 0, for unused.
FEATURES: Final[Mapping[str, int]] = {
    "group.version": 1,  # KIP-848
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


# By the type of the key.
INTERNAL_TOPIC_OF: Final[Mapping[int, str]] = {
    0: GROUP_METADATA_TOPIC,
    1: TRANSACTION_STATE_TOPIC,
}


@handler(FindCoordinatorRequest)
async def find_coordinator(
    ctx: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Return the coordinator of each key. The first request creates the internal topic.

    The coordinator is the leader of the key's partition in this topic. Share groups (KIP-932) are
    answered as by a Kafka without them.
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
        coordinators=[_coordinator(ctx, topic, key, error) async for key in keys]
    )


def _coordinator(ctx: RequestContext, topic: str | None, key: str, error: ErrorType) -> Coordinator:
    address = UNKNOWN_NODE
    if error is NoError and topic is not None:
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
