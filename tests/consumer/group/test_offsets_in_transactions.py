"""What a transaction may commit of a consumer, and what the consumer notes of its outcome."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, cast

import pytest

from aiokafka_lite import errors
from aiokafka_lite.client.view import ClusterView, TopicView
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.work import DeliveredRecords
from aiokafka_lite.consumer.commits.transactional import (
    DeliveryToCommit,
    NamedOffsets,
    OffsetsInTransaction,
    seeks_of,
)
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.errors import (
    AutoCommitError,
    BatchRevokedError,
    CommitFailedError,
    OffsetMetadataTooLargeError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.plain_group import A, B, Group, Transaction, at, begun, in_s, took_s

pytestmark = pytest.mark.virtual_time


class Receipt:
    """A record that is finished by itself."""

    refusal_count = size_bytes = 0
    is_finished = False

    def __init__(self, state: Any, cursor: Cursor, offset: int) -> None:
        self._state = state
        self.cursor = cursor
        self.offset = offset
        self.transactions: list[object] = []

    @property
    def is_current(self) -> bool:
        progress = self.cursor.progress
        return progress is not None and progress.is_held_by(self.offset, self)

    def enlist(self, transaction: object | None) -> None:
        self.transactions.append(transaction)

    def ack(self) -> bool:
        is_current = self.is_current
        self._state.works.finish(self.cursor, self.offset, self)
        self.is_finished = self.is_finished or is_current
        return is_current


class Block:
    """The block of a batch, and a work that has the records of a partition."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def enlist(self, transaction: object) -> None:
        self.calls.append("enlist")

    def decide(self, transaction: object, *, is_committed: bool) -> None:
        self.calls.append(is_committed)


class Case:
    """A consumer's offsets, and the deliveries that a transaction commits."""

    def __init__(self, *, is_automatic: bool = False) -> None:
        self.group = Group(enable_auto_commit=is_automatic)
        self.state, self.commits = self.group.state, self.group.commits
        self.offsets = OffsetsInTransaction(
            self.state.core(ConsumerConfig(enable_auto_commit=is_automatic)), self.commits
        )
        self.transaction = Transaction()

    def cursor(self, tp: TopicPartition = A) -> Cursor:
        return self.state.partition(tp)

    def one_by_one(self, tp: TopicPartition = A, count: int = 5) -> list[Receipt]:
        """Hand out the next records of a partition one by one."""
        if self.state.reads.processing is None:
            self.state.works.open_processing(cast("Any", self))
        cursor = self.cursor(tp)
        first = cursor.position or 0
        records: list[ConsumerRecord[Any, Any]] = [
            ConsumerRecord(tp.topic, tp.partition, offset, 0, 0, None, None, None, -1, -1, ())
            for offset in range(first, first + count)
        ]
        receipts = self.state.works.hand_out_each(
            cursor, records, (), lambda record: Receipt(self.state, cursor, record.offset)
        )
        self.state.reads.hand_out(cursor, first, first + count, ())
        self.state.works.put_into_processing(cursor, is_enough=False)
        return receipts

    def deliver(
        self,
        ends: dict[Cursor, int] | None = None,
        receipts: Iterable[Receipt] = (),
        blocks: Iterable[Block] = (),
    ) -> DeliveryToCommit:
        return DeliveryToCommit(self.offsets, DeliveredRecords(ends, receipts, (), blocks))

    def own_records(self) -> None: ...

    def as_read(self, offsets: object) -> None: ...


# --- What auto-commit may commit, too ------------------------------------------------------------
async def test_only_auto_commit_and_only_ends_are_refused() -> None:
    for is_automatic in (False, True):
        case = Case(is_automatic=is_automatic)
        case.offsets.raise_if_automatic(case.transaction, {})
        ends = {case.cursor(): 10}
        if is_automatic:
            with pytest.raises(AutoCommitError):
                case.offsets.raise_if_automatic(case.transaction, ends)
            case.cursor().process_to(0)
            case.offsets.await_outcome(case.transaction, ends)
            case.offsets.raise_if_automatic(case.transaction, ends, is_batch=True)
        else:
            case.offsets.raise_if_automatic(case.transaction, ends)


