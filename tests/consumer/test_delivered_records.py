"""Records that were returned to the application, as a value that a transaction commits."""

from __future__ import annotations

import pytest

from aiokafka_lite._transaction import BegunTransaction
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.work import DeliveredRecords
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.states import State

A, B, C = (TopicPartition("t", number) for number in range(3))


class Held:
    """A record that is finished by itself."""

    def __init__(self, cursor: Cursor, offset: int) -> None:
        self.cursor = cursor
        self.offset = offset
        self.is_current = True
        self.is_finished = False
        self.refusal_count = 0

    def enlist(self, transaction: object | None) -> None:
        """Do nothing."""

    def ack(self) -> bool:
        return True


class Block:
    """The block of a batch."""

    def enlist(self, transaction: BegunTransaction) -> None:
        """Do nothing."""

    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None:
        """Do nothing."""


class Returned:
    """Two partitions of which five records were returned."""

    def __init__(self) -> None:
        self.state = State()
        self.state.assign_from_user([A, B])
        self.a, self.b = self.state.assignment.values()
        for cursor in (self.a, self.b):
            self.state.start_at(cursor, 0)
            self.state.reads.hand_out(cursor, 0, 5, ())


@pytest.fixture
def returned() -> Returned:
    return Returned()


def test_joined_deliveries_have_the_later_end_and_the_id_of_the_first_records(
    returned: Returned,
) -> None:
    a, b, block = returned.a, returned.b, Block()
    held = Held(b, 7)
    one = DeliveredRecords({a: 5}, topic_ids={a: b"one"})
    other = DeliveredRecords({a: 3, b: 4}, [held], [C], [block], {a: b"other"})
    one.join(other)
    assert one.ends == {a: 5, b: 4}
    assert (list(one.receipts), one.lost, one.blocks) == ([held], {C}, [block])
    assert one.topic_ids() == {(A, b"one"), (B, b"")}
    assert one.cursors == {a, b}
    other.join(DeliveredRecords({a: 4}))
    assert other.ends[a] == 4


def test_records_of_a_partition_that_is_taken_away_are_revoked_unless_they_are_committed(
    returned: Returned,
) -> None:
    a, b = returned.a, returned.b
    a.note_committed(OffsetAndMetadata(5, ""), -1, b"")
    delivery = DeliveredRecords({a: 5, b: 5}, lost=[C])
    assert delivery.revoked() == {C}
    returned.state.change([A, B], ())
    assert delivery.revoked() == {B, C}


def test_records_that_are_finished_one_by_one_are_revoked_if_others_have_them(
    returned: Returned,
) -> None:
    current, finished, lost = (Held(returned.a, offset) for offset in range(3))
    finished.is_current, finished.is_finished = False, True
    delivery = DeliveredRecords(receipts=[current, finished, lost])
    assert delivery.revoked() == set()
    assert delivery.unfinished() == {returned.a: {0, 2}}
    lost.is_current = False
    assert delivery.revoked() == {A}
    lost.refusal_count += 1
    delivery.leave_out_refused()
    assert delivery.revoked() == set()
    assert delivery.unfinished() == {returned.a: {0}}
    returned.state.change([A], ())
    assert delivery.unfinished() == {}
