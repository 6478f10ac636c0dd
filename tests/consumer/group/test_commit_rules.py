"""Commits by themselves: what they wait for, whom they tell, and what they leave out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from aiokafka_lite import errors
from aiokafka_lite._tasks import TaskScope, sleep_before
from aiokafka_lite.client.offset_commits import TopicIds, commit_request, fetch_request
from aiokafka_lite.client.offsets import CommittedOffset
from aiokafka_lite.client.view import ClusterView, TopicView
from aiokafka_lite.consumer.commits.commits import commit_error_code, fetch_error_code
from aiokafka_lite.consumer.commits.pending import CommitKind, PendingCommit
from aiokafka_lite.consumer.commits.transactional import OffsetsInTransaction
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.protocol import NO_IDENTITY, Identity
from aiokafka_lite.consumer.positions.topic_changes import CONFIRMED_S, ConfirmedTopics
from aiokafka_lite.errors import (
    ClientClosedError,
    CommitFailedError,
    IllegalOperation,
    KafkaError,
    KafkaTimeoutError,
)
from aiokafka_lite.events import CommitFailed
from aiokafka_lite.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.events import events_so_far
from tests.support.for_each import for_each
from tests.support.plain_group import (
    FIRST,
    A,
    B,
    Cluster,
    Group,
    Transaction,
    at,
    begun,
    in_s,
    took_s,
)
from tests.support.scripted_group import commit_answer

pytestmark = pytest.mark.virtual_time


# --- Who waits, and who is told ------------------------------------------------------------------
async def test_a_commit_that_has_waited_wakes_those_who_wait_for_it() -> None:
    group = Group()
    group.member.is_taking = False
    committing = await begun(group.commits.commit({A: 5}))
    assert group.commits.is_settling
    reading = await begun(group.commits.committed([A]))
    group.rebalance(A, B)
    await committing
    await asyncio.sleep(0.001)
    assert reading.done()
    assert group.coordinator.commits == [{A: 5}]


def is_committing(group: Group, partitions: list[TopicPartition]) -> bool:
    return group.commits.is_committing(partitions, group.commits.next_number())


async def test_commits_that_begin_later_hold_up_neither_a_stop_nor_a_revocation() -> None:
    """Tasks of an application may commit again and again, so that there is always one."""
    group = Group()
    await group.commits.commit({A: 5})
    group.coordinator.gate.clear()
    number = group.commits.next_number()
    committing = await begun(group.commits.commit({A: 5}))
    assert is_committing(group, [A])
    assert not group.commits.is_committing([A], number)
    stopping = await begun(group.commits.commit_at_the_end({}, deadline=in_s(60)))

    async def commit_again_and_again() -> None:
        while not stopping.done() and in_s(0) < 1:
            await group.commits.commit({A: 6})
            await asyncio.sleep(0.001)

    tasks = [await begun(commit_again_and_again()) for _ in range(5)]
    group.coordinator.gate.set()
    assert await took_s(stopping) < 0.01
    await committing
    await asyncio.gather(*tasks)


async def test_a_later_commit_holds_up_a_revocation_if_none_has_committed_its_offset() -> None:
    """Otherwise it would fail, although nothing refused it."""
    group = Group()
    await group.commits.commit({A: 5})
    number = group.commits.next_number()
    for offset, is_first in ((6, True), (6, False), (5, False)):  # a lower one may follow
        group.coordinator.gate.clear()
        committing = await begun(group.commits.commit({A: offset}))
        assert group.commits.is_committing([A, B], number) == is_first
        assert not group.commits.is_committing([B], number)
        group.coordinator.gate.set()
        await committing


async def test_what_is_committed_for_the_application_to_no_avail_wakes_those_who_wait() -> None:
    group = Group()
    group.coordinator.errors = [errors.GroupAuthorizationFailedError]
    group.coordinator.gate.clear()
    committing = await begun(group.commits.commit({A: 5}))
    stopping = await begun(group.commits.commit_at_the_end({}, deadline=in_s(60)))
    group.coordinator.gate.set()
    with pytest.raises(errors.GroupAuthorizationFailedError):
        await committing
    assert await stopping == {}
    assert in_s(0) < 1


async def test_a_refusal_because_of_a_rebalance_wakes_a_stop_which_does_not_wait_for_it() -> None:
    group = Group()
    group.coordinator.errors = [errors.RebalanceInProgressError]
    group.coordinator.gate.clear()
    committing = await begun(group.commits.commit({A: 5}))
    assert is_committing(group, [A])
    assert not is_committing(group, [B])
    stopping = await begun(group.commits.commit_at_the_end({}, deadline=in_s(60)))
    group.member.is_taking = False
    group.coordinator.gate.set()
    assert await took_s(stopping) < 0.01
    assert not is_committing(group, [A])
    group.rebalance(A, B)
    assert is_committing(group, [A])
    stopping = await begun(group.commits.commit_at_the_end({}, deadline=in_s(60)))
    await committing
    assert await took_s(stopping) < 0.01
    assert not is_committing(group, [A])


async def test_a_commit_that_nobody_asked_for_holds_up_no_stop() -> None:
    group = Group()
    group.coordinator.gate.clear()
    committing = await begun(group.commits.commit_by_itself({A: at(5)}))
    assert not is_committing(group, [A])
    assert await took_s(group.commits.commit_at_the_end({}, deadline=in_s(60))) < 0.01
    group.coordinator.gate.set()
    await committing
    assert group.commits.commit_count == 1


async def test_a_rebalance_that_ends_before_the_next_attempt_lets_a_refused_commit_through() -> (
    None
):
    group = Group()
    group.coordinator.errors = [errors.RebalanceInProgressError]
    committing = await begun(group.commits.commit({A: 5}))
    assert group.commits.is_settling
    group.rebalance(A, B)
    await committing
    assert group.coordinator.commits == [{A: 5}, {A: 5}]


async def test_what_is_given_up_is_committed_or_not_and_both_wake_who_waits_for_that() -> None:
    group = Group(enable_auto_commit=True)
    scope = TaskScope("g")
    group.commits.start_auto_commit(scope)
    await asyncio.sleep(1)
    group.state.reads.begin_get()
    group.coordinator.gate.clear()
    group.state.unsubscribe()
    settling = await begun(group.commits.settle_departed(in_s(60)))
    assert group.commits.has_departed
    assert group.commits.left_to_commit({}) == {A: at(10), B: at(10)}
    group.coordinator.gate.set()
    assert await took_s(settling) < 0.01
    assert group.coordinator.commits == [{A: 10, B: 10}]
    assert in_s(0) < 2
    group.coordinator.gate.clear()
    group.state.subscribe(["t"])
    group.give(A, B)
    group.state.reads.begin_get()
    group.state.unsubscribe()
    await group.commits.settle_departed(in_s(1))
    assert not group.commits.has_departed
    assert await group.commits.commit_at_the_end({}, deadline=in_s(1)) == {A: at(10), B: at(10)}
    await scope.close()


@pytest.mark.parametrize("is_taken", [True, False])
async def test_the_stop_commits_what_was_given_up_or_returns_it(*, is_taken: bool) -> None:
    group = Group(enable_auto_commit=True)
    scope = TaskScope("g")
    group.commits.start_auto_commit(scope)
    await asyncio.sleep(0)
    group.state.reads.begin_get()
    group.state.unsubscribe()
    await group.commits.stop_auto_commit()
    group.member.is_taking = is_taken
    left = await group.commits.commit_at_the_end({}, deadline=in_s(1))
    assert left == ({} if is_taken else {A: at(10), B: at(10)})
    assert not group.commits.has_departed
    assert group.coordinator.commits == [{A: 10, B: 10}] * is_taken
    group.state.subscribe(["t"])
    group.give(A)  # whose records are returned again
    assert group.commits.left_to_commit({}) == ({} if is_taken else {B: at(10)})
    await scope.close()


async def test_a_decided_transaction_wakes_a_last_commit() -> None:
    group = Group()
    for ends in ({A: 5}, {B: 5}):
        (tp,) = ends
        cursor = group.state.partition(tp)
        cursor.await_outcome(Transaction(), 0, is_stored=True)
        offsets = OffsetsInTransaction(group.state.core(), group.commits)
        committing = await begun(group.commits.commit_last({tp: at(10)}, deadline=in_s(60)))
        cursor.undecided = {}
        offsets.decided()
        assert await took_s(committing) < 0.01
    assert group.coordinator.commits == [{A: 10}, {B: 10}]


WAITING: Final[dict[str, Callable[[Group], Coroutine[Any, Any, Any]]]] = {
    "a commit": lambda group: group.commits.commit({A: 5}),
    "a read": lambda group: group.commits.committed([A]),
    "a transaction": lambda group: hold(group),
    "a last commit": lambda group: group.commits.commit_departed(group.departed({A: at(5)})),
}


async def hold(group: Group) -> None:
    async with group.commits.held():
        pass


@pytest.mark.parametrize("waiting", WAITING)
async def test_what_waits_for_the_group_ends_when_the_client_is_closed(waiting: str) -> None:
    group = Group()
    group.member.is_taking = False
    tasks = [await begun(WAITING["a commit"](group))]
    if waiting != "a commit":
        tasks.append(await begun(WAITING[waiting](group)))
    group.cluster.is_closed = True
    group.member.notify()
    await asyncio.wait(tasks, timeout=1)
    for task in tasks:
        assert task.done()
        if waiting != "a last commit" or task is tasks[0]:
            with pytest.raises(ClientClosedError):
                task.result()


async def test_a_last_commit_that_waits_for_a_transaction_ends_when_the_client_is_closed() -> None:
    group = Group()
    group.state.partition(A).await_outcome(Transaction(), 0, is_stored=True)
    committing = await begun(group.commits.commit_last({A: at(10)}, deadline=in_s(60)))
    group.cluster.is_closed = True
    group.member.notify()
    assert await took_s(committing) < 1
    assert group.coordinator.commits == []


async def test_what_departed_waits_for_its_transaction_without_being_the_last() -> None:
    group = Group()
    cursor = group.state.partition(A)
    cursor.await_outcome(Transaction(), 0, is_stored=True)
    departed = group.departed({A: at(10)})
    committing = await begun(group.commits.commit_departed(departed))
    cursor.undecided = {}
    group.member.notify()
    assert await committing == {}
    assert group.coordinator.commits == [{A: 10}]


async def test_nothing_to_commit_at_the_end_is_no_commit() -> None:
    group = Group()
    group.member.is_taking = False
    assert await took_s(group.commits.commit_at_the_end({}, deadline=in_s(60))) == 0
    assert await group.commits.commit_last({}, deadline=in_s(60)) == {}
    assert group.commits.commit_count == 0
    await group.commits.commit_last({A: at(5)}, deadline=in_s(60))
    assert group.commits.commit_count == 1


async def test_auto_commit_counts_no_interval_without_news_as_a_commit() -> None:
    group = Group(enable_auto_commit=True, auto_commit_interval_ms=1_000)
    scope = TaskScope("g")
    group.commits.start_auto_commit(scope)
    group.state.reads.begin_get()
    await asyncio.sleep(10)
    assert group.coordinator.commits == [{A: 10, B: 10}]
    assert group.commits.commit_count == 1
    group.state.reads.hand_out(group.state.partition(A), 10, 20, ())
    group.state.reads.begin_get()
    group.member.is_taking = False
    await asyncio.sleep(10)
    assert group.commits.commit_count == 1
    await scope.close()


async def test_auto_commit_keeps_to_its_interval_while_no_record_is_finished_by_itself() -> None:
    group = Group(enable_auto_commit=True)
    scope = TaskScope("g")
    group.commits.start_auto_commit(scope)
    group.state.reads.begin_get()
    await asyncio.sleep(4.9)
    assert group.coordinator.commits == []
    await asyncio.sleep(0.2)
    assert group.coordinator.commits == [{A: 10, B: 10}]
    group.state.reads.hand_out(group.state.partition(A), 10, 20, ())
    group.state.reads.begin_get()
    await group.commits.stop_auto_commit()
    await asyncio.sleep(10)
    assert group.coordinator.commits == [{A: 10, B: 10}]
    await scope.close()


async def test_no_attempt_is_made_at_the_deadline() -> None:
    group = Group(request_timeout_ms=10)
    group.coordinator.errors = [errors.CoordinatorLoadInProgressError] * 9
    with pytest.raises(KafkaTimeoutError):
        await group.commits.commit({A: 5})
    assert group.coordinator.commits == [{A: 5}]
    group.coordinator.codes = [{0: errors.UnstableOffsetCommitError.errno}] * 9
    with pytest.raises(KafkaTimeoutError):
        await group.commits.committed([A])
    assert group.coordinator.fetches == [[0]]


class Steady:
    """A back-off that does not grow."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def next_delay_s(self) -> float:
        return self._delay_s


