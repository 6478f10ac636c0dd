"""LeaveGroup (key 13): leave a classic group without waiting for the timeout.

v3 several members at once (KIP-345), which moved the member id into a list; v4 is flexible;
v5 a reason (KIP-800).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Self, override
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    string,
)

_FIRST_WITH_SEVERAL_MEMBERS: Final = 3


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

    @override
    def for_version(self, version: int) -> Self:
        """Where there is no list of members, the one member's error is that of the answer."""
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
    """A member that leaves."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)  # KIP-345
    reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-800


class LeaveGroupRequest(Request[LeaveGroupResponse], key=13, versions="0-5", flexible="4+"):
    """Leave, for one or several members."""

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")  # KIP-345

    @override
    def for_version(self, version: int) -> Self:
        if version >= _FIRST_WITH_SEVERAL_MEMBERS or not self.members:
            return self
        if len(self.members) > 1 or self.members[0].group_instance_id is not None:
            raise UnsupportedVersionError(
                f"a LeaveGroup v{version} request can contain only one member, "
                "which must not be static"
            )
        return type(self)(group_id=self.group_id, member_id=self.members[0].member_id)

    @override
    def from_version(self, version: int) -> Self:
        if version >= _FIRST_WITH_SEVERAL_MEMBERS:
            return self
        member = MemberIdentity(member_id=self.member_id)
        return type(self)(group_id=self.group_id, members=[member])
