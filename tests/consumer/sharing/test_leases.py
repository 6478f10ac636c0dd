"""Leases of a share group's records, without brokers: every offset is answered, and only once."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.consumer.sharing.leases import (
    RENEWALS_OFF_S,
    Acknowledgements,
    AckType,
    Acquired,
    Leases,
    LeaseState,
    LostLeases,
    RecordLease,
    SharePartition,
    merged,
)
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    InvalidRecordStateError,
    KafkaError,
    KafkaProtocolError,
    NotLeaderForPartitionError,
)
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

NODE = 1
LOCK_S = 30.0
ACCEPT, RELEASE, REJECT = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT


def partition(number: int = 0) -> SharePartition:
    return SharePartition(bytes(16), TopicPartition("t", number), NODE)


def records(offsets: Iterable[int]) -> list[ConsumerRecord]:
    return [ConsumerRecord("t", 0, offset, 0, 0, None, b"", None, -1, 0, ()) for offset in offsets]


class Table:
    """Leases of one partition, and what was lost."""

    def __init__(self) -> None:
        self.lost: list[LostLeases] = []
        self.leases = Leases(self.lost.append)
        self.partition = partition()

    def acquire(
        self, *acquired: tuple[int, int, int], offsets: Iterable[int] | None = None, at: float = 0.0
    ) -> None:
        if offsets is None:
            offsets = [n for first, last, _ in acquired for n in range(first, last + 1)]
        ranges = [Acquired(*each) for each in acquired]
        self.leases.acquire(self.partition, records(offsets), ranges, lock_s=LOCK_S, asked_at=at)

    def take(self, most: int = 1_000) -> list[RecordLease]:
        return [
            self.leases.lease(each.range, record)
            for each in self.leases.take(most)
            for record in each.records
        ]

    def send(self) -> Acknowledgements:
        return self.leases.take_acknowledgements(NODE)

    def answer(self, sent: Acknowledgements, error: KafkaError | None = None) -> None:
        self.leases.answered(sent, {} if error is None else {self.partition: error})

    @property
    def lost_offsets(self) -> list[int]:
        return sorted(
            offset
            for lost in self.lost
            for first, last in lost.offsets
            for offset in range(first, last + 1)
        )


def on_the_wire(sent: Acknowledgements) -> list[tuple[int, int, AckType]]:
    return [
        (portion.first_offset, portion.last_offset, portion.type)
        for portions in sent.values()
        for portion in portions
    ]


def states(leases: Iterable[RecordLease]) -> list[LeaseState]:
    return [lease.state for lease in leases]


# --- Acquiring --------------------------------------------------------------------------------
def test_acquired_ranges_are_sorted_and_each_offset_counts_once() -> None:
    given_ranges = [Acquired(20, 29, 1), Acquired(0, 9, 1), Acquired(5, 21, 2), Acquired(6, 8, 3)]
    assert merged(given_ranges) == [Acquired(0, 9, 1), Acquired(10, 21, 2), Acquired(22, 29, 1)]


def test_neighbours_with_one_delivery_count_become_one_range() -> None:
    ranges = [Acquired(0, 4, 1), Acquired(5, 9, 1), Acquired(10, 12, 2), Acquired(14, 15, 2)]
    assert merged(ranges) == [Acquired(0, 9, 1), Acquired(10, 12, 2), Acquired(14, 15, 2)]


@given(
    st.lists(
        st.builds(
            lambda first, length, count: Acquired(first, first + length, count),
            st.integers(0, 60),
            st.integers(0, 20),
            st.integers(1, 3),
        )
    )
)
def test_merged_ranges_have_the_same_offsets_without_overlap(ranges: list[Acquired]) -> None:
    found = merged(ranges)
    offsets = [n for each in found for n in range(each.first_offset, each.last_offset + 1)]
    assert offsets == sorted(set(offsets))
    assert set(offsets) == {
        n for each in ranges for n in range(each.first_offset, each.last_offset + 1)
    }


@pytest.mark.parametrize("last_offset", [9, 10**12])
def test_range_that_no_broker_can_have_acquired_is_refused(last_offset: int) -> None:
    with pytest.raises(KafkaProtocolError, match="invalid range"):
        merged([Acquired(10, last_offset, 1)])


def test_records_outside_acquired_records_are_dropped() -> None:
    table = Table()
    table.acquire((3, 5, 1), (8, 8, 2), offsets=range(10))
    leases = table.take()
    assert [(lease.offset, lease.range.delivery_count) for lease in leases] == [
        (3, 1), (4, 1), (5, 1), (8, 2),
    ]  # fmt: skip


def test_holes_are_acknowledged_as_gaps() -> None:
    table = Table()
    table.acquire((0, 9, 1), offsets=[2, 3, 7])
    assert on_the_wire(table.send()) == [
        (0, 1, AckType.GAP),
        (4, 6, AckType.GAP),
        (8, 9, AckType.GAP),
    ]


@pytest.mark.parametrize(("delivery_count", "ack_type"), [(1, RELEASE), (3, RELEASE), (4, REJECT)])
def test_undecodable_batch_is_released_until_it_would_be_archived(
    delivery_count: int, ack_type: AckType
) -> None:
    table = Table()
    table.leases.acquire(
        table.partition,
        records([0, 1, 7]),
        [Acquired(0, 7, delivery_count)],
        lock_s=LOCK_S,
        asked_at=0.0,
        undecodable=[(2, 5)],
    )
    assert on_the_wire(table.send()) == [(2, 5, ack_type), (6, 6, AckType.GAP)]
    assert table.leases.counts.undecodable == 4


# --- Settling ---------------------------------------------------------------------------------
def test_settled_records_are_sent_as_ranges_once() -> None:
    table = Table()
    table.acquire((0, 9, 1))
    leases = table.take()
    for lease in leases[:4]:
        assert table.leases.settle(lease, ACCEPT)
    assert table.leases.settle(leases[4], RELEASE)
    assert table.leases.settle(leases[6], REJECT)
    sent = table.send()
    assert on_the_wire(sent) == [(0, 3, ACCEPT), (4, 4, RELEASE), (6, 6, REJECT)]
    assert not table.send()
    table.answer(sent)
    assert states(leases[:5]) == [LeaseState.SETTLED] * 5
    assert states(leases[5:6]) == [LeaseState.HELD]
    assert table.leases.counts.accepted == 4


def test_acknowledgements_of_a_record_that_came_back_are_in_the_order_of_offsets() -> None:
    table = Table()
    table.acquire((0, 4, 1))
    leases = table.take()
    table.leases.settle(leases[2], RELEASE)
    table.answer(table.send())
    table.acquire((2, 2, 2))
    table.leases.settle(leases[4], ACCEPT)
    table.leases.settle(table.take()[0], ACCEPT)
    assert on_the_wire(table.send()) == [(2, 2, ACCEPT), (4, 4, ACCEPT)]
    assert [each[0] for each in on_the_wire(table.leases.renewals(NODE, LOCK_S / 2))] == [0, 3]


def test_record_is_settled_once() -> None:
    table = Table()
    table.acquire((0, 0, 1))
    (lease,) = table.take()
    assert table.leases.settle(lease, ACCEPT)
    assert not table.leases.settle(lease, RELEASE)
    table.answer(table.send())
    assert not table.leases.settle(lease, RELEASE)
    assert not table.leases.is_holding(NODE)


def test_records_are_settled_together_except_those_settled_before() -> None:
    table = Table()
    table.acquire((0, 99, 1))
    (taken,) = table.leases.take(50)
    table.leases.settle(table.leases.lease(taken.range, taken.records[7]), REJECT)
    assert table.leases.settle_records(taken.range, taken.records, ACCEPT) == 49
    assert on_the_wire(table.send()) == [(0, 6, ACCEPT), (7, 7, REJECT), (8, 49, ACCEPT)]
    assert table.leases.held_count == table.leases.waiting_count == 50


def test_records_of_a_cancelled_read_are_returned_first() -> None:
    table = Table()
    table.acquire((0, 2, 1), (5, 6, 2))
    taken = table.leases.take(4)
    assert table.leases.waiting_count == 1
    table.leases.put_back(taken)
    assert table.leases.waiting_count == 5
    assert [lease.offset for lease in table.take()] == [0, 1, 2, 5, 6]


# --- Answers ----------------------------------------------------------------------------------
def test_one_lost_record_does_not_lose_the_others() -> None:
    """Brokers check all acknowledgements of a partition together."""
    table = Table()
    table.acquire((0, 99, 1))
    leases = table.take()
    for lease in leases:
        table.leases.settle(lease, ACCEPT)
    requests = 0
    while sent := table.send():
        requests += 1
        offsets = {n for first, last, _ in on_the_wire(sent) for n in range(first, last + 1)}
        table.answer(sent, InvalidRecordStateError() if 42 in offsets else None)
    assert table.lost_offsets == [42]
    assert table.leases.counts.accepted == 99
    assert requests < 25


def test_retriable_error_sends_the_acknowledgements_again() -> None:
    table = Table()
    table.acquire((0, 3, 1))
    for lease in table.take():
        table.leases.settle(lease, ACCEPT)
    sent = table.send()
    table.answer(sent, CoordinatorNotAvailableError())
    assert on_the_wire(table.send()) == on_the_wire(sent)
    assert not table.lost


def test_acknowledgements_at_a_former_leader_fail() -> None:
    table = Table()
    table.acquire((0, 3, 1))
    for lease in table.take():
        table.leases.settle(lease, ACCEPT)
    table.answer(table.send(), NotLeaderForPartitionError())
    assert not table.send()
    assert table.lost_offsets == [0, 1, 2, 3]


def test_lost_release_is_not_reported() -> None:
    """The record comes back anyway."""
    table = Table()
    table.acquire((0, 1, 1))
    first, second = table.take()
    table.leases.settle(first, RELEASE)
    table.leases.settle(second, RELEASE)
    sent = table.send()
    table.leases.failed(sent, "the connection was lost")
    assert not table.lost
    assert not table.leases.is_holding(NODE)


# --- Losses -----------------------------------------------------------------------------------
def test_lost_session_reports_what_the_application_has_and_had() -> None:
    table = Table()
    table.acquire((0, 9, 1))
    leases = table.take(6)
    table.leases.settle(leases[0], ACCEPT)
    sent = table.send()
    table.leases.settle(leases[1], ACCEPT)
    table.leases.settle(leases[2], RELEASE)
    table.leases.failed(sent, "cut")
    table.leases.lose_node(NODE, "cut")
    assert table.lost_offsets == [0, 1, 3, 4, 5]  # 6 to 9 were never seen
    assert {lease.offset for lost in table.lost for lease in lost.leases} == {0, 1, 3, 4, 5}
    assert states(leases[3:]) == [LeaseState.LOST] * 3
    assert table.leases.waiting_count == table.leases.held_count == 0
    assert not table.leases.is_holding(NODE)
    assert not table.leases.settle(leases[3], ACCEPT)


def test_lost_range_reports_what_the_application_has_beside_records_that_wait() -> None:
    table = Table()
    table.acquire((0, 9, 1))
    put_back, held = table.leases.take(5), table.take(5)
    table.leases.put_back(put_back)
    table.leases.lose_node(NODE, "cut")
    assert table.lost_offsets == [5, 6, 7, 8, 9]
    assert states(held) == [LeaseState.LOST] * 5
    assert table.leases.waiting_count == table.leases.held_count == 0


def test_confirmed_records_are_not_lost() -> None:
    table = Table()
    table.acquire((0, 1, 1))
    leases = table.take()
    table.leases.settle(leases[0], ACCEPT)
    table.answer(table.send())
    table.leases.lose_node(NODE, "cut")
    assert table.lost_offsets == [1]


def test_lock_that_was_not_renewed_in_time_is_lost() -> None:
    table = Table()
    table.acquire((0, 1, 1), at=0.0)
    table.take()
    table.leases.expire(NODE, LOCK_S - 0.1)
    assert not table.lost
    table.leases.expire(NODE, LOCK_S)
    assert table.lost_offsets == [0, 1]


# --- Renewals ---------------------------------------------------------------------------------
def renew(
    table: Table, now: float, error: KafkaError | None = None
) -> list[tuple[int, int, AckType]]:
    sent = table.leases.renewals(NODE, now)
    errors = {} if error is None else {table.partition: error}
    table.leases.renewed(sent, errors, lock_s=LOCK_S, asked_at=now)
    return on_the_wire(sent)


def test_held_records_are_renewed_at_half_of_their_time() -> None:
    table = Table()
    table.acquire((0, 4, 1), at=0.0)
    table.acquire((10, 11, 1), at=7.0)
    table.acquire((20, 21, 1), at=14.0)
    leases = table.take(3)
    table.leases.settle(leases[1], ACCEPT)
    assert table.leases.renewal_due_at(NODE) == LOCK_S / 2
    assert renew(table, LOCK_S / 2 - 0.1) == []
    # With those that are due soon; waiting records as well.
    assert renew(table, LOCK_S / 2) == [
        (0, 0, AckType.RENEW),
        (2, 4, AckType.RENEW),
        (10, 11, AckType.RENEW),
    ]
    assert table.leases.renewal_due_at(NODE) == 14.0 + LOCK_S / 2
    assert leases[0].until == LOCK_S * 1.5


def test_records_that_arrive_after_a_later_renewal_are_renewed_and_lost_by_their_own_time() -> None:
    """The heartbeat thread renews while the loop is blocked, and has not read a fetch's answer."""
    table = Table()
    table.acquire((0, 4, 1), at=0.0)
    table.take()
    assert renew(table, LOCK_S / 2)
    table.acquire((5, 9, 1), at=1.0)
    table.take()
    assert table.leases.renewal_due_at(NODE) == 1.0 + LOCK_S / 2
    table.leases.expire(NODE, LOCK_S + 1)
    assert table.lost_offsets == [5, 6, 7, 8, 9]


