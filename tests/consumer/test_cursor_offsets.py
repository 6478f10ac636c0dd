"""Offsets and leader epochs of returned records, and the transactions that decide on them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from aiokafka_lite._transaction import BlockInTransaction
from aiokafka_lite.consumer.assignment.cursor import (
    MOST_EPOCH_STARTS,
    NO_EPOCH,
    Cursor,
    EpochStart,
    Range,
    Sought,
)
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.for_each import for_each
from tests.support.states import Holder

ID, OTHER, UNKNOWN, OF_OLD_BROKERS = bytes(range(16)), bytes(range(16, 32)), b"", bytes(16)
ME = Holder()
WORK = object()


class Transaction:
    """A transaction as far as a cursor looks at it."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_settled = False

    def hold(self, block: BlockInTransaction) -> None:
        """Do nothing."""


def started(offset: int = 0, leader_epoch: int = NO_EPOCH) -> Cursor:
    cursor = Cursor(TopicPartition("t", 0))
    cursor.start_at(offset, leader_epoch, NO_EPOCH, is_in_work=False)
    return cursor


def seek(cursor: Cursor, offset: int, leader_epoch: int = NO_EPOCH) -> None:
    cursor.start_at(offset, leader_epoch, NO_EPOCH, is_in_work=False)


def read(count: int = 10) -> Cursor:
    """Return a cursor of which these records were returned."""
    cursor = started()
    cursor.advance(count, ())
    return cursor


def with_finished(ahead_epoch: int, *, is_verified: bool = False) -> Progress:
    """Return a table with a range that was finished before."""
    progress = Progress([Range(20, 30)], ahead_epoch)
    if is_verified:
        progress.verify_ahead(30, 9)
    return progress


# --- Leader epochs of returned records ---------------------------------------------------------
def test_an_offset_has_the_epoch_of_the_record_before_it() -> None:
    cursor = started(10, 3)
    cursor.advance(15, ((8, 3), (12, 4), (15, 5)))
    assert cursor.leader_epoch == 4
    assert [cursor.epoch_before(n) for n in (9, 10, 12, 13, 15)] == [-1, 3, 3, 4, 4]


@for_each(
    [
        pytest.param(10, NO_EPOCH, [3, -1, -1, -1, -1], id="the start"),
        pytest.param(12, NO_EPOCH, [3, 3, -1, -1, -1], id="the start of an epoch"),
        pytest.param(13, NO_EPOCH, [3, 3, 4, -1, -1], id="between returned records"),
        pytest.param(13, 4, [3, 3, 4, -1, -1], id="in the same epoch"),
        pytest.param(13, 7, [3, 3, 4, -1, -1], id="in another log"),
        pytest.param(15, NO_EPOCH, [3, 3, 4, 4, -1], id="the end"),
        pytest.param(16, NO_EPOCH, [3, 3, 4, 4, -1], id="behind the end"),
        pytest.param(18, 7, [3, 3, 4, 4, -1], id="behind the end in a known epoch"),
    ]
)
def test_a_seek_keeps_the_epochs_of_the_records_before_it_only(
    sought: int, leader_epoch: int, known: list[int]
) -> None:
    cursor = started(10, 3)
    cursor.advance(15, ((10, 3), (12, 4)))
    seek(cursor, sought, leader_epoch)
    assert [cursor.epoch_before(n) for n in (10, 12, 13, 15, 17)] == known
    assert cursor.epoch_before(sought + 1) == NO_EPOCH
    if sought > 15:
        assert cursor.epoch_before(sought) == leader_epoch
    cursor.advance(sought + 3, ((sought, 8),))
    assert [cursor.epoch_before(sought + n) for n in (1, 3, 4)] == [8, 8, NO_EPOCH]


def test_the_epochs_of_the_latest_records_are_kept() -> None:
    cursor, count = started(0, 0), MOST_EPOCH_STARTS + 4
    epochs: tuple[tuple[int, int], ...] = ()
    for offset in range(count):  # one by one from a chunk, whose epochs these are
        epochs += ((offset, offset + 1),)
        cursor.advance(offset + 1, epochs)
    oldest = count - MOST_EPOCH_STARTS
    assert [cursor.epoch_before(n) for n in (oldest, oldest + 1, count)] == [-1, oldest + 1, count]


