from __future__ import annotations

import re
import time

import pytest

from aiokafka_lite.consumer.assignment.cursor import Cursor, Place, Sought
from aiokafka_lite.consumer.assignment.finished_ranges import decode
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.config import LATEST_TIMESTAMP
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition

A = TopicPartition("t", 0)
B = TopicPartition("t", 1)


@pytest.fixture
def state() -> SubscriptionState:
    subscription = SubscriptionState()
    subscription.assign_from_user([A, B])
    return subscription


def test_the_ways_to_subscribe_exclude_each_other() -> None:
    state = SubscriptionState()
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
    state = SubscriptionState()
    told: list[int] = []
    state.observers.on_subscription_change(lambda: told.append(state.subscription_version))
    state.subscribe(["t"])
    state.subscribe(["t", "u"])
    state.unsubscribe()
    assert told == [1, 2, 3]
    assert state.subscription is None


def test_matched_topics_count_only_when_they_change() -> None:
    state = SubscriptionState()
    state.subscribe_pattern(re.compile("t.*"))
    assert state.subscription == frozenset()
    assert state.set_matched_topics(["t1"])
    assert not state.set_matched_topics(["t1"])
    assert state.subscription == {"t1"}


def test_assigning_keeps_what_stays_and_drops_what_goes(state: SubscriptionState) -> None:
    kept = state.partition(A)
    gone = state.partition(B)
    state.seek(kept, 7)
    state.seek(gone, 0)
    loan = gone.lend(1)
    state.assign_from_user([A, TopicPartition("u", 0)])
    assert state.partition(A) is kept
    assert kept.position == 7
    assert not gone.is_assigned
    assert gone.loan is not loan
    with pytest.raises(IllegalStateError):
        state.partition(B)


def test_a_rebalance_keeps_positions_readable_and_then_starts_all_afresh(
    state: SubscriptionState,
) -> None:
    before = state.partition(A)
    state.seek(before, 7)
    state.begin_revocation(state.assignment)
    assert not before.is_fetchable
    assert state.handed_out_offsets() == {A: OffsetAndMetadata(7, "")}
    state.change(state.assignment, [A])
    after = state.partition(A)
    assert after is not before
    assert after.place is Place.UNPOSITIONED
    assert after.search is not None
    assert after.search.sought is Sought.COMMITTED
    assert not before.is_assigned


def test_seek_and_reset_make_what_is_under_way_stale(state: SubscriptionState) -> None:
    partition = state.partition(A)
    discarded: list[Cursor] = []
    state.observers.on_discard(discarded.append)
    state.seek(partition, 5)
    loan = partition.lend(1)
    state.request_reset(partition, LATEST_TIMESTAMP)
    search = partition.search
    assert search is not None
    assert partition.loan is not loan
    assert state.handed_out_offsets() == {}
    assert not partition.is_fetchable
    state.seek(partition, 9)
    assert not search.is_current
    assert state.handed_out_offsets() == {A: OffsetAndMetadata(9, "")}
    assert partition.fetched == 9
    assert partition.search is None
    assert discarded == [partition] * 3


def test_a_paused_partition_is_not_fetchable_and_keeps_what_is_buffered(
    state: SubscriptionState,
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
    state: SubscriptionState,
) -> None:
    a, b = state.partition(A), state.partition(B)
    state.seek(a, 0)
    state.seek(b, 0)
    state.begin_get()
    state.hand_out(a, 0, 10, ((0, 3),))
    state.hand_out(b, 0, 5, ())
    assert state.processed_offsets() == {A: OffsetAndMetadata(0, ""), B: OffsetAndMetadata(0, "")}
    state.begin_get()
    state.hand_out(a, 10, 12, ())
    assert state.processed_offsets() == {A: OffsetAndMetadata(10, ""), B: OffsetAndMetadata(5, "")}
    assert state.handed_out_offsets() == {A: OffsetAndMetadata(12, ""), B: OffsetAndMetadata(5, "")}
    assert (a.leader_epoch, b.leader_epoch) == (3, -1)


def test_what_would_be_committed_says_of_each_record_that_it_is_finished(
    state: SubscriptionState,
) -> None:
    a = state.partition(A)
    a.topic_id = b"0123456789abcdef"
    state.seek(a, 0)
    state.begin_get()
    holder = object()
    records = [
        ConsumerRecord("a", 0, offset, 0, 0, None, None, None, -1, -1, ())
        for offset in range(10_000)
    ]
    state.hand_out_each(a, records, ((0, 3),), lambda _: holder)
    progress = a.progress
    assert progress is not None
    state.hand_out(a, 0, 10_000, ((0, 3),))
    assert state.offset_if_finished(a, {0, 1}) == (OffsetAndMetadata(2, ""), True)
    behind, is_all = state.offset_if_finished(a, {5, 6, 9_999})
    assert (behind.offset, is_all) == (0, True)
    said = decode(a.topic_id, *behind)
    assert said is not None
    assert said.ranges == ((5, 7), (9_999, 10_000))
    for offset in range(1, 10_000, 2):
        progress.finish(offset, holder)
    assert not state.offset_if_finished(a, {9_998})[1]
    for offset in range(0, 9_998, 2):
        progress.finish(offset, holder)
    assert state.offset_if_finished(a, {9_998}) == (OffsetAndMetadata(10_000, ""), True)