@pytest.mark.parametrize(
    ("delay_s", "left_s", "is_in_time", "passed_s"),
    [(0.5, 1, True, 0.5), (1, 1, False, 1), (2, 1, False, 1), (1, -1, False, 0)],
)
async def test_a_sleep_ends_at_the_deadline(
    delay_s: float, left_s: float, is_in_time: bool, passed_s: float
) -> None:
    began_at = in_s(0)
    assert await sleep_before(in_s(left_s), delay_s) is is_in_time
    assert in_s(0) - began_at == passed_s


# --- What is refused -----------------------------------------------------------------------------
async def test_a_commit_without_an_assignment_fails_if_that_was_lost() -> None:
    fenced, lost, going = Group(), Group(), Group()
    fenced.member.is_fenced = True
    fenced.state.unsubscribe()  # nothing is assigned, and nothing was taken away
    lost.state.change([A, B], [])
    going.member.is_taking = False
    for group in (fenced, lost, going):
        group.member.assigned_as = None
        with pytest.raises(CommitFailedError, match="lost"):
            await group.commits.commit()
    unassigned = Group()
    unassigned.state.unsubscribe()
    await unassigned.commits.commit()
    assert unassigned.coordinator.commits == []


async def test_a_commit_of_a_member_that_is_fenced_meanwhile_says_why() -> None:
    group = Group()
    group.coordinator.errors = [errors.FencedInstanceIdError]
    group.coordinator.gate.clear()
    committing = await begun(group.commits.commit({A: 5}))
    group.member.is_fenced = True
    group.coordinator.gate.set()
    with pytest.raises(CommitFailedError, match="lost"):
        await committing


