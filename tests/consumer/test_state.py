from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite._transaction import BlockInTransaction
from aiokafka_lite.client.offsets import LATEST, CommittedOffset
from aiokafka_lite.client.view import ClusterView, TopicView
from aiokafka_lite.consumer.assignment.cursor import Cursor, Place, Range, Sought
from aiokafka_lite.consumer.assignment.finished import decode, encode
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.assignment.work import DeliveredRecords
from aiokafka_lite.consumer.caller import Callback, enter
from aiokafka_lite.errors import CommitFailedError, IllegalStateError
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support.states import HOLDERS, Holder, State

A = TopicPartition("t", 0)
B = TopicPartition("t", 1)


def records(*offsets: int) -> list[ConsumerRecord[Any, Any]]:
    return [ConsumerRecord("t", 0, each, 0, 0, None, None, None, -1, -1, ()) for each in offsets]


@pytest.fixture
def state() -> State:
    subscription = State()
    subscription.assign_from_user([A, B])
    return subscription


def test_the_ways_to_subscribe_exclude_each_other() -> None:
    state = State()
    state.subscribe(["t"])
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        state.subscribe_pattern(re.compile("t.*"))
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        state.assign_from_user([A])
    state.unsubscribe()
    state.assign_from_user([A])
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        state.subscribe(["t"])


def test_every_change_of_the_subscription_raises_its_version_and_is_told() -> None:
    state = State()
    told: list[int] = []
    state.observers.subscription_changed.add(lambda: told.append(state.subscription_version))
    state.subscribe(["t"])
    state.subscribe(["t", "u"])
    state.unsubscribe()
    assert told == [1, 2, 3]
    assert state.unsubscribed_version == 3
    assert state.subscription is None
    state.subscribe_pattern(re.compile("t"))
    state.set_matched_topics(["t"])
    state.unsubscribe()
    state.assign_from_user([A])
    assert told == [1, 2, 3, 4, 5, 6, 7]
    assert state.unsubscribed_version == 6


@pytest.mark.parametrize("way", ["topics", "pattern"])
def test_partitions_that_a_new_subscription_leaves_out_are_fetched_no_more(way: str) -> None:
    state = State()
    if way == "topics":
        state.subscribe(["t", "u"])
    else:
        state.subscribe_pattern(re.compile("[tu]"))
    other = TopicPartition("u", 0)
    state.change((), [A, other])
    if way == "topics":
        state.subscribe(["t"])
    else:
        state.subscribe_pattern(re.compile("t"))
    assert [state.partition(tp).is_withheld for tp in (A, other)] == [False, True]


@pytest.mark.parametrize("way", ["topics", "pattern"])
def test_a_subscription_is_to_the_partitions_of_its_topics(way: str) -> None:
    state = State()
    other = TopicPartition("u", 0)
    assert not state.subscribes_any([A])
    assert state.topics == set()
    if way == "topics":
        state.subscribe(["t"])
    else:
        state.subscribe_pattern(re.compile("t"))
    state.set_matched_topics(["t"])
    assert state.topics == {"t"}
    wanted = [[A], [other], [other, A], []]
    assert [state.subscribes_any(tps) for tps in wanted] == [True, False, True, False]


def test_a_departure_is_told_of_the_partitions_that_the_application_gives_up(
    state: State,
) -> None:
    told: list[tuple[Departure, Mapping[TopicPartition, OffsetAndMetadata]]] = []

    def note(departure: Departure) -> None:
        offsets = state.finished.finished_offsets()
        told.append((departure, {tp: offsets[tp] for tp in departure.partitions}))

    state.observers.departed.add(note)
    for tp, offset in ((A, 7), (B, 9)):
        state.seek(state.partition(tp), offset)
    state.assign_from_user([A, B])
    state.remove_from_user([B])
    state.unsubscribe()
    assert not state.assignment
    assert told == [
        (Departure(frozenset({tp}), None), {tp: OffsetAndMetadata(offset, "")})
        for tp, offset in ((B, 9), (A, 7))
    ]


@pytest.mark.parametrize("way", ["unsubscribed", "assigned by hand"])
def test_partitions_that_the_application_gives_up_are_not_lost(way: str) -> None:
    state = State()
    if way == "unsubscribed":
        state.subscribe(["t"])
    state.change((), [A, B])
    state.change([A], ())
    assert state.has_lost_any([A])
    assert not state.has_lost_any([B])
    if way == "unsubscribed":
        state.unsubscribe()
    else:
        state.assign_from_user([B])
    assert not state.has_lost_any([A])
    with pytest.raises(IllegalStateError):
        state.require_known(A)


def test_all_partitions_are_lost_when_a_rebalance_took_the_last_one() -> None:
    state = State()
    assert not state.has_lost_any([])
    state.change((), [A, B])
    state.change([A], ())
    assert not state.has_lost_any([])
    state.change([B], ())
    assert state.has_lost_any([])
    state.require_known(A)
    assert [state.has_any(wanted) for wanted in ([], [A])] == [True, False]


