"""Drives the machine of KIP-848 groups: stores its results, and sets its timers.

`ClassicMembers` handles the requests of members that use the classic protocol: JoinGroup returns
the epoch as generation, SyncGroup the coordinator's assignment, and Heartbeat asks for a new
JoinGroup when necessary (Kafka: GroupMetadataManager.classicGroupJoinToConsumerGroup)."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.members import (
    CONSUMER_PROTOCOL_TYPE,
    GroupClient,
    Join,
    join_refusal,
    sync_refusal,
)
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord, ErrorType
from aiokafka_lite.broker.groups.kip848.group import (
    NOT_OWNED,
    UNRELEASED,
    UNREVOKED,
    ClassicSide,
    ConsumerGroup,
    ConsumerGroupMember,
)
from aiokafka_lite.broker.groups.kip848.machine import (
    ConsumerGroupChange,
    ConsumerMachine,
    downgraded,
    encode_assignment,
    owned_by,
    replay,
    upgraded,
)
from aiokafka_lite.broker.groups.modern.driver import ModernDriver, new_change
from aiokafka_lite.broker.groups.modern.group import JOINING, MemberTimer
from aiokafka_lite.errors import (
    BrokerResponseError,
    GroupIdNotFound,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    MemberIdRequired,
    NoError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerProtocolSubscription,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)


@dataclasses.dataclass(eq=False)
class ClassicMembers:
    machine: ConsumerMachine

    def join(self, change: ConsumerGroupChange, call: Join) -> JoinGroupResponse:
        """Answer a JoinGroup request at once. Raises like `ConsumerMachine.heartbeat`."""
        group = change.group
        settings = self.machine.settings_of(group.group_id)
        if not (settings.can_upgrade or settings.can_downgrade):
            raise InconsistentGroupProtocolError(
                "a member that uses the classic protocol cannot join a KIP-848 group: "
                "group_consumer_migration_policy is 'disabled'"
            )
        member_id = call.member_id or self.machine.new_id()
        self.machine.check_room(group, member_id)
        if not _supports(group, call):
            raise InconsistentGroupProtocolError(f"Member {member_id}'s protocols are unsupported.")
        if not call.member_id and call.instance_id is None and call.needs_known_member_id:
            return join_refusal(MemberIdRequired, member_id)
        try:
            subscription = decode_versioned(ConsumerProtocolSubscription, call.protocols[0][1])
        except KafkaError as error:
            raise InconsistentGroupProtocolError(f"no subscription: {error}") from error
        former = group.static_member(call.instance_id)
        member = self._member_of(change, call, member_id)
        updated = dataclasses.replace(
            member,
            instance_id=member.instance_id if call.instance_id is None else call.instance_id,
            rack_id=subscription.rack_id or member.rack_id,
            rebalance_timeout_ms=call.rebalance_timeout_ms,
            topic_names=frozenset(subscription.topics),
            topic_regex="",
            client_id=call.client_id,
            client_host=call.client_host,
            classic=ClassicSide(call.session_timeout_ms, call.protocols),
        )
        owned = owned_by(subscription, self.machine.catalog)
        updated = self.machine.advance(change, member, updated, owned)
        if (
            former is not None
            and not former.is_classic
            and self.machine.can_downgrade(group, [former.member_id], joining=1)
        ):
            self._downgrade(change)
        else:
            change.stop(member_id, MemberTimer.JOIN)
            change.start(MemberTimer.SESSION, member_id, call.session_timeout_ms)
            change.start(MemberTimer.SYNC, member_id, call.rebalance_timeout_ms)
        return JoinGroupResponse(
            generation_id=updated.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=call.protocols[0][0],
            member_id=member_id,
        )

    def sync(self, change: ConsumerGroupChange, call: SyncGroupRequest) -> SyncGroupResponse:
        group = change.group
        member, classic = self._identify(
            group, call.member_id, call.group_instance_id, call.generation_id
        )
        agrees = call.protocol_type in (None, CONSUMER_PROTOCOL_TYPE)
        if not (agrees and call.protocol_name in (None, classic.protocols[0][0])):
            raise InconsistentGroupProtocolError(
                "the protocol in SyncGroup differs from the protocol that the member joined with"
            )
        if group.target_epoch > member.epoch and member.state is not UNREVOKED:
            self._has_to_join(change, member)
            return sync_refusal(RebalanceInProgressError)
        change.stop(member.member_id, MemberTimer.SYNC)
        change.start(MemberTimer.SESSION, member.member_id, classic.session_timeout_ms)
        return SyncGroupResponse(
            protocol_type=call.protocol_type,
            protocol_name=call.protocol_name,
            assignment=encode_assignment(
                {topic_id: held.keys() for topic_id, held in member.assigned.items()},
                self.machine.catalog,
                classic.protocols,
            ),
        )

    def heartbeat(
        self, change: ConsumerGroupChange, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorType:
        group = change.group
        member, classic = self._identify(group, member_id, instance_id, generation)
        change.start(MemberTimer.SESSION, member_id, classic.session_timeout_ms)
        must_join = (
            member.epoch < group.target_epoch
            or member.state is UNREVOKED
            or (member.state is UNRELEASED and not _is_waiting(group, member))
        )
        if not must_join:
            return NoError
        self._has_to_join(change, member)
        return RebalanceInProgressError

    def leave(
        self, change: ConsumerGroupChange, leavers: Sequence[MemberIdentity]
    ) -> tuple[ErrorType, list[ErrorType]]:
        group = change.group
        errors: list[ErrorType] = []
        leaving: dict[str, None] = {}
        for leaver in leavers:
            try:
                member_id = leaver.member_id
                if not member_id and leaver.group_instance_id is not None:  # by an administrator
                    known = group.static_member(leaver.group_instance_id)
                    member_id = "" if known is None else known.member_id
                member = self.machine.identify(group, member_id, leaver.group_instance_id)
            except BrokerResponseError as error:
                errors.append(type(error))
                continue
            errors.append(NoError)
            leaving[member.member_id] = None
        self.machine.fence(change, [*leaving])
        return NoError, errors

    # -- small parts ---------------------------------------------------------------------------

    def _member_of(
        self, change: ConsumerGroupChange, call: Join, member_id: str
    ) -> ConsumerGroupMember:
        group = change.group
        if call.instance_id is None:
            return group.members.get(member_id, ConsumerGroupMember(member_id))
        if call.member_id:
            return self.machine.identify(group, member_id, call.instance_id)
        former = group.static_member(call.instance_id)
        if former is None:
            return ConsumerGroupMember(member_id)
        return self.machine.replace_static(change, former, member_id)

    def _identify(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerGroupMember, ClassicSide]:
        member = self.machine.identify(group, member_id, instance_id)
        if member.classic is None:
            raise UnknownMemberIdError(f"Member {member_id} does not use the classic protocol.")
        if generation != member.epoch:
            raise IllegalGenerationError(
                f"The request generation id {generation} is not equal to the member epoch "
                f"{member.epoch} of member {member_id}."
            )
        return member, member.classic

    def _has_to_join(self, change: ConsumerGroupChange, member: ConsumerGroupMember) -> None:
        if (MemberTimer.JOIN, member.member_id) not in change.group.deadlines:
            change.start(MemberTimer.JOIN, member.member_id, member.rebalance_timeout_ms)

    def _downgrade(self, change: ConsumerGroupChange) -> None:
        future = copy.deepcopy(change.group)
        replay(future, change.records)
        change.records += downgraded(future, (), self.machine.catalog, self.machine.clock)
        change.must_rebalance = future.target_epoch < future.epoch


def _supports(group: ConsumerGroup, call: Join) -> bool:
    members = [m.classic for m in group.members.values() if m.classic is not None]
    support = Counter(name for member in members for name in dict(member.protocols))
    return call.protocol_type == CONSUMER_PROTOCOL_TYPE and any(
        support[name] == len(members) for name, _ in call.protocols
    )


def _is_waiting(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    return any(
        partition not in member.assigned.get(topic_id, {})
        and group.held_in(topic_id, partition) != NOT_OWNED
        for topic_id, partitions in group.target_of(member).items()
        for partition in partitions
    )


ReplyT = TypeVar("ReplyT")
P = ParamSpec("P")


@dataclass(eq=False)
class ConsumerDriver(ModernDriver[ConsumerGroup, ConsumerMachine]):
    became_classic: Callable[[ClassicGroup, bool], None]
    # Groups whose regular expressions will be resolved in the next turn of the loop.
    _resolving: dict[str, None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.classic = ClassicMembers(self.machine)

    def heartbeat(
        self, beat: ConsumerGroupHeartbeatRequest, client: GroupClient
    ) -> ConsumerGroupHeartbeatResponse:
        if beat.member_epoch < JOINING:
            change = new_change(self._stored(beat.group_id))
            reply = self.machine.leave(change, beat)
        else:
            is_joining = beat.member_epoch == JOINING
            group, records = self._group_for(beat.group_id, is_joining=is_joining)
            change = new_change(group)
            change.records += records
            reply = self.machine.heartbeat(change, beat, client)
            if records:
                self._start_classic_sessions(change)
        self._store_or_raise(change)
        return reply

    def ask(
        self,
        group: ConsumerGroup,
        refused: Callable[[ErrorType], ReplyT],
        method: Callable[Concatenate[ConsumerGroupChange, P], ReplyT],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ReplyT:
        """Answer a request by a method of `classic`, and store the change that it makes."""
        change = new_change(group)
        try:
            reply = method(change, *args, **kwargs)
        except BrokerResponseError as error:
            return refused(type(error))
        stored = self._store(change)
        return reply if stored is NoError else refused(stored)

    def _group_for(
        self, group_id: str, *, is_joining: bool
    ) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
        """Return a member's group, with the records that convert a group of the other protocol."""
        group = self.groups.get(group_id)
        if not is_joining or not isinstance(group, ClassicGroup | None):
            return self._stored(group_id, "Consumer group"), []
        if group is None:
            return ConsumerGroup(group_id), []
        if group.is_empty:
            return ConsumerGroup(group_id), group.tombstones()
        return self._upgrade(group)

    def _upgrade(self, group: ClassicGroup) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
        settings = self.machine.settings_of(group.group_id)
        why = None
        if not settings.can_upgrade:
            why = "online upgrade is disabled"
        elif not group.is_consumer_group:
            why = "the group does not use the consumer embedded protocol"
        elif len(group.members) > settings.max_size:
            why = "the group size exceeds the consumer group maximum size"
        if why is not None:
            raise GroupIdNotFound(
                f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
            )
        return upgraded(group, self.machine.catalog)

    def _start_classic_sessions(self, change: ConsumerGroupChange) -> None:
        for member in change.group.members.values():
            timer = (MemberTimer.SESSION, member.member_id)
            if member.classic is not None and timer not in change.deadlines:
                change.start(*timer, member.classic.session_timeout_ms)

    def _store(self, change: ConsumerGroupChange) -> ErrorType:
        error, group_id = super()._store(change), change.group.group_id
        group = self.groups.get(group_id)
        if error is NoError and isinstance(group, ClassicGroup):
            self.became_classic(group, change.must_rebalance)
        elif error is NoError and change.must_resolve and group_id not in self._resolving:
            # After the response, as in Kafka, which resolves in another thread.
            self._resolving[group_id] = None
            asyncio.get_running_loop().call_soon(self._resolve, group_id)
        return error

    def _resolve(self, group_id: str) -> None:
        del self._resolving[group_id]
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            change = new_change(group)
            self.machine.resolve(change)
            self._store(change)
