"""Committed offsets, and offsets of open transactions: a cache whose only source is the log.

`OffsetManager` answers requests with a result and records to append, and changes only in `replay`
of such records (Kafka: OffsetMetadataManager.java).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord, ErrorType
from aiokafka_lite.broker.log.producers import NO_PRODUCER, ProducerIdentity
from aiokafka_lite.errors import NoError, OffsetMetadataTooLargeError
from aiokafka_lite.protocol.messages.coordinator_records import OffsetCommitKey, OffsetCommitValue
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition

NO_OFFSET: Final = -1
NO_EXPIRY: Final = -1

OffsetValue = TypeVar("OffsetValue")


class OpenTransaction(NamedTuple):
    partition: int
    producer_id: int


class PendingOffsetKey(NamedTuple):
    group_id: str
    tp: TopicPartition


@dataclass(eq=False)
class _Pending(Generic[OffsetValue]):
    offset: OffsetValue
    is_superseded: bool = False  # by a later commit, whose transaction may end earlier


class PendingOffsets(Generic[OffsetValue]):
    """The offsets of open transactions (KIP-98, KIP-447)."""

    def __init__(self) -> None:
        # For each target in the order of the commits.
        self._targets: dict[PendingOffsetKey, dict[OpenTransaction, _Pending[OffsetValue]]] = {}
        self._transactions: dict[OpenTransaction, dict[PendingOffsetKey, None]] = {}

    def note(
        self, transaction: OpenTransaction, target: PendingOffsetKey, offset: OffsetValue
    ) -> None:
        """Store an offset of a transaction. The latest one counts."""
        waiting = self._targets.setdefault(target, {})
        waiting.pop(transaction, None)
        waiting[transaction] = _Pending(offset)
        self._transactions.setdefault(transaction, {})[target] = None

    def has(self, target: PendingOffsetKey) -> bool:
        return target in self._targets

    def of_group(self, group_id: str) -> Iterator[TopicPartition]:
        for target in self._targets:
            if target.group_id == group_id:
                yield target.tp

    def of_topic(self, topic: str) -> Iterator[PendingOffsetKey]:
        return (target for target in self._targets if target.tp.topic == topic)

    def supersede(self, target: PendingOffsetKey) -> None:
        """Note a commit outside transactions: all pending offsets of the target are older."""
        for pending in self._targets.get(target, {}).values():
            pending.is_superseded = True

    def end(
        self,
        transaction: OpenTransaction,
        commit: Callable[[PendingOffsetKey, OffsetValue], None] | None,
    ) -> None:
        """Remove a transaction's offsets, after passing those that are the latest to `commit`."""
        for target in self._transactions.pop(transaction, {}):
            waiting = self._targets[target]
            decided = waiting[transaction]
            if commit is not None and not decided.is_superseded:
                for pending in waiting.values():
                    if pending is decided:
                        break
                    pending.is_superseded = True
                commit(target, decided.offset)
            del waiting[transaction]
            if not waiting:
                del self._targets[target]

    def forget(self, target: PendingOffsetKey) -> None:
        for transaction in self._targets.pop(target, {}):
            del self._transactions[transaction][target]

    def unload(self, partition: int) -> None:
        for transaction in [one for one in self._transactions if one.partition == partition]:
            self.end(transaction, None)


NOTHING_COMMITTED: Final = OffsetCommitValue(offset=NO_OFFSET)


class OffsetCommitEntry(NamedTuple):
    tp: TopicPartition
    topic_id: bytes
    offset: int
    leader_epoch: int
    metadata: str | None


