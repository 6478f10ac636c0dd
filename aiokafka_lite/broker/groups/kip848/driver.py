"""Drives the groups of KIP-848: stores what their machine wants stored, and keeps their timers."""

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
    Beat,
    BeatReply,
    ConsumerGroupSettings,
    ConsumerMachine,
    CoordinatorResult,
)
from aiokafka_lite.broker.groups.kip848.member import JOINING
from aiokafka_lite.broker.groups.kip848.migration import upgraded
from aiokafka_lite.broker.groups.kip848.topic_hash import Topics
from aiokafka_lite.broker.groups.values import ErrorType, Join, Joined, Leaver, Sync, Synced
from aiokafka_lite.errors import BrokerResponseError, GroupIdNotFound, NoError

Group: TypeAlias = "ClassicGroup | ConsumerGroup"

# A timer whose effect could not be stored is tried again after this time.
RETRY_S = 0.5


class ConsumerDriver:
    """The members of every group of KIP-848.

    Args:
        settings: Returns the settings of such a group, which may change.
        topics: What exists.
        groups: All groups, of either kind; written by the coordinator, which replays.
        clock: Wall time in ms.
        rng: Where member ids come from.
        append: Appends records of a group to the log and replays them.
        arm: Sees to it that a group is called when its next deadline has come.
        became_classic: Told of a group whose members all speak the classic protocol now, and
            whether it has to rebalance.
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
        # Groups whose regular expressions are about to be resolved.
        self._resolving: dict[str, None] = {}

    def heartbeat(self, group_id: str, beat: Beat) -> BeatReply:
        """Answer a ConsumerGroupHeartbeat request.

        Raises:
            KafkaError: See `ConsumerMachine`; also of the log, which may not take the records.
        """
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
        """Answer a JoinGroup request to a group that has members."""
        try:
            reply, result = self._classic.join(group, call, _now(), is_fresh=self._is_fresh(group))
        except BrokerResponseError as error:
            return Joined(type(error), member_id=call.member_id)
        stored = self._store(group.group_id, result)
        return reply if stored is NoError else Joined(stored, member_id=call.member_id)

    def sync(self, group: ConsumerGroup, call: Sync) -> Synced:
        """Answer a SyncGroup request."""
        try:
            reply, result = self._classic.sync(group, call, _now())
        except BrokerResponseError as error:
            return Synced(type(error))
        self._store(group.group_id, result)
        return reply

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorType:
        """Answer a Heartbeat request."""
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
        """Answer a LeaveGroup request, which may name members of either protocol."""
        errors, result = self._classic.leave(group, leavers)
        error = self._store(group.group_id, result)
        return (error, ()) if error is not NoError else (NoError, errors)

    # -- what happens to groups ------------------------------------------------------------------

    def stored(self, group_id: str) -> ConsumerGroup | None:
        """Return a group of this kind, if there is one."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def expire(self, group: ConsumerGroup, now: float) -> None:
        """Act on the earliest timer, whose time has come."""
        timer = min(group.deadlines, key=lambda timer: group.deadlines[timer].at)
        deadline = group.deadlines.pop(timer)
        result = self._machine.expire(group, timer[1], deadline)
        if self._store(group.group_id, result) is not NoError:
            group.deadlines[timer] = deadline._replace(at=now + RETRY_S)
            self._arm(group)

    def expire_session(self, group: ConsumerGroup, member_id: str) -> None:
        """Remove a member as if its session had expired now; raises what storing raises."""
        self._take(group.group_id, self._machine.fence(group, [member_id]))

    def restored(self, group: ConsumerGroup) -> None:
        """Start the timers of a group that has just been read from the log."""
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
        """Return a member's group, and the records that make a group of this kind of another."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if not is_joining:
            what = (
                "Consumer group {} not found."
                if group is None
                else ("Group {} is not a consumer group.")
            )
            raise GroupIdNotFound(what.format(group_id))
        if group is None:
            return ConsumerGroup(group_id), []
        if group.is_empty:
            return ConsumerGroup(group_id), [group_tombstone(group_id)]
        return self._upgrade(group)

    def _upgrade(self, group: ClassicGroup) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
        """Return what a classic group with members becomes when one of the new protocol joins."""
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
        """Store a result's records; only then its timers count."""
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
            # After the answer, as in Kafka, which searches the topics in another thread.
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
