"""AlterPartitionReassignments (key 45): say on which nodes partitions are (KIP-455).

v1 whether the number of replicas may change (KIP-860).
"""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, boolean, int16, int32, string
from aiokafka_lite.protocol.schema import Request, Response, Struct


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
    """One partition's nodes, the one preferred for leader first; None gives up a change."""

    partition_index: int = int32("0+")
    replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None)


class ReassignableTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, "0+")


class AlterPartitionReassignmentsRequest(
    Request[AlterPartitionReassignmentsResponse], key=45, versions="0-1", flexible="0+"
):
    """Put partitions onto nodes."""

    timeout_ms: int = int32("0+", default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic, "0+")
