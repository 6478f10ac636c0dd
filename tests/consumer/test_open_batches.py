"""The records of a batch: who has them until its block ends, or a transaction that commits it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from aiokafka_lite._transaction import LATEST, BlockInTransaction
from aiokafka_lite.client.offsets import CommittedOffset
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.delivery.batch import Batch, BatchScope, OpenBatch
from aiokafka_lite.errors import (
    BatchRevokedError,
    CommitFailedError,
    IllegalOperation,
    IllegalStateError,
)
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support.states import State

A, B = (TopicPartition("t", number) for number in range(2))


class Transaction:
    """A transaction, which tells the blocks that it holds of its end."""

    def __init__(self) -> None:
        self.is_over = self.is_settled = False
        self.blocks: list[BlockInTransaction] = []

    def hold(self, block: BlockInTransaction) -> None:
        self.blocks.append(block)

    def commit(self, batch: OpenBatch) -> None:
        """Have it decide on a batch."""
        self.hold(batch)
        batch.enlist(self)

    def end(self, *, is_committed: bool) -> None:
        self.is_over = self.is_settled = True
        for block in self.blocks:
            block.decide(self, is_committed=is_committed)


class Opened:
    """A batch of the records 0 to 4 of two partitions."""

    def __init__(self) -> None:
        self.state = State()
        self.state.assign_from_user([A, B])
        for tp in (A, B):
            self.state.start_at(self.state.partition(tp), 0)
        self.a, self.b = self.state.assignment.values()
        self.acted = 0
        self.state.observers.acted.add(self._act)
        self.batch = OpenBatch(self.state.works)
        self.open()

    def open(self) -> None:
        for cursor in (self.a, self.b):
            self.state.reads.hand_out(cursor, 0, 5, ())
        self.batch.open({A: (), B: ()})

    def _act(self) -> None:
        self.acted += 1

    def note_committed(self, cursor: Cursor, offset: int) -> None:
        cursor.note_committed(OffsetAndMetadata(offset, ""), -1, b"")

    def positions(self) -> list[int | None]:
        return [self.a.position, self.b.position]


@pytest.fixture
async def opened() -> Opened:
    return Opened()


async def test_a_block_holds_its_records_until_its_end() -> None:
    opened = Opened()
    state, batch = opened.state, opened.batch
    assert state.works.being_processed() == state.works.unfinished([A, B]) == {A: (0, 5), B: (0, 5)}
    state.reads.begin_get()
    assert state.finished.finished_offsets()[A].offset == 0
    assert state.finished.handed_out_offsets()[A].offset == 5
    assert batch.held() == batch.partitions() == {A, B}
    state.finished.note_finished({A: OffsetAndMetadata(3, "")})
    assert batch.undone([A]) == {A: (3, 5)}
    state.finished.note_finished({A: OffsetAndMetadata(5, "")})
    assert batch.undone([A, B]) == {B: (0, 5)}
    assert batch.to_commit() == {A: 5, B: 5}
    opened.note_committed(opened.a, 5)
    assert batch.delivery().ends == {opened.a: 5, opened.b: 5}
    assert not batch.lost()
    assert not batch.is_ending([A])
    assert batch.is_of(asyncio.current_task())
    batch.close(is_done=True)
    assert not batch.is_of(asyncio.current_task())
    assert state.finished.processed_offsets() == {tp: OffsetAndMetadata(5, "") for tp in (A, B)}
    assert (state.works.begun, batch.is_open, opened.acted) == ([], False, 1)
    assert opened.a.worked_by is None
    batch.close(is_done=False)
    assert opened.positions() == [5, 5]
    batch.require_delivered()


async def test_records_of_a_block_that_fails_are_returned_again_unless_sought(
    opened: Opened,
) -> None:
    opened.state.finished.note_finished({A: OffsetAndMetadata(2, "")})
    opened.batch.close(is_done=False)
    assert opened.positions() == [2, 0]
    with pytest.raises(IllegalStateError, match="returned again"):
        opened.batch.require_delivered()


@pytest.mark.parametrize("sought", [1, 5, 9])
@pytest.mark.parametrize("way", ["offset", "committed offset", "time"])
async def test_a_position_that_a_block_has_sought_stays_though_it_fails(
    opened: Opened, sought: int, way: str
) -> None:
    state = opened.state
    if way == "offset":
        state.seek(opened.a, sought)
    elif way == "committed offset":
        state.seek_to_committed(opened.a, CommittedOffset(sought, "", -1))
    else:
        state.request_reset(opened.a, 1_000)
        state.start_at(opened.a, sought)
    opened.batch.close(is_done=False)
    assert opened.positions() == [sought, 0]


async def test_partitions_that_are_given_up_are_lost_as_far_as_they_are_undone(
    opened: Opened,
) -> None:
    batch = opened.batch
    batch.give_up([TopicPartition("u", 0)], 3.0)
    assert not batch.revoking.is_set()
    batch.give_up([A], 7.0)
    batch.is_wanted_by(8.0)
    assert (batch.revoking.is_set(), batch.until) == (True, 7.0)
    assert (batch.lost(), batch.held(), batch.undone([A, B])) == ({A}, {B}, {B: (0, 5)})
    assert batch.to_commit() == {B: 5}
    opened.state.finished.note_finished({B: OffsetAndMetadata(5, "")})
    batch.give_up([B], 9.0)
    assert (batch.lost(), batch.held()) == ({A}, {B})
    opened.state.change([B], ())
    assert (batch.lost(), batch.held()) == ({A}, set())


async def test_a_block_ends_for_the_partitions_that_are_left(opened: Opened) -> None:
    opened.state.change([A], [])
    assert opened.state.finished.delivery().lost == {A}
    opened.batch.close(is_done=False)
    assert opened.b.position == 0
    assert opened.state.finished.delivery().lost == set()


async def test_records_behind_a_truncation_are_no_more_of_the_batch(opened: Opened) -> None:
    opened.a.truncated(3)
    opened.b.truncated(9)
    assert opened.batch.spans == {opened.a: (0, 3), opened.b: (0, 5)}
    assert opened.batch.to_commit() == {A: 3, B: 5}


# --- Transactions ------------------------------------------------------------------------------
@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_transaction_that_commits_a_batch_decides_after_the_block(
    opened: Opened, *, is_committed: bool
) -> None:
    transaction, batch = Transaction(), opened.batch
    transaction.commit(batch)
    batch.close(is_done=True)
    batch.close(is_done=False)
    assert (batch.is_open, batch.is_left, batch.is_enlisted) == (True, True, True)
    assert opened.state.finished.processed_offsets()[A].offset == 0
    assert batch.delivery().ends == {opened.a: 5, opened.b: 5}
    transaction.end(is_committed=is_committed)
    assert (batch.is_open, batch.is_enlisted) == (False, False)
    assert opened.acted
    assert opened.positions() == ([5, 5] if is_committed else [0, 0])
    if is_committed:
        assert opened.state.finished.processed_offsets()[A].offset == 5
        batch.require_delivered()
    else:
        with pytest.raises(IllegalStateError, match="returned again"):
            batch.require_delivered()


async def test_a_block_goes_on_after_its_transaction(opened: Opened) -> None:
    transaction = Transaction()
    transaction.commit(opened.batch)
    transaction.end(is_committed=True)
    assert opened.batch.is_open
    assert opened.state.works.unfinished([A]) == {A: (0, 5)}
    opened.batch.close(is_done=True)
    assert opened.positions() == [5, 5]


async def test_an_abort_after_the_block_has_uncommitted_records_returned_again(
    opened: Opened,
) -> None:
    opened.batch.close(is_done=True)
    opened.note_committed(opened.a, 5)
    opened.note_committed(opened.b, 2)
    assert opened.batch.delivery().ends == {opened.b: 5}
    for cursor in (opened.a, opened.b):
        opened.state.reads.hand_out(cursor, 5, 8, ())
    transaction = Transaction()
    transaction.commit(opened.batch)
    assert opened.state.works.unfinished([B])[B] == (0, 8)
    acted = opened.acted
    transaction.end(is_committed=False)
    assert opened.acted > acted  # a rebalance may wait for it
    assert opened.positions() == [8, 2]
    with pytest.raises(IllegalStateError, match="returned again"):
        opened.batch.require_delivered()
    opened.state.reads.hand_out(opened.b, 2, 8, ())
    opened.batch.decide(transaction, is_committed=False)
    assert opened.positions() == [8, 8]


async def test_a_commit_after_the_block_leaves_its_records_processed(opened: Opened) -> None:
    opened.batch.close(is_done=True)
    transaction = Transaction()
    transaction.commit(opened.batch)
    transaction.end(is_committed=True)
    assert opened.positions() == [5, 5]
    opened.batch.require_delivered()


async def test_an_abort_takes_the_records_behind_its_own_from_another_block(
    opened: Opened,
) -> None:
    opened.batch.close(is_done=True)
    transaction = Transaction()
    transaction.commit(opened.batch)
    for cursor in (opened.a, opened.b):
        opened.state.reads.hand_out(cursor, 5, 8, ())
    second = OpenBatch(opened.state.works)
    second.open({A: ()})
    transaction.end(is_committed=False)
    assert opened.positions() == [0, 0]
    assert second.revoking.is_set()
    assert second.lost() == {A}


@pytest.mark.parametrize("why", ["sought", "before its end", "another log", "other members"])
async def test_an_abort_leaves_a_position_that_is_not_behind_the_batch(
    opened: Opened, why: str
) -> None:
    state, batch = opened.state, opened.batch
    batch.close(is_done=True)
    transaction = Transaction()
    if why != "other members":
        transaction.commit(batch)
    if why == "sought":
        state.seek(opened.a, 9)
    elif why == "before its end":
        state.start_at(opened.a, 4)
    elif why == "another log":
        opened.a.read_from(None, 1, b"1" * 16)
        state.start_at(opened.a, 9)
    else:
        state.change([A], [A])
        state.start_at(state.partition(A), 9)
        transaction.commit(batch)
    before = state.partition(A).position
    transaction.end(is_committed=False)
    assert state.partition(A).position == before
    assert opened.b.position == 0


async def test_an_abort_returns_a_partition_that_came_back_to_the_batch(opened: Opened) -> None:
    state, batch = opened.state, opened.batch
    batch.close(is_done=True)
    transaction = Transaction()
    transaction.commit(batch)
    state.withhold([A])
    state.seek(opened.a, 9)
    state.change([A], [A], is_unbroken=True)
    assert state.partition(A).position == 9
    transaction.end(is_committed=False)
    assert state.partition(A).position == 0


async def opened_in(transaction: Transaction) -> Opened:
    """Open a batch in the block of a transaction."""
    LATEST.set(transaction)
    return Opened()


async def test_a_batch_inside_a_transaction_ends_before_it_and_returns_with_its_abort() -> None:
    transaction = Transaction()
    opened = await asyncio.create_task(opened_in(transaction))
    state, batch = opened.state, opened.batch
    assert transaction.blocks == [batch]
    batch.enlist(transaction)
    assert not batch.is_enlisted
    batch.close(is_done=True)
    assert not batch.is_open
    assert state.finished.processed_offsets()[A].offset == 0
    state.reads.hand_out(opened.a, 5, 8, ())
    transaction.end(is_committed=False)
    assert opened.positions() == [0, 0]


async def test_the_application_commits_a_batch_whatever_the_transaction_around_it_does() -> None:
    transaction = Transaction()
    opened = await asyncio.create_task(opened_in(transaction))
    assert opened.batch.to_commit() == {A: 5, B: 5}
    opened.batch.close(is_done=True)
    assert opened.state.finished.processed_offsets()[A].offset == 5
    opened.note_committed(opened.a, 5)  # and the commit of the other one has failed
    transaction.end(is_committed=False)
    assert opened.positions() == [5, 0]


# --- The block of the application --------------------------------------------------------------
Committed = Mapping[TopicPartition, int] | None


class Entered:
    """The block of a batch, and what is committed in it."""

    def __init__(self, opened: Opened) -> None:
        self.committed: list[Committed] = []
        self.refusal: CommitFailedError | None = None
        self.batch: Batch[bytes, bytes] = Batch(
            {}, opened.batch, self.commit, lambda delivery: cast("Any", delivery)
        )

    async def commit(self, offsets: Committed) -> None:
        self.committed.append(offsets)
        if self.refusal is not None:
            raise self.refusal


async def test_a_block_that_is_left_commits_nothing_more_though_a_transaction_decides_on_it(
    opened: Opened,
) -> None:
    entered = Entered(opened)
    Transaction().commit(opened.batch)
    with pytest.raises(IllegalOperation):
        await entered.batch.commit()
    opened.batch.close(is_done=True)
    with pytest.raises(IllegalStateError, match="has ended"):
        await entered.batch.commit()
    assert entered.committed == []


async def test_a_commit_names_the_partitions_that_other_members_read_again(
    opened: Opened,
) -> None:
    entered = Entered(opened)
    opened.batch.give_up([A], 7.0)
    with pytest.raises(BatchRevokedError, match="t/0") as caught:
        await entered.batch.commit()
    assert (caught.value.partitions, entered.committed) == ({A}, [{B: 5}])
    entered.refusal = CommitFailedError("fenced")
    with pytest.raises(BatchRevokedError, match=r"t/0, t/1 again .*fenced") as caught:
        await entered.batch.commit()
    assert caught.value.partitions == {A, B}
    opened.batch.give_up([B], 7.0)
    with pytest.raises(BatchRevokedError):
        await entered.batch.commit()
    assert len(entered.committed) == 2


async def test_records_that_are_returned_again_are_no_delivery(opened: Opened) -> None:
    entered = Entered(opened)
    assert entered.batch.delivery() is not None
    opened.batch.close(is_done=False)
    with pytest.raises(IllegalStateError, match="returned again"):
        entered.batch.delivery()


async def test_a_read_that_fails_with_an_open_block_has_its_records_returned_again(
    opened: Opened,
) -> None:
    async def fail() -> dict[TopicPartition, list[ConsumerRecord[bytes, bytes]]]:
        raise asyncio.CancelledError

    entered = Entered(opened)
    scope = BatchScope(opened.batch, fail, entered.commit, cast("Any", None))
    with pytest.raises(asyncio.CancelledError):
        await scope.__aenter__()
    assert opened.positions() == [0, 0]