@pytest.mark.parametrize(
    ("first", "is_stored", "offset", "is_refused"),
    [
        (10, True, 5, True),  # the coordinator keeps the later one of two commits
        (3, False, 5, True),
        (3, False, 3, False),
        (10, False, 10, False),
    ],
)
async def test_offsets_that_an_open_transaction_commits_cannot_be_named(
    first: int, is_stored: bool, offset: int, is_refused: bool
) -> None:
    group = Group()
    group.state.partition(A).await_outcome(Transaction(), first, is_stored=is_stored)
    if is_refused:
        with pytest.raises(IllegalOperation, match="an open transaction will commit the offsets"):
            await group.commits.commit({A: offset})
    else:
        await group.commits.commit({A: offset})
    assert group.coordinator.commits == [{A: offset}] * (not is_refused)


@pytest.mark.parametrize(
    ("kind", "goes_on", "is_tried_again"),
    [
        (errors.IllegalGenerationError, True, True),
        (errors.IllegalGenerationError, False, False),
        (errors.UnknownMemberIdError, True, False),
        (errors.UnknownMemberIdError, False, False),
        (errors.RebalanceInProgressError, True, True),
    ],
)
async def test_a_refused_commit_waits_only_for_a_rebalance_that_goes_on(
    kind: type[KafkaError], *, goes_on: bool, is_tried_again: bool
) -> None:
    group = Group()
    group.coordinator.errors = [kind]
    group.coordinator.gate.clear()
    committing = await begun(group.commits.commit({A: 5}))
    group.member.is_taking = not goes_on
    group.coordinator.gate.set()
    await asyncio.sleep(1)
    assert committing.done() is not is_tried_again
    if is_tried_again:
        group.rebalance(A, B)
        await committing
    else:
        with pytest.raises(CommitFailedError) as caught:
            await committing
        assert "calls assign()" not in str(caught.value)
    assert len(group.coordinator.commits) == 1 + is_tried_again


