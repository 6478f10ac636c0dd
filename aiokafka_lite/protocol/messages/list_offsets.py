"""ListOffsets (key 2): offsets by timestamp, and the ends of partitions.

v2 isolation levels (KIP-98); v4 leader epochs (KIP-320); v6 is flexible; v7 the largest timestamp,
-3 (KIP-734); v8 the start of the local log, -4 (KIP-405); v9 the last tiered offset, -5 (KIP-1005);
v10 a time limit (KIP-1075); v11 the earliest offset waiting for its upload, -6 (KIP-1023).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    string,
)


class ListOffsetsPartitionResponse(Struct):
    """The offset found, -1 if there is none."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    timestamp: int = int64("1+", default=-1)
    offset: int = int64("1+", default=-1)
    leader_epoch: int = int32("4+", default=-1)  # KIP-320


class ListOffsetsTopicResponse(Struct):
    """A topic that was looked up."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, "0+")


class ListOffsetsResponse(Response):
    """Offsets by partition."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, "0+")


class ListOffsetsPartition(Struct):
    """A partition and the timestamp to look for."""

    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1, ignorable=True)  # KIP-320
    timestamp: int = int64("0+")


class ListOffsetsTopic(Struct):
    """A topic to look up."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


class ListOffsetsRequest(Request[ListOffsetsResponse], key=2, versions="1-11", flexible="6+"):
    """Which offset belongs to a timestamp? -1 is the end, -2 the start."""

    replica_id: int = int32("0+")  # -1 for consumers
    isolation_level: int = int8("2+")  # KIP-98
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+", ignorable=True)  # KIP-1075
