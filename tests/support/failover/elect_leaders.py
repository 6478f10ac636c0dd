"""ElectLeaders (key 43): make a replica the leader (KIP-183).

v1 unclean elections and an error of the whole (KIP-460); v2 is flexible.
"""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, int8, int16, int32, string
from aiokafka_lite.protocol.schema import Request, Response, Struct


class PartitionResult(Struct):
    """The outcome for one partition."""

    partition_id: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class ReplicaElectionResult(Struct):
    """The outcome for one topic."""

    topic: str = string("0+")
    partition_result: list[PartitionResult] = array(PartitionResult, "0+")


class ElectLeadersResponse(Response):
    """The outcome by topic."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult, "0+")


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ElectLeadersRequest(Request[ElectLeadersResponse], key=43, versions="0-2", flexible="2+"):
    """Elect leaders; types: 0 the preferred replica, 1 any that is alive.

    No topics (null) ask for all partitions.
    """

    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, "0+", nullable="0+")
    timeout_ms: int = int32("0+", default=60000)
