"""DescribeGroups (key 15): state and members of classic groups.

v3 authorized operations (KIP-430); v4 static members (KIP-345); v5 is flexible; v6 tells a missing
group from a dead one (KIP-1043).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    blob,
    boolean,
    int16,
    int32,
    string,
)


class DescribedGroupMember(Struct):
    """A member, its subscription and its assignment."""

    member_id: str = string("0+")
    # KIP-345
    group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes = blob("0+")
    member_assignment: bytes = blob("0+")


class DescribedGroup(Struct):
    """A group and its members."""

    error_code: int = int16("0+")
    error_message: str | None = string("6+", nullable="6+", default=None)  # KIP-1043
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    authorized_operations: int = int32("3+", default=-(2**31))  # KIP-430


class DescribeGroupsResponse(Response):
    """The groups described."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")


class DescribeGroupsRequest(Request[DescribeGroupsResponse], key=15, versions="0-6", flexible="5+"):
    """Describe some groups."""

    groups: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("3+")  # KIP-430
