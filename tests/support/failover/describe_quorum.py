"""DescribeQuorum (key 55): the controllers and how far each has read (KIP-595).

v1 times of the last fetch (KIP-836); v2 messages, nodes, directory ids (KIP-853).
"""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, int16, int32, int64, string, uint16, uuid
from aiokafka_lite.protocol.schema import Request, Response, Struct


class ReplicaState(Struct):
    """How far a replica of the log is; times in ms since 1970, -1 where unknown."""

    replica_id: int = int32("0+")
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64("0+")
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


class PartitionData(Struct):
    """The state of one log: who leads it, how far it is decided, who holds it."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    high_watermark: int = int64("0+")
    current_voters: list[ReplicaState] = array(ReplicaState, "0+")
    observers: list[ReplicaState] = array(ReplicaState, "0+")


class TopicData(Struct):
    """The logs of one topic."""

    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class Listener(Struct):
    """Where a controller listens."""

    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class Node(Struct):
    """A controller."""

    node_id: int = int32("2+")
    listeners: list[Listener] = array(Listener, "2+")


class DescribeQuorumResponse(Response):
    """The state of each log."""

    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    topics: list[TopicData] = array(TopicData, "0+")
    nodes: list[Node] = array(Node, "2+")


class DescribeQuorumRequest(Request[DescribeQuorumResponse], key=55, versions="0-2", flexible="0+"):
    """Describe the quorum of __cluster_metadata-0."""

    # Kafka gives these the names that structs of the answer have.
    class TopicData(Struct):
        """Logs of one topic."""

        class PartitionData(Struct):
            """A log to describe."""

            partition_index: int = int32("0+")

        topic_name: str = string("0+")
        partitions: list[PartitionData] = array(PartitionData, "0+")

    topics: list[TopicData] = array(TopicData, "0+")
