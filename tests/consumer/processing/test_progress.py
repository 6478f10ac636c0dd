"""What may be committed of a partition whose records are finished in any order."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Range
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.errors import IllegalStateError
from tests.support.for_each import for_each
from tests.support.states import Holder

ME = Holder()


def handed_out(*offsets: int, ahead: tuple[Range, ...] = ()) -> Progress:
    progress = Progress(ahead, 0)
    progress.hand_out(offsets, [ME] * len(offsets))
    return progress


def test_nothing_handed_out_holds_no_commit_back() -> None:
    progress = Progress()
    assert progress.first_unfinished is None
    assert progress.holder_of_first() is None
    assert not progress.uncommitted_count
    assert not list(progress.finished_ranges())


def test_a_commit_of_an_offset_leaves_the_record_at_it_unfinished() -> None:
    progress = handed_out(5, 6, 7, 9)
    progress.finish_before(7)
    assert progress.first_unfinished == 7
    assert progress.is_held_by(7, ME)
    progress.finish_before(8)
    assert progress.first_unfinished == 9


def test_the_first_that_is_not_finished_is_what_to_commit() -> None:
    progress = handed_out(5, 6, 7)
    assert progress.first_unfinished == 5
    assert not progress.finish(6, ME)
    assert progress.first_unfinished == 5
    assert progress.finish(5, ME)
    assert progress.first_unfinished == 7
    assert progress.finish(7, ME)
    assert progress.first_unfinished is None


def test_gaps_are_neither_waited_for_nor_finished() -> None:
    progress = handed_out(1, 5, 9)
    assert progress.finish(1, ME)
    assert progress.first_unfinished == 5
    assert not progress.finish(9, ME)
    assert not progress.finish(7, ME)
    assert list(progress.finished_ranges()) == [Range(9, 10)]
    assert progress.finish(5, ME)
    assert progress.first_unfinished is None


def test_what_lies_between_finished_records_is_in_their_range() -> None:
    progress = handed_out(0, 3, 8, 20, 21)
    for offset in (3, 8, 21):
        progress.finish(offset, ME)
    assert list(progress.finished_ranges()) == [Range(3, 9), Range(21, 22)]


def test_a_record_that_is_finished_twice_changes_nothing() -> None:
    progress = handed_out(0, 1, 2)
    assert not progress.finish(1, ME)
    assert not progress.finish(1, ME)
    assert progress.finish(0, ME)
    assert not progress.finish(0, ME)
    assert (progress.first_unfinished, progress.uncommitted_count) == (2, 1)


def test_only_who_holds_a_record_finishes_it() -> None:
    progress = handed_out(0, 1)
    assert not progress.finish(0, Holder())
    assert progress.first_unfinished == 0
    progress.go_back_to(1)
    again = Holder()
    progress.hand_out([1], [again])
    assert progress.holder_of_first() is ME
    assert progress.is_held_by(1, again)
    assert not progress.is_held_by(1, ME)
    assert progress.holder_of_first() is ME
    progress.finish(0, ME)
    assert not progress.finish(1, ME)
    assert progress.first_unfinished == 1
    assert progress.holder_of_first() is again
    assert progress.finish(1, again)


def test_what_lies_before_another_cannot_be_handed_out() -> None:
    progress = handed_out(4)
    for offset in (3, 4):
        with pytest.raises(IllegalStateError, match="is not greater than offset 4"):
            progress.hand_out([offset], [ME])


def test_each_record_has_a_holder() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Progress().hand_out([1, 2], [ME])


def test_going_back_keeps_what_lies_before() -> None:
    progress = handed_out(0, 1, 2, 3, 4)
    for offset in (1, 3):
        progress.finish(offset, ME)
    supposed = progress.if_gone_back_to(3)
    assert (supposed.uncommitted_count, progress.uncommitted_count) == (3, 5)
    progress.go_back_to(3)
    assert (progress.first_unfinished, progress.uncommitted_count) == (0, 3)
    progress.finish(0, ME)
    progress.go_back_to(2)
    assert progress.first_unfinished is None


def test_going_back_over_the_last_unfinished_leaves_nothing_to_wait_for() -> None:
    progress = handed_out(0, 1, 2)
    progress.finish(1, ME)
    progress.go_back_to(0)
    assert (progress.first_unfinished, progress.uncommitted_count) == (None, 0)


def test_what_the_application_commits_is_finished() -> None:
    progress = handed_out(0, 1, 2, 3)
    progress.finish(2, ME)
    progress.finish_before(2)
    assert (progress.first_unfinished, progress.uncommitted_count) == (3, 1)
    assert not progress.finish(1, ME)


# --- What was finished before ------------------------------------------------------------------
def test_what_was_finished_before_is_passed_over_and_holds_nothing_back() -> None:
    progress = handed_out(ahead=(Range(1, 3), Range(6, 7)))
    assert progress.has_ahead
    passed = []
    for offset in range(9):
        if progress.passes_over(offset):
            passed.append(offset)
        else:
            progress.hand_out([offset], [ME])
    assert passed == [1, 2, 6]
    assert not progress.has_ahead
    progress.finish(0, ME)
    assert progress.first_unfinished == 3


def test_what_was_finished_before_and_not_met_again_stays_in_the_commit() -> None:
    progress = handed_out(0, 1, ahead=(Range(1, 3), Range(6, 9)))
    progress.finish(1, ME)
    assert list(progress.finished_ranges()) == [Range(1, 2), Range(2, 3), Range(6, 9)]
    progress.forget_ahead()
    assert list(progress.finished_ranges()) == [Range(1, 2)]
    assert not list(handed_out(0, 3, ahead=(Range(1, 4),)).finished_ranges())


def test_a_range_of_which_some_was_met_again_stays_for_the_rest() -> None:
    progress = handed_out(3, ahead=(Range(4, 6),))
    assert progress.passes_over(4)
    progress.finish(3, ME)
    assert progress.first_unfinished is None
    assert list(progress.finished_ranges(5)) == [Range(5, 6)]
    assert progress.passes_over(5)


def test_an_interrupted_table_passes_over_what_was_finished() -> None:
    progress = handed_out(0, 1, 2, 3)
    progress.finish(2, ME)
    progress.interrupt(7)
    assert progress.first_unfinished is None
    assert progress.ahead_epoch == 7
    assert not progress.finish(1, ME)
    assert [progress.passes_over(offset) for offset in range(4)] == [False, False, True, False]


@given(st.sets(st.integers(0, 60)), st.randoms(use_true_random=False))
def test_every_order_commits_what_is_finished_from_the_start(
    offsets: set[int], rng: random.Random
) -> None:
    order = sorted(offsets)
    progress = handed_out(*order)
    left = set(offsets)
    rng.shuffle(order)
    for offset in order:
        before = progress.first_unfinished
        left.remove(offset)
        first = min(left, default=None)
        assert bool(progress.finish(offset, ME)) == (first != before)
        assert progress.first_unfinished == first
        finished = {o for o in offsets - left if first is not None and o > first}
        ranges = list(progress.finished_ranges())
        assert {o for first, end in ranges for o in range(first, end)} & offsets == finished
        assert all(not left & set(range(first, end)) for first, end in ranges)
        assert all(a.end <= b.first for a, b in pairwise(ranges))
        assert progress.finished_count == len(finished)
        assert progress.last_finished == max(finished, default=None)


def test_what_was_passed_over_behind_an_unfinished_record_stays_in_the_next_commit() -> None:
    progress = handed_out(0, ahead=(Range(1, 3),))
    assert [progress.passes_over(offset) for offset in (1, 2)] == [True, True]
    assert list(progress.finished_ranges()) == [Range(1, 3)]
    progress.hand_out([3], [ME])
    assert list(progress.finished_ranges()) == [Range(1, 3)]
    progress.interrupt(0)
    assert list(progress.finished_ranges(1)) == [Range(1, 3)]


def test_the_epoch_of_what_lies_ahead_does_not_go_back() -> None:
    progress = Progress((Range(6, 9),), 4)
    progress.hand_out([0, 1], [ME, ME])
    progress.finish(1, ME)
    progress.interrupt(2)  # of records before those that lie ahead
    assert (list(progress.finished_ranges(0)), progress.ahead_epoch) == (
        [Range(1, 2), Range(6, 9)],
        4,
    )


def test_a_commit_that_is_read_again_says_what_lies_ahead_and_nothing_else_does() -> None:
    progress = Progress((Range(6, 9),), 4)
    progress.look_ahead((Range(2, 3),), 1)
    assert (list(progress.finished_ranges(1)), progress.ahead_epoch) == ([Range(2, 3)], 1)


@given(st.sets(st.integers(0, 40)), st.randoms(use_true_random=False))
def test_what_would_be_is_what_becomes_of_it(offsets: set[int], rng: random.Random) -> None:
    progress = handed_out(*sorted(offsets), ahead=(Range(41, 50),))
    for offset in offsets:
        if rng.random() < 0.4:
            progress.finish(offset, ME)
    supposed = {offset for offset in offsets if rng.random() < 0.4}
    before = (progress.first_unfinished, list(progress.finished_ranges(50)))
    found = progress.if_finished(supposed)
    would = (found.first_unfinished, list(found.finished_ranges(50)))
    assert (progress.first_unfinished, list(progress.finished_ranges(50))) == before
    for offset in supposed:
        if progress.is_held_by(offset, ME):
            progress.finish(offset, ME)
    assert (progress.first_unfinished, list(progress.finished_ranges(50))) == would


def test_a_hundred_thousand_records_in_reverse_cost_no_more_than_in_order() -> None:
    """Steps are counted, not time: each record is taken off the table once."""
    count = 100_000
    progress = handed_out(*range(count))
    for offset in reversed(range(1, count)):
        assert not progress.finish(offset, ME)
    assert list(progress.finished_ranges()) == [Range(1, count)]
    assert progress.finish(0, ME)
    assert progress.first_unfinished is None


def test_what_lies_ahead_counts_in_the_epochs_in_which_it_is_verified() -> None:
    progress = Progress((Range(6, 9), Range(12, 13)), 4)
    assert progress.first_ahead == 6
    assert progress.keep_ahead_in(((0, 3), (2, 4)), 4)
    assert not progress.is_verified
    progress.verify_ahead(9, 5)
    assert progress.is_verified
    assert progress.keep_ahead_in(((2, 5),), 4)
    assert not progress.keep_ahead_in(((2, 6),), 5)
    assert not progress.keep_ahead_in((), 6)


def test_what_lies_ahead_ends_where_a_newer_epoch_begins() -> None:
    progress = Progress((Range(6, 9), Range(12, 14)), 4)
    assert progress.keep_ahead_in(((0, 4), (7, 5)), 4)
    assert list(progress.finished_ranges()) == [Range(6, 7)]


@for_each(
    [
        (None, []),
        (2, []),
        (3, [Range(2, 3)]),
        (6, [Range(2, 4)]),
        (8, [Range(2, 4), Range(6, 8)]),
        (12, [Range(2, 4), Range(6, 9)]),
    ]
)
def test_what_a_new_leader_does_not_have_is_forgotten(
    epoch_end: int | None, left: list[Range]
) -> None:
    progress = Progress((Range(2, 4), Range(6, 9)), 4)
    progress.verify_ahead(epoch_end, 5)
    assert list(progress.finished_ranges()) == left


# --- After a seek ------------------------------------------------------------------------------
AHEAD = (Range(2, 4), Range(6, 9), Range(12, 15))


def test_what_was_finished_before_a_sought_offset_stays_in_commits() -> None:
    progress = handed_out(1, ahead=AHEAD)
    progress.return_from(13)
    assert list(progress.finished_ranges()) == [Range(2, 4), Range(6, 9), Range(12, 13)]
    assert not progress.passes_over(13)
    progress.hand_out([13], [ME])
    progress.finish(13, ME)
    assert list(progress.finished_ranges()) == [*AHEAD[:2], Range(12, 13), Range(13, 14)]
    assert list(progress.if_finished({13}).finished_ranges()) == list(progress.finished_ranges())
    assert (progress.uncommitted_count, progress.finished_count) == (2, 1)
    progress.finish(1, ME)
    assert list(progress.finished_ranges(14)) == []


@for_each(
    [
        ([7], [Range(2, 4), Range(6, 7)]),
        ([2], []),
        ([20], list(AHEAD)),
        ([13, 7], [Range(2, 4), Range(6, 7)]),
        ([7, 13], [Range(2, 4), Range(6, 7)]),
        ([7, 1], []),
    ]
)
def test_nothing_from_a_sought_offset_on_stays_finished(
    sought: list[int], left: list[Range]
) -> None:
    progress = handed_out(1, ahead=AHEAD)
    for offset in sought:
        progress.return_from(offset)
    assert list(progress.finished_ranges()) == left
    assert progress.ahead_epoch == (0 if left else NO_EPOCH)
    assert not any(progress.passes_over(offset) for offset in range(sought[-1], 20))


def test_a_seek_before_which_nothing_is_unfinished_has_nothing_to_keep() -> None:
    progress = handed_out(1, ahead=AHEAD)
    progress.finish(1, ME)
    progress.return_from(13)
    progress.hand_out([13], [ME])
    assert (list(progress.finished_ranges()), progress.ahead_epoch) == ([], NO_EPOCH)
    assert progress.first_ahead is None


def test_what_was_passed_over_before_a_seek_is_in_one_range() -> None:
    progress = handed_out(1, ahead=AHEAD)
    assert progress.passes_over(2)
    progress.return_from(5)
    assert list(progress.finished_ranges()) == [Range(2, 3), Range(3, 4)]


def test_what_was_sought_over_goes_when_the_records_before_it_are_finished() -> None:
    progress = handed_out(1, 5, ahead=AHEAD)
    progress.return_from(13)
    progress.finish(1, ME)
    assert list(progress.finished_ranges()) == [Range(6, 9), Range(12, 13)]
    progress.finish(5, ME)
    assert not progress.passes_over(13)
    progress.hand_out([13], [ME])
    assert not list(progress.finished_ranges())
    progress.keep_ahead_in(((13, 0),), 0)
    assert not progress.has_finished_before
    assert progress.ahead_epoch == NO_EPOCH


def test_a_range_over_what_was_sought_over_is_committed_once() -> None:
    progress = handed_out(0, 1, ahead=AHEAD)
    progress.finish(1, ME)
    progress.return_from(20)
    progress.hand_out([20, 21, 22], [ME] * 3)
    for offset in (20, 22):
        progress.finish(offset, ME)
    assert list(progress.finished_ranges()) == [Range(1, 21), Range(22, 23)]


def test_what_was_sought_over_is_passed_over_after_an_interruption() -> None:
    progress = handed_out(1, ahead=AHEAD)
    progress.return_from(13)
    progress.interrupt(0)
    assert [n for n in range(1, 20) if progress.passes_over(n)] == [2, 3, 6, 7, 8, 12]
    assert not progress.has_finished_before


@pytest.mark.parametrize(("epoch_end", "left"), [(None, []), (7, [Range(2, 4), Range(6, 7)])])
def test_what_was_sought_over_stays_as_far_as_a_new_leader_has_it(
    epoch_end: int | None, left: list[Range]
) -> None:
    progress = handed_out(1, ahead=AHEAD)
    progress.return_from(13)
    progress.verify_ahead(epoch_end, 5)
    assert list(progress.finished_ranges()) == left
    progress.keep_ahead_in(((13, 5),), NO_EPOCH)
    assert list(progress.finished_ranges()) == left


@pytest.mark.parametrize(
    ("epochs", "epoch_before", "is_kept"),
    [
        (((13, 5),), NO_EPOCH, False),  # the newer epoch may have begun before the position
        (((13, 5),), 0, True),
        (((13, 0), (20, 5)), NO_EPOCH, True),
        ((), NO_EPOCH, True),
    ],
)
def test_what_was_sought_over_stays_if_a_newer_epoch_began_behind_it(
    epochs: tuple[tuple[int, int], ...], epoch_before: int, *, is_kept: bool
) -> None:
    progress = handed_out(1, ahead=AHEAD)
    progress.return_from(13)
    before = list(progress.finished_ranges())
    assert not progress.keep_ahead_in(epochs, epoch_before)
    assert list(progress.finished_ranges()) == (before if is_kept else [])


@given(
    st.sets(st.integers(1, 30)),
    st.lists(st.one_of(st.integers(0, 30), st.none()), max_size=20),
    st.randoms(use_true_random=False),
)
def test_commits_say_all_that_is_finished_whatever_is_sought(
    before: set[int], course: list[int | None], rng: random.Random
) -> None:
    """None returns the next record, and finishes it or leaves it; a number is sought."""
    progress = Progress((Range(n, n + 1) for n in sorted(before)), 0)
    finished, unfinished, position = set(before), set[int](), 0
    for sought in course:
        if sought is not None:
            position = sought
            progress.return_from(sought)
            finished = {n for n in finished if n < sought}
            unfinished = {n for n in unfinished if n < sought}
            continue
        if not progress.passes_over(position):
            assert position not in finished
            progress.hand_out([position], [ME])
            unfinished.add(position)
            if rng.random() < 0.5:
                progress.finish(position, ME)
                unfinished.remove(position)
                finished.add(position)
        position += 1
        first = min(unfinished, default=position)
        ranges = list(progress.finished_ranges(position))
        said = {n for first, end in ranges for n in range(first, end)}
        assert {n for n in finished if n >= first} <= said
        assert not unfinished & said
        assert max(said, default=-1) <= max(finished, default=-1)
        assert all(a.end <= b.first for a, b in pairwise(ranges))
