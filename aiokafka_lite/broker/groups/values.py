"""Requests and replies of the classic group protocol, without wire format and versions.

A `Ticket` identifies one parked request. The machine answers every ticket exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, TypeAlias

from aiokafka_lite.errors import BrokerResponseError, NoError
from aiokafka_lite.protocol.messages.classic_group import JoinGroupResponseMember

Ticket = NewType("Ticket", int)
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


@dataclass(frozen=True)
class Joined:
    error: ErrorType = NoError
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_LEADER
    member_id: str = NO_MEMBER_ID
    members: Sequence[JoinGroupResponseMember] = ()
    skip_assignment: bool = False


@dataclass(frozen=True)
class Sync:
    """A SyncGroup request. Only the leader's has assignments."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Synced:
    error: ErrorType = NoError
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = NO_ASSIGNMENT


@dataclass(frozen=True)
class Leaver:
    """A member in a LeaveGroup request. Administrators may name only the instance."""

    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None


@dataclass(frozen=True)
class Write:
    """Request to append the group's metadata. The driver passes the result to `done`."""

    assignments: Mapping[str, bytes]
    done: Callable[[ErrorType, float], Effects]


@dataclass
class Effects:
    """Actions for the driver, in this order, and the time of the step that requests them."""

    now: float
    replies: list[tuple[Ticket, Joined | Synced]] = field(default_factory=list)
    write: Write | None = None
