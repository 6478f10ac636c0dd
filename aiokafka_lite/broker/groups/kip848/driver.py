"""Drives the machine of KIP-848 groups: stores its results, and sets its timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord, group_tombstone
from aiokafka_lite.broker.groups.kip848.classic_members import ClassicMembers
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup, MemberTimer
from aiokafka_lite.broker.groups.kip848.machine import (
    ConsumerMachine,
    GroupChange,
)
from aiokafka_lite.broker.groups.kip848.member import JOINING
from aiokafka_lite.broker.groups.kip848.migration import upgraded
from aiokafka_lite.broker.groups.values import (
    ErrorType,
    GroupClient,
    Join,
    join_refusal,
    sync_refusal,
)
from aiokafka_lite.errors import BrokerResponseError, GroupIdNotFound, NoError
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

Group: TypeAlias = "ClassicGroup | ConsumerGroup"
ReplyT = TypeVar("ReplyT")

# Delay after a timer whose effect could not be stored.
RETRY_S = 0.5


@dataclass(eq=False)
class ConsumerDriver:
    """`groups` has both protocols, written only by the coordinator, when `append` replays records.

    `became_classic` is called with a group and whether the group must rebalance.
    """

    machine: ConsumerMachine
    groups: Mapping[str, Group]
    append: Callable[[str, Sequence[CoordinatorRecord]], ErrorType]
    arm: Callable[[ConsumerGroup], None]
    became_classic: Callable[[ClassicGroup, bool], None]
    # Groups whose regular expressions will be resolved in the next turn of the loop.
    _resolving: dict[str, None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._classic = ClassicMembers(self.machine)

    def heartbeat(
        self, beat: ConsumerGroupHeartbeatRequest, client: GroupClient
    ) -> ConsumerGroupHeartbeatResponse:
        if beat.member_epoch < JOINING:
            change = _change(self._stored(beat.group_id))
            reply = self.machine.leave(change, beat)
        else:
            is_joining = beat.member_epoch == JOINING
            group, records = self._group_for(beat.group_id, is_joining=is_joining)
            change = _change(group)
            change.records += records
            reply = self.machine.heartbeat(change, beat, client)
            if records:
                self._start_classic_sessions(change)
        self._store_or_raise(change)
        return reply

    # -- members of the classic protocol ---------------------------------------------------------

    def join(self, group: ConsumerGroup, call: Join) -> JoinGroupResponse:
        return self._ask(
            group,
            lambda change: self._classic.join(change, call),
            lambda error: join_refusal(error, call.member_id),
        )

    def sync(self, group: ConsumerGroup, call: SyncGroupRequest) -> SyncGroupResponse:
        return self._ask(group, lambda change: self._classic.sync(change, call), sync_refusal)

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorType:
        return self._ask(
            group,
            lambda change: self._classic.heartbeat(change, member_id, instance_id, generation),
            lambda error: error,
        )

    def leave(
        self, group: ConsumerGroup, leavers: Sequence[MemberIdentity]
    ) -> tuple[ErrorType, Sequence[ErrorType]]:
        return self._ask(
            group,
            lambda change: (NoError, self._classic.leave(change, leavers)),
            lambda error: (error, ()),
        )

    def _ask(
        self,
        group: ConsumerGroup,
        ask: Callable[[GroupChange], ReplyT],
        refused: Callable[[ErrorType], ReplyT],
    ) -> ReplyT:
        """Answer a request of the classic protocol, and store the change that it makes."""
        change = _change(group)
        try:
            reply = ask(change)
        except BrokerResponseError as error:
            return refused(type(error))
        stored = self._store(change)
        return reply if stored is NoError else refused(stored)

    # -- events of a group -----------------------------------------------------------------------

    def expire(self, group: ConsumerGroup, now: float) -> None:
        timer = min(group.deadlines, key=lambda timer: group.deadlines[timer].at)
        deadline = group.deadlines.pop(timer)
        change = _change(group)
        self.machine.expire(change, timer[1], deadline)
        if self._store(change) is not NoError:
            group.deadlines[timer] = deadline._replace(at=now + RETRY_S)
            self.arm(group)

    def expire_session(self, group: ConsumerGroup, member_id: str) -> None:
        change = _change(group)
        self.machine.fence(change, [member_id])
        self._store_or_raise(change)

    def restored(self, group: ConsumerGroup) -> None:
        change = _change(group)
        self.machine.restored(change)
        self._store(change)

    def _stored(self, group_id: str) -> ConsumerGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
        return group

    def _group_for(
        self, group_id: str, *, is_joining: bool
    ) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
        """Return a member's group, with the records that convert a group of the other protocol."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if not is_joining:
            if group is None:
                raise GroupIdNotFound(f"Consumer group {group_id} not found.")
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
        if group is None:
            return ConsumerGroup(group_id), []
        if group.is_empty:
            return ConsumerGroup(group_id), [group_tombstone(group_id)]
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

    def _start_classic_sessions(self, change: GroupChange) -> None:
        for member in change.group.members.values():
            timer = (MemberTimer.SESSION, member.member_id)
            if member.classic is not None and timer not in change.deadlines:
                change.start(*timer, member.classic.session_timeout_ms)

    # -- changes -------------------------------------------------------------------------------

    def _store_or_raise(self, change: GroupChange) -> None:
        error = self._store(change)
        if error is not NoError:
            group_id = change.group.group_id
            raise error(f"the broker could not store the new state of group {group_id!r}")

    def _store(self, change: GroupChange) -> ErrorType:
        """Store a change's records. Its timers are set only if that succeeds."""
        group_id = change.group.group_id
        error = self.append(group_id, change.records)
        group = self.groups.get(group_id)
        if error is NoError and isinstance(group, ClassicGroup):
            self.became_classic(group, change.must_rebalance)
        if error is not NoError or not isinstance(group, ConsumerGroup):
            return error
        for timer, deadline in change.deadlines.items():
            if deadline is None:
                group.deadlines.pop(timer, None)
            else:
                group.deadlines[timer] = deadline
        if change.metadata_version is not None:
            group.metadata_version = change.metadata_version
        self.arm(group)
        if change.must_resolve and group_id not in self._resolving:
            # After the response, as in Kafka, which resolves in another thread.
            self._resolving[group_id] = None
            asyncio.get_running_loop().call_soon(self._resolve, group_id)
        return error

    def _resolve(self, group_id: str) -> None:
        del self._resolving[group_id]
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            change = _change(group)
            self.machine.resolve(change)
            self._store(change)


def _change(group: ConsumerGroup) -> GroupChange:
    return GroupChange(group, asyncio.get_running_loop().time())
