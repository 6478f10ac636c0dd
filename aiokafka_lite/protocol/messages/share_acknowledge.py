"""ShareAcknowledge (key 79): acknowledge records of a share group without a fetch (KIP-932)."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, boolean, int16, int32, nested, string, uuid
from aiokafka_lite.protocol.messages.fetch import (
    NodeEndpoint,
)
from aiokafka_lite.protocol.messages.share import (
    AcknowledgementBatch,
    LeaderIdAndEpoch,
)
from aiokafka_lite.protocol.schema import Request, Response, Struct


class PartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, "0+")


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class ShareAcknowledgeResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("2+", ignorable=True)  # KIP-1222
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse, "0+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "0+")


class AcknowledgePartition(Struct):
    partition_index: int = int32("0+")
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch, "0+")


class AcknowledgeTopic(Struct):
    topic_id: bytes = uuid("0+")
    partitions: list[AcknowledgePartition] = array(AcknowledgePartition, "0+")


class ShareAcknowledgeRequest(
    Request[ShareAcknowledgeResponse], key=79, versions="1-2", flexible="0+"
):
    """Acknowledge records without fetching others. Epoch -1 also closes the session."""

    group_id: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+")
    share_session_epoch: int = int32("0+")
    is_renew_ack: bool = boolean("2+")  # KIP-1222
    topics: list[AcknowledgeTopic] = array(AcknowledgeTopic, "0+")