def test_matched_topics_count_only_when_they_change() -> None:
    state = State()
    state.subscribe(["t"])
    assert not state.set_matched_topics(["u"])
    assert state.subscription == {"t"}
    state.unsubscribe()
    state.subscribe_pattern(re.compile("t.*"))
    assert state.subscription == frozenset()
    assert state.set_matched_topics(["t1"])
    assert not state.set_matched_topics(["t1"])
    assert state.subscription == {"t1"}


@pytest.mark.parametrize(("excludes", "matched"), [(True, {"t"}), (False, {"t", "t-internal"})])
def test_a_pattern_matches_internal_topics_unless_they_are_excluded(
    matched: set[str], *, excludes: bool
) -> None:
    state = State()
    topics = [TopicView("t"), TopicView("t-internal", is_internal=True), TopicView("u")]
    seen = ClusterView(topics={topic.name: topic for topic in topics})
    state.match_pattern(seen, exclude_internal_topics=excludes)
    assert state.subscription is None
    state.subscribe_pattern(re.compile("t"))
    state.match_pattern(seen, exclude_internal_topics=excludes)
    assert state.subscription == matched


def test_assigning_keeps_what_stays_and_drops_what_goes(state: State) -> None:
    kept = state.partition(A)
    gone = state.partition(B)
    state.seek(kept, 7)
    state.seek(gone, 0)
    loan = gone.lend(1)
    discarded: list[Cursor] = []
    state.observers.discarded.add(discarded.append)
    state.assign_from_user([A, TopicPartition("u", 0)])
    assert discarded == [gone]
    assert state.partition(A) is kept
    assert kept.position == 7
    assert not gone.is_assigned
    assert gone.loan is not loan
    with pytest.raises(IllegalStateError):
        state.partition(B)


def test_a_rebalance_keeps_positions_readable_and_then_starts_all_afresh(
    state: State,
) -> None:
    before = state.partition(A)
    state.seek(before, 7)
    state.withhold(state.assignment)
    assert not before.is_fetchable
    assert state.finished.handed_out_offsets() == {A: OffsetAndMetadata(7, "")}
    state.change(state.assignment, [A])
    after = state.partition(A)
    assert after is not before
    assert after.place is Place.UNPOSITIONED
    assert after.search is not None
    assert after.search.sought is Sought.COMMITTED
    assert not before.is_assigned


def test_seek_and_reset_make_what_is_under_way_stale(state: State) -> None:
    partition = state.partition(A)
    discarded: list[Cursor] = []
    state.observers.discarded.add(discarded.append)
    state.seek(partition, 5)
    loan = partition.lend(1)
    state.request_reset(partition, LATEST)
    search = partition.search
    assert search is not None
    assert partition.loan is not loan
    assert state.finished.handed_out_offsets() == {}
    assert not partition.is_fetchable
    state.seek(partition, 9)
    assert not search.is_current
    assert state.finished.handed_out_offsets() == {A: OffsetAndMetadata(9, "")}
    assert partition.fetched == 9
    assert partition.search is None
    assert discarded == [partition] * 3


def test_a_paused_partition_is_not_fetchable_and_keeps_what_is_buffered(
    state: State,
) -> None:
    partition = state.partition(A)
    state.seek(partition, 5)
    loan = partition.lend(1)
    state.pause(partition)
    assert not partition.is_fetchable
    assert partition.loan is loan
    state.resume(partition)
    assert partition.is_fetchable


def test_only_what_was_handed_out_before_the_latest_get_is_processed(
    state: State,
) -> None:
    a, b = state.partition(A), state.partition(B)
    state.seek(a, 0)
    state.seek(b, 0)
    state.reads.begin_get()
    state.reads.hand_out(a, 0, 10, ((0, 3),))
    state.reads.hand_out(b, 0, 5, ())
    assert state.finished.processed_offsets() == {
        A: OffsetAndMetadata(0, ""),
        B: OffsetAndMetadata(0, ""),
    }
    state.reads.begin_get()
    state.reads.hand_out(a, 10, 12, ())
    assert state.finished.processed_offsets() == {
        A: OffsetAndMetadata(10, ""),
        B: OffsetAndMetadata(5, ""),
    }
    assert state.finished.handed_out_offsets() == {
        A: OffsetAndMetadata(12, ""),
        B: OffsetAndMetadata(5, ""),
    }
    assert (a.leader_epoch, b.leader_epoch) == (3, -1)


