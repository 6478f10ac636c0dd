"""The members of a classic group, and values that the coordinator and its groups exchange.

Members have the order in which they joined: the first one leads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from aiokafka_lite.broker.groups.coordinator_log import ErrorType
from aiokafka_lite.errors import FencedInstanceIdError, NoError, UnknownMemberIdError
from aiokafka_lite.protocol.messages.coordinator_records import MemberMetadata
from aiokafka_lite.protocol.messages.group_members import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

JoinAnswer: TypeAlias = Callable[[JoinGroupResponse], None]
SyncAnswer: TypeAlias = Callable[[SyncGroupResponse], None]
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


@dataclass(slots=True, eq=False)
class ClassicGroupMember:
    """One member, with its parked requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = NO_ASSIGNMENT
    # It joined after the latest rebalance, and may not know its id yet. Its parked JoinGroup
    # therefore has a time limit.
    is_new: bool = False
    is_unsynced: bool = False  # it has not sent SyncGroup in this generation
    answer_join: JoinAnswer | None = None
    answer_sync: SyncAnswer | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        return self.answer_join is not None

    @property
    def proves_life_by_waiting(self) -> bool:
        """Whether a parked request replaces heartbeats: not the first join of a new member."""
        return not self.is_new and (self.answer_join is not None or self.answer_sync is not None)

    def metadata(self, protocol: str) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise ValueError(f"member {self.member_id!r} does not support protocol {protocol!r}")

    def vote(self, candidates: frozenset[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)

    def stored(self, protocol: str, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )


class Members(dict[str, ClassicGroupMember]):
    """The members by id. `add`, `remove` and `replace` change them."""

    def __init__(self) -> None:
        super().__init__()
        self._id_by_instance: dict[str, str] = {}
        self.leader_id: str | None = None

    def static_member_id(self, instance_id: str | None) -> str | None:
        return None if instance_id is None else self._id_by_instance.get(instance_id)

    @property
    def awaiting_join_count(self) -> int:
        return sum(member.is_awaiting_join for member in self.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout, 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.values()), default=0)

    def identify(self, member_id: str, instance_id: str | None) -> ErrorType:
        """Return NoError, or UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID (KIP-345)."""
        if instance_id is not None:
            current = self._id_by_instance.get(instance_id)
            if current is None:
                return UnknownMemberIdError
            if current != member_id:
                return FencedInstanceIdError
        return NoError if member_id in self else UnknownMemberIdError

    def add(self, member: ClassicGroupMember) -> None:
        if member.instance_id is not None:
            self._id_by_instance[member.instance_id] = member.member_id
        self[member.member_id] = member
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """Remove a member, if present. The first remaining member replaces a removed leader."""
        member = self.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self._id_by_instance[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self), None)
        return member

    def replace(self, old_id: str, new: ClassicGroupMember) -> None:
        """Replace a static member in place, leadership included."""
        members = [new if each.member_id == old_id else each for each in self.values()]
        self.clear()
        self.update((each.member_id, each) for each in members)
        if self.leader_id == old_id:
            self.leader_id = new.member_id
        if new.instance_id is not None:
            self._id_by_instance[new.instance_id] = new.member_id

    def elect_joined_leader(self) -> bool:
        """Choose a joined member as leader. Return False if no member has joined."""
        joined = [member.member_id for member in self.values() if member.is_awaiting_join]
        if joined and self.leader_id not in joined:
            self.leader_id = joined[0]
        return bool(joined)

    def common_protocols(self) -> frozenset[str]:
        """Return the protocols that every member supports. There must be members."""
        names = [dict(member.protocols).keys() for member in self.values()]
        return frozenset(names[0]).intersection(*names)

    def support_any(self, names: Collection[str]) -> bool:
        """Return whether all members support one of these protocols, True without members."""
        if not self:
            return bool(names)
        common = self.common_protocols()
        return any(name in common for name in names)

    def select_protocol(self) -> str:
        candidates = self.common_protocols()
        votes = Counter(member.vote(candidates) for member in self.values())
        return max(votes, key=votes.__getitem__)

    def listing(self, protocol: str) -> tuple[JoinGroupResponseMember, ...]:
        return tuple(
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(protocol),
            )
            for member in self.values()
        )
