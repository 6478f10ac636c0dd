"""SyncGroup (key 14): the leader sends the assignment, each member gets its own part.

v3 static members (KIP-345); v4 is flexible; v5 the protocol's type and name (KIP-559).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    blob,
    int16,
    int32,
    string,
)


class SyncGroupResponse(Response):
    """The assignment of the member that asked."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-559
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-559
    assignment: bytes = blob("0+")


class SyncGroupRequestAssignment(Struct):
    """The assignment of one member."""

    member_id: str = string("0+")
    assignment: bytes = blob("0+")


class SyncGroupRequest(Request[SyncGroupResponse], key=14, versions="0-5", flexible="4+"):
    """Ask for one's assignment; from the leader with those of all."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)  # KIP-345
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-559
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-559
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, "0+")
