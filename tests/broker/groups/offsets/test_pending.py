"""Which of the offsets count that transactions commit for the same partition."""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka_lite.broker.groups.offsets import (
    OpenTransaction,
    PendingOffsetKey,
    PendingOffsets,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.for_each import for_each

TARGET = PendingOffsetKey("g", TopicPartition("t", 0))
OTHER = PendingOffsetKey("g", TopicPartition("t", 1))
A, B = OpenTransaction(0, 1), OpenTransaction(0, 2)


@for_each(
    [
        ([A, B], [A, B], [0, 1]),
        ([A, B], [B, A], [1]),
        ([A, B, A], [A, B], [2]),
        ([A, B, A], [B, A], [1, 2]),
        ([A, A], [A], [1]),
    ]
)
def test_offset_that_was_noted_last_counts(
    noted: Sequence[OpenTransaction], ended: Sequence[OpenTransaction], committed: list[int]
) -> None:
    pending, found = PendingOffsets[int](), list[int]()
    for offset, transaction in enumerate(noted):
        pending.note(transaction, TARGET, offset)
    for transaction in ended:
        assert pending.has(TARGET)
        pending.end(transaction, lambda _, offset: found.append(offset))
    assert found == committed
    assert not pending.has(TARGET)


def test_aborted_transaction_supersedes_nothing() -> None:
    pending, found = PendingOffsets[int](), list[int]()
    pending.note(A, TARGET, 5)
    pending.note(B, TARGET, 6)
    pending.end(B, None)
    pending.end(A, lambda _, offset: found.append(offset))
    assert found == [5]


def test_superseded_offset_holds_up_none_of_its_transactions_others() -> None:
    pending, found = PendingOffsets[int](), list[tuple[PendingOffsetKey, int]]()
    pending.note(A, TARGET, 5)
    pending.note(A, OTHER, 6)
    pending.supersede(TARGET)
    pending.end(A, lambda target, offset: found.append((target, offset)))
    assert found == [(OTHER, 6)]
    assert not pending.has(TARGET)
    assert not pending.has(OTHER)


def test_what_is_forgotten_is_not_committed() -> None:
    pending, found = PendingOffsets[int](), list[tuple[PendingOffsetKey, int]]()
    elsewhere = OpenTransaction(1, 1)
    pending.note(A, TARGET, 5)
    pending.note(A, OTHER, 6)
    pending.note(elsewhere, OTHER, 7)
    assert list(pending.of_group("g")) == [TARGET.tp, OTHER.tp]
    assert list(pending.of_topic("t")) == [TARGET, OTHER]
    pending.forget(TARGET)
    pending.unload(0)
    assert not pending.has(TARGET)
    for transaction in (A, elsewhere):
        pending.end(transaction, lambda target, offset: found.append((target, offset)))
    assert found == [(OTHER, 7)]