async def test_a_commit_that_is_refused_while_its_member_joins_is_sent_again() -> None:
    group = Group()
    group.member.takes_put_off = False
    group.coordinator.errors = [errors.IllegalGenerationError]
    await group.commits.commit({A: 5})
    assert group.coordinator.commits == [{A: 5}] * 2


async def test_a_topic_that_the_coordinator_does_not_know_has_metadata_read_again() -> None:
    group = Group()
    for kind in (errors.CoordinatorLoadInProgressError, errors.UnknownTopicOrPartitionError):
        group.coordinator.errors = [kind]
        await group.commits.commit({A: 5})
    assert group.coordinator.commits == [{A: 5}] * 4
    assert group.cluster.calls == ["invalidate"]


@pytest.mark.parametrize("is_named", [True, False])
async def test_positions_of_a_topic_that_no_broker_has_are_dropped_and_offsets_by_name_are_not(
    *, is_named: bool
) -> None:
    group = Group()
    group.cluster.view = ClusterView(is_of_all=True)
    group.coordinator.errors = [errors.UnknownTopicOrPartitionError]
    await group.commits.commit({A: 10, B: 10} if is_named else None)
    assert group.coordinator.commits == [{A: 10, B: 10}] * (1 + is_named)
    assert group.cluster.calls == ["invalidate", "refresh"][: 2 - is_named]


@pytest.mark.parametrize("is_named", [True, False])
async def test_offsets_of_a_recreated_topic_are_not_committed(*, is_named: bool) -> None:
    group = Group()
    group.cluster.view = ClusterView(topics={"t": TopicView("t", b"u" * 16)})
    if is_named:
        with pytest.raises(CommitFailedError, match="was deleted and recreated"):
            await group.commits.commit({A: 5})
    else:
        assert await group.commits.commit_by_itself({A: at(5)}) == {}
    assert group.coordinator.commits == []