@pytest.mark.parametrize(
    ("other", "is_all", "reads_in_it", "is_batch", "is_refused"),
    [
        ("in work", False, False, False, False),
        ("in work", False, True, False, True),  # a read has counted records as processed
        ("in work", False, True, True, False),
        ("read", False, False, True, True),
        ("read", True, False, False, True),
        ("processed", True, False, False, False),  # auto-commit has them already
        ("processed", False, False, True, True),
        ("committed", False, False, True, False),
    ],
)
async def test_beside_records_in_work_others_are_refused_that_auto_commit_may_commit(
    other: str, is_all: bool, reads_in_it: bool, is_batch: bool, is_refused: bool
) -> None:
    case = Case(is_automatic=True)
    for tp in (A, B) if other == "in work" else (A,):
        case.cursor(tp).process_to(0)
        case.cursor(tp).enter_work(cast("Any", Block()), is_enough=True)
    if other != "in work":
        case.cursor(B).process_to(10 if other == "processed" else 5)
    if other == "committed":
        case.cursor(B).note_committed(at(10), -1, b"")
    if reads_in_it:
        case.cursor(A).note_transaction(case.transaction)
    ends = {case.cursor(tp): 10 for tp in (A, B)}
    with pytest.raises(AutoCommitError) if is_refused else nullcontext():
        case.offsets.raise_if_automatic(case.transaction, ends, is_all=is_all, is_batch=is_batch)


@pytest.mark.parametrize(
    ("is_automatic", "processed", "committed", "first"),
    [
        (True, 4, 6, 4),
        (False, 4, 6, 6),
        (False, 4, 0, 0),
        (False, 4, 10, 10),
        (False, 4, 11, 0),
        (False, 4, None, 0),
    ],
)
async def test_nothing_from_the_first_record_on_is_committed_before_a_transaction_is_over(
    is_automatic: bool, processed: int, committed: int | None, first: int
) -> None:
    case = Case(is_automatic=is_automatic)
    cursor = case.cursor()
    cursor.process_to(processed)
    cursor.note_committed(None if committed is None else at(committed), -1, b"")
    case.offsets.await_outcome(case.transaction, {cursor: 10})
    assert cursor.decided_to(100) == first


async def test_offsets_before_the_start_of_the_assignment_hold_back_only_what_was_returned() -> (
    None
):
    case = Case()
    case.state.seek(case.cursor(), 5)
    case.cursor().note_committed(at(3), -1, b"")
    case.offsets.await_outcome(case.transaction, {case.cursor(): 10})
    assert case.cursor().decided_to(100) == 5
    case.state.request_reset(case.cursor(B), -1)
    for committed, first in ((None, 10), (at(0), 0)):
        case.cursor(B).note_committed(committed, -1, b"")
        case.offsets.await_outcome(case.transaction, {case.cursor(B): 10})
        assert case.cursor(B).decided_to(100) == first


async def test_what_is_lost_is_committed_in_nobodys_name() -> None:
    case = Case()
    assert case.offsets.group().cursors == case.state.assignment
    case.group.member.assigned_as = None
    with pytest.raises(CommitFailedError):
        case.offsets.group()


# --- Records that are finished one by one --------------------------------------------------------
async def test_a_record_that_was_finished_before_is_committed_with_all_before_it() -> None:
    case = Case()
    receipts = case.one_by_one()
    assert receipts[0].offset == 10
    for receipt in receipts[:2]:
        receipt.ack()
    delivery = case.deliver(receipts=receipts[:1])
    _, offsets = delivery.to_commit()
    assert offsets[A][:2] == (12, "")
    # Though nothing more can be said of what is finished.
    receipts[3].ack()
    case.state.finished.limit_metadata(100)
    _, offsets = case.deliver(receipts=receipts[:1]).to_commit()
    assert offsets[A][:2] == (12, "")


async def test_a_record_for_which_the_metadata_have_no_room_is_refused() -> None:
    case = Case()
    receipts = case.one_by_one()
    case.state.finished.limit_metadata(100)
    with pytest.raises(OffsetMetadataTooLargeError, match="up to offset 13"):
        case.deliver(receipts=[receipts[3]]).to_commit()
    with pytest.raises(OffsetMetadataTooLargeError):
        case.deliver(receipts=[receipts[0], receipts[3]]).to_commit()
    _, offsets = case.deliver(receipts=receipts[:2]).to_commit()
    assert offsets[A][:2] == (12, "")


async def test_what_is_finished_is_committed_first_if_the_same_may_be_committed_already() -> None:
    case = Case()
    receipts = case.one_by_one()
    for receipt in receipts[:2]:
        receipt.ack()
    for _ in range(2):
        await case.offsets.tell_apart({case.cursor(): at(15)})
        assert case.group.coordinator.commits == [{A: 12}]


