"""Cursors and the sources that keep them: each is at one place, and known there."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.consumer.assignment.cursor import (
    MOST_CHUNKS,
    Cursor,
    Place,
    Search,
    Sought,
)
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.errors import IllegalStateError, KafkaError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.rounds import LONG

TP = TopicPartition("t", 0)
ID = bytes(range(16))


class Part:
    """A chunk, as far as a cursor looks at it."""

    def __init__(self, end_offset: int | None = None, error: KafkaError | None = None) -> None:
        self.end_offset = end_offset
        self.failure = error


class Keeper:
    """A source that writes down where its cursors say that they are."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.places: dict[Cursor, Place] = {}
        self.moves = 0

    def moved(self, cursor: Cursor) -> None:
        self.moves += 1
        self.places[cursor] = cursor.place

    def left(self, cursor: Cursor) -> None:
        del self.places[cursor]


@pytest.fixture
def keeper() -> Keeper:
    return Keeper(1)


@pytest.fixture
def cursor(keeper: Keeper) -> Cursor:
    cursor = Cursor(TP)
    cursor.read_from(keeper, 3, ID)
    return cursor


def started(cursor: Cursor, offset: int = 0) -> Cursor:
    cursor.start_at(offset, -1, -1, is_in_work=False)
    return cursor


def buffer(cursor: Cursor, chunk: Part, *, is_sticky: bool = False) -> None:
    """Do what the buffer does."""
    cursor.chunks = (*cursor.chunks, chunk)  # type: ignore[arg-type]
    cursor.buffered(chunk.end_offset, is_sticky=is_sticky)


def drop(cursor: Cursor) -> None:
    cursor.chunks = ()


def in_each_place(keeper: Keeper) -> dict[Place, Cursor]:
    """One cursor in each place."""
    cursors = {place: Cursor(TopicPartition("t", place.value)) for place in Place}
    for place, cursor in cursors.items():
        cursor.read_from(keeper, 3, ID)
        if place is not Place.UNPOSITIONED:
            started(cursor)
    cursors[Place.IN_FLIGHT].lend(10)
    cursors[Place.BACKING_OFF].back_off(9.0, "refused")
    for _ in range(MOST_CHUNKS):
        buffer(cursors[Place.FULL], Part(5))
    buffer(cursors[Place.FAILED], Part(error=KafkaError("bad")))
    return cursors


def test_each_place_is_reached_by_a_name_that_says_why(keeper: Keeper) -> None:
    cursors = in_each_place(keeper)
    assert {place: cursor.place for place, cursor in cursors.items()} == {p: p for p in Place}
    del cursors[Place.IN_FLIGHT]  # its source has lent it, and is not told
    assert {cursor: keeper.places[cursor] for cursor in cursors.values()} == {
        cursor: place for place, cursor in cursors.items()
    }


def test_only_what_is_ready_is_lent(keeper: Keeper) -> None:
    for place, cursor in in_each_place(keeper).items():
        if place is Place.READY:
            loan = cursor.lend(10)
            assert (loan.cursor, loan.offset, loan.leader_epoch) == (cursor, 0, 3)
            assert (loan.topic_id, loan.max_bytes) == (ID, 10)
        else:
            with pytest.raises(IllegalStateError, match=place.name):
                cursor.lend(10)


@pytest.mark.parametrize(("switch", "undo"), [("pause", "resume"), ("withhold", "release")])
def test_what_is_paused_or_given_back_is_not_lent(cursor: Cursor, switch: str, undo: str) -> None:
    getattr(started(cursor), switch)()
    with pytest.raises(IllegalStateError):
        cursor.lend(10)
    getattr(cursor, undo)()
    cursor.lend(10)


@pytest.mark.parametrize(("switch", "undo"), [("pause", "resume"), ("withhold", "release")])
def test_a_source_is_told_of_each_switch(
    cursor: Cursor, keeper: Keeper, switch: str, undo: str
) -> None:
    moves = keeper.moves
    for call in (switch, undo):
        getattr(cursor, call)()
        moves += 1
        assert keeper.moves == moves


def test_a_position_is_fetched_from_once_the_leader_has_confirmed_it(cursor: Cursor) -> None:
    started(cursor).await_validation()
    assert cursor.place is Place.UNPOSITIONED
    cursor.validated(4)
    assert cursor.place is Place.READY


