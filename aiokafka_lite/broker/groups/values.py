"""Values that the coordinator and its groups exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from aiokafka_lite.errors import BrokerResponseError
from aiokafka_lite.protocol.messages.group_members import JoinGroupResponse, SyncGroupResponse

JoinAnswer: TypeAlias = Callable[[JoinGroupResponse], None]
SyncAnswer: TypeAlias = Callable[[SyncGroupResponse], None]
ErrorType: TypeAlias = type[BrokerResponseError]
# A member's protocols, the preferred one first: (name, metadata).
Protocols: TypeAlias = tuple[tuple[str, bytes], ...]

CONSUMER_PROTOCOL_TYPE = "consumer"
NO_MEMBER_ID = ""
NO_LEADER = ""
NO_ASSIGNMENT = b""


class GroupClient(NamedTuple):
    """The client of a member's request, with its address."""

    client_id: str
    host: str


@dataclass(frozen=True)
class Join:
    """A JoinGroup request. For the last two fields see KIP-394 (v4) and KIP-814 (v9)."""

    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    needs_known_member_id: bool = True
    can_skip_assignment: bool = True


def join_refusal(error: ErrorType, member_id: str = NO_MEMBER_ID) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error.errno, protocol_name=None, member_id=member_id)


def sync_refusal(error: ErrorType) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error.errno)
