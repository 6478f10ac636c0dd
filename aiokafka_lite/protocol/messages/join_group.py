"""JoinGroup (key 11): enter a rebalance of a classic group.

v1 a rebalance timeout of its own; v4 two steps for a member without an id (KIP-394); v5 static
members (KIP-345); v6 is flexible; v7 the protocol's type and name (KIP-559); v8 a reason
(KIP-800); v9 lets the leader skip the assignment (KIP-814).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Self, override
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

_FIRST_WITH_REBALANCE_TIMEOUT: Final = 1


class JoinGroupResponseMember(Struct):
    """A member and its subscription."""

    member_id: str = string("0+")
    # KIP-345
    group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = blob("0+")


class JoinGroupResponse(Response):
    """The new generation; for the leader with everybody's subscriptions."""

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
    """An assignor, with the member's subscription for it."""

    name: str = string("0+")
    metadata: bytes = blob("0+")


class JoinGroupRequest(Request[JoinGroupResponse], key=11, versions="0-9", flexible="6+"):
    """Join, or join again, with the assignors that the member knows."""

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
