"""One classic group as a state machine: no clock, no tasks.

A parked request is the function that answers it. It is called exactly once.

States, requests and transitions (Kafka: ClassicGroupState.java, GroupMetadataManager):

Empty: no members. The group remains for its committed offsets or metadata.
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
CompletingRebalance: waiting for the leader's assignment.
    join            unchanged member: answered again; new or changed    -> PreparingRebalance
    sync            parked; the leader's is written to the log, then    -> Stable
    heartbeat       accepted (a member may start before it has synced)
    leave, session or sync timeout                                      -> PreparingRebalance
    commit          REBALANCE_IN_PROGRESS
Stable: every member has an assignment, or may fetch it.
    join            unchanged follower: answered again; leader, new or changed -> PreparingRebalance
                    static member under a new id: replaces the old one without a rebalance,
                    unless the group would choose another protocol
    sync            answered at once
    heartbeat, commit  accepted
    leave, session timeout, members that never synced                   -> PreparingRebalance
Dead: deleted, or coordinated by another node. Final.
    everything      COORDINATOR_NOT_AVAILABLE

The first rebalance of an empty group ends after the initial delay instead of when all have joined.
Each further member prolongs the delay, up to the rebalance timeout.

Unlike Kafka, the machine answers every parked request, also one that is sent again and the
SyncGroup of a member that leaves.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.classic.members import (
    CONSUMER_PROTOCOL_TYPE,
    NO_ASSIGNMENT,
    NO_LEADER,
    ClassicGroupMember,
    Join,
    JoinAnswer,
    Members,
    SyncAnswer,
    join_refusal,
    sync_refusal,
)
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord, ErrorType
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    MemberIdRequired,
    NoError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitValue,
)
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolSubscription,
    JoinGroupResponse,
    JoinGroupResponseMember,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)


class GroupState(enum.Enum):
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


# A new member cannot send heartbeats before its parked JoinGroup returns its id.
NEW_MEMBER_JOIN_TIMEOUT_S: Final = 300.0


class Timer(enum.Enum):
    """A group's timers, besides its members' sessions (by member id)."""

    JOIN = enum.auto()
    SYNC = enum.auto()


class ClassicGroup:
    """The state machine of one group. `now` counts seconds, `clock` is the wall clock."""

    def __init__(
        self,
        group_id: str,
        config: BrokerConfig,
        *,
        new_suffix: Callable[[], str],
        clock: Callable[[], int],
        now: Callable[[], float],
        write: Callable[[CoordinatorRecord], ErrorType],
    ) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.state_since_ms = clock()
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = Members()
        # Ids returned with MEMBER_ID_REQUIRED that no member has used yet.
        self._pending_ids: dict[str, None] = {}
        self._timers: dict[str | Timer, float] = {}
        # First rebalance of an empty group: until when further members prolong it, and whether
        # one has joined since the delay began.
        self._prolonged_until: float | None = None
        self._has_newcomer: bool
        self._config = config
        self._new_suffix = new_suffix
        self._clock = clock
        self._now = now
        self._write = write

    def next_deadline(self) -> float | None:
        return min(self._timers.values(), default=None)

    # -- the rebalance -------------------------------------------------------------------------

    def rebalance(self) -> None:
        if PREPARING in LEGAL_TRANSITIONS[self.state]:
            self._prepare_rebalance()
        else:
            self._maybe_complete_join()

    def _prepare_rebalance(self, cause: ErrorType = RebalanceInProgressError) -> None:
        if self.state is COMPLETING:
            for member in self.members.values():
                member.assignment = NO_ASSIGNMENT
                if self._reply_sync(member, sync_refusal(cause)):
                    self._restart_session(member)
        self._timers.pop(Timer.SYNC, None)
        is_initial = self.state is EMPTY
        self._transition(PREPARING)
        timeout_at = self._now() + self.members.rebalance_timeout_ms / 1000
        self._prolonged_until = timeout_at if is_initial else None
        if is_initial:
            self._has_newcomer = False
            self._timers[Timer.JOIN] = self._now() + self._initial_delay_s
        elif self._have_all_joined:
            self._complete_join()
        else:
            self._timers[Timer.JOIN] = timeout_at

    @property
    def _initial_delay_s(self) -> float:
        return self._config.group_initial_rebalance_delay_ms / 1000

    @property
    def _have_all_joined(self) -> bool:
        return not self._pending_ids and len(self.members) == self.members.awaiting_join_count

    def _maybe_complete_join(self) -> None:
        is_delayed = self._prolonged_until is not None
        if self.state is PREPARING and not is_delayed and self._have_all_joined:
            self._complete_join()

    def _join_time_is_up(self) -> None:
        if self._prolonged_until is None or not self._has_newcomer:
            self._complete_join()
            return
        self._has_newcomer = False
        self._timers[Timer.JOIN] = min(self._now() + self._initial_delay_s, self._prolonged_until)

    def _complete_join(self) -> None:
        """End the join phase. Dynamic members that have not joined are removed."""
        self._timers.pop(Timer.JOIN, None)
        for member in tuple(self.members.values()):
            if not member.is_awaiting_join and not member.is_static:
                self._remove(member.member_id)
        if self.members and not self.members.elect_joined_leader():
            # Only static members, and none joined: wait until their sessions end.
            self._timers[Timer.JOIN] = self._now() + self.members.rebalance_timeout_ms / 1000
            return
        self.generation += 1
        if not self.members:
            self.protocol = None
            self._transition(EMPTY)
            self._write(self.record({}))
            return
        self.protocol = self.members.select_protocol()
        self._transition(COMPLETING)
        for member in self.members.values():
            self._reply_join(member, self._joined(member))
            self._restart_session(member)
            member.is_new, member.is_unsynced = False, True
        self._timers[Timer.SYNC] = self._now() + self.members.rebalance_timeout_ms / 1000

    def _deliver_assignments(self, assignments: Mapping[str, bytes]) -> None:
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
            if self._reply_sync(member, self._synced(member)):
                # Its session may have expired, without effect, while the request was parked.
                self._restart_session(member)
        self._transition(STABLE)

    # -- small parts ---------------------------------------------------------------------------

    def _transition(self, to: GroupState) -> None:
        if to not in LEGAL_TRANSITIONS[self.state]:
            raise AssertionError(
                f"group {self.group_id!r}: the state cannot change from {self.state} to {to}"
            )
        self.state = to
        self.state_since_ms = self._clock()

    def _restart_session(self, member: ClassicGroupMember) -> None:
        self._timers[member.member_id] = self._now() + member.session_timeout_ms / 1000

    def _joined(
        self,
        member: ClassicGroupMember,
        *,
        leader: str | None = None,
        members: Sequence[JoinGroupResponseMember] | None = None,
        skip_assignment: bool = False,
    ) -> JoinGroupResponse:
        if members is None:
            is_leader = member.member_id == self.members.leader_id
            members = self.members.listing(self.protocol or "") if is_leader else ()
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=leader if leader is not None else self.members.leader_id or NO_LEADER,
            member_id=member.member_id,
            members=[*members],
            skip_assignment=skip_assignment,
        )

    def _reply_join(self, member: ClassicGroupMember, reply: JoinGroupResponse) -> None:
        answer, member.answer_join = member.answer_join, None
        if answer is not None:
            answer(reply)

    def _reply_sync(self, member: ClassicGroupMember, reply: SyncGroupResponse) -> bool:
        answer, member.answer_sync = member.answer_sync, None
        if answer is not None:
            answer(reply)
        return answer is not None

    def _synced(self, member: ClassicGroupMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignment=member.assignment,
        )

    def _remove(self, member_id: str) -> None:
        """Remove a member or pending id. Its parked requests get UNKNOWN_MEMBER_ID."""
        self._timers.pop(member_id, None)
        self._pending_ids.pop(member_id, None)
        member = self.members.remove(member_id)
        if member is not None:
            self._reply_join(member, join_refusal(UnknownMemberIdError))
            self._reply_sync(member, sync_refusal(UnknownMemberIdError))

    # -- queries -------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def supports(self, protocol_type: str, names: Sequence[str]) -> bool:
        if self.state is EMPTY:
            return bool(protocol_type and names)
        return protocol_type == self.protocol_type and self.members.support_any(names)

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorType:
        """Return NoError if offsets may be committed. A member's commit extends its session."""
        if generation < 0 and self.state is EMPTY:
            return NoError  # from an administrator, or a consumer that only stores offsets here
        error = self.check_member(member_id, instance_id, generation)
        if error is NoError and self.state is COMPLETING:
            return RebalanceInProgressError
        if error is NoError:
            self._restart_session(self.members[member_id])
        return error

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic. Unreadable metadata counts as yes."""
        for member in self.members.values():
            try:
                metadata = member.metadata(self.protocol or "")
                if topic in decode_versioned(ConsumerProtocolSubscription, metadata).topics:
                    return True
            except (ValueError, KafkaError):
                return True
        return False

    def retention_start_ms(self, committed: OffsetCommitValue) -> int | None:
        """Return the start of an unsubscribed offset's retention, None while it is kept.

        Kafka: ClassicGroup.offsetExpirationCondition.
        """
        is_stable = self.state is STABLE and self.is_consumer_group
        if self.protocol_type is None or is_stable:
            return committed.commit_timestamp
        # An empty group has lost its last member. During a rebalance all offsets are kept.
        return self.state_since_ms if self.state is EMPTY else None

    # -- requests ------------------------------------------------------------------------------

    def join(self, call: Join, answer: JoinAnswer) -> None:
        if self.state is DEAD:
            answer(join_refusal(CoordinatorNotAvailableError, call.member_id))
        elif not self._has_room_for(call.member_id):
            self._remove(call.member_id)
            answer(join_refusal(GroupMaxSizeReachedError))
        elif not self.supports(call.protocol_type, [name for name, _ in call.protocols]):
            answer(join_refusal(InconsistentGroupProtocolError, call.member_id))
        elif not call.member_id:
            self._join_unknown(call, answer)
        elif call.member_id not in self._pending_ids:
            error = self.members.identify(call.member_id, call.instance_id)
            if error is NoError:
                self._rejoin(call, self.members[call.member_id], answer)
            else:
                answer(join_refusal(error, call.member_id))
        elif call.instance_id is not None:  # pending ids are never given to static members
            answer(join_refusal(UnknownError))
        else:
            self._add_member(call, call.member_id, answer)

    def sync(self, call: SyncGroupRequest, answer: SyncAnswer) -> None:
        error = self.check_member(call.member_id, call.group_instance_id, call.generation_id)
        # A member need not name the group's protocol (KIP-559).
        agrees = call.protocol_type in (None, self.protocol_type)
        if error is NoError and not (agrees and call.protocol_name in (None, self.protocol)):
            error = InconsistentGroupProtocolError
        if error is NoError and self.state is PREPARING:
            error = RebalanceInProgressError
        if error is not NoError:
            answer(sync_refusal(error))
            return
        member = self.members[call.member_id]
        member.is_unsynced = False
        if self.state is STABLE:
            answer(self._synced(member))
            return
        # An earlier SyncGroup.
        self._reply_sync(member, sync_refusal(RebalanceInProgressError))
        member.answer_sync = answer
        if call.member_id == self.members.leader_id:
            given = {item.member_id: item.assignment for item in call.assignments}
            assignments = {
                m.member_id: given.get(m.member_id, NO_ASSIGNMENT) for m in self.members.values()
            }
            error = self._write(self.record(assignments))
            if error is NoError:
                self._deliver_assignments(assignments)
            else:
                self._prepare_rebalance(cause=error)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorType:
        error = self.check_member(member_id, instance_id, generation)
        if error is NoError:
            self._restart_session(self.members[member_id])
            if self.state is PREPARING:
                return RebalanceInProgressError
        return error

    def leave(self, leavers: Sequence[MemberIdentity]) -> list[ErrorType]:
        """Remove members, static ones also by instance id. Return one error type per leaver."""
        if self.state is DEAD:
            return [CoordinatorNotAvailableError] * len(leavers)
        errors = [self._leave_one(leaver) for leaver in leavers]
        if NoError in errors:
            if self.state in (STABLE, COMPLETING):
                self._prepare_rebalance()
            else:
                self._maybe_complete_join()
        return errors

    # -- calls of the coordinator --------------------------------------------------------------

    def expire(self) -> None:
        timer = min(self._timers, key=self._timers.__getitem__)
        del self._timers[timer]
        if timer is Timer.JOIN:
            self._join_time_is_up()
        elif timer is Timer.SYNC:
            self._sync_time_is_up()
        else:
            self.expire_session(timer)

    def has_session(self, member_id: str) -> bool:
        """Include pending ids."""
        return member_id in self._timers

    def record(self, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
        """Return the record that stores the group (Kafka: GroupCoordinatorRecordHelpers.java)."""
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.members.leader_id,
            current_state_timestamp=self.state_since_ms,
            members=[
                self.members[member_id].stored(self.protocol or "", assignment)
                for member_id, assignment in assignments.items()
            ],
        )
        return CoordinatorRecord(GroupMetadataKey(group=self.group_id), value)

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the record that removes the group."""
        return [CoordinatorRecord(GroupMetadataKey(group=self.group_id), None)]

    def restore(self, value: GroupMetadataValue) -> None:
        """Set the stored state of an unused machine."""
        for stored in value.members:
            # Before version 1 of the layout there was no rebalance timeout.
            has_none = stored.rebalance_timeout < 0
            self.members.add(
                ClassicGroupMember(
                    stored.member_id,
                    stored.group_instance_id,
                    stored.client_id,
                    stored.client_host,
                    stored.session_timeout,
                    stored.session_timeout if has_none else stored.rebalance_timeout,
                    # Metadata of other protocols is unknown until the member rejoins.
                    ((value.protocol or "", stored.subscription),),
                    assignment=stored.assignment,
                )
            )
        if value.leader is not None and value.leader in self.members:
            self.members.leader_id = value.leader
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.state = STABLE if value.members else EMPTY
        self.state_since_ms = value.current_state_timestamp

    def restored(self) -> None:
        """Start the sessions of members, once the log has been read."""
        for member in self.members.values():
            self._restart_session(member)
        if len(self.members) > self._config.group_max_size:  # the limit was lowered since
            self._prepare_rebalance()

    def die(self, error: ErrorType = NotCoordinatorError) -> None:
        """End the group, and answer every parked request with the error. Idempotent."""
        if self.state is DEAD:
            return
        self._transition(DEAD)
        self._timers.clear()
        for member in self.members.values():
            self._reply_join(member, join_refusal(error, member.member_id))
            self._reply_sync(member, sync_refusal(error))

    # -- joining -------------------------------------------------------------------------------

    def _join_unknown(self, call: Join, answer: JoinAnswer) -> None:
        """Assign an id to a new member, or replace a static member."""
        prefix = call.client_id if call.instance_id is None else call.instance_id
        member_id = f"{prefix}-{self._new_suffix()}"
        old_id = self.members.static_member_id(call.instance_id)
        if old_id is not None:
            self._replace_static(call, self.members[old_id], member_id, answer)
        elif call.instance_id is None and call.needs_known_member_id:
            # A client that retries would leave an unused member behind, so the client must return
            # the id before the member counts (KIP-394).
            self._pending_ids[member_id] = None
            self._timers[member_id] = self._now() + call.session_timeout_ms / 1000
            answer(join_refusal(MemberIdRequired, member_id))
        else:
            self._add_member(call, member_id, answer)

    def _rejoin(self, call: Join, member: ClassicGroupMember, answer: JoinAnswer) -> None:
        is_leader = member.member_id == self.members.leader_id
        is_unchanged = member.protocols == call.protocols
        # The response may have been lost. The leader of a stable group requests a rebalance.
        if is_unchanged and (self.state is COMPLETING or (self.state is STABLE and not is_leader)):
            answer(self._joined(member))
            return
        self._park_join(call, member, answer)
        self.rebalance()

    def _add_member(self, call: Join, member_id: str, answer: JoinAnswer) -> None:
        member = ClassicGroupMember(
            member_id,
            call.instance_id,
            call.client_id,
            call.client_host,
            call.session_timeout_ms,
            call.rebalance_timeout_ms,
            call.protocols,
            is_new=True,
            answer_join=answer,
        )
        if not self.members:
            self.protocol_type = call.protocol_type
        self.members.add(member)
        self._pending_ids.pop(member_id, None)
        self._has_newcomer = True
        self._timers[member_id] = self._now() + NEW_MEMBER_JOIN_TIMEOUT_S
        self.rebalance()

    def _park_join(self, call: Join, member: ClassicGroupMember, answer: JoinAnswer) -> None:
        self._reply_join(member, join_refusal(RebalanceInProgressError, member.member_id))
        member.protocols = call.protocols
        member.session_timeout_ms = call.session_timeout_ms
        member.rebalance_timeout_ms = call.rebalance_timeout_ms
        member.answer_join = answer

    def _has_room_for(self, member_id: str) -> bool:
        """Return whether group.max.size lets this member join, or join again."""
        member = self.members.get(member_id)
        if self.state is PREPARING:
            # Counts parked members, not all members, so that a group that exceeds a lowered limit
            # loses the latest ones.
            is_waiting = member is not None and member.is_awaiting_join
            return is_waiting or self.members.awaiting_join_count < self._config.group_max_size
        return member is not None or len(self.members) < self._config.group_max_size

    # -- static members (KIP-345) --------------------------------------------------------------

    def _replace_static(
        self,
        call: Join,
        old: ClassicGroupMember,
        new_id: str,
        answer: JoinAnswer,
    ) -> None:
        """Give a restarted static member a new id, and fence the old id."""
        self._reply_join(old, join_refusal(FencedInstanceIdError, old.member_id))
        self._reply_sync(old, sync_refusal(FencedInstanceIdError))
        new = dataclasses.replace(
            old,
            member_id=new_id,
            session_timeout_ms=call.session_timeout_ms,
            rebalance_timeout_ms=call.rebalance_timeout_ms,
            protocols=call.protocols,
            is_new=False,
            answer_join=answer,
        )
        leader_before = self.members.leader_id
        self._swap(old, new)
        if self.state is STABLE and self.members.select_protocol() == self.protocol:
            assignments = {each.member_id: each.assignment for each in self.members.values()}
            error = self._write(self.record(assignments))
            if error is not NoError:
                self._reply_join(new, join_refusal(error))
                self._swap(new, old)
            elif call.can_skip_assignment:
                is_leader = new.member_id == self.members.leader_id
                self._reply_join(new, self._joined(new, skip_assignment=is_leader))
            else:
                # With its own new id as leader, it would assign again. The old id makes it a
                # follower.
                reply = self._joined(new, leader=leader_before or NO_LEADER, members=())
                self._reply_join(new, reply)
        else:
            # The leader may be computing an assignment for the old id.
            self.rebalance()

    def _swap(self, old: ClassicGroupMember, new: ClassicGroupMember) -> None:
        self.members.replace(old.member_id, new)
        self._timers.pop(old.member_id, None)
        self._restart_session(new)

    # -- leaving -------------------------------------------------------------------------------

    def _leave_one(self, leaver: MemberIdentity) -> ErrorType:
        member_id = leaver.member_id
        if not member_id:
            static_id = self.members.static_member_id(leaver.group_instance_id)
            if static_id is None:
                return UnknownMemberIdError
            member_id = static_id
        elif member_id not in self._pending_ids:
            error = self.members.identify(member_id, leaver.group_instance_id)
            if error is not NoError:
                return error
        self._remove(member_id)
        return NoError

    def expire_session(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None and member.proves_life_by_waiting:
            return  # its session starts again when its request is answered
        self._remove(member_id)
        if self.state in (STABLE, COMPLETING) and member is not None:
            self.rebalance()
        else:
            self._maybe_complete_join()

    def _sync_time_is_up(self) -> None:
        unsynced_ids = [each.member_id for each in self.members.values() if each.is_unsynced]
        for member_id in unsynced_ids:
            self._remove(member_id)
        if unsynced_ids:
            self._prepare_rebalance()

    # -- checks --------------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> ErrorType:
        if self.state is DEAD:
            return CoordinatorNotAvailableError
        error = self.members.identify(member_id, instance_id)
        if error is NoError and generation != self.generation:
            return IllegalGenerationError
        return error