def test_a_batch_that_begins_at_the_position_replaces_the_one_before_it() -> None:
    cursor = started(5)
    cursor.advance(7, ((0, 3), (5, 9)))
    assert cursor.epoch_starts == (EpochStart(4, NO_EPOCH), EpochStart(5, 9))


def test_the_epoch_of_what_is_finished_is_that_of_its_last_record() -> None:
    cursor = started(0, 3)
    cursor.advance(10, ((0, 3), (6, 4)))
    progress = Progress((), 1)
    progress.hand_out(range(10), [ME] * 10)
    assert cursor.finished_epoch(progress) == 1
    for finished, leader_epoch in ((5, 3), (6, 4)):
        progress.finish(finished, ME)
        assert cursor.finished_epoch(progress) == leader_epoch
    progress.ahead_epoch = 9
    assert cursor.finished_epoch(progress) == 9


@for_each(
    [
        (7, None, 7),
        (7, Progress(), 7),
        (7, with_finished(5), 5),
        (7, with_finished(5, is_verified=True), 7),
        (3, with_finished(5, is_verified=True), 5),
        (7, with_finished(NO_EPOCH), 7),
        (NO_EPOCH, with_finished(5), 5),
    ]
)
def test_the_epoch_that_a_leader_is_asked_about(
    leader_epoch: int, progress: Progress | None, newest: int
) -> None:
    cursor = started(0, leader_epoch)
    if progress is not None:
        cursor.track(progress)
    assert cursor.newest_epoch == newest
    assert [cursor.needs_validation(newest + more) for more in (0, 1)] == [False, True]
    cursor.validated(newest + 1)
    assert [cursor.needs_validation(newest + more) for more in (1, 2)] == [False, True]
    cursor.await_validation()
    assert not cursor.needs_validation(newest + 2)


def test_a_position_of_an_unknown_epoch_is_not_validated() -> None:
    assert not started().needs_validation(5)


@for_each([(6, 2, 7, True), (2, 2, 7, False), (1, 2, 7, False), (8, 7, 7, False), (8, 9, 7, False)])
def test_epochs_that_begin_again_are_noticed_once(
    newest: int, current: int, void: int, knows: bool
) -> None:
    for cursor in (started(5, newest), started(5)):
        cursor.validated(newest)
        assert cursor.knows_void_epochs(current, void) is knows
        cursor.forget_epochs(void)
        cursor.validated(newest)
        assert not cursor.knows_void_epochs(current, void)


def test_a_comparison_of_epochs_ends_with_them_and_another_search_goes_on() -> None:
    cursor = read()
    cursor.track(with_finished(5))
    cursor.await_validation()
    cursor.forget_epochs(7)
    assert cursor.search is None
    assert cursor.progress is not None
    assert not cursor.progress.has_finished_before
    cursor.await_reset(-1, "")
    search = cursor.search
    cursor.forget_epochs(8)
    assert cursor.search is search


def test_in_another_log_a_search_for_the_committed_offset_goes_on_and_others_begin_anew() -> None:
    cursor = Cursor(TopicPartition("t", 0))
    cursor.forget_log(OTHER)
    assert cursor.search is not None
    assert cursor.search.is_first
    cursor = read()
    cursor.await_reset(-1, "")
    cursor.forget_log(OTHER)
    assert cursor.search is not None
    assert (cursor.search.sought, cursor.search.timestamp) == (Sought.RESET, None)
    cursor = read()
    cursor.forget_log(OTHER)
    assert cursor.search is not None
    assert (cursor.search.sought, cursor.position, cursor.processed) == (Sought.RESET, None, None)


# --- Returned and committed offsets ------------------------------------------------------------
def test_records_that_were_returned_are_uncommitted_from_the_committed_offset_on() -> None:
    cursor = started(10)
    assert not cursor.has_uncommitted(11)
    cursor.advance(15, ())
    assert [cursor.has_uncommitted(end) for end in (10, 11, 15)] == [False, True, True]
    cursor.note_committed(OffsetAndMetadata(12, "note"), NO_EPOCH, b"")
    assert [cursor.has_uncommitted(end) for end in (12, 13)] == [False, True]
    wanted = [(12, "note"), (12, ""), (12, "other"), (13, "note")]
    assert [cursor.is_committed(OffsetAndMetadata(*each)) for each in wanted] == [
        True,
        True,
        False,
        False,
    ]