def test_shorter_locks_of_a_renewal_are_renewed_by_their_own_time() -> None:
    table = Table()
    table.acquire((0, 0, 1), at=0.0)
    table.acquire((5, 5, 1), at=14.0)
    sent = {table.partition: table.leases.renewals(NODE, LOCK_S / 2)[table.partition][:1]}
    table.leases.renewed(sent, {}, lock_s=4.0, asked_at=LOCK_S / 2)
    assert table.leases.renewal_due_at(NODE) == LOCK_S / 2 + 2


def test_record_settled_while_it_is_renewed_is_sent_after_the_answer() -> None:
    table = Table()
    table.acquire((0, 1, 1))
    first, second = table.take()
    sent = table.leases.renewals(NODE, LOCK_S / 2)
    assert table.leases.settle(first, ACCEPT)
    table.leases.renewed(sent, {}, lock_s=LOCK_S, asked_at=LOCK_S / 2)
    assert on_the_wire(table.send()) == [(0, 0, ACCEPT)]
    assert second.until == LOCK_S * 1.5


def test_node_that_refuses_the_first_renewal_is_asked_again_only_after_a_while() -> None:
    table = Table()
    table.acquire((0, 1, 1))
    leases = table.take()
    renew(table, LOCK_S / 2, InvalidRecordStateError())
    assert not table.leases.can_renew(NODE, LOCK_S)
    assert table.leases.can_renew(NODE + 1, LOCK_S)
    assert states(leases) == [LeaseState.HELD] * 2
    assert table.leases.renewal_due_at(NODE) == LOCK_S
    assert renew(table, LOCK_S - 1) == []
    assert table.leases.settle(leases[0], ACCEPT)
    table.leases.expire(NODE, LOCK_S)
    assert table.lost_offsets == [0, 1]
    later = LOCK_S / 2 + RENEWALS_OFF_S - 5
    table.acquire((5, 5, 1), at=later - LOCK_S / 2)
    table.take()
    assert table.leases.renewal_due_at(NODE) == later + 5
    assert renew(table, later) == []
    assert renew(table, later + 5) == [(5, 5, AckType.RENEW)]
    assert table.leases.can_renew(NODE, later)


