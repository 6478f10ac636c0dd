"""The group coordinator: serves the groups of its partitions of `__consumer_offsets`.

As in Kafka, there are two kinds of methods. Some answer requests and append records. `_replay`
alone applies records, after an append and when a partition is loaded. The state machines of the two
protocols are in classic/ and kip848/.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.configs import ShareGroupSettings
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.members import (
    GroupClient,
    Join,
    join_refusal,
    sync_refusal,
)
from aiokafka_lite.broker.groups.coordinator_log import (
    CoordinatorLog,
    CoordinatorRecord,
    ErrorType,
    LogEntry,
    OffsetsLog,
    PartitionCoordinator,
    TransactionEnd,
)
from aiokafka_lite.broker.groups.kip848.driver import ConsumerDriver
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.machine import ConsumerGroupSettings, ConsumerMachine
from aiokafka_lite.broker.groups.modern.driver import ModernDriver
from aiokafka_lite.broker.groups.offsets import (
    NO_EXPIRY,
    Committer,
    OffsetCommitEntry,
    OffsetManager,
    OpenTransaction,
)
from aiokafka_lite.broker.groups.share.group import ShareGroup
from aiokafka_lite.broker.groups.share.machine import ShareDriver, ShareMachine, StartedPartitions
from aiokafka_lite.broker.log.producers import NO_PRODUCER, ProducerIdentity
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    GroupIdNotFound,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    NoError,
    NonEmptyGroup,
    NotCoordinatorError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.messages.coordinator_records import (
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    ModernGroupKey,
    ModernGroupValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupKey,
    ShareGroupMetadataKey,
)
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from aiokafka_lite.protocol.messages.share import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.structs import TopicPartition

Group: TypeAlias = "ClassicGroup | ConsumerGroup | ShareGroup"
ReplyT = TypeVar("ReplyT", JoinGroupResponse, SyncGroupResponse)


class CoordinatorServices(Protocol):
    @property
    def clock(self) -> Callable[[], int]: ...
    @property
    def rng(self) -> random.Random: ...
    @property
    def scope(self) -> TaskScope: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def catalog(self) -> TopicCatalog: ...
    @property
    def share_partitions(self) -> StartedPartitions: ...

    def share_group_settings(self, group_id: str) -> ShareGroupSettings: ...
    def consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings: ...
    def partition(self, topic: str, index: int) -> OffsetsLog: ...


class GroupTimers:
    """One timer per group. It may fire too early, because heartbeats move deadlines only."""

    def __init__(self, expire: Callable[[Group, float], None]) -> None:
        self._expire = expire
        self._armed: dict[str, asyncio.TimerHandle] = {}

    def arm(self, group: Group) -> None:
        self.cancel(group.group_id)
        deadline = group.next_deadline()
        if deadline is not None:
            timer = asyncio.get_running_loop().call_at(deadline, self._fire, group)
            self._armed[group.group_id] = timer

    def cancel(self, group_id: str) -> None:
        timer = self._armed.pop(group_id, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, group: Group) -> None:
        now = asyncio.get_running_loop().time()
        deadline = group.next_deadline()
        if deadline is not None and deadline <= now:
            self._expire(group, now)
        else:
            self.arm(group)


class GroupCoordinator(PartitionCoordinator[LogEntry]):
    """One writer: this class, on the broker's event loop."""

    def __init__(self, services: CoordinatorServices) -> None:
        self._services = services
        self._config = config = services.config
        self.offsets = OffsetManager(
            clock=services.clock, metadata_max_bytes=config.offset_metadata_max_bytes
        )
        self._log = CoordinatorLog(
            lambda index: services.partition(GROUP_METADATA_TOPIC, index),
            partition_count=lambda: services.catalog.coordinators(GROUP_METADATA_TOPIC),
            clock=services.clock,
        )
        self.groups: dict[str, Group] = {}
        self._timers = GroupTimers(self._expire)
        machine = ConsumerMachine(
            services.consumer_group_settings,
            services.catalog,
            clock=services.clock,
            new_id=self._new_id,
        )
        self._consumers = ConsumerDriver(
            ConsumerGroup,
            machine,
            self.groups,
            self._append,
            self._timers.arm,
            self._became_classic,
        )
        share_machine = ShareMachine(
            services.share_group_settings,
            services.catalog,
            services.clock,
            services.share_partitions,
        )
        self._shares = ShareDriver(
            ShareGroup, share_machine, self.groups, self._append, self._timers.arm
        )
        super().__init__(self._log, services.scope)

    # -- life ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Answer parked requests with NOT_COORDINATOR, and refuse new ones. Idempotent."""
        self._is_open = False
        for group in tuple(self.groups.values()):
            self._forget(group, NotCoordinatorError)

    def _unload(self, partition: int) -> None:
        for group_id in self._keys_in(partition, self.groups):
            self._forget(self.groups.pop(group_id), NotCoordinatorError)
        for group_id in self._keys_in(partition, self.offsets.group_ids()):
            self.offsets.unload(group_id)
        self.offsets.unload_pending(partition)

    def _loaded(self, partition: int) -> None:
        for group_id in self._keys_in(partition, self.groups):
            group = self.groups[group_id]
            if isinstance(group, ClassicGroup):
                group.restored()
                self._timers.arm(group)
            else:
                self._driver_of(group).restored(group)

    def _forget(self, group: Group, error: ErrorType) -> None:
        if isinstance(group, ClassicGroup):
            group.die(error)
        self._timers.cancel(group.group_id)

    # -- membership ----------------------------------------------------------------------------

    async def join(self, group_id: str, call: Join) -> JoinGroupResponse:
        """Answer a JoinGroup request when its rebalance phase ends."""
        error, config = self._check(group_id), self._config
        if error is NoError and not (
            config.group_min_session_timeout_ms
            <= call.session_timeout_ms
            <= config.group_max_session_timeout_ms
        ):
            error = InvalidSessionTimeoutError
        if error is not NoError:
            return join_refusal(error, call.member_id)
        group = self.groups.get(group_id)
        if isinstance(group, ShareGroup):
            return join_refusal(InconsistentGroupProtocolError, call.member_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            refused = partial(join_refusal, member_id=call.member_id)
            return self._consumers.ask(group, refused, self._consumers.classic.join, call)
        if not isinstance(group, ClassicGroup):
            if call.member_id:
                return join_refusal(UnknownMemberIdError, call.member_id)
            classic = self._new_classic(group_id)
            tombstones = [] if group is None else group.tombstones()
            error = self._append(group_id, [*tombstones, classic.record({})])
            if error is not NoError:
                return join_refusal(error)
            group = self.groups[group_id] = classic
        return await self._parked(group, partial(group.join, call))

    async def sync(self, call: SyncGroupRequest) -> SyncGroupResponse:
        """Answer a SyncGroup request when the leader has sent the assignment."""
        error = self._check(call.group_id)
        if error is not NoError:
            return sync_refusal(error)
        group = self.groups.get(call.group_id)
        if isinstance(group, ConsumerGroup):
            return self._consumers.ask(group, sync_refusal, self._consumers.classic.sync, call)
        if not isinstance(group, ClassicGroup):
            return sync_refusal(UnknownMemberIdError)
        return await self._parked(group, partial(group.sync, call))

    async def _parked(
        self, group: ClassicGroup, ask: Callable[[Callable[[ReplyT], None]], None]
    ) -> ReplyT:
        """Wait for the answer of a classic group. Cancellation does not remove the member."""
        answered: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        ask(lambda reply: None if answered.done() else answered.set_result(reply))
        self._timers.arm(group)
        return await answered

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorType:
        error = self._check(group_id)
        if error is CoordinatorLoadInProgressError:
            return NoError  # its session has not started, so it cannot expire
        if error is not NoError:
            return error
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            beat = self._consumers.classic.heartbeat
            return self._consumers.ask(
                group, lambda error: error, beat, member_id, instance_id, generation
            )
        if not isinstance(group, ClassicGroup):
            return UnknownMemberIdError
        return group.heartbeat(member_id, instance_id, generation)

    def leave(
        self, group_id: str, leavers: Sequence[MemberIdentity]
    ) -> tuple[ErrorType, list[ErrorType]]:
        """Remove members. Return an error for the request, or NoError and an error per member."""
        error = self._check(group_id)
        if error is not NoError:
            return error, []
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            leave = self._consumers.classic.leave
            return self._consumers.ask(group, lambda error: (error, []), leave, leavers)
        if not isinstance(group, ClassicGroup):
            return NoError, [UnknownMemberIdError] * len(leavers)
        errors = group.leave(leavers)
        self._timers.arm(group)
        return NoError, errors

    def consumer_group_heartbeat(
        self, beat: ConsumerGroupHeartbeatRequest, client: GroupClient
    ) -> ConsumerGroupHeartbeatResponse:
        """Answer a ConsumerGroupHeartbeat request, or raise (see `ConsumerMachine`)."""
        error = self._check(beat.group_id)
        if error is not NoError:
            raise error(error.description)
        return self._consumers.heartbeat(beat, client)

    def share_group_heartbeat(
        self, beat: ShareGroupHeartbeatRequest, client: GroupClient
    ) -> ShareGroupHeartbeatResponse:
        """Answer a ShareGroupHeartbeat request, or raise (see `ShareMachine`)."""
        error = self._check(beat.group_id)
        if error is not NoError:
            raise error
        return self._shares.heartbeat(beat, client)

    def check_empty_share_group(self, group_id: str, *, must_exist: bool) -> None:
        """Raise unless the offsets of this group may be changed."""
        error = self._check(group_id)
        if error is not NoError:
            raise error(error.description)
        self._shares.check_empty(group_id, must_exist=must_exist)

    def create_share_group(self, group_id: str) -> None:
        """Create a group without members, unless it exists."""
        self._shares.create(group_id)

    def expire_session(self, group_id: str, member_id: str) -> None:
        """Expire a member's session now. Raises as `Broker.expire_session`."""
        error = self._check(group_id)
        if error is not NoError:
            raise error(
                f"this broker is not the coordinator of group {group_id!r}, "
                f"or has not loaded the group yet"
            )
        group = self.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        if not group.has_session(member_id):
            raise UnknownMemberIdError(f"group {group_id!r} has no member {member_id!r}")
        if isinstance(group, ClassicGroup):
            group.expire_session(member_id)
            self._timers.arm(group)
        else:
            self._driver_of(group).expire_session(group, member_id)

    # -- committed offsets ---------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetCommitEntry],
        committer: Committer,
        *,
        retention_ms: int = -1,
        knows_epochs: bool = True,
    ) -> list[ErrorType]:
        """Append offsets of existing partitions, and return one error type per offset.

        Without members, any client may commit for a group, which creates the group.

        Args:
            retention_ms: How long to keep the offsets (v2 to v4), -1 for the broker's retention.
            knows_epochs: The request version supports groups of KIP-848.
        """
        member_id, instance_id, generation = committer
        error = self.availability(group_id)
        group = self.groups.get(group_id)
        if error is NoError:
            if isinstance(group, ShareGroup):
                error = GroupIdNotFound
            elif isinstance(group, ConsumerGroup):
                partitions = [(item.topic_id, item.tp.partition) for item in offsets]
                error = group.check_commit(
                    member_id, generation, partitions, knows_epochs=knows_epochs
                )
            elif group is not None:
                error = group.check_commit(member_id, instance_id, generation)
            elif generation >= 0:
                error = GroupIdNotFound if knows_epochs else IllegalGenerationError
        return self._append_offsets(group_id, offsets, error, retention_ms)

    def commit_in_transaction(
        self,
        group_id: str,
        offsets: Sequence[OffsetCommitEntry],
        producer: ProducerIdentity,
        committer: Committer,
    ) -> list[ErrorType]:
        """Append offsets of an open transaction (KIP-447). Return one error type per offset."""
        error = self._check(group_id)
        if error is NoError:
            error = self._check_committer(self.groups.get(group_id), committer, offsets)
        return self._append_offsets(group_id, offsets, error, producer=producer)

    def _check_committer(
        self, group: Group | None, committer: Committer, offsets: Sequence[OffsetCommitEntry]
    ) -> ErrorType:
        member_id, instance_id, generation = committer
        if isinstance(group, ShareGroup):
            return GroupIdNotFound
        if group is None:
            return NoError if generation < 0 else IllegalGenerationError
        if committer.is_unknown or (generation < 0 and group.is_empty):
            return NoError
        if isinstance(group, ConsumerGroup):
            # The request names topics, KIP-848 members have topic ids.
            topics = self._services.catalog.topics
            partitions = [
                (topics[tp.topic].topic_id if tp.topic in topics else ZERO_UUID, tp.partition)
                for tp in (item.tp for item in offsets)
            ]
            error = group.check_commit(member_id, generation, partitions)
            return IllegalGenerationError if error is StaleMemberEpochError else error
        return group.check_member(member_id, instance_id, generation)

    def _append_offsets(
        self,
        group_id: str,
        offsets: Sequence[OffsetCommitEntry],
        error: ErrorType,
        retention_ms: int = -1,
        producer: ProducerIdentity = NO_PRODUCER,
    ) -> list[ErrorType]:
        if error is NoError:
            errors, records = self.offsets.commit(group_id, offsets, retention_ms, producer)
            error = self._append(group_id, records)
            if error is NoError:
                return errors
        return [error] * len(offsets)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorType:
        """Return NoError if this member may fetch committed offsets in this epoch (KIP-848)."""
        error = self.availability(group_id)
        group = self.groups.get(group_id)
        if error is not NoError or not isinstance(group, ConsumerGroup):
            return error
        return group.check_fetch(member_id, epoch)

    def delete_offsets(
        self, group_id: str, tps: Sequence[TopicPartition]
    ) -> tuple[ErrorType, Sequence[ErrorType]]:
        """Delete offsets of topics that the group does not consume now."""
        error = self._check(group_id)
        if error is not NoError:
            return error, ()
        group = self.groups.get(group_id)
        if group is None or isinstance(group, ShareGroup):
            return GroupIdNotFound, ()
        if isinstance(group, ClassicGroup) and not (group.is_empty or group.is_consumer_group):
            return NonEmptyGroup, ()
        topics = {tp.topic for tp in tps}
        consumed = {topic for topic in topics if group.is_subscribed_to(topic)}
        records = self.offsets.delete(group_id, [tp for tp in tps if tp.topic not in consumed])
        error = self._append(group_id, records)
        if error is not NoError:
            return error, ()
        return NoError, [
            GroupSubscribedToTopicError if tp.topic in consumed else NoError for tp in tps
        ]

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        for group_id, records in self.offsets.delete_topic(topic, topic_id).items():
            self._append(group_id, records)

    def expire_offsets(self, retention_ms: int) -> Steps[None]:
        """Delete expired offsets, and empty groups without offsets. One group per step."""
        now_ms = self._services.clock()
        for group_id, group in tuple(self.groups.items()):
            if isinstance(group, ShareGroup):
                continue
            if self.availability(group_id) is NoError and self.groups.get(group_id) is group:
                tps = list(self._expired(group, now_ms, retention_ms))
                self._append(group_id, self.offsets.delete(group_id, tps))
                if group.is_empty and not self.offsets.has_offsets(group_id):
                    self._append(group_id, group.tombstones())
            yield

    def _expired(
        self, group: ClassicGroup | ConsumerGroup, now_ms: int, retention_ms: int
    ) -> Iterator[TopicPartition]:
        """Yield partitions with expired offsets (Kafka: OffsetMetadataManager, KIP-211)."""
        for topic, partitions in self.offsets.fetch_all(group.group_id).items():
            if group.is_subscribed_to(topic):
                continue
            for partition, committed in partitions.items():
                tp, start_ms = TopicPartition(topic, partition), group.retention_start_ms(committed)
                if start_ms is None or self.offsets.is_unstable(group.group_id, tp):
                    continue
                expires_ms = committed.expire_timestamp
                if expires_ms == NO_EXPIRY:
                    expires_ms = start_ms + retention_ms
                if now_ms >= expires_ms:
                    yield tp

    # -- administration ------------------------------------------------------------------------

    def delete(self, group_id: str) -> ErrorType:
        error = self.availability(group_id)
        if error is not NoError:
            return error
        group = self.groups.get(group_id)
        if group is None:
            return GroupIdNotFound
        if not group.is_empty:
            return NonEmptyGroup
        error = self._append(group_id, [*self.offsets.delete_group(group_id), *group.tombstones()])
        if error is NoError and isinstance(group, ShareGroup):
            self._services.share_partitions.forget(group_id=group_id)
        return error

    # -- the log -------------------------------------------------------------------------------

    def _append(self, group_id: str, records: Sequence[CoordinatorRecord]) -> ErrorType:
        error = self._write(group_id, records)
        if error is NoError:
            for record in records:
                self._replay(record)
        return error

    def _write(self, group_id: str, records: Sequence[CoordinatorRecord]) -> ErrorType:
        """Append records. If they cannot be written, the request has no effect."""
        if not records:
            return NoError
        what = f"{len(records)} records of group {group_id!r}"
        return self._written(what, lambda: self._log.append(group_id, records))

    def _replay(self, record: LogEntry) -> None:
        if isinstance(record, TransactionEnd):
            self.offsets.end_transaction(
                record.partition, record.producer_id, is_commit=record.is_commit
            )
            return
        key, value, producer = record
        match key, value:
            case OffsetCommitKey(), OffsetCommitValue() | None:
                if value is not None and key.group not in self.groups:
                    # A group without members, which only stores offsets.
                    self.groups[key.group] = self._new_classic(key.group)
                transaction = None
                if producer != NO_PRODUCER:
                    partition = self.partition_for(key.group)
                    transaction = OpenTransaction(partition, producer.producer_id)
                self.offsets.replay(key, value, transaction)
            case GroupMetadataKey(), GroupMetadataValue():
                group = self.groups[key.group] = self._new_classic(key.group)
                group.restore(value)
            case GroupMetadataKey(), _:
                self._end(key.group)
            case _:
                self._replay_modern(
                    cast("ModernGroupKey", key), cast("ModernGroupValue | None", value)
                )

    def _replay_modern(self, key: ModernGroupKey, value: ModernGroupValue | None) -> None:
        kind = ShareGroup if isinstance(key, ShareGroupKey) else ConsumerGroup
        group = self.groups.get(key.group_id)
        if not isinstance(group, kind):
            if value is None:
                return  # compaction may leave tombstones of removed records
            group = self.groups[key.group_id] = kind(key.group_id)
        if value is None and isinstance(key, ConsumerGroupMetadataKey | ShareGroupMetadataKey):
            self._end(key.group_id)
        else:
            group.replay(key, value)

    def _end(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None:
            # A group with members ends only when it changes to the other protocol.
            error = UnknownMemberIdError if group.is_empty else RebalanceInProgressError
            self._forget(group, error)

    def _became_classic(self, group: ClassicGroup, must_rebalance: bool) -> None:
        group.restored()
        if must_rebalance:
            group.rebalance()
        self._timers.arm(group)

    def _expire(self, group: Group, now: float) -> None:
        if isinstance(group, ClassicGroup):
            group.expire()
            self._timers.arm(group)
        else:
            self._driver_of(group).expire(group, now)

    def _driver_of(self, group: ConsumerGroup | ShareGroup) -> ModernDriver[Any, Any]:
        return self._consumers if isinstance(group, ConsumerGroup) else self._shares

    # -- small parts ---------------------------------------------------------------------------

    def _new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id,
            self._config,
            new_suffix=self._new_id,
            clock=self._services.clock,
            now=asyncio.get_running_loop().time,
            write=lambda record: self._write(group_id, [record]),
        )

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._services.rng.getrandbits(128), version=4))

    def _check(self, group_id: str) -> ErrorType:
        """Refuse the empty id, which Kafka accepts only in offset requests."""
        return self.availability(group_id) if group_id else InvalidGroupIdError
