"""Administrate groups."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, blob, boolean, int16, int32, string
from aiokafka_lite.protocol.schema import Request, Response, Struct


# --- DescribeGroups (key 15) ------------------------------------------------------------------
class DescribedGroupMember(Struct):
    member_id: str = string("0+")
    # KIP-345
    group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes = blob("0+")
    member_assignment: bytes = blob("0+")


class DescribedGroup(Struct):
    error_code: int = int16("0+")
    error_message: str | None = string("6+", nullable="6+", default=None)  # KIP-1043
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    authorized_operations: int = int32("3+", default=-(2**31))  # KIP-430


class DescribeGroupsResponse(Response):
    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")


class DescribeGroupsRequest(Request[DescribeGroupsResponse], key=15, versions="0-6", flexible="5+"):
    """Describe classic groups. From v6 on, a missing group is an error (KIP-1043)."""

    groups: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("3+")  # KIP-430


# --- ListGroups (key 16) ----------------------------------------------------------------------
class ListedGroup(Struct):
    group_id: str = string("0+")
    protocol_type: str = string("0+")
    group_state: str = string("4+", ignorable=True)  # KIP-518
    group_type: str = string("5+", ignorable=True)  # KIP-848


class ListGroupsResponse(Response):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array(ListedGroup, "0+")


class ListGroupsRequest(Request[ListGroupsResponse], key=16, versions="0-5", flexible="3+"):
    """List the groups that a broker coordinates. An empty filter matches all."""

    states_filter: list[str] = array(string, "4+")  # KIP-518
    types_filter: list[str] = array(string, "5+")  # KIP-848


# --- DeleteGroups (key 42) --------------------------------------------------------------------
class DeletableGroupResult(Struct):
    group_id: str = string("0+")
    error_code: int = int16("0+")


class DeleteGroupsResponse(Response):
    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")


class DeleteGroupsRequest(Request[DeleteGroupsResponse], key=42, versions="0-2", flexible="2+"):
    """Delete empty groups with their offsets (KIP-229)."""

    groups_names: list[str] = array(string, "0+")
