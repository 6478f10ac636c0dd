"""ListGroups (key 16): the groups that a broker coordinates.

v3 is flexible; v4 filters by state (KIP-518); v5 filters by type (KIP-848).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    string,
)


class ListedGroup(Struct):
    """A group."""

    group_id: str = string("0+")
    protocol_type: str = string("0+")
    group_state: str = string("4+", ignorable=True)  # KIP-518
    group_type: str = string("5+", ignorable=True)  # KIP-848


class ListGroupsResponse(Response):
    """The groups found."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array(ListedGroup, "0+")


class ListGroupsRequest(Request[ListGroupsResponse], key=16, versions="0-5", flexible="3+"):
    """List groups; an empty filter lets all pass."""

    states_filter: list[str] = array(string, "4+")  # KIP-518
    types_filter: list[str] = array(string, "5+")  # KIP-848