async def test_an_error_that_stays_is_posted_for_the_next_read() -> None:
    group = Group()
    for kind, is_posted in (
        (errors.CommitFailedError, False),
        (errors.GroupAuthorizationFailedError, True),
    ):
        group.coordinator.errors = [kind]
        assert await group.commits.commit_by_itself({A: at(10)}) == {A: at(10)}
        assert bool(group.posted) is is_posted


async def test_offsets_of_a_topic_that_the_view_does_not_know_yet_are_committed() -> None:
    group = Group()
    group.cluster.view = ClusterView()
    await group.commits.commit({A: 5})
    await group.commits.commit()
    assert group.coordinator.commits == [{A: 5}, {A: 10, B: 10}]


# --- What is left out ----------------------------------------------------------------------------
async def test_what_another_member_has_had_since_is_not_committed_and_said_to_have_failed() -> None:
    group = Group()
    group.member.lost = {A}
    departed = group.departed({A: at(5), B: at(6)})
    with group.state.events.subscribe() as events:
        left = await group.commits.commit_departed(departed)
        (failed,) = events_so_far(events)
    assert left == {A: at(5)}
    assert isinstance(failed, CommitFailed)
    assert failed.offsets == left
    assert failed.is_auto
    group.member.lost = {A, B}
    departed = group.departed({A: at(7), B: at(8)})
    assert await group.commits.commit_departed(departed) == {A: at(7), B: at(8)}
    assert group.coordinator.commits == [{B: 6}]
    assert group.commits.commit_count == 0


async def test_what_was_assigned_by_hand_is_committed_in_nobodys_name_after_it_was_given_up() -> (
    None
):
    group = Group()
    group.member.lost = {A}
    departed = group.departed({A: at(5)})
    departed.made_as = NO_IDENTITY
    assert await group.commits.commit_departed(departed) == {}
    assert group.coordinator.commits == [{A: 5}]
    assert group.coordinator.senders == [NO_IDENTITY]
    lost = group.departed({A: at(6)})
    lost.made_as = None
    assert await group.commits.commit_departed(lost) == {A: at(6)}
    assert group.coordinator.commits == [{A: 5}]


async def test_auto_commit_takes_the_metadata_only_of_partitions_that_it_commits() -> None:
    group = Group()
    group.coordinator.errors = [errors.CoordinatorLoadInProgressError]
    committing = await begun(group.commits.commit({A: (10, "mine"), B: 10}))
    assert await group.commits.commit_by_itself({A: at(10)}) == {}
    await committing
    assert group.state.partition(A).committed == OffsetAndMetadata(10, "mine")


@pytest.mark.parametrize("stays", [A, B])
async def test_positions_of_a_partition_that_stays_are_committed_wherever_it_stands(
    stays: TopicPartition,
) -> None:
    group = Group()
    group.member.is_taking = False
    committing = await begun(group.commits.commit())
    (gone,) = {A, B} - {stays}
    group.state.change([gone], [])
    group.rebalance(stays)
    with pytest.raises(CommitFailedError, match=rf"the offsets of .*partition={gone.partition}"):
        await committing
    assert group.coordinator.commits == [{stays: 10}]


async def test_auto_commit_that_is_tried_again_keeps_in_step_with_each_partition() -> None:
    group = Group()
    group.coordinator.errors = [errors.CoordinatorLoadInProgressError]
    first = group.state.partition(A)
    group.state.reads.begin_get()
    committing = await begun(group.commits.commit_by_itself({A: at(10), B: at(10)}))
    group.state.request_reset(first, -1)
    group.state.partition(B).truncated(6)  # what it says by then is of the new log
    group.state.reads.hand_out(group.state.partition(B), 10, 20, ())
    group.state.reads.begin_get()
    await committing
    assert group.coordinator.commits == [{A: 10, B: 10}, {A: 10, B: 20}]


async def test_a_commit_says_nothing_of_a_later_one_that_was_not_sent() -> None:
    group = Group()
    group.member.is_taking = False
    waiting = [await begun(group.commits.commit({A: offset})) for offset in (8, 5)]
    group.member.is_taking = True
    group.member.notify()
    for each in waiting:
        await each
    assert group.coordinator.commits == [{A: 8}, {A: 5}]