class Committer(NamedTuple):
    """The committing member. Old clients send no member."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1  # the member's generation or epoch, negative for no member

    @property
    def is_unknown(self) -> bool:
        return self.generation < 0 and not self.member_id and self.instance_id is None


class OffsetManager:
    def __init__(self, *, clock: Callable[[], int], metadata_max_bytes: int) -> None:
        self._clock = clock
        self._metadata_max_bytes = metadata_max_bytes
        # group -> topic -> partition. Written by replay and unload only.
        self._cache: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}
        # Offsets of open transactions. Written by replay, end_transaction and unload only.
        self._pending = PendingOffsets[OffsetCommitValue]()

    # -- requests: (answer, records to append) -------------------------------------------------

    def commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetCommitEntry],
        retention_ms: int = -1,
        producer: ProducerIdentity = NO_PRODUCER,
    ) -> tuple[list[ErrorType], list[CoordinatorRecord]]:
        """Return an error type per offset, and the records to append."""
        now_ms = self._clock()
        expire_ms = NO_EXPIRY if retention_ms < 0 else now_ms + retention_ms
        errors: list[ErrorType] = []
        records = []
        for item in offsets:
            metadata = item.metadata or ""
            if _java_length(metadata) > self._metadata_max_bytes:
                errors.append(OffsetMetadataTooLargeError)
                continue
            errors.append(NoError)
            value = OffsetCommitValue(
                offset=item.offset,
                leader_epoch=item.leader_epoch,
                metadata=metadata,
                commit_timestamp=now_ms,
                expire_timestamp=expire_ms,
                topic_id=item.topic_id,
            )
            records.append(CoordinatorRecord(offset_key(group_id, item.tp), value, producer))
        return errors, records

    def delete(self, group_id: str, tps: Iterable[TopicPartition]) -> list[CoordinatorRecord]:
        committed = self._cache.get(group_id, {})
        return [
            CoordinatorRecord(offset_key(group_id, tp), None)
            for tp in tps
            if tp.partition in committed.get(tp.topic, {}) or self.is_unstable(group_id, tp)
        ]

    def delete_group(self, group_id: str) -> list[CoordinatorRecord]:
        committed = self.fetch_all(group_id).items()
        tps = [TopicPartition(topic, index) for topic, found in committed for index in found]
        return self.delete(group_id, dict.fromkeys([*tps, *self._pending.of_group(group_id)]))

    def delete_topic(self, topic: str, topic_id: bytes) -> dict[str, list[CoordinatorRecord]]:
        """Return tombstones by group for a deleted topic, not for other topic ids of its name."""
        doomed: dict[str, list[CoordinatorRecord]] = {}
        for group_id, topics in self._cache.items():
            for partition, committed in topics.get(topic, {}).items():
                if not _are_different_topics(committed.topic_id, topic_id):
                    key = offset_key(group_id, TopicPartition(topic, partition))
                    doomed.setdefault(group_id, []).append(CoordinatorRecord(key, None))
        for group_id, tp in self._pending.of_topic(topic):
            tombstone = CoordinatorRecord(offset_key(group_id, tp), None)
            if tombstone not in doomed.setdefault(group_id, []):
                doomed[group_id].append(tombstone)
        return doomed

    # -- reading -------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, tp: TopicPartition, topic_id: bytes = ZERO_UUID
    ) -> OffsetCommitValue:
        """Return the committed offset, or NOTHING_COMMITTED, also for another topic id."""
        committed = self._cache.get(group_id, {}).get(tp.topic, {}).get(tp.partition)
        if committed is None or _are_different_topics(committed.topic_id, topic_id):
            return NOTHING_COMMITTED
        return committed

    def is_unstable(self, group_id: str, tp: TopicPartition) -> bool:
        """Return whether an open transaction commits an offset of the partition."""
        return self._pending.has(PendingOffsetKey(group_id, tp))

    def fetch_all(self, group_id: str) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        return self._cache.get(group_id, {})

    def group_ids(self) -> Iterable[str]:
        return self._cache.keys()

    def has_offsets(self, group_id: str) -> bool:
        """Include offsets of open transactions."""
        return group_id in self._cache or any(True for _ in self._pending.of_group(group_id))

    # -- the log -------------------------------------------------------------------------------

    def replay(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        transaction: OpenTransaction | None = None,
    ) -> None:
        target = PendingOffsetKey(key.group, TopicPartition(key.topic, key.partition))
        if value is not None:
            if transaction is not None:
                self._pending.note(transaction, target, value)
                return
            self._pending.supersede(target)
            self._store(target, value)
            return
        self._pending.forget(target)
        topics = self._cache.get(key.group, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is None:
            return
        if not partitions:
            del topics[key.topic]
        if not topics:
            del self._cache[key.group]

    def _store(self, target: PendingOffsetKey, committed: OffsetCommitValue) -> None:
        topics = self._cache.setdefault(target.group_id, {})
        topics.setdefault(target.tp.topic, {})[target.tp.partition] = committed

    def end_transaction(self, partition: int, producer_id: int, *, is_commit: bool) -> None:
        transaction = OpenTransaction(partition, producer_id)
        self._pending.end(transaction, self._store if is_commit else None)

    def unload(self, group_id: str) -> None:
        self._cache.pop(group_id, None)

    def unload_pending(self, partition: int) -> None:
        self._pending.unload(partition)


def offset_key(group_id: str, tp: TopicPartition) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=tp.topic, partition=tp.partition)


def _are_different_topics(one: bytes, other: bytes) -> bool:
    """Return whether both ids are known and differ (a recreated topic)."""
    return ZERO_UUID not in (one, other) and one != other


def _java_length(text: str) -> int:
    """Return the length in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
