"""What members of share groups send: heartbeats, and fetches with acknowledgements (KIP-932).

v1 is the first stable version of each request. v2 adds the acquire mode (KIP-1206) and renewed
locks (KIP-1222).
"""

from __future__ import annotations

from aiokafka_lite.protocol.fields import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nested,
    record_set,
    string,
    uuid,
)
from aiokafka_lite.protocol.messages.fetch import NodeEndpoint
from aiokafka_lite.protocol.messages.group_members import Assignment
from aiokafka_lite.protocol.schema import Records, Request, Response, Struct


# --- ShareGroupHeartbeat (key 76) -------------------------------------------------------------
class ShareGroupHeartbeatResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: Assignment | None = nested(Assignment, "0+", nullable="0+", default=None)


class ShareGroupHeartbeatRequest(
    Request[ShareGroupHeartbeatResponse], key=76, versions="1", flexible="0+"
):
    """Join (epoch 0), stay, or leave (epoch -1). The client makes the id. Null means unchanged."""

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    rack_id: str | None = string("0+", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = array(string, "0+", nullable="0+", default=None)


# --- Of ShareFetch and ShareAcknowledge -------------------------------------------------------
class AcknowledgementBatch(Struct):
    """Offsets with a type for all or each: 0 gap, 1 accept, 2 release, 3 reject, 4 renew."""

    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    acknowledge_types: list[int] = array(int8, "0+")


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


# --- ShareFetch (key 78) ----------------------------------------------------------------------
class AcquiredRecords(Struct):
    """Offsets that this member has locked, and how often each was delivered, now included."""

    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    delivery_count: int = int16("0+")


class PartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acknowledge_error_code: int = int16("0+")
    acknowledge_error_message: str | None = string("0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, "0+")
    records: Records | None = record_set("0+", nullable="0")
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords, "0+")


class ShareFetchableTopicResponse(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class ShareFetchResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("1+")
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse, "0+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "0+")


class FetchPartition(Struct):
    partition_index: int = int32("0+")
    partition_max_bytes: int = int32("0")
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch, "0+")


class FetchTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[FetchPartition] = array(FetchPartition, "0+")


class ForgottenTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ShareFetchRequest(Request[ShareFetchResponse], key=78, versions="1-2", flexible="0+"):
    """Lock records of a session's partitions, and acknowledge others. Epoch 0 opens the session.

    Acknowledgements need an open session. A request that renews locks fetches nothing.
    """

    group_id: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+")
    share_session_epoch: int = int32("0+")
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("0+", default=2**31 - 1)
    max_records: int = int32("1+")
    batch_size: int = int32("1+")
    share_acquire_mode: int = int8("2+", ignorable=True)  # KIP-1206; 0 whole batches, 1 exact
    is_renew_ack: bool = boolean("2+")  # KIP-1222
    topics: list[FetchTopic] = array(FetchTopic, "0+")
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "0+")