async def test_a_commit_that_is_tried_again_says_what_a_later_one_may_have_committed() -> None:
    group = Group()
    group.coordinator.errors = [errors.CoordinatorLoadInProgressError]
    first = await begun(group.commits.commit({A: 5}))
    group.state.partition(A).truncated(4)  # before the later one is made
    group.coordinator.errors = [errors.CoordinatorLoadInProgressError]
    group.coordinator.gate.clear()
    later = await begun(group.commits.commit({A: 7, B: 3}))
    await asyncio.sleep(1)
    group.coordinator.gate.set()
    await first
    await later
    assert group.coordinator.commits == [{A: 5}, {A: 7, B: 3}, {A: 7}, {A: 7, B: 3}]


async def test_auto_commit_that_has_no_news_is_not_later_than_a_commit_by_name() -> None:
    group = Group()
    group.coordinator.errors = [errors.CoordinatorLoadInProgressError]
    group.state.reads.begin_get()
    by_itself = await begun(group.commits.commit_by_itself({A: at(10)}))
    group.member.is_taking = False
    named = await begun(group.commits.commit({A: 8}))
    await by_itself
    group.member.is_taking = True
    group.member.notify()
    await named
    assert group.coordinator.commits == [{A: 10}, {A: 10}, {A: 8}]


async def test_an_earlier_commit_that_is_tried_again_undoes_no_later_one() -> None:
    group = Group()
    group.coordinator.errors = [errors.CoordinatorLoadInProgressError]
    group.state.reads.begin_get()
    by_itself = await begun(group.commits.commit_by_itself({A: at(10)}))
    await group.commits.commit({A: 8})
    await by_itself
    assert group.coordinator.commits == [{A: 10}, {A: 8}]


async def test_a_truncation_lowers_only_offsets_behind_the_end_of_the_log() -> None:
    group = Group()
    group.member.is_taking = False
    committing = await begun(group.commits.commit({A: (5, "mine"), B: (6, "mine")}))
    for tp, ends in ((A, [5]), (B, [4, 7])):
        for end in ends:
            group.state.partition(tp).truncated(end)
    group.member.is_taking = True
    group.member.notify()
    await committing
    assert group.state.partition(A).committed == OffsetAndMetadata(5, "mine")
    assert group.state.partition(B).committed == at(4)


@pytest.mark.parametrize(
    ("own", "others", "exact"), [((A, B), (), {B}), ((), (A, B), {A}), ((B,), (B,), {B})]
)
def test_an_offset_that_is_taken_over_was_named_if_the_other_commit_names_it(
    own: tuple[TopicPartition, ...], others: tuple[TopicPartition, ...], exact: set[TopicPartition]
) -> None:
    commit, other = (
        PendingCommit(
            0,
            {A: at(1), B: at(2)},
            FIRST,
            CommitKind.NAMED,
            cursors={},
            cluster=cast("Any", SimpleNamespace(view=ClusterView())),
            exact=named,
        )
        for named in (own, others)
    )
    commit.take_over(A, other)
    assert commit.exact == exact


@pytest.mark.parametrize(
    ("is_returned", "committed", "is_settled"),
    [
        (True, None, False),
        (True, 5, False),
        (True, 10, True),
        (True, 12, False),  # the application has sought back
        (False, None, True),
        (False, 5, True),
    ],
)
async def test_a_commit_of_positions_fails_if_what_was_revoked_is_not_committed(
    *, is_returned: bool, committed: int | None, is_settled: bool
) -> None:
    group = Group()
    group.member.is_taking = False
    if not is_returned:
        group.state.change([A], [A])
        group.state.seek(group.state.partition(A), 10)
    cursor = group.state.partition(A)
    committing = await begun(group.commits.commit())
    cursor.note_committed(None if committed is None else at(committed), -1, b"")
    group.state.change([A], [])
    group.member.is_taking = True
    group.member.notify()
    if is_settled:
        await committing
    else:
        with pytest.raises(CommitFailedError, match=r"the offsets of .*partition=0"):
            await committing
    assert group.coordinator.commits == [{B: 10}]


@pytest.mark.parametrize("is_same_assignment", [True, False])
async def test_auto_commit_settles_what_was_given_up_in_the_same_assignment(
    *, is_same_assignment: bool
) -> None:
    group = Group(enable_auto_commit=True)
    scope = TaskScope("g")
    group.commits.start_auto_commit(scope)
    await asyncio.sleep(0)
    group.state.reads.begin_get()
    group.coordinator.errors = [errors.CoordinatorLoadInProgressError] * 2
    group.coordinator.gate.clear()
    sending = await begun(group.commits.commit_by_itself({A: at(3)}))  # commits wait for it
    if is_same_assignment:
        committing = await begun(group.commits.commit())
        group.state.unsubscribe()
    else:
        group.state.unsubscribe()
        await asyncio.sleep(0.001)
        group.state.subscribe(["t"])
        group.give(A, B)
        committing = await begun(group.commits.commit())
        group.state.change([A, B], [])
    assert group.commits.has_departed
    group.coordinator.gate.set()
    if is_same_assignment:
        await committing
    else:
        with pytest.raises(CommitFailedError, match="no longer assigned"):
            await committing
    assert group.commits.has_departed
    await sending
    await scope.close()


