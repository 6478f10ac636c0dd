"""OffsetForLeaderEpoch (key 23): where a leader epoch ends, to detect truncation (KIP-320).

v3 the replica that asks (KIP-392); v4 is flexible. Before v3 it is for brokers only: it needs the
right ClusterAction. Java's client does not use it then, either (OffsetFetcher).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
)


class EpochEndOffset(Struct):
    """Where a leader epoch ends."""

    error_code: int = int16("0+")
    partition: int = int32("0+")
    leader_epoch: int = int32("1+", default=-1, ignorable=True)  # KIP-320
    end_offset: int = int64("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    """A topic that was looked up."""

    topic: str = string("0+")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "0+")


class OffsetForLeaderEpochResponse(Response):
    """Ends of epochs by partition."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, "0+")


class OffsetForLeaderPartition(Struct):
    """A partition and the epoch to look for."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("2+", default=-1, ignorable=True)  # KIP-320
    leader_epoch: int = int32("0+")  # KIP-320


class OffsetForLeaderTopic(Struct):
    """A topic to look up."""

    topic: str = string("0+")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, "0+")


class OffsetForLeaderEpochRequest(
    Request[OffsetForLeaderEpochResponse], key=23, versions="2-4", flexible="4+", used_from=3
):
    """Where do these leader epochs end?"""

    replica_id: int = int32("3+", default=-2, ignorable=True)  # KIP-392; -2 debug, -1 consumer
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, "0+")
