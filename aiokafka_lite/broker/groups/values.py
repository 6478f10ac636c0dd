"""What goes into the group coordinator's state machine and what comes out: plain values.

The handlers translate requests to these and these to responses, so that the machine knows neither
the wire nor its versions. A ``Ticket`` stands for one parked request; the machine answers every
ticket that it was given exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, TypeAlias

from aiokafka_lite.errors import BrokerResponseError, NoError

Ticket = NewType("Ticket", int)
ErrorType: TypeAlias = type[BrokerResponseError]
# What a member says about each of its protocols, the one it likes best first: (name, metadata).
Protocols: TypeAlias = tuple[tuple[str, bytes], ...]

CONSUMER_PROTOCOL_TYPE = "consumer"
NO_MEMBER_ID = ""
NO_LEADER = ""
NO_ASSIGNMENT = b""


@dataclass(frozen=True)
class GroupSettings:
    """The broker's limits for groups; the names are those of Kafka's configuration.

    Attributes:
        initial_rebalance_delay_ms: group.initial.rebalance.delay.ms
        min_session_timeout_ms: group.min.session.timeout.ms
        max_session_timeout_ms: group.max.session.timeout.ms
        max_size: group.max.size
        new_member_join_timeout_ms: A member that never heard its id cannot send heartbeats; its
            parked JoinGroup is given up after this time (a constant of five minutes in Kafka).
        offset_metadata_max_bytes: offset.metadata.max.bytes
    """

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096

    def allows_session(self, timeout_ms: int) -> bool:
        """Say whether a member may have such a session timeout."""
        return self.min_session_timeout_ms <= timeout_ms <= self.max_session_timeout_ms


@dataclass(frozen=True)
class Join:
    """A JoinGroup request.

    Attributes:
        needs_known_member_id: The sender understands MEMBER_ID_REQUIRED (KIP-394, v4).
        can_skip_assignment: The sender understands SkipAssignment (KIP-814, v9).
    """

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
class JoinedMember:
    """One line of the member list that the leader gets."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True)
class Joined:
    """The answer to a Join."""

    error: ErrorType = NoError
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_LEADER
    member_id: str = NO_MEMBER_ID
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


@dataclass(frozen=True)
class Sync:
    """A SyncGroup request; only the leader's has assignments."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Synced:
    """The answer to a Sync."""

    error: ErrorType = NoError
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = NO_ASSIGNMENT


@dataclass(frozen=True)
class Leaver:
    """One member named by a LeaveGroup request; an administrator may name the instance only."""

    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None


@dataclass(frozen=True)
class Write:
    """The group's metadata, with these assignments, is to be appended to the log.

    The driver does that at once, before it gives the machine anything else, then calls ``done``
    with the result and acts on the effects which that gives.
    """

    assignments: Mapping[str, bytes]
    done: Callable[[ErrorType, float], Effects]


@dataclass
class Effects:
    """What the driver has to do after one step of the machine, in this order."""

    replies: list[tuple[Ticket, Joined | Synced]] = field(default_factory=list)
    write: Write | None = None


def nothing_follows(_error: ErrorType, _now: float) -> Effects:
    """Do nothing after a write: an empty group that was not stored is only forgotten sooner."""
    return Effects()