CALLS_IN: dict[str, Callable[[Cursor], object]] = {
    "a seek": lambda cursor: cursor.start_at(0, -1, -1, is_in_work=False),
    "a reset": lambda cursor: cursor.await_reset(-1, ""),
    "a check of the log": lambda cursor: cursor.await_validation(),
    "another log": lambda cursor: cursor.forget_log(b"other"),
    "what was buffered is dropped": lambda cursor: cursor.refetch(),
    "the end of the assignment": lambda cursor: cursor.end_assignment(),
    "another source": lambda cursor: cursor.read_from(Keeper(2), 3, ID),
    "no leader": lambda cursor: cursor.read_from(None),
    "an error": lambda cursor: cursor.failed(5.0, "refused"),
}


@pytest.mark.parametrize("event", CALLS_IN)
def test_a_loan_is_over_with(cursor: Cursor, event: str) -> None:
    loan = started(cursor).lend(10)
    CALLS_IN[event](cursor)
    assert cursor.loan is None
    assert cursor.place is not Place.IN_FLIGHT
    if cursor.is_assigned and cursor.place is Place.READY:
        assert cursor.lend(10) is not loan


KEEPS: dict[str, Callable[[Cursor], object]] = {
    "a pause": lambda cursor: cursor.pause(),
    "a resume": lambda cursor: cursor.resume(),
    "a newer leader epoch at the same node": lambda c: c.read_from(c.source, 4, ID),
    "an answer without records": lambda cursor: cursor.answered(1.0, 7, 7, 0),
    "the hand-out of what is buffered": lambda cursor: cursor.chunks_changed(),
}


@pytest.mark.parametrize("event", KEEPS)
def test_a_loan_outlives(cursor: Cursor, event: str) -> None:
    loan = started(cursor).lend(10)
    KEEPS[event](cursor)
    assert cursor.loan is loan


def test_a_loan_is_outdated_by_a_pause_until_the_resume(cursor: Cursor) -> None:
    loan = started(cursor).lend(10)
    cursor.pause()
    assert loan.is_outdated
    cursor.resume()
    assert not loan.is_outdated


@pytest.mark.parametrize("name", [(4, ID), (3, bytes(16))])
def test_a_loan_is_outdated_by_another_name(cursor: Cursor, name: tuple[int, bytes]) -> None:
    loan = started(cursor).lend(10)
    cursor.read_from(cursor.source, *name)
    assert loan.is_outdated


def test_a_source_is_told_of_another_leader_epoch_and_not_of_the_same(
    cursor: Cursor, keeper: Keeper
) -> None:
    before = keeper.moves
    cursor.read_from(keeper, 3, ID)
    assert keeper.moves == before
    cursor.read_from(keeper, 4, ID)
    assert keeper.moves == before + 1


@pytest.mark.parametrize(
    "event", sorted(CALLS_IN.keys() - {"an error", "another source", "no leader"})
)
def test_a_search_is_over_with(cursor: Cursor, event: str) -> None:
    cursor.await_reset(-1, "")
    search = cursor.search
    assert search is not None
    CALLS_IN[event](cursor)
    assert not search.is_current


def test_a_search_that_begins_anew_is_for_the_same(cursor: Cursor) -> None:
    started(cursor, 7).await_reset(-1, "out of range")
    cursor.refetch()
    search = cursor.search
    assert isinstance(search, Search)
    found = (search.sought, search.timestamp, search.replaced, search.reason)
    assert found == (Sought.RESET, -1, 7, "out of range")


def test_an_error_on_the_way_to_a_position_fails_only_what_the_application_has_to_mend(
    cursor: Cursor,
) -> None:
    buffer(cursor, Part(error=KafkaError("passes")))
    assert cursor.place is Place.UNPOSITIONED
    drop(cursor)
    buffer(cursor, Part(error=KafkaError("stays")), is_sticky=True)
    assert cursor.place is Place.FAILED
    drop(cursor)
    assert started(cursor).place is Place.READY


