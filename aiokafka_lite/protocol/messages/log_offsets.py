"""Look up offsets in the logs of partitions."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, int8, int16, int32, int64, string
from aiokafka_lite.protocol.schema import Request, Response, Struct


# --- ListOffsets (key 2) ----------------------------------------------------------------------
class ListOffsetsPartitionResponse(Struct):
    """The offset is -1 if there is none."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    timestamp: int = int64("1+", default=-1)
    offset: int = int64("1+", default=-1)
    leader_epoch: int = int32("4+", default=-1)  # KIP-320


class ListOffsetsTopicResponse(Struct):
    name: str = string("0+")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, "0+")


class ListOffsetsResponse(Response):
    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, "0+")


class ListOffsetsPartition(Struct):
    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1, ignorable=True)  # KIP-320
    timestamp: int = int64("0+")


class ListOffsetsTopic(Struct):
    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


class ListOffsetsRequest(Request[ListOffsetsResponse], key=2, versions="1-11", flexible="6+"):
    """Look up offsets by timestamp.

    Special timestamps: -1 the end, -2 the start, from v7 on -3 the largest timestamp (KIP-734),
    v8 -4 the start of the local log (KIP-405), v9 -5 the last tiered offset (KIP-1005), v11 -6 the
    earliest offset that waits for its upload (KIP-1023).
    """

    replica_id: int = int32("0+")  # -1 for consumers
    isolation_level: int = int8("2+")  # KIP-98
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+", ignorable=True)  # KIP-1075


# --- OffsetForLeaderEpoch (key 23) ------------------------------------------------------------
class EpochEndOffset(Struct):
    error_code: int = int16("0+")
    partition: int = int32("0+")
    leader_epoch: int = int32("1+", default=-1, ignorable=True)  # KIP-320
    end_offset: int = int64("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = string("0+")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "0+")


class OffsetForLeaderEpochResponse(Response):
    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, "0+")


class OffsetForLeaderPartition(Struct):
    partition: int = int32("0+")
    current_leader_epoch: int = int32("2+", default=-1, ignorable=True)  # KIP-320
    leader_epoch: int = int32("0+")  # KIP-320


class OffsetForLeaderTopic(Struct):
    topic: str = string("0+")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, "0+")


class OffsetForLeaderEpochRequest(
    Request[OffsetForLeaderEpochResponse], key=23, versions="2-4", flexible="4+", used_from=3
):
    """Return the offsets at which leader epochs end, to detect truncation (KIP-320).

    Before v3, it requires ClusterAction. Java's client does not use it then either (OffsetFetcher).
    """

    replica_id: int = int32("3+", default=-2, ignorable=True)  # KIP-392; -2 debug, -1 consumer
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, "0+")
