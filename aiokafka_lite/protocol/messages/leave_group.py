"""LeaveGroup (key 13): leave a classic group without waiting for the timeout.

v3 several members at once (KIP-345), which moved the member id into a list; v4 is flexible;
v5 a reason (KIP-800).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Route,
    Struct,
    array,
    int16,
    int32,
    string,
)


class MemberResponse(Struct):
    """The outcome for one member."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")  # KIP-345
    error_code: int = int16("3+")


class LeaveGroupResponse(Response):
    """The outcome for each member."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    members: list[MemberResponse] = array(MemberResponse, "3+")  # KIP-345


class MemberIdentity(Struct):
    """A member that leaves."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)  # KIP-345
    reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-800


class LeaveGroupRequest(
    Request[LeaveGroupResponse], key=13, versions="0-5", flexible="4+", route=Route.COORDINATOR
):
    """Leave, for one or several members."""

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")  # KIP-345
