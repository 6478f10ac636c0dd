"""Fetch (key 1): read record sets of partitions. v10 allows zstd (KIP-110)."""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import override
from aiokafka_lite.protocol.fields import (
    array,
    int8,
    int16,
    int32,
    int64,
    nested,
    record_set,
    string,
    uuid,
)
from aiokafka_lite.protocol.schema import ZERO_UUID, Records, Request, Response, Struct

LAST_WITH_NAMES: Final = 12
"""The last version that names topics; later ones give ids (KIP-516)."""


class EpochEndOffset(Struct):
    epoch: int = int32("12+", default=-1)
    end_offset: int = int64("12+", default=-1)


class LeaderIdAndEpoch(Struct):
    """The new leader, if another node was asked (KIP-951)."""

    leader_id: int = int32("0+", default=-1)
    leader_epoch: int = int32("0+", default=-1)  # KIP-320


class SnapshotId(Struct):
    """The snapshot to load first: only for replicas of the metadata log (KIP-630)."""

    end_offset: int = int64("0+", default=-1)
    epoch: int = int32("0+", default=-1)


class AbortedTransaction(Struct):
    """A producer whose records from this offset up to its marker were aborted."""

    producer_id: int = int64("4+")
    first_offset: int = int64("4+")


class PartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    high_watermark: int = int64("0+")
    last_stable_offset: int = int64("4+", default=-1, ignorable=True)  # KIP-98
    log_start_offset: int = int64("5+", default=-1, ignorable=True)  # KIP-107
    diverging_epoch: EpochEndOffset = nested(EpochEndOffset, "12+", tag=0)  # KIP-595
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, "12+", tag=1)  # KIP-595, 951
    snapshot_id: SnapshotId = nested(SnapshotId, "12+", tag=2)  # KIP-630
    # KIP-98
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, "4+", nullable="4+", ignorable=True
    )
    preferred_read_replica: int = int32("11+", default=-1)  # KIP-392
    records: Records | None = record_set("0+", nullable="0+")


class FetchableTopicResponse(Struct):
    topic: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # KIP-516
    partitions: list[PartitionData] = array(PartitionData, "0+")


class NodeEndpoint(Struct):
    """The address of a new leader (KIP-951)."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)


class FetchResponse(Response):
    """Record sets by partition. In a session only partitions that changed (KIP-227)."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("7+", ignorable=True)  # KIP-227
    session_id: int = int32("7+")  # KIP-227
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse, "0+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0)  # KIP-951


class ReplicaState(Struct):
    """The follower that fetches (KIP-903). Consumers are replica -1."""

    replica_id: int = int32("15+", default=-1)
    replica_epoch: int = int64("15+", default=-1)


class FetchPartition(Struct):
    partition: int = int32("0+")
    current_leader_epoch: int = int32("9+", default=-1, ignorable=True)  # KIP-320
    fetch_offset: int = int64("0+")
    last_fetched_epoch: int = int32("12+", default=-1)  # KIP-595
    log_start_offset: int = int64("5+", default=-1, ignorable=True)  # KIP-107
    partition_max_bytes: int = int32("0+")
    replica_directory_id: bytes = uuid("17+", tag=0, ignorable=True)  # KIP-853
    high_watermark: int = int64("18+", default=2**63 - 1, tag=1, ignorable=True)  # KIP-1166


class FetchTopic(Struct):
    topic: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # KIP-516
    partitions: list[FetchPartition] = array(FetchPartition, "0+")


class ForgottenTopic(Struct):
    """Partitions to drop from the session (KIP-227)."""

    topic: str = string("7-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # KIP-516
    partitions: list[int] = array(int32, "7+")


class FetchRequest(Request[FetchResponse], key=1, versions="4-18", flexible="12+"):
    # KIP-595
    cluster_id: str | None = string("12+", nullable="12+", default=None, tag=0, ignorable=True)
    replica_id: int = int32("0-14", default=-1)
    replica_state: ReplicaState = nested(ReplicaState, "15+", tag=1)  # KIP-903
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("3+", default=2**31 - 1, ignorable=True)  # KIP-74
    isolation_level: int = int8("4+", ignorable=True)  # KIP-98
    session_id: int = int32("7+", ignorable=True)  # KIP-227
    session_epoch: int = int32("7+", default=-1, ignorable=True)  # KIP-227
    topics: list[FetchTopic] = array(FetchTopic, "0+")
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")  # KIP-227
    rack_id: str = string("11+", ignorable=True)  # KIP-392

    @property
    @override
    def usable_max_version(self) -> int:
        ids = [topic.topic_id for topic in self.topics]
        ids += [topic.topic_id for topic in self.forgotten_topics_data]
        if ZERO_UUID in ids:
            return LAST_WITH_NAMES
        return self.max_version