def test_truncations_that_no_batch_has_to_know_are_forgotten(cursor: Cursor) -> None:
    cursor.truncated(0)
    tracemalloc.start()
    try:
        for end_offset in range(1_000):
            cursor.truncated(end_offset)
        assert tracemalloc.get_traced_memory()[0] < 1_000
    finally:
        tracemalloc.stop()


def test_a_batch_knows_all_truncations_since_it_began(cursor: Cursor) -> None:
    for end_offset in (9, 8):
        cursor.truncated(end_offset)
    at_its_begin = cursor.next_truncation
    assert not list(at_its_begin.end_offsets())
    for end_offset in (7, 3, 5):
        cursor.truncated(end_offset)
    assert list(at_its_begin.end_offsets()) == [7, 3, 5]


def test_a_back_off_outlives_an_error_that_is_raised(cursor: Cursor) -> None:
    started(cursor).failed(9.0, "refused")
    buffer(cursor, Part(error=KafkaError("refused")))
    assert cursor.place is Place.FAILED
    drop(cursor)
    cursor.chunks_changed()
    assert cursor.place is Place.BACKING_OFF
    cursor.end_back_off()
    assert cursor.place is Place.READY


def test_there_is_room_for_two_chunks_unless_nothing_can_be_fetched_behind_the_first(
    cursor: Cursor,
) -> None:
    assert not started(cursor).is_full
    for chunk, place in (
        (Part(5), Place.READY),
        (Part(9), Place.FULL),
        (Part(), Place.FULL),
        (Part(9, KafkaError("bad")), Place.FAILED),
    ):
        if cursor.is_full:
            drop(cursor)
        buffer(cursor, chunk)
        assert (cursor.place, cursor.is_full) == (place, place is not Place.READY)


@pytest.mark.parametrize("event", ["await_validation", "refetch"])
def test_what_was_buffered_is_fetched_again_after(cursor: Cursor, event: str) -> None:
    buffer(started(cursor), Part(5))
    assert cursor.fetched == 5
    drop(cursor)
    getattr(cursor, event)()
    assert cursor.fetched == 0


def test_a_partition_keeps_the_id_of_its_topic_while_no_leader_is_known_and_of_the_assigned_one(
    cursor: Cursor, keeper: Keeper
) -> None:
    cursor.read_from(None)
    assert cursor.topic_id == ID
    assigned = Cursor(TP, None, ID)
    assigned.read_from(keeper, 3, bytes(reversed(ID)))
    assert assigned.topic_id == ID


# --- At random --------------------------------------------------------------------------------
T = TypeVar("T")


class Config:
    retry_backoff_s = 0.1
    request_timeout_s = 1.0
    fetch_max_wait_s = 0.5
    max_partition_fetch_bytes = 10
    max_batch_bytes = 1_000_000
    check_crcs = True
    is_read_committed = False


class Replicas:
    lease_ends_at = float("inf")


class StandIn:
    """What a source asks of what it belongs to, as far as lending goes."""

    def __init__(self) -> None:
        self.config = Config()
        self.rng = random.Random(1)
        self.replicas = Replicas()
        self.buffer = self
        self.budget = ByteBudget(1, lambda: None)
        self.left_out: set[Cursor] = set()

    def is_left_out(self, cursor: Cursor) -> bool:
        return cursor in self.left_out