async def test_metadata_that_are_refused_are_shortened_and_committed_at_once() -> None:
    case = Case()
    coordinator = case.group.coordinator
    receipts = case.one_by_one()
    for receipt in receipts[1::2]:
        receipt.ack()
    coordinator.errors = [OffsetMetadataTooLargeError]
    assert await took_s(case.commits.commit()) == 0
    assert coordinator.commits == [{A: 10, B: 10}] * 2
    coordinator.errors = [OffsetMetadataTooLargeError]
    with pytest.raises(OffsetMetadataTooLargeError):
        await case.commits.commit({B: (10, "mine")})


async def test_offsets_are_committed_if_the_group_has_all_of_them() -> None:
    case = Case()  # whose group has 7 and 8
    for offset, is_committed in ((8, True), (9, False)):
        wanted = {case.cursor(): at(7), case.cursor(B): at(offset)}
        assert await case.offsets.are_committed(wanted) is is_committed


async def test_what_fits_into_the_metadata_is_the_first_of_the_records() -> None:
    case = Case()
    receipts = case.one_by_one(count=40)
    first = receipts[0].offset
    case.state.finished.limit_metadata(100)
    assert case.offsets.if_finished(case.cursor(), {first + 3}) is None
    found = case.offsets.if_finished(case.cursor(), {first, first + 3})
    assert found == (at(first + 1), {first})
    found = case.offsets.if_finished(case.cursor(), {first, first + 1, first + 3})
    assert found == (at(first + 2), {first, first + 1})
    every = {first + number for number in range(0, 40, 2)}
    found = case.offsets.if_finished(case.cursor(), every)
    assert found == (at(first + 1), {first})
    case.group.cluster.view = ClusterView(topics={"t": TopicView("t", b"u" * 16)})
    assert case.offsets.if_finished(case.cursor(), {first}) is None


async def test_a_record_that_was_refused_since_is_not_committed() -> None:
    case = Case()
    receipts = case.one_by_one()
    delivery = case.deliver(receipts=receipts[:2])
    receipts[1].refusal_count = 1
    _, offsets = delivery.to_commit()
    assert offsets[A][0] == 11


async def test_what_was_taken_away_is_refused_and_no_more_said_to_be_lost() -> None:
    case = Case()
    cursor = case.cursor()
    delivery = case.deliver({cursor: 10})
    case.state.change([A], [])
    assert case.state.finished.delivery().lost == {A}
    with pytest.raises(BatchRevokedError) as caught:
        delivery.to_commit()
    assert caught.value.partitions == {A}
    assert case.state.finished.delivery().lost == set()


@pytest.mark.parametrize("way", ["delivery", "named"])
async def test_offsets_of_a_topic_that_is_gone_are_refused(way: str) -> None:
    case = Case()
    named = case.offsets.group().name({A: (10, "", -1)})
    delivery: Any = named if way == "named" else case.deliver({case.cursor(): 10})
    case.group.cluster.view = ClusterView(topics={"t": TopicView("t", b"u" * 16)})
    with pytest.raises(CommitFailedError, match="topics were deleted"):
        delivery.to_commit()
    another = MetadataResponseTopic(name="t", topic_id=b"u" * 16, partitions=[])
    case.group.cluster.answers = [
        MetadataResponse(brokers=[], cluster_id="c", controller_id=1, topics=[another])
    ]
    with pytest.raises(CommitFailedError, match="topics were deleted"):
        await delivery.confirm_topics(in_s(1))


async def test_offsets_of_records_of_an_earlier_assignment_are_refused() -> None:
    case = Case()
    case.state.change([A], [A])
    named = case.offsets.group().name({A: (10, "", -1)})
    with pytest.raises(CommitFailedError, match="under an earlier assignment"):
        named.to_commit()


# --- The outcome ---------------------------------------------------------------------------------
@pytest.mark.parametrize("is_committed", [True, False, None])
async def test_receipts_and_blocks_of_a_delivery_hear_of_its_transaction(
    is_committed: bool | None,
) -> None:
    case, block = Case(), Block()
    receipts = case.one_by_one()
    delivery = case.deliver(receipts=receipts[:2], blocks=[block])
    delivery.enlist(case.transaction)
    delivery.to_commit()
    told: list[int] = []
    case.state.observers.acted.add(lambda: told.append(1))
    delivery.settle(case.transaction, is_committed=is_committed)
    assert [each.transactions for each in receipts[:2]] == [[case.transaction, None]] * 2
    assert [each.is_finished for each in receipts[:2]] == [bool(is_committed)] * 2
    assert block.calls == ["enlist", bool(is_committed)]
    assert told
    assert case.cursor().is_in_doubt is (is_committed is None)
    assert case.cursor().committed == (at(12) if is_committed else None)


