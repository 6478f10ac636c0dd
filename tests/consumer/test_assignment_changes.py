"""A part of the assignment changes: what goes, what comes, and what stays as it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.offsets import EARLIEST, CommittedOffset
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
from aiokafka_lite.consumer.assignment.cursor import Cursor, Place, Sought
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle
from tests.support.reading import reading
from tests.support.states import State

A, B, C, D = (TopicPartition("t", number) for number in range(4))
PATIENCE_S = 20


# --- The cursors -------------------------------------------------------------------------------
@pytest.fixture
def assignment() -> State:
    """A and B, of which records up to 5 were handed out."""
    assignment = State()
    assignment.change((), [A, B])
    for tp in (A, B):
        cursor = assignment.partition(tp)
        assignment.start_at(cursor, 0)
        assignment.reads.hand_out(cursor, 0, 5, ((0, 3),))
    assignment.reads.begin_get()
    return assignment


def looks(cursor: Cursor) -> tuple[object, ...]:
    return cursor.position, cursor.fetched, cursor.loan, cursor.is_paused, cursor.is_fetchable


def test_observers_get_partitions_in_their_order() -> None:
    assignment, heard = State(), list[TopicPartition]()
    assignment.change((), [A, B, C, D])
    assignment.observers.discarded.add(lambda cursor: heard.append(cursor.tp))
    for names in ([D, B], [C, A]):  # as a set has them in some process
        assignment.withhold(names)
    assignment.change([D, A, C], ())
    assert heard == [B, D, A, C, A, C, D]


def test_what_stays_is_not_touched(assignment: State) -> None:
    kept = assignment.partition(A)
    kept.buffered(9)
    loan = kept.lend(1)
    discarded: list[Cursor] = []
    assignment.observers.discarded.add(discarded.append)
    before = looks(kept)
    assignment.withhold([B])
    assignment.change([B], [C])
    assignment.change([C], [B])
    assert assignment.partition(A) is kept
    assert looks(kept) == before == (5, 9, loan, False, True)
    assert kept not in discarded


def test_what_goes_is_fetched_no_more_and_its_position_stays_readable(
    assignment: State,
) -> None:
    going = assignment.partition(B)
    loan = going.lend(1)
    assignment.withhold([B])
    assert not going.is_fetchable
    assert going.loan is not loan
    assert assignment.finished.processed_offsets()[B] == OffsetAndMetadata(5, "")
    assignment.change([B], ())
    assert not going.is_assigned
    assert list(assignment.assignment) == [A]
    with pytest.raises(IllegalStateError, match="a rebalance revoked it"):
        assignment.partition(B)


def test_what_is_given_back_starts_afresh(assignment: State) -> None:
    before = assignment.partition(B)
    assignment.withhold([B])
    assignment.change([B], [B])
    after = assignment.partition(B)
    assert after is not before
    assert after.place is Place.UNPOSITIONED
    assert after.search is not None
    assert after.search.sought is Sought.COMMITTED
    assert not after.is_withheld


def test_what_is_named_for_nothing_counts_for_nothing(assignment: State) -> None:
    cursors = dict(assignment.assignment)
    assignment.change([C], [A])
    assert assignment.assignment == cursors
    assert all(cursor.is_assigned for cursor in cursors.values())
    assignment.change([C, B], [])
    assert list(assignment.assignment) == [A]


@pytest.mark.parametrize("is_going", [False, True], ids=["stays", "goes and comes back"])
def test_a_seek_meanwhile_holds(assignment: State, is_going: bool) -> None:
    moved = B if is_going else A
    assignment.withhold([B])
    assignment.seek(assignment.partition(moved), 2)
    assignment.change([B], [B], is_unbroken=True)
    assert assignment.partition(moved).position == 2
    assert assignment.partition(moved).is_fetchable


@pytest.mark.parametrize("is_going", [False, True], ids=["stays", "goes and comes back"])
@pytest.mark.parametrize("begins", ["before", "meanwhile"])
def test_a_search_for_a_position_goes_on(assignment: State, begins: str, is_going: bool) -> None:
    moved = B if is_going else A
    if begins == "meanwhile":
        assignment.withhold([B])
    assignment.request_reset(assignment.partition(moved), EARLIEST)
    assignment.withhold([B])
    assignment.change([B], [B], is_unbroken=True)
    search = assignment.partition(moved).search
    assert search is not None
    assert search.sought is Sought.RESET
    assert search.timestamp == EARLIEST


@pytest.mark.parametrize("to", ["committed", "policy", "unknown commit", "another log"])
def test_a_position_that_the_application_has_not_asked_for_is_looked_up_again(
    assignment: State, to: str
) -> None:
    assignment.withhold([B])
    moved = assignment.partition(B)
    if to == "committed":
        assignment.seek_to_committed(moved, CommittedOffset(2, "", -1))
    elif to == "policy":
        assignment.request_reset(moved, EARLIEST, reason="out of range")
    else:
        assignment.seek(moved, 2)
        if to == "another log":
            assignment.replace_log(moved, b"other")
        else:
            assignment.return_to_committed([moved])
            assignment.start_at(moved, 1)
    assignment.change([B], [B], is_unbroken=True)
    search = assignment.partition(B).search
    assert search is not None
    assert search.is_first


@pytest.mark.parametrize("is_going", [False, True], ids=["stays", "goes and comes back"])
def test_a_pause_meanwhile_holds(assignment: State, is_going: bool) -> None:
    stopped = B if is_going else A
    assignment.withhold([B])
    assignment.pause(assignment.partition(stopped))
    assignment.change([B], [B])
    assert assignment.partition(stopped).is_paused


def test_a_pause_from_before_ends_with_what_goes_and_stays_with_what_stays(
    assignment: State,
) -> None:
    for tp in (A, B):
        assignment.pause(assignment.partition(tp))
    assignment.withhold([B])
    assignment.change([B], [B])
    assert assignment.partition(A).is_paused
    assert not assignment.partition(B).is_paused


def test_records_that_run_has_of_what_was_sought_and_came_back_are_not_processed(
    assignment: State,
) -> None:
    assignment.works.open_processing(cast(Any, object()))

    def give_to_run(cursor: Cursor, first: int, end: int) -> None:
        records = [SimpleNamespace(offset=offset, size_bytes=1) for offset in range(first, end)]
        assignment.works.hand_out_each(
            cursor, cast(Any, records), ((0, 3),), cast(Any, lambda record: record)
        )
        assignment.works.put_into_processing(cursor, is_enough=False)
        assignment.reads.hand_out(cursor, first, end, ((0, 3),))

    give_to_run(assignment.partition(B), 5, 7)
    assignment.withhold([B])
    assignment.seek(assignment.partition(B), 6)
    assignment.change([B], [B], is_unbroken=True)
    give_to_run(assignment.partition(B), 6, 8)
    assignment.reads.begin_get()  # the next one of run
    assert assignment.finished.processed_offsets()[B].offset == 6


def test_a_seek_in_what_others_may_have_had_meanwhile_is_forgotten(assignment: State) -> None:
    assignment.withhold([B])
    assignment.seek(assignment.partition(B), 2)
    assignment.change([B], [B])
    assert assignment.partition(B).position is None


def test_a_seek_in_what_goes_for_good_is_forgotten(assignment: State) -> None:
    assignment.withhold([B])
    assignment.seek(assignment.partition(B), 2)
    assignment.change([B], ())
    assignment.change((), [B])
    assert assignment.partition(B).position is None


def test_what_is_in_work_of_what_stays_is_processed_with_the_next_get(
    assignment: State,
) -> None:
    for tp in (A, B):
        assignment.reads.hand_out(assignment.partition(tp), 5, 8, ((0, 3),))
    assignment.withhold([B])
    assignment.change([B], [C])
    assert assignment.works.being_processed() == {A: (5, 8)}
    assignment.reads.begin_get()
    assert assignment.finished.processed_offsets() == {A: OffsetAndMetadata(8, "")}


# --- A consumer --------------------------------------------------------------------------------
@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t", 4)
        yield broker
    assert broker.failure is None


class Reader:
    """A consumer that reads all the time, and whose assignment the test changes."""

    def __init__(self, broker: Broker, consumer: AIOKafkaConsumer) -> None:
        self.broker = broker
        self.consumer = consumer
        self.assignment: SubscriptionState = inside.assignment(consumer)
        self.read: dict[TopicPartition, list[int]] = defaultdict(list)
        self.written: dict[TopicPartition, int] = defaultdict(int)

    def write(self, *partitions: TopicPartition, count: int = 10) -> None:
        for tp in partitions:
            for _ in range(count):
                self.broker.produce("t", b"%d" % self.written[tp], partition=tp.partition)
                self.written[tp] += 1

    async def get(self) -> None:
        got = await self.consumer.getmany(timeout_ms=50)
        for tp, records in got.items():
            self.read[tp] += [record.offset for record in records]

    async def until_read(self, *partitions: TopicPartition) -> None:
        """Get until all that was written to these was read."""
        async with _compat.timeout(PATIENCE_S):
            while not all(self.read[tp][-1:] == [self.written[tp] - 1] for tp in partitions):
                await self.get()

    async def check_that_nothing_comes_of(self, *partitions: TopicPartition) -> None:
        before = {tp: len(self.read[tp]) for tp in partitions}
        for _ in range(3):
            await self.get()
        assert {tp: len(self.read[tp]) for tp in partitions} == before

    def has_no_gap(self, tp: TopicPartition) -> bool:
        return self.read[tp] == list(range(self.written[tp]))


@pytest.fixture
async def reader(broker: Broker) -> AsyncIterator[Reader]:
    """A consumer of A, B and C, which has read what there was."""
    kafka = KafkaHandle("embedded", broker.bootstrap_servers)
    async with reading(kafka, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
        reader = Reader(broker, consumer)
        consumer.assign([A, B, C])
        reader.write(A, B, C, D)
        await reader.until_read(A, B, C)
        yield reader


async def test_what_stays_is_read_without_a_gap_while_others_go_and_come(reader: Reader) -> None:
    changes: list[tuple[list[TopicPartition], list[TopicPartition]]] = [
        ([B], []),
        ([C], [B, D]),
        ([B, D], [C]),
    ]
    kept = reader.assignment.partition(A)
    for revoke, assign in changes:
        reader.assignment.withhold(revoke)
        reader.write(A, B, C, D)
        await reader.until_read(A)
        await reader.check_that_nothing_comes_of(*revoke)
        for tp in assign:
            reader.read[tp].clear()
        reader.assignment.change(revoke, assign)
        reader.write(A, B, C, D)
        await reader.until_read(A, *assign)
        await reader.check_that_nothing_comes_of(*revoke)
        assert all(reader.has_no_gap(tp) for tp in assign)
    assert reader.has_no_gap(A)
    assert reader.assignment.partition(A) is kept
    assert reader.consumer.assignment() == {A, C}


async def test_two_changes_without_a_get_between_them(reader: Reader) -> None:
    reader.assignment.withhold([B])
    reader.assignment.change([B], [D])
    reader.assignment.withhold([C, D])
    reader.assignment.change([C, D], [B])
    reader.read[B].clear()
    reader.write(A, B, C, D)
    await reader.until_read(A, B)
    assert reader.has_no_gap(A)
    assert reader.has_no_gap(B)
    assert reader.consumer.assignment() == {A, B}
    assert reader.read[D] == []


async def test_what_is_buffered_of_what_stays_is_handed_out_and_not_fetched_again(
    reader: Reader,
) -> None:
    kept = reader.assignment.partition(A)
    reader.write(A, B, count=50)
    await reader.broker.wait_until(lambda: kept.fetched > 10)
    fetched = kept.fetched
    reader.assignment.withhold([B])
    reader.assignment.change([B], ())
    assert kept.fetched >= fetched
    with reader.broker.on("Fetch").hold():  # no answer comes that could bring it
        await reader.get()
    assert reader.read[A][-1] >= fetched - 1
    assert reader.read[B][-1] == 9
    await reader.until_read(A)
    assert reader.has_no_gap(A)


@pytest.mark.parametrize("moved", [A, B], ids=["stays", "goes and comes back"])
async def test_a_seek_while_a_part_is_given_back(reader: Reader, moved: TopicPartition) -> None:
    reader.assignment.withhold([B])
    reader.consumer.seek(moved, 4)
    reader.read[moved].clear()
    await reader.check_that_nothing_comes_of(B)
    reader.assignment.change([B], [B], is_unbroken=True)
    reader.write(A, B)
    await reader.until_read(A, B)
    assert reader.read[moved] == list(range(4, reader.written[moved]))


@pytest.mark.parametrize("paused", [A, B], ids=["stays", "goes and comes back"])
async def test_a_pause_while_a_part_is_given_back(reader: Reader, paused: TopicPartition) -> None:
    other = B if paused is A else A
    reader.assignment.withhold([B])
    reader.consumer.pause(paused)
    reader.assignment.change([B], [B])
    reader.read[B].clear()
    reader.write(A, B)
    await reader.until_read(other)
    await reader.check_that_nothing_comes_of(paused)
    assert reader.consumer.paused() == {paused}
    reader.consumer.resume(paused)
    await reader.until_read(A, B)
    assert reader.has_no_gap(A)
    assert reader.has_no_gap(B)