def test_lateness_of_a_renewal_is_that_of_its_first_lock() -> None:
    table = Table()
    table.acquire((0, 1, 1))
    table.acquire((5, 5, 1), at=2.0)
    table.take()
    renew(table, LOCK_S / 2 + 3.0)
    assert table.leases.renewal_late_s == 3.0
    renew(table, LOCK_S + 3.0)
    assert table.leases.renewal_late_s == 0.0


def test_another_connection_may_renew_what_an_old_broker_could_not() -> None:
    table = Table()
    table.leases.connected(NODE, can_renew=False)
    table.acquire((0, 1, 1))
    table.take()
    assert renew(table, LOCK_S / 2) == []
    table.leases.connected(NODE, can_renew=True)
    assert renew(table, LOCK_S / 2) == [(0, 1, AckType.RENEW)]


def test_refused_renewal_does_not_end_those_of_other_ranges() -> None:
    table = Table()
    table.acquire((0, 1, 1), (10, 11, 1), (20, 21, 1))
    table.take()
    now = LOCK_S / 2
    renew(table, now)
    now += LOCK_S / 2
    while sent := on_the_wire(table.leases.renewals(NODE, now)):
        renew(table, now, InvalidRecordStateError() if (10, 11, AckType.RENEW) in sent else None)
    table.leases.expire(NODE, LOCK_S * 1.5)
    assert table.lost_offsets == [10, 11]