def test_offsets_that_hold_no_records_count_as_processed(state: SubscriptionState) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.begin_get()
    state.pass_over(a, 4)
    assert state.processed_offsets() == {A: OffsetAndMetadata(4, "")}
    state.hand_out(a, 4, 6, ())
    state.pass_over(a, 8)
    assert state.processed_offsets() == {A: OffsetAndMetadata(4, "")}
    state.begin_get()
    assert state.processed_offsets() == {A: OffsetAndMetadata(8, "")}


@pytest.mark.parametrize("offset", [4, 500])
def test_a_seek_counts_as_processed_from_the_next_get_on(
    state: SubscriptionState, offset: int
) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.begin_get()
    state.hand_out(a, 0, 10, ())
    state.seek(a, offset)
    assert state.processed_offsets() == {A: OffsetAndMetadata(0, "")}  # being worked on
    assert state.handed_out_offsets() == {A: OffsetAndMetadata(offset, "")}
    state.begin_get()
    assert state.processed_offsets() == {A: OffsetAndMetadata(offset, "")}


def test_a_seek_back_counts_at_once_when_nothing_is_worked_on(state: SubscriptionState) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.begin_get()
    state.hand_out(a, 0, 10, ())
    state.begin_get()
    state.seek(a, 4)
    assert state.processed_offsets() == {A: OffsetAndMetadata(4, "")}


def test_what_is_worked_on_is_processed_at_the_next_get_though_the_position_is_looked_up(
    state: SubscriptionState,
) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.begin_get()
    state.hand_out(a, 0, 10, ())
    state.request_reset(a, -1)
    assert state.processed_offsets() == {A: OffsetAndMetadata(0, "")}
    state.begin_get()
    assert state.processed_offsets() == {A: OffsetAndMetadata(10, "")}
    state.seek(a, 500)  # as the position resolver does that has found it
    assert state.processed_offsets() == {A: OffsetAndMetadata(500, "")}


def test_a_return_to_the_committed_offset_counts_nothing_as_processed_that_is_in_hand(
    state: SubscriptionState,
) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.begin_get()
    state.hand_out(a, 0, 10, ())
    assert state.processed_offsets() == {A: OffsetAndMetadata(0, "")}
    state.return_to_committed([a])
    assert state.processed_offsets() == {}
    assert state.handed_out_offsets() == {}
    state.begin_get()
    # Nor would a commit go back to where the lookup begins if nothing is committed.
    assert state.processed_offsets() == {}
    state.start_at(a, 10)
    state.begin_get()
    assert state.processed_offsets() == {A: OffsetAndMetadata(10, "")}


def test_a_position_lost_with_its_log_covers_nothing_of_what_is_worked_on(
    state: SubscriptionState,
) -> None:
    a = state.partition(A)
    state.seek(a, 0)
    state.begin_get()
    state.hand_out(a, 0, 10, ())
    state.request_reset(a, -2, reason="out of range")
    state.seek(a, 1000)
    assert state.processed_offsets() == {}
    state.begin_get()
    assert state.processed_offsets() == {A: OffsetAndMetadata(1000, "")}


async def test_idle_time_is_that_between_gets(state: SubscriptionState) -> None:
    state.restart_idle(100.0)
    assert state.idle_s(101.0) == 1.0
    state.enter_get()
    assert state.idle_s(200.0) == 0.0
    state.leave_get(200.0)
    assert state.idle_s(207.0) == 7.0


def test_a_hand_out_without_a_get_of_its_own_ends_the_idle_time(state: SubscriptionState) -> None:
    state.seek(state.partition(A), 0)
    state.restart_idle(100.0)
    state.set_settler(lambda: state.hand_out(state.partition(A), 0, 1, ()))
    assert state.idle_s(150.0) == 0.0
    state.set_settler(lambda: None)
    assert state.idle_s(155.0) == 5.0


def test_a_get_costs_as_much_for_each_of_many_partitions() -> None:
    def took_s(count: int) -> float:
        tps = [TopicPartition("t", number) for number in range(count)]
        state = SubscriptionState()
        state.assign_from_user(tps)
        cursors = [state.partition(tp) for tp in tps]
        for cursor in cursors:
            state.start_at(cursor, 0)
        state.begin_get()
        began = time.process_time()
        for cursor in cursors:
            state.hand_out(cursor, 0, 1, ((0, 0),))
        state.unfinished(tps)
        return (time.process_time() - began) / count

    few_s = min(took_s(300) for _ in range(2))
    assert min(took_s(3_000) for _ in range(2)) < 3 * few_s