class SourceMachine(RuleBasedStateMachine):
    """Moves of three cursors between two sources in any order; the lists agree with the places."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()

    def run(self, function: Callable[[], T]) -> T:
        async def inside() -> T:
            return function()

        return self.loop.run_until_complete(inside())

    @initialize()
    def begin(self) -> None:
        from aiokafka_lite.consumer.fetching.counts import NodeCounts
        from aiokafka_lite.consumer.fetching.source import Source

        self.parent = StandIn()
        self.sources = self.run(
            lambda: [
                Source(self.parent, node_id, Lane.FETCH, NodeCounts())  # type: ignore[arg-type]
                for node_id in (1, 2)
            ]
        )
        self.cursors = [Cursor(TopicPartition("t", number)) for number in range(3)]
        for cursor in self.cursors:
            cursor.read_from(self.sources[0], 0, ID)

    def teardown(self) -> None:
        self.loop.close()

    numbers = st.integers(0, 2)

    @rule(number=numbers)
    def seek(self, number: int) -> None:
        drop(self.cursors[number])
        started(self.cursors[number])

    @rule(number=numbers)
    def reset(self, number: int) -> None:
        drop(self.cursors[number])
        self.cursors[number].await_reset(-1, "")

    @rule(number=numbers)
    def drop_what_is_buffered(self, number: int) -> None:
        drop(self.cursors[number])
        self.cursors[number].refetch()

    @rule(number=numbers, is_paused=st.booleans())
    def pause_or_resume(self, number: int, *, is_paused: bool) -> None:
        cursor = self.cursors[number]
        (cursor.pause if is_paused else cursor.resume)()

    @rule(number=numbers, is_withheld=st.booleans())
    def give_back_or_keep(self, number: int, *, is_withheld: bool) -> None:
        cursor = self.cursors[number]
        (cursor.withhold if is_withheld else cursor.release)()

    @rule(number=numbers, to=st.sampled_from([0, 1, None]), epoch=st.integers(0, 2))
    def change_leader(self, number: int, to: int | None, epoch: int) -> None:
        source = None if to is None else self.sources[to]
        self.cursors[number].read_from(source, epoch, ID)

    @rule(number=numbers)
    def assign_anew(self, number: int) -> None:
        self.cursors[number].end_assignment()
        drop(self.cursors[number])
        self.cursors[number] = cursor = Cursor(TopicPartition("t", number))
        cursor.read_from(self.sources[0], 0, ID)

    @rule(number=numbers, is_error=st.booleans())
    def answer(self, number: int, *, is_error: bool) -> None:
        cursor = self.cursors[number]
        if cursor.loan is None:
            return
        if is_error:
            cursor.failed(1e12, "refused")
        else:
            buffer(cursor, Part(cursor.fetched + 1))

    @rule(number=numbers)
    def meet_an_error(self, number: int) -> None:
        cursor = self.cursors[number]
        if cursor.search is None and not cursor.is_full:
            buffer(cursor, Part(error=KafkaError("bad")))

    @rule(number=numbers)
    def use_a_chunk_up(self, number: int) -> None:
        cursor = self.cursors[number]
        cursor.chunks = cursor.chunks[1:]
        cursor.chunks_changed()

    @rule(number=numbers)
    def end_back_off(self, number: int) -> None:
        self.cursors[number].end_back_off()

    @rule(numbers=st.sets(numbers))
    def leave_out(self, numbers: set[int]) -> None:
        self.parent.left_out = {self.cursors[number] for number in numbers}
        for source in self.sources:
            source.choose_anew()

    @rule(number=st.integers(0, 1))
    def next_request(self, number: int) -> None:
        source = self.sources[number]
        self.run(lambda: inside.lend(source))
        asked = {loan.cursor for loan in inside.kept_by(source).loans}
        wanted = {
            cursor
            for cursor in self.cursors
            if cursor.source is source
            and cursor.is_fetchable
            and not cursor.retry_at
            and not cursor.is_full
            and cursor not in self.parent.left_out
        }
        # In flight already, with an answer buffered or an error met since: that one stays so.
        assert wanted <= asked
        assert all(loan.offset == loan.cursor.fetched for loan in inside.kept_by(source).loans)
        assert not any(loan.is_outdated for loan in inside.kept_by(source).loans)

    @invariant()
    def every_cursor_is_known_where_it_is(self) -> None:
        for source in getattr(self, "sources", ()):
            kept = inside.kept_by(source)
            loans = {loan.cursor for loan in kept.loans}
            here = {cursor for cursor in self.cursors if cursor.source is source}
            assert kept.cursors == here
            assert loans == {c for c in here if c.place is Place.IN_FLIGHT}
            assert kept.ready == {c for c in here if c.place is Place.READY and c.is_fetchable}
            assert kept.backing_off == {c for c in here if c.place is Place.BACKING_OFF}
            for loan in kept.loans:
                assert loan.cursor.loan is loan
        for cursor in getattr(self, "cursors", ()):
            assert (cursor.loan is not None) is (cursor.place is Place.IN_FLIGHT)
            assert (cursor.search is not None) is (cursor.place is Place.UNPOSITIONED)


TestSource = SourceMachine.TestCase
TestSource.settings = settings(
    max_examples=50 if LONG else 20, stateful_step_count=100, deadline=None
)
