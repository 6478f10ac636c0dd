"""How much of each partition `consumer.run` hands out, when bounds are reached and when not."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.buffer import Limits
from aiokafka_lite.consumer.delivery.gets import OneByOne
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.job import Job
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.buffers import Buffers, batch
from tests.support.states import State

A, B, C = (TopicPartition("t", number) for number in range(3))


class Handed:
    """Hands out records of some partitions, and finishes them."""

    def __init__(self, *tps: TopicPartition, most: int = 1000, limit_bytes: int = 80_000) -> None:
        self.state = State()
        self.state.assign_from_user(tps or (A, B))
        for tp in self.state.assignment:
            self.state.start_at(self.state.partition(tp), 0)
        self.state.works.open_processing(cast(Any, self))
        self.budget = ByteBudget(limit_bytes, lambda: None)
        self.allowance = Allowance(
            self.state.core(buffer=SimpleNamespace(budget=self.budget)), most
        )
        self.jobs: list[Job] = []

    def cursor(self, tp: TopicPartition) -> Cursor:
        return self.state.partition(tp)

    def out(self, tp: TopicPartition, count: int, size_bytes: int = 1) -> int:
        """Hand out so many records, or as many as may be; return how many."""
        cursor = self.cursor(tp)
        first = cursor.position or 0
        records: list[ConsumerRecord[Any, Any]] = [
            ConsumerRecord("t", tp.partition, n, 0, 0, None, b"", None, 0, size_bytes, ())
            for n in range(first, first + count)
        ]
        taken = records[: self.allowance.admit(cursor, records)]
        jobs = self.state.works.hand_out_each(cursor, taken, (), partial(Job, cursor, None))
        self.jobs += jobs
        self.state.reads.hand_out(cursor, first, first + len(taken), ())
        self.allowance.handed_out(cursor)
        return len(taken)

    def finish(self, tp: TopicPartition, count: int) -> None:
        for job in [job for job in self.jobs if job.cursor is self.cursor(tp)][:count]:
            self.jobs.remove(job)
            self.state.works.finish(job.cursor, job.record.offset, job)
            self.allowance.count(job.cursor)


@pytest.fixture
def handed() -> Handed:
    return Handed()


def test_half_of_the_bytes_are_anybodys_and_then_each_has_a_share(handed: Handed) -> None:
    # 80,000 bytes in all: 40,000 are anybody's, then each of two has 10,000.
    assert handed.out(A, 100, 1000) == 40
    assert handed.cursor(A).has_enough
    assert handed.out(B, 100, 1000) == 10
    assert handed.cursor(B).has_enough
    assert handed.budget.room_bytes == 30_000
    handed.finish(B, 4)
    assert not handed.cursor(B).has_enough
    assert handed.out(B, 100, 1000) == 4
    assert handed.cursor(A).has_enough


def test_a_record_larger_than_all_bytes_is_handed_out_alone(handed: Handed) -> None:
    assert handed.out(A, 3, 500_000) == 1
    assert handed.cursor(A).has_enough
    assert handed.out(B, 3, 500_000) == 1
    assert handed.budget.room_bytes == 20_000  # a quarter is left to fetch with
    handed.finish(A, 1)
    handed.finish(B, 1)
    assert not handed.cursor(A).has_enough
    assert handed.budget.room_bytes == 80_000


def test_all_may_have_more_once_half_of_the_bytes_are_free_again(handed: Handed) -> None:
    handed.out(A, 100, 1000)
    handed.out(B, 100, 1000)
    handed.finish(B, 10)
    assert handed.cursor(A).has_enough
    handed.finish(A, 1)
    assert not handed.cursor(A).has_enough


def test_what_is_finished_in_time_is_no_bound(handed: Handed) -> None:
    for _ in range(1000):
        assert handed.out(A, 5, 1000) == 5
        handed.finish(A, 5)
    assert not handed.cursor(A).has_enough
    assert handed.budget.room_bytes >= 70_000


def test_what_went_with_its_partition_counts_no_more() -> None:
    handed = Handed(most=10)
    handed.out(A, 10)
    handed.out(B, 5)
    assert handed.cursor(B).has_enough
    handed.state.change([A], [])
    handed.allowance.forget_unassigned()
    # 5 of 10 are uncommitted: whoever has some gets more.
    assert not handed.cursor(B).has_enough
    handed.out(B, 4)
    assert not handed.cursor(B).has_enough
    handed.out(B, 1)
    assert handed.cursor(B).has_enough


def test_the_bytes_of_what_went_are_free(handed: Handed) -> None:
    handed.out(A, 100, 1000)
    assert handed.out(B, 100, 1000) == 10
    handed.state.change([A], [])
    handed.allowance.forget_unassigned()
    assert not handed.cursor(B).has_enough
    assert handed.budget.room_bytes == 70_000
    assert handed.out(B, 100, 1000) == 30


def test_each_partition_has_its_share_of_records_when_there_are_as_many_as_may_be() -> None:
    handed = Handed(most=10)
    handed.out(A, 10)
    handed.out(B, 4)
    assert not handed.cursor(B).has_enough
    handed.out(B, 1)
    assert handed.cursor(B).has_enough
    handed.finish(B, 1)
    assert not handed.cursor(B).has_enough
    assert handed.cursor(A).has_enough


def test_when_there_are_exactly_as_many_records_as_may_be_a_finished_one_lets_all_have_more() -> (
    None
):
    handed = Handed(most=10)
    handed.out(A, 5)
    handed.out(B, 5)
    assert handed.cursor(B).has_enough
    handed.finish(A, 1)
    assert not handed.cursor(B).has_enough


def test_when_exactly_half_of_the_bytes_are_in_use_a_finished_one_lets_all_have_more(
    handed: Handed,
) -> None:
    handed.out(A, 40, 1000)
    handed.out(B, 10, 1000)
    handed.finish(A, 10)
    assert handed.cursor(A).has_enough
    assert handed.cursor(B).has_enough
    handed.finish(A, 1)
    assert not handed.cursor(B).has_enough


def test_one_bound_is_enough_to_let_those_have_more_that_the_other_one_lets() -> None:
    handed = Handed(most=10)
    for _ in range(3):
        handed.out(A, 1, 20_000)
    assert handed.out(B, 7) == 7
    assert handed.cursor(B).has_enough
    handed.finish(A, 1)  # 40,000 bytes are left, and nine records
    assert not handed.cursor(B).has_enough
    assert handed.cursor(A).has_enough


def test_with_fewer_partitions_each_has_a_larger_share() -> None:
    handed = Handed(A, B, C, most=12)
    handed.out(A, 12)
    handed.out(B, 4)
    assert handed.cursor(B).has_enough
    handed.state.change([C], [])
    handed.allowance.forget_unassigned()
    assert not handed.cursor(B).has_enough
    assert handed.cursor(A).has_enough


def test_each_finished_record_leaves_room(handed: Handed) -> None:
    handed.out(A, 5, 1000)
    assert handed.budget.room_bytes == 75_000
    handed.finish(A, 2)
    assert handed.budget.room_bytes == 77_000
    assert handed.allowance.uncommitted_count == 3


def test_the_last_byte_may_be_handed_out(handed: Handed) -> None:
    handed.out(A, 39, 1000)
    handed.out(A, 1, 999)
    assert handed.out(B, 100, 1000) == 1
    assert handed.out(B, 9, 1000) == 9
    assert handed.cursor(B).has_enough

    handed = Handed()
    handed.out(A, 40, 1000)
    handed.out(B, 9, 1000)
    handed.out(B, 1, 999)
    assert not handed.cursor(B).has_enough


def test_what_a_seek_back_leaves_is_counted_anew(handed: Handed) -> None:
    handed.out(A, 40, 1000)
    cursor = handed.cursor(A)
    assert cursor.progress is not None
    cursor.progress.go_back_to(20)
    handed.allowance.count(cursor)
    assert handed.budget.room_bytes == 60_000
    assert not cursor.has_enough
    handed.allowance.close()
    assert handed.budget.room_bytes == 80_000


def test_a_record_that_does_not_fit_ends_what_is_handed_out(handed: Handed) -> None:
    sizes = (30_000, 20_000, 5_000)
    records: list[ConsumerRecord[Any, Any]] = [
        ConsumerRecord("t", 0, offset, 0, 0, None, b"", None, 0, size, ())
        for offset, size in enumerate(sizes)
    ]
    assert handed.allowance.admit(handed.cursor(A), records) == 1


def test_records_that_are_passed_over_or_committed_have_no_bytes(handed: Handed) -> None:
    cursor = handed.cursor(A)
    record: ConsumerRecord[Any, Any] = ConsumerRecord("t", 0, 0, 0, 0, None, b"", None, 0, 1000, ())
    for _ in range(100):
        handed.allowance.admit(cursor, [record])
        handed.allowance.handed_out(cursor)
    assert cursor.worked_by is None
    assert handed.out(A, 100, 1000) == 40
    # A handler has committed all but the last.
    assert cursor.progress is not None
    cursor.progress.finish_before(39)
    handed.jobs = handed.jobs[39:]
    handed.finish(A, 1)
    assert handed.budget.room_bytes == 80_000


def test_without_partitions_it_holds_nothing(handed: Handed) -> None:
    for tp in (A, B):
        handed.out(tp, 1, 500_000)
    cursor = handed.cursor(A)
    assert cursor in handed.allowance
    handed.state.change([A, B], [])
    handed.allowance.count(cursor)
    handed.allowance.forget_unassigned()
    assert cursor not in handed.allowance
    assert not list(handed.allowance)
    assert handed.budget.room_bytes == 80_000


async def test_no_more_records_are_admitted_than_a_read_may_take() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 5)})
    await buffers.buffer.decode(Limits())
    taken: list[ConsumerRecord] = []
    sink = OneByOne(
        lambda cursor, records, epochs: taken.extend(records), lambda cursor, records: len(records)
    )
    assert await buffers.buffer.take(sink, Limits(max_records=2))
    assert [record.offset for record in taken] == [0, 1]
