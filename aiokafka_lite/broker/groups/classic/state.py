"""One classic consumer group as a state machine: no I/O, no clock, no tasks.

States, what each answers, and how it is left (Kafka: ClassicGroupState.java, GroupMetadataManager):

Empty: no members; lingers because of its committed offsets or its metadata.
    join            the first rebalance begins                          -> PreparingRebalance
    sync, heartbeat, leave, commit by a member: UNKNOWN_MEMBER_ID
    commit without a member (generation < 0): accepted
PreparingRebalance: waiting for every member to join again.
    join            parked
    all have joined, or the rebalance timeout, with members left        -> CompletingRebalance
    the same without members                                            -> Empty
    sync, heartbeat REBALANCE_IN_PROGRESS
    leave           the member is removed
    commit          accepted from the previous generation
CompletingRebalance: everyone has joined; waiting for the leader's assignment.
    join            unchanged member: answered again; new or changed    -> PreparingRebalance
    sync            parked; the leader's is written to the log, then    -> Stable
    heartbeat       accepted (a member may start before it has synced)
    leave, session or sync timeout                                      -> PreparingRebalance
    commit          REBALANCE_IN_PROGRESS
Stable: everyone has an assignment, or may fetch it.
    join            unchanged follower: answered again; leader, new or changed -> PreparingRebalance
                    static member under a new id: takes the old one's place without a rebalance,
                    unless the group would choose another protocol
    sync            answered at once
    heartbeat, commit  accepted
    leave, session timeout, members that never synced                   -> PreparingRebalance
Dead: deleted, or the coordinator has gone. Final.
    everything      COORDINATOR_NOT_AVAILABLE

The first rebalance of an empty group (PreparingRebalance entered from Empty) is special: it does
not end when all have joined but after the initial delay, which each further member prolongs, up to
its rebalance timeout, because the members of a group tend to start together.

Timers: one per member (its session; a pending member's, too), one for joins, one for syncs.
The driver calls ``expire`` when ``next_deadline`` has come. Each call is atomic; what is to be done
outside comes back as ``Effects``. Differences from Kafka: a parked request is always answered
(Kafka forgets one that is sent again, and the SyncGroup of a member that leaves).

This module has the states and the phases of a rebalance; machine.py has the requests.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiokafka_lite.broker.groups.classic.members import ClassicGroupMember, Members
from aiokafka_lite.broker.groups.values import (
    NO_ASSIGNMENT,
    NO_LEADER,
    Effects,
    ErrorType,
    GroupSettings,
    Joined,
    JoinedMember,
    Synced,
    Ticket,
    Write,
    nothing_follows,
)
from aiokafka_lite.errors import RebalanceInProgressError, UnknownMemberIdError


class GroupState(enum.Enum):
    """The states, under the names that DescribeGroups and ListGroups give."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY: Final = GroupState.EMPTY
PREPARING: Final = GroupState.PREPARING_REBALANCE
COMPLETING: Final = GroupState.COMPLETING_REBALANCE
STABLE: Final = GroupState.STABLE
DEAD: Final = GroupState.DEAD

LEGAL_TRANSITIONS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    EMPTY: frozenset({PREPARING, DEAD}),
    PREPARING: frozenset({COMPLETING, EMPTY, DEAD}),
    COMPLETING: frozenset({STABLE, PREPARING, DEAD}),
    STABLE: frozenset({PREPARING, DEAD}),
    DEAD: frozenset(),
}


class Timer(enum.Enum):
    """The timers that a group has besides its members' sessions (which go by member id)."""

    JOIN = enum.auto()
    SYNC = enum.auto()