@pytest.mark.parametrize("is_committed", [True, False, None])
async def test_offsets_by_name_are_noted_as_their_transaction_turns_out(
    is_committed: bool | None,
) -> None:
    case, block = Case(), Block()
    case.cursor().process_to(2)
    case.cursor().enter_work(cast("Any", block), is_enough=True)
    named = case.offsets.group().name({A: (8, "", -1), TopicPartition("t", 9): (5, "", -1)})
    named.enlist(case.transaction)
    assert case.cursor().decided_to(10) == 0
    told: list[int] = []
    case.state.observers.acted.add(lambda: told.append(1))
    waiting = await begun(cast("Any", case.group.member.wait_for_change()))
    named.settle(case.transaction, is_committed=is_committed)
    await waiting
    assert told
    assert block.calls == ["enlist", bool(is_committed)]
    assert case.cursor().processed == (8 if is_committed else None if is_committed is None else 2)
    assert case.cursor().is_in_doubt is (is_committed is None)
    assert case.cursor().committed == (at(8) if is_committed else None)


async def test_offsets_that_nobody_is_told_of_change_nothing() -> None:
    case = Case()
    named = NamedOffsets(case.offsets.group(), {A: (8, "", -1)}, is_told=False)
    named.enlist(case.transaction)
    named.settle(case.transaction, is_committed=True)
    assert case.cursor().decided_to(10) == 10
    assert case.cursor().committed is None


async def test_offsets_of_two_deliveries_are_joined() -> None:
    case, blocks = Case(), [Block(), Block()]
    for tp, block in zip((A, B), blocks, strict=True):
        case.cursor(tp).process_to(2)
        case.cursor(tp).enter_work(cast("Any", block), is_enough=True)
    named = case.offsets.group().name({A: (8, "", -1)})
    later = case.offsets.group().name({B: (9, "", -1)})
    for each in (named, later):
        each.enlist(case.transaction)
    named.join(later)
    named.settle(case.transaction, is_committed=True)
    assert [case.cursor(tp).committed for tp in (A, B)] == [at(8), at(9)]
    assert [block.calls for block in blocks] == [["enlist", True]] * 2
    delivery = case.deliver({case.cursor(): 10})
    delivery.join(case.deliver({case.cursor(B): 10}))
    assert {tp: offset[0] for tp, offset in delivery.to_commit()[1].items()} == {A: 10, B: 10}


async def test_a_refusal_of_offsets_is_noted_as_of_whom_they_were_sent() -> None:
    case = Case()
    delivery = case.deliver({case.cursor(): 10})
    delivery.refused(errors.UnknownMemberIdError("before"))
    assert case.group.member.refusals == []
    delivery.enlist(case.transaction)
    assert case.cursor().decided_to(10) == 0
    delivery.to_commit()
    delivery.refused(errors.UnknownMemberIdError("no"))
    case.offsets.group().name({A: (8, "", -1)}).refused(errors.IllegalGenerationError("no"))
    assert case.group.member.refusals == [
        errors.UnknownMemberIdError,
        errors.IllegalGenerationError,
    ]


async def test_what_a_transaction_has_committed_is_noted_of_its_own_topics_and_assignment() -> None:
    case = Case()
    group = case.offsets.group()
    offsets = {
        TopicPartition("t", 9): (1, "", -1),
        TopicPartition("u", 0): (1, "", -1),
        A: (8, "", -1),
        B: (9, "", -1),
    }
    cast("Any", group.topic_ids)[A] = b"u" * 16
    case.offsets.note_committed(group, offsets)
    assert [case.cursor(tp).committed for tp in (A, B)] == [None, at(9)]
    former = case.cursor(B)
    case.state.change([B], [B])
    case.offsets.note_committed(group, {B: (10, "", -1)})
    assert former.committed == at(9)


async def test_partitions_that_were_moved_since_stay_where_that_led() -> None:
    case = Case()
    seeks = seeks_of([case.cursor(A), case.cursor(B)])
    case.state.seek(case.cursor(B), 3)
    case.offsets.begin_anew(seeks)
    assert case.cursor(A).is_in_doubt
    assert (case.cursor(B).is_in_doubt, case.cursor(B).position) == (False, 3)


async def test_nothing_of_partitions_is_committed_that_begin_anew() -> None:
    case = Case()
    group = case.group
    group.member.is_taking = False
    committing = await begun(group.commits.commit({A: 10, B: 10}))
    case.offsets.begin_anew(seeks_of([case.cursor(A)]))
    group.member.is_taking = True
    group.member.notify()
    await committing
    assert group.coordinator.commits == [{B: 10}]


