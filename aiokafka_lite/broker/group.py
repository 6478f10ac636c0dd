"""The group coordinator: drives the groups' machines and keeps what must outlive them in the log.

The machines (group_machine.py) know no I/O. This class gives them requests and the loop's time,
parks JoinGroup and SyncGroup requests as futures, arms one timer per group, and appends what the
machines and the offset manager want stored. There are two kinds of methods, as in Kafka: those
that answer requests, which append records; and ``_replay``, which alone changes what the records
stand for, after an append and when the log is read at the start.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.group_log import (
    OFFSETS_TOPIC,
    CoordinatorLog,
    CoordinatorRecord,
    OffsetsLog,
    RecordValue,
    created_record,
    group_tombstone,
    metadata_record,
    restore_group,
)
from aiokafka_lite.broker.group_machine import ClassicGroup
from aiokafka_lite.broker.group_subscription import is_subscribed_to
from aiokafka_lite.broker.group_values import (
    Effects,
    ErrorType,
    GroupSettings,
    Join,
    Joined,
    Leaver,
    Sync,
    Synced,
    Ticket,
)
from aiokafka_lite.broker.offsets import CommittedOffset, OffsetManager, OffsetToCommit
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupIdNotFound,
    GroupSubscribedToTopicError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    KafkaError,
    NoError,
    NonEmptyGroup,
    NotCoordinatorError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

ReplyT = TypeVar("ReplyT", Joined, Synced)


class Disk(Protocol):
    """What may take longer than the event loop has time for."""

    async def settled(self) -> None: ...


class CoordinatorServices(Protocol):
    """What the coordinator needs of its broker."""

    @property
    def clock(self) -> Callable[[], int]: ...
    @property
    def rng(self) -> random.Random: ...
    @property
    def scope(self) -> TaskScope: ...
    @property
    def group_settings(self) -> GroupSettings: ...
    @property
    def offsets_topic_partitions(self) -> int: ...
    @property
    def disk(self) -> Disk: ...

    def partition(self, topic: str, index: int) -> OffsetsLog: ...

    def has_topic(self, name: str) -> bool: ...


class GroupCoordinator:
    """Every group of one broker. One writer: this class, on the broker's event loop."""

    def __init__(self, services: CoordinatorServices) -> None:
        self._services = services
        self._settings = services.group_settings
        self.offsets = OffsetManager(
            clock=services.clock, metadata_max_bytes=self._settings.offset_metadata_max_bytes
        )
        self._log = CoordinatorLog(
            lambda index: services.partition(OFFSETS_TOPIC, index),
            partition_count=services.offsets_topic_partitions,
            clock=services.clock,
        )
        self._groups: dict[str, ClassicGroup] = {}
        self._joins: dict[Ticket, asyncio.Future[Joined]] = {}
        self._syncs: dict[Ticket, asyncio.Future[Synced]] = {}
        self._tickets = itertools.count(1)
        # One timer per group: when it fires, and its handle. It may fire before the group's next
        # deadline, as heartbeats move that without touching the timer; it is then armed again.
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self._loading: dict[int, None] = {}
        self._load_task: asyncio.Task[None] | None = None
        self._is_active = False
        # The offsets topic exists, and will after a crash: before that nothing may be promised.
        self._has_log = False

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve; partitions that have records are read first, in a task of the scope.

        Until a partition has been read, requests for its groups are refused with
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        self._is_active = True
        self._has_log = self._services.has_topic(OFFSETS_TOPIC)
        if not self._has_log:
            return
        partitions = range(self._log.partition_count)
        self._loading = dict.fromkeys(p for p in partitions if not self._log.is_empty(p))
        if self._loading:
            self._load_task = self._services.scope.spawn(self._load(), name="group-load")

    async def open_log(self) -> None:
        """Make the offsets topic, if it is missing; until then this is nobody's coordinator.

        Raises:
            KafkaStorageError: The disk did not take it.
        """
        if not self._has_log:
            self._services.partition(OFFSETS_TOPIC, 0)
            await self._services.disk.settled()
            self._has_log = True

    async def until_loaded(self) -> None:
        """Wait until every partition has been read; raises what the reading raised."""
        if self._load_task is not None:
            await asyncio.shield(self._load_task)

    async def close(self) -> None:
        """Answer everything parked with NOT_COORDINATOR and refuse what comes; idempotent."""
        self._is_active = False
        for group in tuple(self._groups.values()):
            self._act(group, group.die(NotCoordinatorError))
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def _load(self) -> None:
        for partition in tuple(self._loading):
            for records in self._log.read(partition):
                for record in records:
                    self._replay(record)
                await asyncio.sleep(0)  # a long log must not hold the loop
            del self._loading[partition]
            self._restart_sessions(partition)

    def _restart_sessions(self, partition: int) -> None:
        for group_id, group in tuple(self._groups.items()):
            if self._log.partition_for(group_id) == partition:
                self._act(group, group.restored(self._now()))

    # -- membership ----------------------------------------------------------------------------

    async def join(self, group_id: str, call: Join) -> Joined:
        """Answer a JoinGroup request, once the rebalance that it takes part in has got so far.

        Cancelled while parked, the request is forgotten; the member is not: it may join again.
        """
        error = self._check(group_id)
        if error is NoError and not self._is_session_timeout_allowed(call.session_timeout_ms):
            error = InvalidSessionTimeoutError
        if error is not NoError:
            return Joined(error, member_id=call.member_id)
        group = self._groups.get(group_id)
        if group is None:
            if call.member_id:
                return Joined(UnknownMemberIdError, member_id=call.member_id)
            group = self._create(group_id)
            error = self._write(group_id, [created_record(group)])
            if error is not NoError:
                del self._groups[group_id]
                return Joined(error)
        ticket = self._new_ticket()
        parked: asyncio.Future[Joined] = self._loop().create_future()
        self._joins[ticket] = parked
        self._act(group, group.join(call, ticket, self._now()))
        try:
            return await parked
        finally:
            self._joins.pop(ticket, None)

    async def sync(self, group_id: str, call: Sync) -> Synced:
        """Answer a SyncGroup request, once the leader has sent the assignment."""
        error = self._check(group_id)
        if error is not NoError:
            return Synced(error)
        group = self._groups.get(group_id)
        if group is None:
            return Synced(UnknownMemberIdError)
        ticket = self._new_ticket()
        parked: asyncio.Future[Synced] = self._loop().create_future()
        self._syncs[ticket] = parked
        self._act(group, group.sync(call, ticket, self._now()))
        try:
            return await parked
        finally:
            self._syncs.pop(ticket, None)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorType:
        """Keep a member's session alive."""
        error = self._check(group_id)
        if error is CoordinatorLoadInProgressError:
            return NoError  # its session has not been started yet, so it cannot end
        if error is not NoError:
            return error
        group = self._groups.get(group_id)
        if group is None:
            return UnknownMemberIdError
        return group.heartbeat(member_id, instance_id, generation, self._now())

    def leave(
        self, group_id: str, leavers: Sequence[Leaver]
    ) -> tuple[ErrorType, Sequence[ErrorType]]:
        """Remove members; returns an error for all, or none and one error type for each."""
        error = self._check(group_id)
        if error is not NoError:
            return error, ()
        group = self._groups.get(group_id)
        if group is None:
            return NoError, [UnknownMemberIdError] * len(leavers)
        errors, effects = group.leave(leavers, self._now())
        self._act(group, effects)
        return NoError, errors

    # -- committed offsets ---------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        retention_ms: int = -1,
        unknown_group: ErrorType = GroupIdNotFound,
    ) -> list[ErrorType]:
        """Commit offsets and return one error type for each; they are in the log then.

        Args:
            group_id: The group; without members anyone may commit for it, and thereby create it.
            offsets: What to commit; topics and partitions have been checked.
            member_id: Who commits, "" for no member.
            instance_id: Its static identity, if any.
            generation: The generation it believes in, negative for no member.
            retention_ms: How long to keep them, -1 for the broker's rule.
            unknown_group: What a member of a group that does not exist is told.
        """
        error = self.availability(group_id)
        group = self._groups.get(group_id)
        if error is NoError:
            if group is not None:
                error = group.check_commit(member_id, instance_id, generation, self._now())
            elif generation >= 0:
                error = unknown_group
        if error is not NoError:
            return [error] * len(offsets)
        errors, records = self.offsets.commit(group_id, offsets, retention_ms)
        error = self._append(group_id, records)
        return errors if error is NoError else [error] * len(offsets)

    def committed(self, group_id: str, tp: TopicPartition, topic_id: bytes) -> CommittedOffset:
        """Return what a group has committed; ask ``availability`` first."""
        return self.offsets.fetch(group_id, tp, topic_id)

    def delete_offsets(
        self, group_id: str, tps: Sequence[TopicPartition]
    ) -> tuple[ErrorType, Sequence[ErrorType]]:
        """Forget offsets of topics that the group does not consume now."""
        error = self._check(group_id)
        group = self._groups.get(group_id)
        if error is NoError and group is None:
            error = GroupIdNotFound
        if error is not NoError or group is None:
            return error, ()
        if not group.is_empty and not group.is_consumer_group:
            return NonEmptyGroup, ()
        topics = dict.fromkeys(tp.topic for tp in tps)
        consumed = {topic for topic in topics if is_subscribed_to(group, topic)}
        records = self.offsets.delete(group_id, [tp for tp in tps if tp.topic not in consumed])
        error = self._append(group_id, records)
        if error is not NoError:
            return error, ()
        return NoError, [
            GroupSubscribedToTopicError if tp.topic in consumed else NoError for tp in tps
        ]

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        """Forget what was committed for a topic that exists no more."""
        for group_id, records in self.offsets.delete_topic(topic, topic_id).items():
            self._append(group_id, records)

    # -- administration ------------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, ClassicGroup]:
        """The groups that have been loaded, by id."""
        return self._groups

    @property
    def is_loading(self) -> bool:
        """Whether some groups may be missing from ``groups`` yet."""
        return bool(self._loading)

    def partition_for(self, group_id: str) -> int:
        """Return the partition of the offsets topic whose leader coordinates the group."""
        return self._log.partition_for(group_id)

    def availability(self, group_id: str) -> ErrorType:
        """Say whether this coordinator can answer for a group now."""
        if not self._is_active:
            return CoordinatorNotAvailableError
        if not self._has_log:
            return NotCoordinatorError
        if self._log.partition_for(group_id) in self._loading:
            return CoordinatorLoadInProgressError
        return NoError

    def delete(self, group_id: str) -> ErrorType:
        """Delete an empty group with all its offsets."""
        error = self.availability(group_id)
        if error is not NoError:
            return error
        group = self._groups.get(group_id)
        if group is None:
            return GroupIdNotFound
        error = group.check_delete()
        if error is not NoError:
            return error
        tombstones = self.offsets.delete_group(group_id)
        return self._append(group_id, [*tombstones, group_tombstone(group_id)])

    # -- the log -------------------------------------------------------------------------------

    def _append(self, group_id: str, records: Sequence[CoordinatorRecord]) -> ErrorType:
        """Append records, then replay them."""
        error = self._write(group_id, records)
        if error is NoError:
            for record in records:
                self._replay(record)
        return error

    def _write(self, group_id: str, records: Sequence[CoordinatorRecord]) -> ErrorType:
        """Append records; what could not be written is as if it had never been asked for."""
        if not records:
            return NoError
        try:
            self._log.append(group_id, records)
        except (KafkaError, OSError) as error:
            # Kafka tells clients to look for another coordinator when its disk fails.
            log.error("cannot store %d records of group %r: %s", len(records), group_id, error)
            return NotCoordinatorError
        return NoError

    def _replay(self, record: CoordinatorRecord) -> None:
        """Apply one record; the only code that changes offsets, and that loads and ends groups."""
        key, value = record
        if isinstance(key, OffsetCommitKey):
            if not (value is None or isinstance(value, OffsetCommitValue)):
                raise TypeError(f"an offset key with {type(value).__name__}")
            if value is not None and key.group not in self._groups:
                self._create(key.group)  # a group that only stores offsets here
            self.offsets.replay(key, value)
        elif value is None:
            self._end(key.group)
        else:
            self._load_group(key, value)

    def _load_group(self, key: GroupMetadataKey, value: RecordValue) -> None:
        if not isinstance(value, GroupMetadataValue):
            raise TypeError(f"a group key with {type(value).__name__}")
        group = self._new_machine(key.group)
        restore_group(group, value)
        self._groups[key.group] = group

    def _create(self, group_id: str) -> ClassicGroup:
        group = self._groups[group_id] = self._new_machine(group_id)
        return group

    def _new_machine(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id, self._settings, new_suffix=self._new_suffix, clock=self._services.clock
        )

    def _end(self, group_id: str) -> None:
        group = self._groups.pop(group_id, None)
        if group is not None:
            self._act(group, group.die(UnknownMemberIdError))

    # -- driving the machines ------------------------------------------------------------------

    def _act(self, group: ClassicGroup, effects: Effects) -> None:
        """Do what a step of a machine asks for, and what follows from that."""
        while True:
            for ticket, reply in effects.replies:
                self._resolve(ticket, reply)
            if effects.write is None:
                break
            error = self._write(group.group_id, [metadata_record(group, effects.write.assignments)])
            effects = effects.write.done(error, self._now())
        self._arm(group)

    def _arm(self, group: ClassicGroup) -> None:
        """See to it that the group's machine is called when its next deadline has come."""
        deadline = group.next_deadline()
        armed = self._timers.get(group.group_id)
        if armed is not None:
            if deadline is not None and armed[0] <= deadline:
                return
            armed[1].cancel()
            del self._timers[group.group_id]
        if deadline is not None:
            handle = self._loop().call_at(deadline, self._expire, group)
            self._timers[group.group_id] = (deadline, handle)

    def _expire(self, group: ClassicGroup) -> None:
        self._timers.pop(group.group_id, None)
        now = self._now()
        while (deadline := group.next_deadline()) is not None and deadline <= now:
            self._act(group, group.expire(now))
        self._arm(group)

    def _resolve(self, ticket: Ticket, reply: Joined | Synced) -> None:
        """Answer a parked request, if whoever sent it still waits."""
        if isinstance(reply, Joined):
            _set_result(self._joins.pop(ticket, None), reply)
        else:
            _set_result(self._syncs.pop(ticket, None), reply)

    # -- small parts ---------------------------------------------------------------------------

    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _now(self) -> float:
        return self._loop().time()

    def _new_ticket(self) -> Ticket:
        return Ticket(next(self._tickets))

    def _new_suffix(self) -> str:
        return str(uuid.UUID(int=self._services.rng.getrandbits(128), version=4))

    def _check(self, group_id: str) -> ErrorType:
        """Refuse the empty id, which only offset requests may use (as Kafka has it)."""
        return self.availability(group_id) if group_id else InvalidGroupIdError

    def _is_session_timeout_allowed(self, timeout_ms: int) -> bool:
        settings = self._settings
        return settings.min_session_timeout_ms <= timeout_ms <= settings.max_session_timeout_ms


def _set_result(future: asyncio.Future[ReplyT] | None, reply: ReplyT) -> None:
    if future is not None and not future.done():
        future.set_result(reply)
