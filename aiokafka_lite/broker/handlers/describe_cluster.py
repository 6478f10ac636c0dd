"""DescribeCluster (key 60), versions 0 to 2.

1 which kind of endpoint is asked for (KIP-919); 2 fenced brokers (KIP-1073).
"""

from __future__ import annotations

import enum

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import CLUSTER_OPERATIONS, NOT_ASKED
from aiokafka_lite.errors import MismatchedEndpointTypeError, UnsupportedEndpointTypeError
from aiokafka_lite.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


class EndpointType(enum.IntEnum):
    """Which nodes are asked for."""

    BROKERS = 1
    CONTROLLERS = 2


@handler(DescribeClusterRequest)
def handle(ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """List the cluster's nodes."""
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