async def test_records_before_a_seek_are_finished_by_nobody_if_the_outcome_is_not_known() -> None:
    case = Case()
    (receipt, *_) = case.one_by_one()
    seeks = seeks_of([case.cursor()])
    case.state.seek(case.cursor(), 12)
    assert receipt.is_current
    case.offsets.begin_anew(seeks)
    assert not receipt.is_current


# --- Commits that are not sent yet ---------------------------------------------------------------
async def test_a_transaction_leaves_of_a_commit_that_waits_what_lies_behind_its_own() -> None:
    case = Case()
    group = case.group
    cursor = case.cursor()
    for committed, left in ((None, []), (at(8), [{A: 10}]), (at(10), [])):
        group.coordinator.commits.clear()
        group.member.is_taking = False
        departed = group.departed({A: at(10)})
        group.state.change([A], [])
        committing = await begun(group.commits.commit_departed(departed))
        case.commits.overtake(cursor, committed)
        group.member.is_taking = True
        group.member.notify()
        await committing
        assert group.coordinator.commits == left
        group.give(A)
        cursor = case.cursor()


async def test_a_transaction_of_an_earlier_assignment_leaves_later_commits_alone() -> None:
    case = Case()
    group = case.group
    former = case.cursor()
    group.state.change([A], [A])
    group.give(A)
    group.member.is_taking = False
    departed = [group.departed({tp: at(10)}) for tp in (*[A] * 9, B)]
    of_b = case.cursor(B)
    group.state.change([A, B], [])
    committing = [await begun(group.commits.commit_departed(each)) for each in departed]
    case.commits.overtake(former, at(10))
    case.commits.overtake(of_b, at(10))
    group.member.is_taking = True
    group.member.notify()
    for each in committing:
        await each
    assert {tp for commit in group.coordinator.commits for tp in commit} == {A}


@pytest.mark.parametrize(("position", "committed"), [(5, [{A: 10}]), (10, []), (12, [])])
async def test_a_commit_that_waits_stays_as_it_is_where_the_application_has_sought_back(
    position: int, committed: list[dict[TopicPartition, int]]
) -> None:
    case = Case()
    group = case.group
    group.member.is_taking = False
    committing = await begun(group.commits.commit({A: 10}))
    group.state.seek(case.cursor(), position)
    case.commits.overtake(case.cursor(), at(10))
    group.member.is_taking = True
    group.member.notify()
    await committing
    assert group.coordinator.commits == committed


async def test_a_commit_that_a_transaction_overtakes_on_its_way_is_not_noted() -> None:
    case = Case()
    group = case.group
    case.cursor().note_committed(at(3), -1, b"")
    group.coordinator.gate.clear()
    committing = await begun(group.commits.commit({A: 10}))
    case.commits.overtake(case.cursor(), None)
    group.coordinator.gate.set()
    await committing
    assert case.cursor().committed == at(3)


async def test_a_commit_that_waits_says_of_each_partition_what_is_finished_by_then() -> None:
    case = Case()
    group = case.group
    receipts = case.one_by_one(B)
    group.member.is_taking = False
    committing = await begun(group.commits.commit())
    for receipt in receipts[:2]:
        receipt.ack()
    group.member.is_taking = True
    group.member.notify()
    await committing
    assert group.coordinator.commits == [{A: 10, B: 12}]


async def test_a_commit_that_waits_says_what_is_finished_behind_its_offset_by_then() -> None:
    case = Case()
    receipts = case.one_by_one()
    case.group.member.is_taking = False
    committing = await begun(case.group.commits.commit())
    receipts[1].ack()
    case.group.member.is_taking = True
    case.group.member.notify()
    await committing
    committed = case.cursor().committed
    assert committed is not None
    assert (committed.offset, bool(committed.metadata)) == (10, True)


async def test_a_commit_that_waits_keeps_its_offset_though_the_application_has_sought_back() -> (
    None
):
    case = Case()
    group = case.group
    for receipt in case.one_by_one()[:2]:
        receipt.ack()
    group.member.is_taking = False
    committing = await begun(group.commits.commit())
    group.state.seek(case.cursor(), 5)
    group.member.is_taking = True
    group.member.notify()
    await committing
    assert group.coordinator.commits == [{A: 12, B: 10}]


async def test_a_commit_leaves_out_what_a_transaction_may_have_committed() -> None:
    case = Case()
    case.state.return_to_committed([case.cursor()])
    case.cursor(B).await_outcome(case.transaction, 3, is_stored=True)
    group = case.group
    await group.commits.commit_by_itself({A: at(10), B: at(3)})
    assert group.coordinator.commits == []
