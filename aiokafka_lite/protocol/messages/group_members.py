"""Membership in groups, classic and of KIP-848, and what members write for each other."""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Self, override
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.fields import array, blob, boolean, int16, int32, nested, string, uuid
from aiokafka_lite.protocol.schema import Blob, Request, Response, Several, Struct

# --- JoinGroup (key 11) -----------------------------------------------------------------------
_FIRST_WITH_REBALANCE_TIMEOUT: Final = 1


class JoinGroupResponseMember(Struct):
    member_id: str = string("0+")
    # KIP-345
    group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = blob("0+")


class JoinGroupResponse(Response):
    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)  # KIP-559
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+")  # KIP-814
    member_id: str = string("0+")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, "0+")


class JoinGroupRequestProtocol(Struct):
    name: str = string("0+")
    metadata: bytes = blob("0+")


class JoinGroupRequest(Request[JoinGroupResponse], key=11, versions="0-9", flexible="6+"):
    """Join or rejoin a classic group. The response to the leader contains all subscriptions.

    From v4 on, a member without an id joins in two steps (KIP-394).
    """

    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)  # KIP-62
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)  # KIP-345
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol, "0+")
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)  # KIP-800

    @override
    def from_version(self, version: int) -> Self:
        if version < _FIRST_WITH_REBALANCE_TIMEOUT:
            self.rebalance_timeout_ms = self.session_timeout_ms
        return self


# --- SyncGroup (key 14) -----------------------------------------------------------------------
class SyncGroupResponse(Response):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-559
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-559
    assignment: bytes = blob("0+")


class SyncGroupRequestAssignment(Struct):
    member_id: str = string("0+")
    assignment: bytes = blob("0+")


class SyncGroupRequest(Request[SyncGroupResponse], key=14, versions="0-5", flexible="4+"):
    """Return the member's assignment. The leader sends the assignments of all."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)  # KIP-345
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-559
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-559
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, "0+")


# --- Heartbeat (key 12) -----------------------------------------------------------------------
class HeartbeatResponse(Response):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")


class HeartbeatRequest(Request[HeartbeatResponse], key=12, versions="0-4", flexible="4+"):
    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)  # KIP-345


# --- LeaveGroup (key 13) ----------------------------------------------------------------------
_FIRST_WITH_SEVERAL_MEMBERS: Final = 3


class MemberResponse(Struct):
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")  # KIP-345
    error_code: int = int16("3+")


class LeaveGroupResponse(Response):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    members: list[MemberResponse] = array(MemberResponse, "3+")  # KIP-345

    @override
    def for_version(self, version: int) -> Self:
        """Versions without a list of members return the one member's error as their own."""
        if version >= _FIRST_WITH_SEVERAL_MEMBERS or not self.members:
            return self
        if len(self.members) > 1:
            raise UnsupportedVersionError(
                f"a LeaveGroup v{version} response can contain only one member"
            )
        return type(self)(
            throttle_time_ms=self.throttle_time_ms,
            error_code=self.error_code or self.members[0].error_code,
        )


class MemberIdentity(Struct):
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)  # KIP-345
    reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-800


class LeaveGroupRequest(
    Request[LeaveGroupResponse], Several, key=13, versions="0-5", flexible="4+"
):
    several = "members"

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")  # KIP-345


# --- ConsumerGroupHeartbeat (key 68) --------------------------------------------------------
class TopicPartitions(Struct):
    topic_id: bytes = uuid("0+")  # KIP-516
    partitions: list[int] = array(int32, "0+")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class ConsumerGroupHeartbeatResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: Assignment | None = nested(Assignment, "0+", nullable="0+", default=None)


class ConsumerGroupHeartbeatRequest(
    Request[ConsumerGroupHeartbeatResponse],
    key=68,
    versions="0-1",
    flexible="0+",
):
    """Join (epoch 0), stay, or leave (epoch -1, static members -2). Null means unchanged.

    From v1 on, the client generates the member id (KIP-1082).
    """

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array(string, "0+", nullable="0+", default=None)
    # KIP-848; RE2 syntax
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, "0+", nullable="0+", default=None
    )


# --- Blobs in JoinGroup and SyncGroup: `encode_versioned`, `decode_versioned` -------------------
class TopicPartition(Struct):
    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerProtocolSubscription(Blob, versions="0-3", is_forward_compatible=True):
    topics: list[str] = array(string, "0+")
    user_data: bytes | None = blob("0+", nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+", ignorable=True)  # KIP-429
    generation_id: int = int32("2+", default=-1, ignorable=True)  # KIP-792
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)  # KIP-881


class ConsumerProtocolAssignment(Blob, versions="0-3", is_forward_compatible=True):
    assigned_partitions: list[TopicPartition] = array(TopicPartition, "0+")
    user_data: bytes | None = blob("0+", nullable="0+", default=None)


class StickyUserData(Blob, versions="0-1"):
    """The sticky assignor's latest assignment and generation (KIP-341), without a version."""

    previous_assignment: list[TopicPartition] = array(TopicPartition, "0+")
    generation: int = int32("1+", default=-1, ignorable=True)
