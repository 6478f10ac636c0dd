"""AlterPartitionReassignments (key 45): move partitions to other nodes (KIP-455).

v1 may forbid another number of replicas (KIP-860).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Route,
    Struct,
    array,
    boolean,
    int16,
    int32,
    string,
)


class ReassignablePartitionResponse(Struct):
    """The outcome for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class ReassignableTopicResponse(Struct):
    """The outcome for one topic."""

    name: str = string("0+")
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse, "0+")


class AlterPartitionReassignmentsResponse(Response):
    """The outcome by topic."""

    throttle_time_ms: int = int32("0+")
    allow_replication_factor_change: bool = boolean("1+", default=True, ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse, "0+")


class ReassignablePartition(Struct):
    """A partition and its new replicas; null cancels a move."""

    partition_index: int = int32("0+")
    replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None)


class ReassignableTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, "0+")


class AlterPartitionReassignmentsRequest(
    Request[AlterPartitionReassignmentsResponse],
    key=45,
    versions="0-1",
    flexible="0+",
    route=Route.CONTROLLER,
):
    """Place these partitions."""

    timeout_ms: int = int32("0+", default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic, "0+")
