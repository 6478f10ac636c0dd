"""Offsets that transactions have committed and markers have not decided yet (KIP-98, KIP-447).

Reference: org.apache.kafka.coordinator.group.OffsetMetadataManager. An offset that was committed
later, whether or not by a transaction, is never replaced by an earlier one whose transaction took
longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from aiokafka_lite.structs import TopicPartition

OffsetValue = TypeVar("OffsetValue")


class OpenTransaction(NamedTuple):
    """A producer's transaction, in one partition of the offsets topic."""

    partition: int
    producer_id: int


class PendingOffsetKey(NamedTuple):
    """Whose offset in what."""

    group_id: str
    tp: TopicPartition


@dataclass(eq=False)
class _Pending(Generic[OffsetValue]):
    offset: OffsetValue
    is_superseded: bool = False


class PendingOffsets(Generic[OffsetValue]):
    """What will be committed by transactions that are open."""

    def __init__(self) -> None:
        # Of each target in the order of the commits.
        self._targets: dict[PendingOffsetKey, dict[OpenTransaction, _Pending[OffsetValue]]] = {}
        self._transactions: dict[OpenTransaction, dict[PendingOffsetKey, None]] = {}

    def note(
        self, transaction: OpenTransaction, target: PendingOffsetKey, offset: OffsetValue
    ) -> None:
        """Remember what a transaction commits; the latest counts."""
        waiting = self._targets.setdefault(target, {})
        waiting.pop(transaction, None)
        waiting[transaction] = _Pending(offset)
        self._transactions.setdefault(transaction, {})[target] = None

    def has(self, target: PendingOffsetKey) -> bool:
        """Say whether an open transaction commits something there."""
        return target in self._targets

    def of_group(self, group_id: str) -> Iterator[TopicPartition]:
        """Give the partitions for which open transactions commit a group's offset."""
        for target in self._targets:
            if target.group_id == group_id:
                yield target.tp

    def of_topic(self, topic: str) -> Iterator[PendingOffsetKey]:
        """Give whose offsets of a topic open transactions commit."""
        return (target for target in self._targets if target.tp.topic == topic)

    def supersede(self, target: PendingOffsetKey) -> None:
        """Note that an offset was committed after all that is pending for it."""
        for pending in self._targets.get(target, {}).values():
            pending.is_superseded = True

    def end(
        self,
        transaction: OpenTransaction,
        commit: Callable[[PendingOffsetKey, OffsetValue], None] | None,
    ) -> None:
        """Forget a transaction's offsets, after giving to `commit` those that count now."""
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
        """Forget what is pending for a target that was deleted."""
        for transaction in self._targets.pop(target, {}):
            del self._transactions[transaction][target]

    def unload(self, partition: int) -> None:
        """Forget a partition of the offsets topic: another node coordinates its groups."""
        for transaction in [one for one in self._transactions if one.partition == partition]:
            self.end(transaction, None)
