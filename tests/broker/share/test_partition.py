"""The states of a share partition, against a table of single records."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.broker.configs import ShareGroupSettings
from aiokafka_lite.broker.share.partition import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    Acknowledged,
    AcknowledgeType,
    AcquiredSpan,
    BrokerSharePartition,
    OffsetSpan,
    RecordRange,
    RecordState,
)
from aiokafka_lite.errors import InvalidRecordStateError

SETTINGS = ShareGroupSettings(delivery_count_limit=10, partition_max_record_locks=100)
MEMBERS = ("a", "b")


class Table:
    """One (state, delivery count, member) for each record of the window."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[RecordState, int, str]] = {}

    def held(self, member_id: str) -> list[int]:
        return [at for at, row in self.rows.items() if row[0] is ACQUIRED and row[2] == member_id]

    def release(self, offset: int) -> None:
        _, count, _ = self.rows[offset]
        is_last = count >= SETTINGS.delivery_count_limit
        self.rows[offset] = (ARCHIVED if is_last else AVAILABLE, count, "")


def rows_of(partition: BrokerSharePartition) -> dict[int, tuple[RecordState, int]]:
    """Return what is to be stored, by offset."""
    return {
        offset: (RecordState(each.delivery_state), each.delivery_count)
        for each in partition.stored()
        for offset in range(each.first_offset, each.last_offset + 1)
    }


def expected_rows(table: Table) -> dict[int, tuple[RecordState, int]]:
    rows = {
        at: (AVAILABLE, count - 1) if state is ACQUIRED else (state, count)
        for at, (state, count, _) in table.rows.items()
    }
    return {at: row for at, row in rows.items() if row != (AVAILABLE, 0)}


@given(st.integers(0, 2**32))
def test_states_are_those_of_single_records(seed: int) -> None:
    rng = random.Random(seed)
    partition, table = BrokerSharePartition(0, 0, lambda: SETTINGS), Table()
    batches = [OffsetSpan(first, first + 3) for first in range(0, 80, 4)]
    for _ in range(60):
        member = rng.choice(MEMBERS)
        action = rng.choice(
            ("acquire", "acquire", "acknowledge", "acknowledge", "leave", "advance")
        )
        if action == "acquire":
            start, wanted = partition.next_offset, rng.randint(1, 9)
            found = [each for each in batches if each.last >= start][: rng.randint(1, 4)]
            if not found:
                continue
            is_exact = rng.random() < 0.5
            got = partition.acquire(
                member, found, wanted, batch_size=rng.randint(1, 9), is_exact=is_exact, until=0
            )
            count = sum(last - first + 1 for first, last, _ in got)
            assert count > 0
            assert not is_exact or count <= wanted
            for first, last, deliveries in got:
                for offset in range(first, last + 1):
                    state, before, _ = table.rows.get(offset, (AVAILABLE, 0, ""))
                    assert (state, before) == (AVAILABLE, deliveries - 1)
                    table.rows[offset] = (ACQUIRED, deliveries, member)
        elif action == "acknowledge":
            held = table.held(member)
            if not held:
                continue
            first = rng.choice(held)
            last = first
            while last + 1 in held and rng.random() < 0.8:
                last += 1
            kind = rng.choice(tuple(AcknowledgeType))
            partition.acknowledge(member, [Acknowledged(first, last, kind)], until=0)
            for offset in range(first, last + 1):
                _, deliveries, _ = table.rows[offset]
                if kind is AcknowledgeType.RELEASE:
                    table.release(offset)
                elif kind is not AcknowledgeType.RENEW:
                    is_accepted = kind is AcknowledgeType.ACCEPT
                    state = ACKNOWLEDGED if is_accepted else ARCHIVED
                    table.rows[offset] = (state, deliveries, "")
                if kind is not AcknowledgeType.RENEW:
                    with pytest.raises(InvalidRecordStateError):
                        partition.acknowledge(member, [Acknowledged(offset, offset, kind)], until=0)
        elif action == "leave":
            partition.release_if(partial(RecordRange.is_held_by, member_id=member))
            for offset in table.held(member):
                table.release(offset)
        else:
            partition.advance()
            for offset in [at for at in table.rows if at < partition.start_offset]:
                assert table.rows.pop(offset)[0] in (ACKNOWLEDGED, ARCHIVED)
            assert all(
                row[0] not in (ACKNOWLEDGED, ARCHIVED)
                for at, row in table.rows.items()
                if at == partition.start_offset
            )
        assert rows_of(partition) == expected_rows(table)
        assert partition.end_offset == max(table.rows, default=partition.start_offset - 1) + 1
    restored = BrokerSharePartition(partition.start_offset, 1, lambda: SETTINGS, partition.stored())
    assert rows_of(restored) == rows_of(partition)


def new_partition(**settings: int) -> BrokerSharePartition:
    chosen = replace(SETTINGS, **settings)  # type: ignore[arg-type]
    return BrokerSharePartition(0, 0, lambda: chosen)


def acquire(partition: BrokerSharePartition, *batches: tuple[int, int]) -> list[AcquiredSpan]:
    spans = [OffsetSpan(*each) for each in batches]
    return partition.acquire("a", spans, 500, batch_size=500, is_exact=False, until=0)


def test_gaps_between_batches_are_passed_or_acquired() -> None:
    partition = new_partition()
    # Compaction has removed 0 to 2, and 5 to 7.
    assert acquire(partition, (3, 4), (8, 9)) == [(3, 9, 1)]
    partition.advance()
    assert partition.start_offset == 3


def test_records_that_compaction_removes_later_are_archived() -> None:
    partition = new_partition()
    acquire(partition, (0, 1), (2, 3))
    partition.release_if(lambda _: True)
    assert acquire(partition, (2, 3)) == [(2, 3, 2)]
    partition.advance()
    assert partition.start_offset == 2


def test_deleted_log_moves_the_window() -> None:
    partition = new_partition()
    acquire(partition, (0, 3))
    partition.release_if(lambda _: True)
    partition.advance(100)
    assert (partition.start_offset, partition.next_offset) == (100, 100)


def test_locked_records_of_a_deleted_log_can_be_acknowledged() -> None:
    partition = new_partition()
    acquire(partition, (0, 3))
    partition.advance(100)
    assert acquire(partition, (100, 101)) == [(100, 101, 1)]
    partition.acknowledge("a", [Acknowledged(0, 3, AcknowledgeType.ACCEPT)], until=0)
    partition.advance(100)
    assert partition.start_offset == 100


def test_lower_delivery_limit_archives_what_is_released_next() -> None:
    partition = new_partition(delivery_count_limit=2)
    acquire(partition, (0, 0))
    partition.release_if(lambda _: True)
    assert acquire(partition, (0, 0)) == [(0, 0, 2)]
    partition.release_if(lambda _: True)
    partition.advance()
    assert partition.start_offset == 1
