"""All share partitions of a cluster, and their log, the topic `__share_group_state`.

Every change that a member could notice after a restart is appended as a snapshot, in the format of
Kafka (ShareSnapshotValue.json), before it is answered. Locks are not: after a restart, or at a new
leader, records that were locked are available, with their earlier delivery count.

    _stored   the newest snapshots, of all leaders and times. A group may fetch what has one
    _live     the states at the current leaders, made from the snapshots by the first fetch
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.configs import DEAD_LETTER_PREFIX, ShareGroupSettings
from aiokafka_lite.broker.share.partition import (
    FINISHED,
    NO_OFFSET,
    Acknowledged,
    BrokerSharePartition,
    DeadSpan,
    RecordRange,
)
from aiokafka_lite.broker.share.sessions import ShareSessionKey
from aiokafka_lite.broker.topics import (
    NO_EPOCH,
    NOT_HOSTED,
    SHARE_STATE_TOPIC,
    Partition,
    PartitionKey,
    Topic,
    partition_for,
)
from aiokafka_lite.errors import (
    BrokerResponseError,
    NotLeaderForPartitionError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.codec import decode_key, decode_versioned, encode_key, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
)
from aiokafka_lite.protocol.messages.share_groups import DescribeShareGroupOffsetsResponsePartition
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.protocol.wire import uuid_to_str
from aiokafka_lite.records import build_batch, each_record, iter_batches

log: Final = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 20
KEYS: Final = {ShareSnapshotKey.record_type: ShareSnapshotKey}


class ShareKey(NamedTuple):
    """A partition in a share group."""

    group_id: str
    partition: PartitionKey


class SharePartitions:
    """The only writer of `__share_group_state`. Runs on the broker's loop."""

    def __init__(
        self,
        catalog: TopicCatalog,
        settings: Callable[[str], ShareGroupSettings],
        clock: Callable[[], int],
        open_log: Callable[[], Topic],
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._open_log = open_log
        self._stored: dict[ShareKey, ShareSnapshotValue] = {}
        self._live: dict[ShareKey, BrokerSharePartition] = {}
        self._timers: dict[ShareKey, asyncio.TimerHandle] = {}

    # Life

    def load(self) -> Steps[None]:
        """Read the log, one step for each of its batches."""
        topic = self._catalog.by_name(SHARE_STATE_TOPIC)
        for partition in () if topic is None else topic.partitions:
            for batch in _batches(partition, partition.log_start_offset, partition.high_watermark):
                for record in each_record(batch):
                    self._replay(record.key or b"", record.value)
                yield

    def _replay(self, stored_as: bytes, value: bytes | None) -> None:
        decoded = decode_key(KEYS, stored_as)
        if decoded is None:
            return  # of a newer Kafka
        key = ShareKey(decoded.group_id, PartitionKey(decoded.topic_id, decoded.partition))
        if value is None:
            self._stored.pop(key, None)
        else:
            self._stored[key] = decode_versioned(ShareSnapshotValue, value)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._live.clear()
        self._stored.clear()

    # Of the group coordinator

    def start(
        self, group_id: str, topic_id: bytes, partition: int, start_offset: int = NO_OFFSET
    ) -> None:
        """Let a group fetch a partition, by default from where `share.auto.offset.reset` says.

        No effect if it may already.
        """
        key = ShareKey(group_id, PartitionKey(topic_id, partition))
        if key not in self._stored:
            self._store(key, ShareSnapshotValue(start_offset=start_offset))

    def is_started(self, group_id: str, topic_id: bytes, partition: int) -> bool:
        return ShareKey(group_id, PartitionKey(topic_id, partition)) in self._stored

    def partitions_of(self, group_id: str) -> list[Partition]:
        """Return the partitions that a group may fetch, by topic id and number."""
        keys = sorted(key.partition for key in self._stored if key.group_id == group_id)
        return [self._catalog.partition(*key) for key in keys]

    def forget(self, *, group_id: str | None = None, topic_id: bytes | None = None) -> None:
        """Forget what a group, or all groups, have fetched of a topic, or of all topics."""
        for key in tuple(self._stored):
            if group_id in (None, key.group_id) and topic_id in (None, key.partition.topic_id):
                self._store(key, None)
                self._stop(key)
                self._live.pop(key, None)

    # Of operators

    def described(
        self, group_id: str, partition: PartitionKey
    ) -> DescribeShareGroupOffsetsResponsePartition:
        """Return what operators see of a partition (KIP-1226), as of its newest snapshot."""
        seen = DescribeShareGroupOffsetsResponsePartition(
            partition_index=partition.partition, start_offset=NO_OFFSET
        )
        stored = self._stored.get(ShareKey(group_id, partition))
        if stored is not None and stored.start_offset != NO_OFFSET:
            end = self._catalog.partition(*partition).high_watermark
            seen.start_offset, seen.leader_epoch = stored.start_offset, stored.leader_epoch
            seen.lag = end - stored.start_offset - max(stored.delivery_complete_count, 0)
        return seen

    def alter(self, group_id: str, partition: PartitionKey, start_offset: int) -> None:
        """Let a group start at an offset, which may be outside of the log."""
        key = ShareKey(group_id, partition)
        self._stop(key)
        self._store(key, ShareSnapshotValue(start_offset=start_offset))

    # Of members

    def lock_end(self, group_id: str) -> float:
        """Return the loop's time at which a lock ends that begins now."""
        lock_ms = self._settings(group_id).record_lock_duration_ms
        return asyncio.get_running_loop().time() + lock_ms / 1000

    def at_leader(self, key: ShareKey, partition: Partition) -> BrokerSharePartition | None:
        """Return the states of a partition for a fetch, None if the group may not fetch it."""
        live = self._live.get(key)
        if live is not None and self._is_current(live, partition):
            return live
        self._stop(key)
        stored = self._stored.get(key)
        if stored is None:
            return None
        start_offset = stored.start_offset
        if start_offset == NO_OFFSET:
            start_offset = self._first_offset(key.group_id, partition)
        live = self._live[key] = BrokerSharePartition(
            start_offset,
            partition.leader_epoch,
            partial(self._settings, key.group_id),
            stored.state_batches,
        )
        return live

    def _first_offset(self, group_id: str, partition: Partition) -> int:
        settings = self._settings(group_id)
        if settings.auto_offset_reset == "earliest":
            return partition.log_start_offset
        if settings.reset_duration_ms is not None:
            since = partition.log.offset_at_time(self._clock() - settings.reset_duration_ms)
            if since is not None:
                return since.offset
        return partition.high_watermark

    def acknowledge(
        self, key: ShareKey, partition: Partition, member_id: str, acks: Sequence[Acknowledged]
    ) -> None:
        """Apply acknowledgements, and store the result.

        Raises also as `BrokerSharePartition.acknowledge`.

        Raises:
            UnknownTopicOrPartitionError: The group has fetched nothing from the leader since its
                election.
            NotLeaderForPartitionError: The group's start offset was altered.
        """
        live = self._live.get(key)
        if live is not None and live.leader_epoch == NO_EPOCH:
            raise NotLeaderForPartitionError("the start offset of the group was altered")
        if live is None or not self._is_current(live, partition):
            raise UnknownTopicOrPartitionError(NOT_HOSTED)
        if live.acknowledge(member_id, acks, until=self.lock_end(key.group_id)):
            self._changed(key, live)

    def release_member(self, member: ShareSessionKey, node_id: int) -> None:
        """Release the records of a member at one node, where its session has closed.

        Its sessions at other nodes keep theirs.
        """
        for key, live in tuple(self._live.items()):
            partition = self._current(key, live) if key.group_id == member.group_id else None
            if partition is not None and partition.leader_id == node_id:
                self._release(key, live, lambda each: each.member_id == member.member_id)

    # Locks

    def watch_locks(self, key: ShareKey) -> None:
        """Set the timer for the end of the next lock, unless it is set."""
        live = self._live[key]
        if key not in self._timers and live.next_deadline is not None:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_at(live.next_deadline, self._sweep, key, live)

    def _sweep(self, key: ShareKey, live: BrokerSharePartition) -> None:
        """End the locks that are over. There may be none, because renewals move them."""
        del self._timers[key]
        now = asyncio.get_running_loop().time()
        partition = self._current(key, live)
        if partition is not None:
            self._release(key, live, lambda each: each.until <= now)
            self.watch_locks(key)
            # It may lock records at once. Other releases complete no long polls, as in Kafka 4.3.
            partition.on_change(partition.key)

    def _release(
        self, key: ShareKey, live: BrokerSharePartition, is_over: Callable[[RecordRange], bool]
    ) -> None:
        if live.release_if(is_over):
            self._changed(key, live)

    def _current(self, key: ShareKey, live: BrokerSharePartition) -> Partition | None:
        """Return the partition, None if the states are not used any more."""
        try:
            partition = self._catalog.partition(*key.partition)
        except BrokerResponseError:
            return None
        return partition if self._is_current(live, partition) else None

    @staticmethod
    def _is_current(live: BrokerSharePartition, partition: Partition) -> bool:
        return live.leader_epoch == partition.leader_epoch

    def _stop(self, key: ShareKey) -> None:
        """Let the next fetch begin with the snapshot."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._live:
            self._live[key].leader_epoch = NO_EPOCH

    # The log

    def _changed(self, key: ShareKey, live: BrokerSharePartition) -> None:
        """Store the states, with the start offset from before, as Kafka does."""
        if dead := live.take_dead():
            self._write_dead_letters(key, dead)
        batches = list(live.stored())
        finished = (each for each in batches if each.delivery_state in FINISHED)
        self._store(
            key,
            ShareSnapshotValue(
                leader_epoch=live.leader_epoch,
                start_offset=live.start_offset,
                delivery_complete_count=sum(
                    each.last_offset - each.first_offset + 1 for each in finished
                ),
                state_batches=batches,
            ),
        )
        live.advance()

    def _store(self, key: ShareKey, value: ShareSnapshotValue | None) -> None:
        (topic_id, index), now_ms = key.partition, self._clock()
        encoded = None
        if value is None:
            del self._stored[key]
        else:
            value.create_timestamp = value.write_timestamp = now_ms
            self._stored[key] = value
            encoded = encode_versioned(value, 0)
        stored_as = ShareSnapshotKey(group_id=key.group_id, topic_id=topic_id, partition=index)
        log = self._open_log()
        place = partition_for(
            f"{key.group_id}:{uuid_to_str(topic_id)}:{index}", log.partition_count
        )
        batch = build_batch([(now_ms, encode_key(stored_as), encoded, ())])
        log.partitions[place].append(batch)

    def _write_dead_letters(self, key: ShareKey, dead: Iterable[DeadSpan]) -> None:
        """Write archived records to the group's topic for them, if it may be used (KIP-1191)."""
        settings = self._settings(key.group_id)
        name = settings.deadletterqueue_topic_name
        topic = self._catalog.by_name(name) if name.startswith(DEAD_LETTER_PREFIX) else None
        if topic is None or not topic.config.errors_deadletterqueue_group_enable:
            if name:
                log.warning("topic %r is not for dead letters of group %r", name, key.group_id)
            return
        source = self._catalog.partition(*key.partition)
        target = topic.partitions[source.index % topic.partition_count]
        for first, last, count, reason in dead:
            values: dict[int, tuple[bytes | None, bytes | None]] = {}
            if settings.deadletterqueue_copy_record_enable:
                for batch in _batches(source, first, last + 1):
                    values.update(
                        (each.offset, (each.key, each.value)) for each in each_record(batch)
                    )
            records = []
            for offset in range(first, last + 1):
                about = {
                    "topic": source.topic,
                    "partition": source.index,
                    "offset": offset,
                    "group": key.group_id,
                    "delivery.count": count,
                    "message": reason,
                }
                headers = [(f"__dlq.errors.{k}", str(about[k]).encode()) for k in about]
                records.append((self._clock(), *values.get(offset, (None, None)), headers))
            target.append(build_batch(records))


def _batches(partition: Partition, offset: int, end_offset: int) -> Iterator[memoryview]:
    while offset < end_offset and len(view := partition.read(offset, READ_BYTES)):
        for header, batch in iter_batches(view, check_crcs=False):
            offset = header.last_offset + 1
            yield batch
