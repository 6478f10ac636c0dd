"""Drives the machine of KIP-848 groups: stores its results, and sets its timers."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.records import group_tombstone
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.classic_members import ClassicMembers
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup, Deadline, MemberTimer
from aiokafka_lite.broker.groups.kip848.machine import (
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerMachine,
    CoordinatorResult,
)
from aiokafka_lite.broker.groups.kip848.member import JOINING
from aiokafka_lite.broker.groups.kip848.migration import upgraded
from aiokafka_lite.broker.groups.kip848.topic_hash import Topics
from aiokafka_lite.broker.groups.values import ErrorType, Join, Joined, Leaver, Sync, Synced
from aiokafka_lite.errors import BrokerResponseError, GroupIdNotFound, NoError

Group: TypeAlias = "ClassicGroup | ConsumerGroup"

# Delay after a timer whose effect could not be stored.
RETRY_S = 0.5


class ConsumerDriver:
    """The members of all KIP-848 groups.

    Args:
        groups: All groups of both protocols. Only the coordinator writes to it.
        append: Appends records of a group to the log, and replays them.
        became_classic: Receives a group that has become a classic group, and whether the group must
            rebalance.
    """

    def __init__(
        self,
        settings: Callable[[str], ConsumerGroupSettings],
        topics: Topics,
        groups: Mapping[str, Group],
        *,
        clock: Callable[[], int],
        rng: random.Random,
        append: Callable[[str, Sequence[CoordinatorRecord]], ErrorType],
        arm: Callable[[ConsumerGroup], None],
        became_classic: Callable[[ClassicGroup, bool], None],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._rng = rng
        self._append = append
        self._arm = arm
        self._settings_of = settings
        self._became_classic = became_classic
        self._machine = ConsumerMachine(settings, topics, clock=clock, new_id=self._new_id)
        self._classic = ClassicMembers(self._machine, clock=clock, new_id=self._new_id)
        # Groups whose regular expressions will be resolved in the next turn of the loop.
        self._resolving: dict[str, None] = {}

    def heartbeat(self, group_id: str, beat: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
        """Answer a ConsumerGroupHeartbeat request, or raise (see `ConsumerMachine`)."""
        if beat.epoch < JOINING:
            group = self._stored(group_id)
            reply, result = self._machine.leave(group, beat)
        else:
            group, records = self._group_for(group_id, is_joining=beat.epoch == JOINING)
            now = _now()
            reply, result = self._machine.heartbeat(
                group, beat, now, is_fresh=self._is_fresh(group)
            )
            result.records[:0] = records
            if records:
                self._start_classic_sessions(group, result, now)
        self._take(group_id, result)
        return reply

    # -- members of the classic protocol ---------------------------------------------------------

    def join(self, group: ConsumerGroup, call: Join) -> Joined:
        try:
            reply, result = self._classic.join(group, call, _now(), is_fresh=self._is_fresh(group))
        except BrokerResponseError as error:
            return Joined(type(error), member_id=call.member_id)
        stored = self._store(group.group_id, result)
        return reply if stored is NoError else Joined(stored, member_id=call.member_id)

    def sync(self, group: ConsumerGroup, call: Sync) -> Synced:
        try:
            reply, result = self._classic.sync(group, call, _now())
        except BrokerResponseError as error:
            return Synced(type(error))
        self._store(group.group_id, result)
        return reply

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorType:
        try:
            reply, result = self._classic.heartbeat(
                group, member_id, instance_id, generation, _now()
            )
        except BrokerResponseError as error:
            return type(error)
        self._store(group.group_id, result)
        return reply

    def leave(
        self, group: ConsumerGroup, leavers: Sequence[Leaver]
    ) -> tuple[ErrorType, Sequence[ErrorType]]:
        errors, result = self._classic.leave(group, leavers)
        error = self._store(group.group_id, result)
        return (error, ()) if error is not NoError else (NoError, errors)

    # -- what happens to groups ------------------------------------------------------------------

    def stored(self, group_id: str) -> ConsumerGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def expire(self, group: ConsumerGroup, now: float) -> None:
        """Handle the earliest deadline, which has passed."""
        timer = min(group.deadlines, key=lambda timer: group.deadlines[timer].at)
        deadline = group.deadlines.pop(timer)
        result = self._machine.expire(group, timer[1], deadline)
        if self._store(group.group_id, result) is not NoError:
            group.deadlines[timer] = deadline._replace(at=now + RETRY_S)
            self._arm(group)

    def expire_session(self, group: ConsumerGroup, member_id: str) -> None:
        self._take(group.group_id, self._machine.fence(group, [member_id]))

    def restored(self, group: ConsumerGroup) -> None:
        self._store(group.group_id, self._machine.restored(group, _now()))

    def _stored(self, group_id: str) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
        return group

    def _group_for(
        self, group_id: str, *, is_joining: bool
    ) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
        """Return a member's group, with the records that convert a group of the other protocol."""
        group = self._groups.get(group_id)
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
        settings = self._settings_of(group.group_id)
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
        return upgraded(group, self._topics)

    def _start_classic_sessions(
        self, group: ConsumerGroup, result: CoordinatorResult, now: float
    ) -> None:
        for member in group.members.values():
            timer = (MemberTimer.SESSION, member.member_id)
            if member.classic is not None and timer not in result.deadlines:
                timeout_ms = member.classic.session_timeout_ms
                self._machine.start_session(member.member_id, timeout_ms, result, now)

    def _is_fresh(self, group: ConsumerGroup) -> bool:
        return group.metadata_version == self._topics.version

    # -- doing what the machine says -----------------------------------------------------------

    def _take(self, group_id: str, result: CoordinatorResult) -> None:
        error = self._store(group_id, result)
        if error is not NoError:
            raise error(f"the broker could not store the new state of group {group_id!r}")

    def _store(self, group_id: str, result: CoordinatorResult) -> ErrorType:
        """Store a result's records. Its timers are set only if that succeeds."""
        error = self._append(group_id, result.records)
        group = self._groups.get(group_id)
        if error is NoError and isinstance(group, ClassicGroup):
            self._became_classic(group, result.must_rebalance)
        if error is not NoError or not isinstance(group, ConsumerGroup):
            return error
        for timer, deadline in result.deadlines.items():
            _set(group, timer, deadline)
        if result.metadata_version is not None:
            group.metadata_version = result.metadata_version
        self._arm(group)
        if result.must_resolve and group_id not in self._resolving:
            # After the response, as in Kafka, which resolves in another thread.
            self._resolving[group_id] = None
            asyncio.get_running_loop().call_soon(self._resolve, group_id)
        return error

    def _resolve(self, group_id: str) -> None:
        del self._resolving[group_id]
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self._store(group_id, self._machine.resolve(group))

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))


def _set(group: ConsumerGroup, timer: tuple[MemberTimer, str], deadline: Deadline | None) -> None:
    if deadline is None:
        group.deadlines.pop(timer, None)
    else:
        group.deadlines[timer] = deadline


def _now() -> float:
    return asyncio.get_running_loop().time()
