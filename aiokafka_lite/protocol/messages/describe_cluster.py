"""DescribeCluster (key 60): brokers and controller (KIP-700).

v1 asks brokers or controllers (KIP-919); v2 fenced brokers (KIP-1073).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
)


class DescribeClusterBroker(Struct):
    """A node and where to reach it."""

    broker_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)
    is_fenced: bool = boolean("2+")  # KIP-1073


class DescribeClusterResponse(Response):
    """The cluster's nodes."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)  # KIP-919
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, "0+")
    cluster_authorized_operations: int = int32("0+", default=-(2**31))  # KIP-430, 700


class DescribeClusterRequest(
    Request[DescribeClusterResponse], key=60, versions="0-2", flexible="0+"
):
    """Describe the cluster; endpoint type 1 asks for brokers, 2 for controllers."""

    include_cluster_authorized_operations: bool = boolean("0+")  # KIP-430, 700
    endpoint_type: int = int8("1+", default=1)  # KIP-919
    include_fenced_brokers: bool = boolean("2+")  # KIP-1073