# --- Reads ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [-1, errors.UnstableOffsetCommitError.errno])
@pytest.mark.parametrize("keeps_errors", [True, False])
async def test_the_partition_that_is_not_answered_is_the_only_one_that_is_asked_for_again(
    code: int, *, keeps_errors: bool
) -> None:
    group = Group()
    group.coordinator.codes = [{0: code}]
    if keeps_errors:
        found = await group.commits.positions([A, B])
        assert isinstance(found[A], KafkaError)
    else:
        assert await group.commits.committed([A, B]) == {A: at(7), B: at(8)}
    assert group.coordinator.fetches == [[0, 1]] + [[0]] * (not keeps_errors)
    assert group.state.partition(B).committed == at(8)


async def test_an_answer_that_knows_no_such_topic_has_metadata_read_again() -> None:
    group = Group()
    for kind in (errors.UnknownTopicOrPartitionError, errors.UnstableOffsetCommitError):
        group.coordinator.codes = [{0: kind.errno}]
        await group.commits.positions([A])
    assert group.cluster.calls == ["invalidate"]


async def test_what_a_refusal_says_of_the_membership_withholds_records() -> None:
    group = Group()
    for is_lost in (False, True):
        group.member.is_lost_by_refusals = is_lost
        group.coordinator.errors = [errors.UnknownMemberIdError]
        with pytest.raises(CommitFailedError):
            await group.commits.commit({A: 5})
        assert group.state.gate.holds == ({Hold.LOST} if is_lost else set())
    assert group.member.refusals == [errors.UnknownMemberIdError] * 2


@pytest.mark.parametrize(
    ("kind", "reader", "is_noted", "is_asked_again"),
    [
        (errors.StaleMemberEpochError, FIRST, True, True),
        (errors.UnknownMemberIdError, FIRST, True, True),
        (errors.FencedInstanceIdError, FIRST, True, False),
        (errors.UnknownMemberIdError, None, False, False),
        (errors.StaleMemberEpochError, None, False, True),
        (errors.CoordinatorLoadInProgressError, FIRST, False, True),
        (errors.GroupAuthorizationFailedError, FIRST, False, False),
    ],
)
async def test_what_the_group_says_of_a_reader_is_noted(
    kind: type[KafkaError], reader: Identity | None, is_noted: bool, is_asked_again: bool
) -> None:
    group = Group()
    group.member.reads_as = reader
    fetch, refused = group.coordinator.fetch, [kind("refused")]

    def refuse_once(request: OffsetFetchRequest) -> OffsetFetchResponse:
        if refused:
            raise refused.pop()
        return fetch(request)

    group.coordinator.fetch = refuse_once  # type: ignore[method-assign]
    if is_asked_again:
        assert await group.commits.committed([A]) == {A: at(7)}
    else:
        with pytest.raises(kind):
            await group.commits.committed([A])
    assert group.member.refusals == [kind] * is_noted


def test_the_oldest_answers_say_of_partitions_what_concerns_the_group() -> None:
    def answer(*codes: int) -> OffsetFetchResponse:
        partitions = [
            OffsetFetchResponsePartitions(
                partition_index=number, committed_offset=-1, metadata="", error_code=code
            )
            for number, code in enumerate(codes)
        ]
        topic = OffsetFetchResponseTopics(name="t", partitions=partitions)
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    moved, unknown = errors.NotCoordinatorError.errno, errors.UnknownTopicOrPartitionError.errno
    assert fetch_error_code(answer(0, unknown, moved)) == moved
    assert fetch_error_code(answer(0, unknown)) == 0
    offsets = {A: CommittedOffset(1, "", -1), B: CommittedOffset(2, "", -1)}
    ids = TopicIds(dict.fromkeys(offsets, b""))
    request = commit_request("g", offsets, ids, member_id=FIRST.member_id)
    response = commit_answer(request, unknown)
    assert commit_error_code(response) == 0
    response.topics[0].partitions[1].error_code = errors.GroupAuthorizationFailedError.errno
    assert commit_error_code(response) == errors.GroupAuthorizationFailedError.errno


