"""Every message; the structs within one are in its own module."""

from __future__ import annotations

from aiokafka_lite.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from aiokafka_lite.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from aiokafka_lite.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from aiokafka_lite.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from aiokafka_lite.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from aiokafka_lite.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from aiokafka_lite.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from aiokafka_lite.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from aiokafka_lite.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from aiokafka_lite.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)
from aiokafka_lite.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from aiokafka_lite.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from aiokafka_lite.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from aiokafka_lite.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from aiokafka_lite.protocol.messages.fetch import FetchRequest, FetchResponse
from aiokafka_lite.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from aiokafka_lite.protocol.messages.group_records import (
    ControlRecordType,
    ControlRecordTypeSchema,
    EndTxnMarker,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from aiokafka_lite.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from aiokafka_lite.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from aiokafka_lite.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from aiokafka_lite.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from aiokafka_lite.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from aiokafka_lite.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataResponse
from aiokafka_lite.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from aiokafka_lite.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from aiokafka_lite.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from aiokafka_lite.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest, ProduceResponse
from aiokafka_lite.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from aiokafka_lite.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from aiokafka_lite.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from aiokafka_lite.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

__all__ = [
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "ControlRecordType",
    "ControlRecordTypeSchema",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "EndTxnMarker",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitKey",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetCommitValue",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
]