class RebalancingGroup:
    """A group's state, timers and rebalance. Times are seconds on the driver's clock.

    Its fields are written here and in the subclass that answers requests.
    """

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        *,
        new_suffix: Callable[[], str],
        clock: Callable[[], int],
    ) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.state_since_ms = clock()
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = Members()
        # Ids handed out with MEMBER_ID_REQUIRED that have not come back yet.
        self._pending_ids: dict[str, None] = {}
        # Members of this generation that have not sent their SyncGroup yet.
        self._unsynced_ids: dict[str, None] = {}
        self._timers: dict[str | Timer, float] = {}
        # In the first rebalance of an empty group: until when further members prolong it, and
        # whether one has joined since the delay began.
        self._prolonged_until: float | None = None
        self._has_newcomer: bool
        self._settings = settings
        self._new_suffix = new_suffix
        self._clock = clock

    def next_deadline(self) -> float | None:
        """Return when ``expire`` is to be called, None without timers."""
        return min(self._timers.values(), default=None)

    # -- the rebalance -------------------------------------------------------------------------

    def _rebalance(self, now: float, effects: Effects) -> None:
        """Begin a rebalance, or see whether the one in progress can end."""
        if PREPARING in LEGAL_TRANSITIONS[self.state]:
            self._prepare_rebalance(now, effects)
        else:
            self._maybe_complete_join(now, effects)

    def _prepare_rebalance(
        self, now: float, effects: Effects, cause: ErrorType = RebalanceInProgressError
    ) -> None:
        if self.state is COMPLETING:
            for member in self.members:
                member.assignment = NO_ASSIGNMENT
                if self._reply_sync(member, Synced(cause), effects):
                    self._restart_session(member, now)
        self._timers.pop(Timer.SYNC, None)
        is_initial = self.state is EMPTY
        self._transition(PREPARING)
        timeout_at = now + self.members.rebalance_timeout_ms / 1000
        self._prolonged_until = timeout_at if is_initial else None
        if is_initial:
            self._has_newcomer = False
            self._timers[Timer.JOIN] = now + self._initial_delay_s
        elif self._have_all_joined:
            self._complete_join(now, effects)
        else:
            self._timers[Timer.JOIN] = timeout_at

    @property
    def _initial_delay_s(self) -> float:
        return self._settings.initial_rebalance_delay_ms / 1000

    @property
    def _have_all_joined(self) -> bool:
        return not self._pending_ids and len(self.members) == self.members.awaiting_join_count

    def _maybe_complete_join(self, now: float, effects: Effects) -> None:
        is_delayed = self._prolonged_until is not None
        if self.state is PREPARING and not is_delayed and self._have_all_joined:
            self._complete_join(now, effects)

    def _join_time_is_up(self, now: float, effects: Effects) -> None:
        if self._prolonged_until is None or not self._has_newcomer:
            self._complete_join(now, effects)
            return
        self._has_newcomer = False
        self._timers[Timer.JOIN] = min(now + self._initial_delay_s, self._prolonged_until)

    def _complete_join(self, now: float, effects: Effects) -> None:
        """End the join phase with those who are there; late dynamic members are out."""
        self._timers.pop(Timer.JOIN, None)
        for member in tuple(self.members):
            if not member.is_awaiting_join and not member.is_static:
                self._remove(member.member_id, effects)
        if self.members and not self.members.elect_joined_leader():
            # Only static members that did not come: wait until their sessions end.
            self._timers[Timer.JOIN] = now + self.members.rebalance_timeout_ms / 1000
            return
        self.generation += 1
        if not self.members:
            self.protocol = None
            self._transition(EMPTY)
            effects.write = Write({}, nothing_follows)
            return
        self.protocol = self.members.select_protocol()
        self._transition(COMPLETING)
        for member in self.members:
            self._reply_join(member, self._joined(member), effects)
            self._restart_session(member, now)
            member.is_new = False
            self._unsynced_ids[member.member_id] = None
        self._timers[Timer.SYNC] = now + self.members.rebalance_timeout_ms / 1000

    def _hand_out(self, assignments: Mapping[str, bytes], now: float, effects: Effects) -> None:
        for member in self.members:
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
            if member.sync_ticket is not None:
                self._answer_sync(member.sync_ticket, member.assignment, effects)
                member.sync_ticket = None
                # While it waited, its session may have run out without effect.
                self._restart_session(member, now)
        self._transition(STABLE)

    # -- small parts ---------------------------------------------------------------------------

    def _transition(self, to: GroupState) -> None:
        if to not in LEGAL_TRANSITIONS[self.state]:
            raise AssertionError(
                f"group {self.group_id!r}: the state cannot change from {self.state} to {to}"
            )
        self.state = to
        self.state_since_ms = self._clock()

    def _restart_session(self, member: ClassicGroupMember, now: float) -> None:
        self._timers[member.member_id] = now + member.session_timeout_ms / 1000

    def _joined(
        self,
        member: ClassicGroupMember,
        *,
        leader: str | None = None,
        members: Sequence[JoinedMember] | None = None,
        skip_assignment: bool = False,
    ) -> Joined:
        """Return the answer that tells a member about the current generation."""
        if members is None:
            is_leader = member.member_id == self.members.leader_id
            members = self.members.listing(self.protocol or "") if is_leader else ()
        return Joined(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader if leader is not None else self.members.leader_id or NO_LEADER,
            member_id=member.member_id,
            members=members,
            skip_assignment=skip_assignment,
        )

    def _reply_join(self, member: ClassicGroupMember, reply: Joined, effects: Effects) -> None:
        if member.join_ticket is not None:
            effects.replies.append((member.join_ticket, reply))
            member.join_ticket = None

    def _reply_sync(self, member: ClassicGroupMember, reply: Synced, effects: Effects) -> bool:
        if member.sync_ticket is None:
            return False
        effects.replies.append((member.sync_ticket, reply))
        member.sync_ticket = None
        return True

    def _answer_sync(self, ticket: Ticket, assignment: bytes, effects: Effects) -> None:
        reply = Synced(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=assignment
        )
        effects.replies.append((ticket, reply))

    def _remove(self, member_id: str, effects: Effects) -> None:
        """Forget a member or a pending id; whatever it has parked is answered UNKNOWN_MEMBER_ID."""
        self._timers.pop(member_id, None)
        self._pending_ids.pop(member_id, None)
        self._unsynced_ids.pop(member_id, None)
        member = self.members.remove(member_id)
        if member is not None:
            self._reply_join(member, Joined(UnknownMemberIdError), effects)
            self._reply_sync(member, Synced(UnknownMemberIdError), effects)