def test_a_position_from_which_nothing_was_read_is_no_returned_record() -> None:
    cursor = started(10)
    assert cursor.handed_out is None
    cursor.advance(15, ())
    seek(cursor, 100)
    assert cursor.handed_out == (10, 15)
    cursor.advance(101, ())
    assert cursor.handed_out == (10, 101)


def test_the_end_of_returned_records_stays_known_while_a_sought_position_is_looked_up() -> None:
    cursor = read()
    cursor.await_reset(-1, "")
    assert cursor.returned_to() == 10
    cursor = read()
    cursor.await_reset(-1, "out of range")
    assert cursor.returned_to() is None
    cursor = read()
    cursor.await_committed()
    assert cursor.returned_to() is None


def test_without_a_position_it_is_not_known_what_is_finished() -> None:
    cursor = read()
    cursor.process_to(5)
    assert cursor.finished_to == 5
    cursor.await_reset(-1, "")
    assert cursor.finished_to is None


def test_only_a_position_that_is_given_up_for_the_committed_offset_is_in_doubt() -> None:
    assert not Cursor(TopicPartition("t", 0)).is_in_doubt
    cursor = read()
    assert not cursor.is_in_doubt
    cursor.await_reset(-1, "")
    assert not cursor.is_in_doubt
    cursor.await_committed()
    assert cursor.is_in_doubt


@pytest.mark.parametrize("to", ["the committed offset", "another log"])
def test_nothing_stays_finished_of_a_partition_that_goes_to(to: str) -> None:
    cursor, progress = read(), with_finished(5)
    progress.hand_out([0, 1], [ME, ME])
    cursor.track(progress)
    if to == "another log":
        cursor.forget_log(OTHER)
    else:
        cursor.await_committed()
    assert progress.first_unfinished is None
    assert not progress.has_finished_before


@for_each(
    [
        (ID, ID, True),
        (ID, OTHER, False),
        (ID, UNKNOWN, True),
        (ID, OF_OLD_BROKERS, True),
        (UNKNOWN, OTHER, True),
        (OF_OLD_BROKERS, OTHER, True),
    ]
)
def test_what_was_committed_of_another_topic_is_not_of_this_log(
    topic_id: bytes, committed_of: bytes, is_noted: bool
) -> None:
    cursor, committed = read(), OffsetAndMetadata(5, "")
    cursor.read_from(None, 1, topic_id)
    cursor.note_committed(committed, NO_EPOCH, committed_of)
    assert cursor.committed == (committed if is_noted else None)
    cursor = read()
    cursor.read_from(None, 1, topic_id)
    cursor.note_committed(committed, NO_EPOCH, topic_id)
    cursor.read_from(None, 1, committed_of)
    assert cursor.committed == (committed if is_noted else None)


@for_each([(3, 3, True), (3, 4, False), (3, NO_EPOCH, True), (NO_EPOCH, 4, True)])
def test_what_was_committed_in_another_epoch_is_of_records_that_were_truncated(
    read_in: int, committed_in: int, is_known: bool
) -> None:
    cursor, committed = started(0, read_in), OffsetAndMetadata(5, "")
    cursor.advance(10, ((0, read_in),))
    cursor.note_committed(committed, committed_in, UNKNOWN)
    assert cursor.committed == (committed if is_known else None)


def test_records_before_the_processed_offset_are_not_worked_on() -> None:
    cursor = read()
    cursor.process_to(5)
    assert [cursor.has_processed(before) for before in (5, 6)] == [True, False]
    assert not cursor.is_worked_on(6)
    cursor.enter_work(WORK, is_enough=True)  # type: ignore[arg-type]
    assert [cursor.is_worked_on(before) for before in (5, 6)] == [False, True]
    cursor.process_to(None)
    assert not cursor.has_processed(0)
    assert cursor.is_worked_on(1)


def test_a_name_that_a_lagging_broker_still_uses_does_not_replace_the_new_topics() -> None:
    old, new = bytes(range(16)), bytes(range(16, 32))
    cursor = read()
    cursor.read_from(None, 1, old)
    cursor.forget_log(new)
    cursor.read_from(None, 2, old)
    assert cursor.topic_id == old
    cursor.keep_sought()
    assert cursor.topic_id == new