def test_what_would_be_committed_says_of_each_record_that_it_is_finished(
    state: State,
) -> None:
    a = state.partition(A)
    a.topic_id = b"0123456789abcdef"
    state.seek(a, 0)
    state.reads.begin_get()
    holder = Holder()
    with pytest.raises(IllegalStateError):
        state.finished.offset_if_finished(a, {0})
    state.works.hand_out_each(a, records(*range(10_000)), ((0, 3),), lambda _: holder)
    progress = a.progress
    assert progress is not None
    state.reads.hand_out(a, 0, 10_000, ((0, 3),))
    assert state.finished.offset_if_finished(a, {0, 1}) == (OffsetAndMetadata(2, ""), True)
    behind, is_all = state.finished.offset_if_finished(a, {5, 6, 9_999})
    assert (behind.offset, is_all) == (0, True)
    said = decode(a.topic_id, *behind)
    assert said is not None
    assert said.ranges == ((5, 7), (9_999, 10_000))
    for offset in range(1, 10_000, 2):
        progress.finish(offset, holder)
    assert not state.finished.offset_if_finished(a, {9_998})[1]
    for offset in range(0, 9_998, 2):
        progress.finish(offset, holder)
    assert state.finished.offset_if_finished(a, {9_998}) == (OffsetAndMetadata(10_000, ""), True)


def test_nothing_would_be_committed_of_a_partition_without_a_position(
    state: State,
) -> None:
    a = state.partition(A)
    a.track(Progress())
    with pytest.raises(IllegalStateError):
        state.finished.offset_if_finished(a, {0})


def test_offsets_that_hold_no_records_count_as_processed(state: State) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.reads.begin_get()
    state.reads.pass_over(a, 4)
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(4, "")}
    state.reads.hand_out(a, 4, 6, ())
    state.reads.pass_over(a, 8)
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(4, "")}
    state.reads.begin_get()
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(8, "")}


@pytest.mark.parametrize("offset", [4, 500])
def test_a_seek_counts_as_processed_from_the_next_get_on(state: State, offset: int) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.reads.begin_get()
    state.reads.hand_out(a, 0, 10, ())
    state.seek(a, offset)
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(0, "")}  # being worked on
    assert state.finished.handed_out_offsets() == {A: OffsetAndMetadata(offset, "")}
    state.reads.begin_get()
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(offset, "")}


def test_a_seek_back_counts_at_once_when_nothing_is_worked_on(state: State) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.reads.begin_get()
    state.reads.hand_out(a, 0, 10, ())
    state.reads.begin_get()
    state.seek(a, 4)
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(4, "")}


def test_a_seek_behind_processed_records_counts_at_once_though_others_are_worked_on(
    state: State,
) -> None:
    a = read_to(state, A, 0, 5)
    state.reads.begin_get()
    state.reads.hand_out(a, 5, 8, ())
    state.seek(a, 2)
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(2, "")}


def test_what_is_worked_on_is_processed_at_the_next_get_though_the_position_is_looked_up(
    state: State,
) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.reads.begin_get()
    state.reads.hand_out(a, 0, 10, ())
    state.request_reset(a, -1)
    assert state.works.being_processed() == {}
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(0, "")}
    state.reads.begin_get()
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(10, "")}
    state.seek(a, 500)  # as the position resolver does that has found it
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(500, "")}


def test_a_return_to_the_committed_offset_counts_nothing_as_processed_that_is_in_hand(
    state: State,
) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.reads.begin_get()
    state.reads.hand_out(a, 0, 10, ())
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(0, "")}
    state.return_to_committed([a])
    assert a.search is not None
    assert a.search.replaced == 0
    assert state.finished.processed_offsets() == {}
    assert state.finished.handed_out_offsets() == {}
    state.reads.begin_get()
    # Nor would a commit go back to where the lookup begins if nothing is committed.
    assert state.finished.processed_offsets() == {}
    state.start_at(a, 10)
    state.reads.begin_get()
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(10, "")}


def test_a_position_lost_with_its_log_covers_nothing_of_what_is_worked_on(
    state: State,
) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.reads.begin_get()
    state.reads.hand_out(a, 0, 10, ())
    state.request_reset(a, -2, reason="out of range")
    state.seek(a, 1000)
    assert state.finished.processed_offsets() == {}
    state.reads.begin_get()
    assert state.finished.processed_offsets() == {A: OffsetAndMetadata(1000, "")}


# --- What a change tells others ----------------------------------------------------------------
MOVES: dict[str, Callable[[State, Cursor], object]] = {
    "seek": lambda state, a: state.seek(a, 3),
    "seek to committed": lambda state, a: state.seek_to_committed(a, CommittedOffset(3, "", -1)),
    "skip": lambda state, a: state.skip_to(a, 3),
    "reset": lambda state, a: state.request_reset(a, LATEST),
    "another log": lambda state, a: state.replace_log(a, b"other"),
    "committed offset": lambda state, a: state.return_to_committed([a]),
    "validation": lambda state, a: state.request_validation(a),
    "epochs": lambda state, a: state.forget_epochs(a, 3),
    "refetch": lambda state, a: state.refetch(a),
    "revocation": lambda state, a: state.withhold([A]),
}
SWITCHES: dict[str, Callable[[State, Cursor], object]] = {
    "validated": lambda state, a: state.validated(a, 3),
    "release": lambda state, a: state.release(a),
    "resume": lambda state, a: state.resume(a),
}