# --- Any order --------------------------------------------------------------------------------
@given(st.integers())
def test_every_offset_is_confirmed_or_lost_once(seed: int) -> None:
    chance = random.Random(seed)
    table = Table()
    leases, answered = table.leases, list[tuple[int, int, AckType]]()
    now, next_offset = 0.0, 0
    acquired: set[int] = set()
    held: list[RecordLease] = []
    for _ in range(chance.randrange(60)):
        now += chance.choice((0.0, 1.0, 10.0))
        leases.expire(NODE, now)
        step = chance.randrange(6)
        if step == 0:
            count = chance.randrange(1, 12)
            offsets = [n for n in range(next_offset, next_offset + count) if chance.random() < 0.8]
            table.acquire((next_offset, next_offset + count - 1, 1), offsets=offsets, at=now)
            acquired.update(offsets)
            next_offset += count + chance.randrange(2)
        elif step == 1:
            taken = leases.take(chance.randrange(8))
            if chance.random() < 0.3:
                leases.put_back(taken)
            else:
                held += [
                    leases.lease(each.range, record) for each in taken for record in each.records
                ]
        elif step == 2 and held:
            lease = held.pop(chance.randrange(len(held)))
            leases.settle(lease, chance.choice((ACCEPT, RELEASE, REJECT)))
        elif step == 3:
            sent = table.send()
            wire = on_the_wire(sent)
            assert wire == sorted(wire)
            error = chance.choice(
                (None, None, InvalidRecordStateError(), NotLeaderForPartitionError())
            )
            table.answer(sent, error)
            if error is None:
                answered += wire
        elif step == 4:
            renew(table, now, chance.choice((None, None, InvalidRecordStateError())))
        elif chance.random() < 0.1:
            leases.lose_node(NODE, "cut")
        assert leases.held_count >= leases.waiting_count == sum(map(len, leases.waiting))
    leases.release_all()
    while sent := table.send():
        answered += on_the_wire(sent)
        table.answer(sent)
    assert not leases.is_holding(NODE)
    assert not leases.ranges(NODE)
    assert leases.waiting_count == 0
    confirmed = [n for first, last, _ in answered for n in range(first, last + 1)]
    assert len(confirmed) == len(set(confirmed))
    assert not set(confirmed) & set(table.lost_offsets)
    assert len(table.lost_offsets) == len(set(table.lost_offsets))
    assert set(table.lost_offsets) <= acquired


def test_record_that_is_delivered_again_has_lost_its_earlier_lease() -> None:
    table = Table()
    table.acquire((0, 1, 1), (3, 3, 1))
    first, _, other = table.take()
    table.acquire((0, 0, 2))
    assert table.lost_offsets == [0, 1]
    assert (first.state, other.state) == (LeaseState.LOST, LeaseState.HELD)
    assert [lease.offset for lease in table.take()] == [0]


def test_record_that_was_released_is_delivered_again_without_a_loss() -> None:
    table = Table()
    table.acquire((0, 1, 1))
    first, second = table.take()
    table.leases.settle(first, RELEASE)
    table.answer(table.send())
    table.acquire((0, 0, 2))
    assert table.lost == []
    assert second.state is LeaseState.HELD