def test_moves_by_the_application_are_counted_unless_a_rebalance_is_under_way() -> None:
    cursor = read()
    counts = [cursor.seeks]
    moves: list[Callable[[], object]] = [
        cursor.keep_sought,
        lambda: cursor.await_reset(-1, ""),
        lambda: cursor.await_reset(-1, "out of range"),
        cursor.withhold,
        cursor.keep_sought,
        lambda: cursor.await_reset(-1, ""),
    ]
    for move in moves:
        move()
        counts.append(cursor.seeks)
    assert [b != a for a, b in pairwise(counts)] == [True, True, False, False, False, False]


# --- Open transactions -------------------------------------------------------------------------
def test_nothing_is_finished_from_the_first_offset_that_open_transactions_decide_on() -> None:
    cursor, one, other = read(), Transaction(), Transaction()
    cursor.await_outcome(one, 6)
    cursor.await_outcome(other, 4)
    cursor.await_outcome(other, 8)
    assert [cursor.decided_to(n) for n in (3, 4, 5, 10)] == [3, 4, 4, 4]
    assert cursor.decided_to(10, other) == 6
    assert [cursor.is_undecided(other, n) for n in (4, 5)] == [False, True]
    assert not cursor.is_undecided(Transaction(), 10)
    other.is_settled = True
    assert cursor.decided_to(10) == 6
    cursor.await_outcome(one, 2)
    assert cursor.undecided.keys() == {(one, None)}
    assert cursor.decided_to(10) == 2
    cursor.forget_undecided()
    assert cursor.decided_to(10) == 10


def test_offsets_stay_stored_until_their_transaction_is_settled() -> None:
    cursor, one = read(), Transaction()
    cursor.await_outcome(Transaction(), 0)
    assert not cursor.has_stored_offsets
    cursor.await_outcome(one, 0, is_stored=True)
    cursor.await_outcome(one, 3)
    assert cursor.has_stored_offsets
    one.is_settled = True
    assert not cursor.has_stored_offsets


def test_a_block_that_is_committed_apart_leaves_the_others_to_their_transaction() -> None:
    cursor, transaction, blocks = read(), Transaction(), (object(), object())
    for first, block in zip((2, 5), blocks, strict=True):
        cursor.await_outcome(transaction, first, block=block)
    cursor.commit_apart(blocks[0])
    assert cursor.decided_to(10) == 5
    assert [cursor.is_undecided_of(block) for block in blocks] == [False, True]


def test_a_transaction_has_processed_what_its_reads_have_counted_until_that_is_committed() -> None:
    cursor, transaction = read(), Transaction()
    assert not cursor.has_processed_in(transaction)
    cursor.note_transaction(transaction)
    assert cursor.has_processed_in(transaction)
    assert not cursor.has_processed_in(Transaction())
    cursor.note_committed(OffsetAndMetadata(10, ""), NO_EPOCH, b"")
    assert not cursor.has_processed_in(transaction)


# --- Ends of the log ---------------------------------------------------------------------------
def test_there_is_more_to_fetch_before_the_end_that_a_broker_has_named() -> None:
    cursor = started(6)
    assert not cursor.is_behind(is_read_committed=False)
    cursor.answered(1.0, 9, 7, 0)
    behind = []
    for offset in (6, 7, 8, 9):
        seek(cursor, offset)
        behind.append([cursor.is_behind(is_read_committed=is_so) for is_so in (False, True)])
    assert behind == [[True, True], [True, False], [True, False], [False, False]]


@for_each(
    [
        (None, 0, True, (0, 0)),
        (None, 5, False, (5, None)),
        ((9, 4), 5, True, (9, 5)),
        ((3, 3), 5, True, (5, 5)),
        ((9, 4), 5, False, (5, 4)),
    ]
)
def test_a_stable_end_is_no_lower_end_of_the_log(
    before: tuple[int, int] | None, named: int, is_stable: bool, ends: tuple[int, int | None]
) -> None:
    cursor = started()
    if before is not None:
        cursor.answered(1.0, *before, 0)
    cursor.log_ends_at(named, 2.0, is_stable=is_stable)
    assert (cursor.high_watermark, cursor.last_stable_offset) == ends


def test_failures_are_counted_since_the_latest_answer() -> None:
    cursor = started()
    for count in (1, 2):
        cursor.failed(5.0, "refused")
        assert cursor.failure_count == count
    cursor.answered(1.0, 9, 7, 0)
    assert cursor.retry_reason == ""
    cursor.failed(5.0, "refused")
    assert cursor.failure_count == 1