@pytest.fixture
def told(state: State) -> list[str]:
    """What is told of the first partition, which is at offset 1, in order."""
    state.seek(state.partition(A), 1)
    told: list[str] = []
    state.reads.set_settler(lambda: told.append("settled"))
    state.observers.discarded.add(lambda cursor: told.append(f"discarded {cursor.tp.partition}"))
    state.observers.partition_changed.add(
        lambda cursor: told.append(f"moved {cursor.tp.partition}")
    )
    return told


@pytest.mark.parametrize("move", MOVES)
def test_positions_are_settled_before_records_are_discarded_for_a_move(
    state: State, told: list[str], move: str
) -> None:
    MOVES[move](state, state.partition(A))
    assert told == ["settled", "discarded 0", "moved 0"]


QUESTIONS: dict[str, Callable[[State], object]] = {
    "another assignment": lambda state: state.change([A], ()),
    "processed": lambda state: state.finished.processed_offsets(),
    "returned": lambda state: state.finished.handed_out_offsets(),
    "being processed": lambda state: state.works.being_processed(),
    "unfinished": lambda state: state.works.unfinished([A]),
    "a start": lambda state: state.finished.start_to_commit(state.partition(A), 1),
    "a commit": lambda state: state.finished.note_finished({A: OffsetAndMetadata(1, "")}),
    "a delivery": lambda state: state.finished.delivery(),
    "the end of a delivery": lambda state: state.finished.finish_delivery(DeliveredRecords()),
    "idle time": lambda state: state.reads.idle_s(1.0),
    "hand-outs": lambda state: state.reads.hand_out_count,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_positions_are_settled_before_they_count(
    state: State, told: list[str], question: str
) -> None:
    QUESTIONS[question](state)
    assert told[0] == "settled"


def test_positions_are_settled_before_a_pause(state: State, told: list[str]) -> None:
    state.pause(state.partition(A))
    assert told == ["settled", "moved 0"]


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_partition_that_may_be_fetched_again_is_told(
    state: State, told: list[str], switch: str
) -> None:
    SWITCHES[switch](state, state.partition(A))
    assert told == ["moved 0"]


# --- Records that others may have --------------------------------------------------------------
def read_to(state: State, tp: TopicPartition, first: int, end: int) -> Cursor:
    """Begin a partition at an offset, and return records of it."""
    cursor = state.partition(tp)
    state.start_at(cursor, first)
    state.reads.hand_out(cursor, first, end, ())
    return cursor


def test_records_without_a_commit_are_lost_with_their_partition(state: State) -> None:
    unread, foreign = TopicPartition("t", 2), TopicPartition("u", 0)
    state.add_from_user([unread])
    read_to(state, A, 0, 5)
    read_to(state, B, 0, 5).note_committed(OffsetAndMetadata(5, ""), -1, b"")
    state.change([foreign, unread, A, B], ())
    assert state.finished.delivery().lost == {A}
    state.finished.forget_lost([A, B])
    assert not state.finished.delivery().lost


def test_records_of_a_replaced_log_are_lost_if_they_are_not_committed(
    state: State,
) -> None:
    state.replace_log(read_to(state, A, 0, 5), b"other")
    assert state.finished.delivery().lost == {A}


def refused(state: State, end: int, why: str) -> list[int]:
    def is_refused(offset: int) -> bool:
        try:
            state.refuse_former_records({A: OffsetAndMetadata(offset, "")})
        except CommitFailedError as error:
            return why in str(error)
        return False

    return list(filter(is_refused, range(end)))


def test_offsets_behind_records_of_an_earlier_assignment_are_of_that() -> None:
    state = State()
    state.subscribe(["t"])
    state.change((), [A])
    read_to(state, A, 10, 15)

    def of_earlier() -> list[int]:
        return refused(state, 20, "earlier assignment")

    assert of_earlier() == []
    state.change([A], ())
    assert of_earlier() == [11, 12, 13, 14, 15]
    state.change((), [A])
    assert of_earlier() == [11, 12, 13, 14, 15]
    read_to(state, A, 12, 14)
    assert of_earlier() == [11, 15]
    state.change([A], [A], is_unbroken=True)
    assert of_earlier() == [11, 15]
    state.change([A], [A])
    assert of_earlier() == [11, 12, 13, 14, 15]


def test_offsets_behind_records_of_a_replaced_log_are_of_that(state: State) -> None:
    a = read_to(state, A, 10, 12)
    state.replace_log(a, b"other")
    read_to(state, A, 20, 22)

    def of_former() -> list[int]:
        return refused(state, 30, "recreated")

    assert of_former() == [11, 12]
    state.replace_log(a, b"third")
    assert of_former() == list(range(11, 23))
    settled: list[bool] = []
    state.reads.set_settler(lambda: settled.append(True))
    assert 11 in of_former()
    assert settled


@pytest.mark.parametrize("is_in_work", [True, False])
def test_records_before_a_position_sought_in_a_rebalance_are_processed_at_the_next_get(
    state: State, *, is_in_work: bool
) -> None:
    read_to(state, A, 0, 10)
    if not is_in_work:
        state.reads.begin_get()
    state.withhold([A])
    state.seek(state.partition(A), 4)
    state.change([A], [A], is_unbroken=True)
    assert (A in state.finished.processed_offsets()) is not is_in_work
    state.reads.begin_get()
    assert state.finished.processed_offsets()[A].offset == 4


def test_nothing_is_being_processed_of_a_partition_that_was_taken_away(
    state: State,
) -> None:
    read_to(state, A, 0, 5)
    assert state.works.being_processed() == {A: (0, 5)}
    state.change([A], ())
    assert state.works.being_processed() == {}


def test_a_partition_sought_to_its_commit_in_a_rebalance_starts_from_what_is_committed_then(
    state: State,
) -> None:
    state.withhold([A])
    state.seek_to_committed(state.partition(A), CommittedOffset(3, "", -1))
    state.change([A], [A], is_unbroken=True)
    assert state.partition(A).position is None


def test_what_is_finished_behind_a_commit_that_is_sought_is_compared_with_a_newer_leader(
    state: State,
) -> None:
    a, topic_id = state.partition(A), b"0123456789abcdef"
    a.read_from(None, 5, topic_id)
    seeks = a.seeks
    metadata = encode(topic_id, 3, 2, [Range(5, 7)])
    state.seek_to_committed(a, CommittedOffset(3, metadata))
    assert a.seeks > seeks
    assert a.progress is not None
    assert list(a.progress.finished_ranges(3)) == [(5, 7)]
    assert a.search is not None
    assert a.search.sought is Sought.VALIDATION


def test_a_partition_that_is_assigned_again_is_not_paused(state: State) -> None:
    state.pause(state.partition(B))
    state.change([A, B], [A, B])
    assert not any(cursor.is_paused for cursor in state.assignment.values())


def test_a_partition_that_nobody_has_moved_in_a_rebalance_starts_from_its_commit(
    state: State,
) -> None:
    read_to(state, A, 0, 10)
    state.change([A], [A], is_unbroken=True)
    assert state.partition(A).position is None


# --- What is being worked on -------------------------------------------------------------------
def test_what_the_latest_get_returned_is_unfinished_in_whichever_partitions(
    state: State,
) -> None:
    tps = [TopicPartition("t", number) for number in range(40)]
    state.assign_from_user(tps)
    for number, tp in enumerate(tps):
        if number % 4 == 1:
            read_to(state, tp, 0, 5)
    state.reads.begin_get()
    for number, tp in enumerate(tps):
        if number % 4 == 2:
            read_to(state, tp, 0, 3)
    assert state.works.unfinished(tps) == dict.fromkeys(tps[2::4], (0, 3))
    assert state.works.unfinished([*tps[:2], TopicPartition("u", 0)]) == {}
    state.finished.note_finished({tps[2]: OffsetAndMetadata(3, "")})
    assert state.works.unfinished(tps[:5]) == {}


class Transaction:
    """A transaction as far as an assignment looks at it."""

    is_over = False
    is_settled = False

    def hold(self, block: BlockInTransaction) -> None:
        """Do nothing."""


def test_what_an_open_transaction_decides_on_is_unfinished_and_not_committed(
    state: State,
) -> None:
    for tp in (A, B):
        read_to(state, tp, 0, 10)
    state.reads.begin_get()
    transaction, other = Transaction(), Transaction()
    a = state.partition(A)
    a.await_outcome(transaction, 6)
    a.await_outcome(other, 8)
    assert state.works.undecided([A, B, TopicPartition("u", 0)]) == {A: (6, 10)}
    assert state.works.undecided([A], transaction) == {A: (8, 10)}
    assert state.works.unfinished([A, B]) == {A: (6, 10)}
    expected = {A: OffsetAndMetadata(6, ""), B: OffsetAndMetadata(10, "")}
    assert state.finished.processed_offsets() == state.finished.offsets_to_commit() == expected
    assert state.finished.handed_out_offsets()[A].offset == 10
    transaction.is_settled = other.is_settled = True
    assert state.works.undecided([A]) == {}
    assert state.finished.offsets_to_commit()[A].offset == 10


@pytest.mark.parametrize(
    ("move", "is_forgotten"),
    [
        pytest.param(lambda state, a: state.start_at(a, 3), True, id="committed offset"),
        pytest.param(
            lambda state, a: state.request_reset(a, LATEST, reason="none"),
            True,
            id="reset by the policy",
        ),
        pytest.param(lambda state, a: state.seek(a, 3), False, id="sought offset"),
        pytest.param(lambda state, a: state.request_reset(a, LATEST), False, id="sought end"),
    ],
)
def test_transactions_from_before_a_rebalance_decide_nothing_once_it_starts_anew(
    state: State, move: Callable[..., object], *, is_forgotten: bool
) -> None:
    before = read_to(state, A, 0, 10)
    state.reads.begin_get()
    before.await_outcome(Transaction(), 5)
    state.withhold([A])
    state.change([A], [A], is_unbroken=True)
    move(state, state.partition(A))
    read_to(state, A, 3, 10)
    assert state.works.undecided([A]) == ({} if is_forgotten else {A: (5, 10)})


def test_offsets_that_a_transaction_commits_count_for_the_assignment_of_the_records(
    state: State,
) -> None:
    a, before = read_to(state, A, 0, 5), read_to(state, B, 0, 5)
    state.change([B], [B])
    read_to(state, B, 0, 5)
    five = OffsetAndMetadata(5, "")
    state.finished.finish_offsets({A: a, B: before}, {A: five, B: five})
    state.finished.finish_offsets({A: a}, {B: five})
    assert [state.finished.processed_offsets()[tp].offset for tp in (A, B)] == [5, 0]
    state.finished.finish_delivery(DeliveredRecords({state.partition(B): 4}))
    assert state.finished.processed_offsets()[B].offset == 4


def test_an_offset_that_commit_would_commit_is_committed_with_what_is_finished_behind_it(
    state: State,
) -> None:
    a = read_to(state, A, 0, 5)
    a.topic_id = b"0123456789abcdef"
    state.works.hand_out_each(a, records(*range(5)), (), lambda record: HOLDERS[record.offset])
    for offset in (0, 1, 3):
        state.works.finish(a, offset, HOLDERS[offset])
    for exactly in (OffsetAndMetadata(1, ""), OffsetAndMetadata(2, "note")):
        assert state.finished.finish_named({A: exactly}) == ({A: exactly}, {A})
    offsets, exact = state.finished.finish_named({A: OffsetAndMetadata(2, "")})
    finished = decode(a.topic_id, *offsets[A])
    assert finished is not None
    assert (finished.ranges, exact) == (((3, 4),), set())
    for offset in (2, 4):
        state.works.finish(a, offset, HOLDERS[offset])
    end = OffsetAndMetadata(5, "")
    assert state.finished.finish_named({A: end}) == ({A: end}, set())


def test_rebalances_are_told_that_the_application_has_finished_something(
    state: State,
) -> None:
    told: list[str] = []
    state.observers.acted.add(lambda: told.append("acted"))
    run = cast(Any, object())
    state.works.open_processing(run)
    state.works.close_processing(run)
    assert len(told) == 1
    state.finished.finish_offsets({}, {})
    assert len(told) == 2
    state.finished.finish_delivery(DeliveredRecords())
    assert len(told) == 3


@pytest.mark.parametrize("why", ["latest get", "work", "transaction", "nothing"])
def test_a_start_behind_records_that_are_worked_on_is_not_committed(state: State, why: str) -> None:
    a = read_to(state, A, 5, 10)
    if why != "latest get":
        state.reads.begin_get()
    if why == "work":
        a.enter_work(cast(Any, object()), is_enough=True)
    elif why == "transaction":
        a.await_outcome(Transaction(), 7)
    committed = OffsetAndMetadata(10, "")
    assert state.finished.start_to_commit(a, 10) == (committed if why == "nothing" else None)
    assert state.finished.start_to_commit(a, 5) == OffsetAndMetadata(5, "")
    a.note_committed(committed, -1, b"")
    assert state.finished.start_to_commit(a, 10) == committed


@pytest.mark.parametrize(
    ("refused", "most"), [(3_501, 3_500), (3_500, 1_750), (128, 64), (127, 0), (1, 0)]
)
def test_metadata_that_were_refused_are_half_as_long_next_time(
    state: State, refused: int, most: int
) -> None:
    state.finished.limit_metadata(refused)
    assert state.finished.most_metadata == most


# --- Records that handlers have ----------------------------------------------------------------
@pytest.fixture
def handled(state: State) -> Cursor:
    """A partition of which handlers have as many records as they may: 0 to 4."""
    state.remove_from_user([A])
    state.add_from_user([A])  # behind one of which they have none
    a = state.partition(A)
    state.seek(a, 0)
    state.works.open_processing(cast(Any, object()))
    state.works.hand_out_each(a, records(*range(5)), (), lambda record: HOLDERS[record.offset])
    state.works.put_into_processing(a, is_enough=True)
    state.reads.hand_out(a, 0, 5, ())
    return a


def test_records_are_processed_up_to_the_first_that_a_handler_has(
    state: State, handled: Cursor
) -> None:
    moved: list[Cursor] = []
    state.observers.partition_changed.add(moved.append)
    for offset in (1, 0):
        state.works.finish(handled, offset, HOLDERS[offset])
    state.works.finish(handled, 3, Holder())
    assert state.finished.processed_offsets()[A].offset == 2
    assert state.finished.handed_out_offsets()[A].offset == 2
    assert state.finished.finished_offsets()[A].offset == 2
    state.works.take_more(handled)
    state.works.take_more(handled)
    assert moved == [handled]
    assert handled.worked_by is state.reads.processing
    settled: list[object] = []
    state.reads.set_settler(lambda: settled.append(handled.worked_by))
    for offset in (2, 3, 4):
        state.works.finish(handled, offset, HOLDERS[offset])
    assert settled == [state.reads.processing]
    assert handled.worked_by is None
    assert state.finished.processed_offsets()[A].offset == 5
    assert moved == [handled]


def test_a_partition_with_enough_is_fetched_again_when_its_handlers_have_finished(
    state: State, handled: Cursor
) -> None:
    moved: list[Cursor] = []
    state.observers.partition_changed.add(moved.append)
    state.finished.note_finished({A: OffsetAndMetadata(3, "")})
    assert state.finished.processed_offsets()[A].offset == 3
    assert not moved
    state.finished.note_finished({A: OffsetAndMetadata(6, "")})
    assert state.finished.processed_offsets()[A].offset == 3
    state.finished.note_finished({A: OffsetAndMetadata(5, "")})
    assert (handled.worked_by, handled.has_enough) == (None, False)
    assert moved == [handled]


def test_a_seek_before_all_that_handlers_have_makes_room_for_others(
    state: State, handled: Cursor
) -> None:
    state.seek(handled, 3)
    assert handled.has_enough
    state.seek(handled, 0)
    assert (handled.worked_by, handled.has_enough) == (None, False)
    assert state.finished.processed_offsets()[A].offset == 0


@pytest.mark.parametrize("how", ["sought", "skipped to", "found"])
def test_records_behind_a_new_position_are_given_to_handlers_again(
    state: State, handled: Cursor, how: str
) -> None:
    if how == "sought":
        state.seek(handled, 3)
    elif how == "skipped to":
        state.skip_to(handled, 3)
    else:
        state.start_at(handled, 3)
    state.works.hand_out_each(handled, records(3, 4), (), lambda _: Holder())
    state.reads.hand_out(handled, 3, 5, ())
    for offset in range(5):
        state.works.finish(handled, offset, HOLDERS[offset])
    assert state.finished.processed_offsets()[A].offset == 3


def test_a_handler_commits_its_own_records_and_no_others(state: State) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.works.open_processing(
        cast(Any, SimpleNamespace(own_records=lambda: {a: dict(enumerate(HOLDERS[:2]))}))
    )
    state.works.hand_out_each(a, records(*range(5)), (), lambda record: HOLDERS[record.offset])
    state.works.put_into_processing(a, is_enough=True)
    state.reads.hand_out(a, 0, 5, ())
    moved: list[Cursor] = []
    state.observers.partition_changed.add(moved.append)
    for tp, refused in ((B, OffsetAndMetadata(0, "")), (A, OffsetAndMetadata(3, ""))):
        with pytest.raises(IllegalStateError):
            state.finished.finish_named({tp: refused})
    with pytest.raises(IllegalStateError):
        state.finished.finish_named({A: OffsetAndMetadata(1, "note")})
    for offset in (1, 2):
        finished = OffsetAndMetadata(offset, "")
        assert state.finished.finish_named({A: finished}) == ({A: finished}, set())
    assert moved == [a, a]


def test_records_of_a_partition_that_came_back_are_the_handlers_alone(
    state: State,
) -> None:
    run = cast(Any, SimpleNamespace(undone=lambda partitions: {}))
    state.seek(state.partition(A), 0)
    state.works.open_processing(run)
    for first in (0, 3):
        a = state.partition(A)
        each = range(first, 5)
        state.works.hand_out_each(a, records(*each), (), lambda record: HOLDERS[record.offset])
        state.works.put_into_processing(a, is_enough=True)
        state.reads.hand_out(a, first, 5, ())
        assert state.works.being_processed() == {}
        state.withhold([A])
        state.seek(a, 3)
        state.change([A], [A], is_unbroken=True)


def test_records_of_a_partition_that_is_taken_away_are_nobodys(
    state: State, handled: Cursor
) -> None:
    state.change([A], ())
    assert handled.progress is not None
    assert list(handled.progress.holders()) == []


def test_what_was_returned_before_a_run_is_processed_when_it_begins(
    state: State,
) -> None:
    read_to(state, A, 0, 5)
    state.works.open_processing(cast(Any, object()))
    assert state.finished.processed_offsets()[A].offset == 5


def test_records_returned_since_a_seek_stay_in_hand_though_a_commit_before_it_is_unknown(
    state: State, handled: Cursor
) -> None:
    state.seek(handled, 3)
    state.works.hand_out_each(handled, records(3, 4), (), lambda record: HOLDERS[record.offset])
    state.reads.hand_out(handled, 3, 5, ())
    state.forget_before_seek([handled])
    assert state.finished.processed_offsets()[A].offset == 3
    state.works.finish(handled, 3, HOLDERS[3])
    assert state.finished.processed_offsets()[A].offset == 4


@pytest.mark.parametrize("is_looked_up", [True, False])
def test_what_lies_before_a_seek_is_taken_from_handlers_whose_commit_is_unknown(
    state: State, handled: Cursor, *, is_looked_up: bool
) -> None:
    state.seek(handled, 3)
    if is_looked_up:
        state.request_reset(handled, LATEST)
    state.forget_before_seek([handled, state.partition(B)])
    assert handled.worked_by is None
    state.works.finish(handled, 1, HOLDERS[1])
    assert state.finished.processed_offsets()[A].offset == 3


def test_one_run_at_a_time_takes_all_records(state: State, handled: Cursor) -> None:
    with pytest.raises(IllegalStateError, match="already active"):
        state.works.open_processing(cast(Any, object()))
    run, failure = state.reads.processing, ValueError("no")
    state.works.finish(handled, 1, HOLDERS[1])
    moved: list[Cursor] = []
    state.observers.partition_changed.add(moved.append)
    state.works.close_processing(cast(Any, run), failure)
    assert state.works.run_failure == "ValueError('no')"
    assert (handled.worked_by, handled.position) == (None, 0)
    assert handled in moved
    assert state.finished.processed_offsets()[A].offset == 0
    assert state.works.pass_over_finished(handled, records(0, 1, 2), ()) == (0, 1)
    assert state.works.pass_over_finished(handled, records(1), ()) == (1, 1)
    state.reads.hand_out(handled, 0, 1, ())
    assert state.works.run_failure == ""


async def test_tasks_that_read_the_records_of_a_run_are_no_readers(
    state: State, handled: Cursor
) -> None:
    async def read() -> None:
        state.reads.note_reader()

    await read()
    await asyncio.create_task(read())
    assert state.reads.reader is None
    assert state.reads.readers is None


async def test_idle_time_is_that_between_gets(state: State) -> None:
    state.reads.restart_idle(100.0)
    assert state.reads.idle_s(101.0) == 1.0
    state.reads.enter_get()
    assert state.reads.idle_s(200.0) == 0.0
    state.reads.leave_get(200.0)
    assert state.reads.idle_s(207.0) == 7.0


async def test_reads_of_a_rebalance_listener_finish_no_records_and_end_no_idle_time(
    state: State,
) -> None:
    read_to(state, A, 0, 10)
    assert state.reads.idle_s(100.0) == 0.0
    callback = Callback("on_partitions_assigned")

    async def read_in_listener() -> None:
        enter(callback)
        state.reads.enter_get()
        state.reads.leave_get(150.0)

    await asyncio.create_task(read_in_listener())
    assert state.reads.idle_s(200.0) == 100.0
    assert state.finished.processed_offsets()[A].offset == 0
    state.reads.enter_get()  # while the listener runs, this task does not
    state.reads.leave_get(200.0)
    callback.end()
    assert state.reads.idle_s(207.0) == 7.0
    assert state.finished.processed_offsets()[A].offset == 10


def test_a_hand_out_without_a_get_of_its_own_ends_the_idle_time(state: State) -> None:
    state.seek(state.partition(A), 0)
    state.reads.restart_idle(100.0)
    state.reads.set_settler(lambda: state.reads.hand_out(state.partition(A), 0, 1, ()))
    assert state.reads.idle_s(150.0) == 0.0
    state.reads.set_settler(lambda: None)
    assert state.reads.idle_s(155.0) == 5.0


def test_a_get_costs_as_much_for_each_of_many_partitions() -> None:
    def took_s(count: int) -> float:
        tps = [TopicPartition("t", number) for number in range(count)]
        state = State()
        state.assign_from_user(tps)
        cursors = [state.partition(tp) for tp in tps]
        for cursor in cursors:
            state.start_at(cursor, 0)
        state.reads.begin_get()
        began = time.process_time()
        for cursor in cursors:
            state.reads.hand_out(cursor, 0, 1, ((0, 0),))
        state.works.unfinished(tps)
        return (time.process_time() - began) / count

    few_s = min(took_s(300) for _ in range(2))
    assert min(took_s(3_000) for _ in range(2)) < 3 * few_s