def test_requests_give_ids_if_each_topic_has_one() -> None:
    ids = TopicIds({A: b"t" * 16, B: b"u" * 16})
    assert ids.name_of("", b"u" * 16) == B.topic
    offsets = dict.fromkeys((A, B), CommittedOffset(5, "", -1))
    newest = OffsetCommitRequest.max_version
    assert commit_request("g", offsets, ids, member_id=FIRST.member_id).usable_max_version == newest
    fetch = partial(fetch_request, "g", offsets, member_id=FIRST.member_id, member_epoch=5)
    assert fetch(ids).usable_max_version == newest
    for unknown in (b"", bytes(16)):
        ids = TopicIds({A: b"t" * 16, B: unknown})
        assert (
            commit_request("g", offsets, ids, member_id=FIRST.member_id).usable_max_version < newest
        )
        assert fetch(ids).usable_max_version < newest


# --- Which topics these are ----------------------------------------------------------------------
def told(topic_id: bytes, name: str = "t") -> MetadataResponse:
    return MetadataResponse(
        brokers=[],
        cluster_id="c",
        controller_id=1,
        topics=[MetadataResponseTopic(name=name, topic_id=topic_id, partitions=[])],
    )


async def confirm(
    cluster: Cluster, *answers: Exception | MetadataResponse, topic_id: bytes = b"t" * 16
) -> ConfirmedTopics:
    cluster.answers += answers
    topics = ConfirmedTopics(
        cast("Any", cluster), cast("Any", SimpleNamespace(new_backoff=lambda: Steady(0.1)))
    )
    await topics.confirm([(A, topic_id), (B, topic_id)], in_s(1))
    return topics


async def test_a_topic_is_confirmed_for_a_second() -> None:
    cluster = Cluster()
    topics = await confirm(cluster, *[told(b"t" * 16)] * 2)
    for wait_s, count in ((0.75, 1), (CONFIRMED_S - 0.75, 2)):
        await asyncio.sleep(wait_s)
        await topics.confirm([(A, b"t" * 16)], in_s(1))
        assert len(cluster.asked_at) == count


async def test_the_question_which_topic_it_is_is_asked_again_after_errors_that_pass() -> None:
    cluster = Cluster()
    cut = errors.KafkaConnectionError("cut")
    await confirm(cluster, cut, asyncio.TimeoutError(), told(b"t" * 16))
    assert cluster.asked_at == [0, pytest.approx(0.1), pytest.approx(0.2)]
    with pytest.raises(errors.ClusterAuthorizationFailedError):
        await confirm(cluster, errors.ClusterAuthorizationFailedError("no"))
    assert len(cluster.asked_at) == 4
    await confirm(cluster, ClientClosedError("stopped"))
    assert len(cluster.asked_at) == 5
    with pytest.raises(KafkaTimeoutError, match="no broker confirmed in time"):
        await confirm(cluster, *[cut] * 99)
    assert len(cluster.asked_at) == pytest.approx(5 + 10, abs=1)


@pytest.mark.parametrize(
    ("answer", "is_same"),
    [
        (told(b"u" * 16), False),
        (told(b"u" * 16, "another"), False),
        (told(bytes(16)), True),  # a broker that names topics by names only
        (told(b"s" * 16), True),  # of a broker that has not heard of the present topic yet
    ],
)
async def test_a_recreated_topic_gets_no_offsets_and_has_the_view_read_again(
    answer: MetadataResponse, *, is_same: bool
) -> None:
    cluster = Cluster()
    former = TopicView("t", b"t" * 16, former_ids=frozenset({b"s" * 16}))
    cluster.view = ClusterView(topics={"t": former})
    if is_same:
        await confirm(cluster, answer)
        assert cluster.calls == []
    else:
        with pytest.raises(CommitFailedError, match="topics were deleted"):
            await confirm(cluster, answer)
        assert cluster.calls == ["refresh"]


@for_each(
    [
        ({"t": TopicView("t", b"t" * 16)}, True, b"t" * 16, False),
        ({"t": TopicView("t", b"t" * 16)}, True, b"u" * 16, True),
        ({"t": TopicView("t", b"t" * 16)}, True, b"", False),
        ({"t": TopicView("t")}, True, b"t" * 16, False),
        ({}, False, b"t" * 16, False),
        ({}, True, b"t" * 16, True),
    ]
)
def test_a_topic_is_a_former_one_if_the_view_has_another_or_none(
    topics: dict[str, TopicView], is_of_all: bool, read_as: bytes, is_former: bool
) -> None:
    cluster = Cluster()
    cluster.view = ClusterView(topics=topics, is_of_all=is_of_all)
    confirmed = ConfirmedTopics(
        cast("Any", cluster), cast("Any", SimpleNamespace(new_backoff=lambda: Steady(1)))
    )
    assert confirmed.is_former("t", read_as) is is_former
