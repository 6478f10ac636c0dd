"""Bugs that are planted to see that the model finds them: each replaces one method.

What a checker was never seen to find, it may not look for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest

from aiokafka_lite._transaction import BegunTransaction
from aiokafka_lite.client.offset_commits import OffsetToCommit, TopicIds, commit_request
from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.assignment.batches import Block, OpenBatch
from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Cursor
from aiokafka_lite.consumer.assignment.finished import Finished
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.assignment.readers import Readers
from aiokafka_lite.consumer.assignment.work import DeliveredRecords
from aiokafka_lite.consumer.commits import commits as commits_module
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.consumer.commits.pending import PendingCommit
from aiokafka_lite.consumer.commits.transactional import OffsetsInTransaction
from aiokafka_lite.consumer.membership.handover import Handover
from aiokafka_lite.consumer.positions.topic_changes import TopicChanges
from aiokafka_lite.consumer.processing.handling import DeadRecord, RunContext
from aiokafka_lite.consumer.processing.lanes import Lanes
from aiokafka_lite.consumer.processing.outbox import Outbox
from aiokafka_lite.consumer.processing.run import Run
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.processing import DeadLetters
from aiokafka_lite.processing.dead_letters import Letter, PlainWriter
from aiokafka_lite.producing import AIOKafkaProducer, group_offsets
from aiokafka_lite.producing.accumulator import Accumulator
from aiokafka_lite.producing.lease import ProducerLease
from aiokafka_lite.producing.transactions import ProducerTransaction, Transactions
from aiokafka_lite.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tests.model.pairs.logs import ALL_TROUBLES


@dataclass(frozen=True)
class Bug:
    """A bug: what takes the place of what, and the kinds of groups that may meet it."""

    name: str
    owner: Any
    method: str
    stand_in: object
    kinds: tuple[str, ...]
    # Events that have nothing to do with it.
    without: frozenset[str] = frozenset()

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have it until the end of the test."""
        monkeypatch.setattr(self.owner, self.method, self.stand_in)


def _in_any_epoch(cursor: Cursor) -> OffsetAndMetadata | None:
    return cursor._committed


def _nothing(*_: object, **__: object) -> None:
    pass


async def _commits_nothing(*_: object, **__: object) -> dict[object, object]:
    return {}


def _one_too_far(group_id: Any, offsets: Any, ids: Any, **sender: Any) -> object:
    behind = {tp: entry._replace(offset=entry.offset + 1) for tp, entry in offsets.items()}
    return commit_request(group_id, behind, ids, **sender)


_change = Assignment.change


def _by_name(assignment: Assignment, revoke: Any, assign: Any, **settings: Any) -> None:
    _change(assignment, revoke, assign, **{**settings, "topic_ids": {}})


_end_of_batch = OpenBatch._end


def _always_done(batch: OpenBatch, *, is_done: bool) -> None:
    _end_of_batch(batch, is_done=True)


def _first_epoch(cursor: Cursor, offset: int) -> int:
    return cursor.epoch_starts[0].leader_epoch if cursor.epoch_starts else NO_EPOCH


def _all_that_was_returned(finished: Finished, partition: Cursor) -> int | None:
    return partition.position


_lanes_init = Lanes.__init__


def _in_no_order(lanes: Lanes, _: object) -> None:
    _lanes_init(lanes, None)


_finish = Progress.finish


def _finish_all_before(progress: Progress, offset: int, holder: object) -> bool | None:
    progress.finish_before(offset)
    return _finish(progress, offset, holder)


def _cut_off_nothing(run: Run, jobs: object) -> None:
    list(jobs)  # type: ignore[call-overload]


# --- Transactions -------------------------------------------------------------------------------
def _in_whatever_generation(
    _: OffsetsInTransaction, delivery: DeliveredRecords
) -> dict[TopicPartition, OffsetToCommit]:
    return {cursor.tp: OffsetToCommit(end, "", NO_EPOCH) for cursor, end in delivery.ends.items()}


async def _does_not_wait(*_: object, **__: object) -> None:
    pass


_decide = Block.decide


def _never_aborted(block: Block, transaction: BegunTransaction, **_: object) -> None:
    _decide(block, transaction, is_committed=True)


def _takes_any(transactions: Transactions, _: ProducerTransaction | None) -> None:
    if not transactions.takes_records:
        raise transactions.refusal()


_in_transaction = group_offsets.commit_request


def _in_transaction_one_too_far(
    name: Any, producer: Any, group: Any, offsets: Any, topic_ids: Any
) -> object:
    behind = {tp: (offset + 1, *others) for tp, (offset, *others) in offsets.items()}
    return _in_transaction(name, producer, group, behind, topic_ids)


_write = ProducerLease.write


async def _as_written(lease: ProducerLease, outputs: Any, delivery: Any) -> dict[int, Exception]:
    try:
        return await _write(lease, outputs, delivery)
    except KafkaError:
        if lease.fatal_error is not None:
            raise
        return {}


# --- Dead letters -------------------------------------------------------------------------------
async def _no_acknowledgement(writer: PlainWriter, _: DeadRecord, letter: Letter) -> None:
    topic, value, key, partition, headers = letter
    await writer._producer.send(topic, value, key, partition=partition, headers=headers)


def _outside(_: DeadLetters, run: RunContext) -> PlainWriter:
    return PlainWriter(partial(AIOKafkaProducer, **run.arguments.of_every_client()), None)


async def _is_aborted(*_: object) -> bool:
    return False


async def _without_offsets(lease: ProducerLease, outputs: Any, _: object) -> object:
    nothing = group_offsets.OffsetsOfGroup(ConsumerGroupMetadata("g"), {})
    return await _write(lease, outputs, nothing)


# --- Topics that are recreated ------------------------------------------------------------------
def _under_the_present_id(commits: Commits, commit: PendingCommit) -> None:
    for tp in commit.topic_ids:
        commit.topic_ids[tp] = commits._cluster.view.topic_id(tp.topic) or b""


EACH: Final = ("plain", "records")
IN_TRANSACTIONS: Final = ("transactions",)
LETTERS: Final = ("letters",)
RECREATED: Final = frozenset(("topic recreated", "topic recreated smaller"))
BUGS: Final = (
    Bug(
        "a commit names the offset after the next",
        commits_module,
        "commit_request",
        _one_too_far,
        EACH,
    ),
    Bug("a looked-up seek keeps finished ranges", Progress, "forget_ahead", _nothing, ("records",)),
    Bug("finished ranges are not passed over", Assignment, "start_behind", _nothing, ("records",)),
    Bug(
        "a read finishes the records of other tasks",
        Readers,
        "is_alone",
        lambda *_: True,
        ("plain",),
    ),
    Bug("a block that is left by an error is done", OpenBatch, "_end", _always_done, ("plain",)),
    Bug(
        "the last commit at a revocation is left out",
        Commits,
        "commit_last",
        _commits_nothing,
        EACH,
    ),
    Bug("a stop commits nothing", Commits, "commit_at_the_end", _commits_nothing, EACH),
    Bug("a truncation forgets no commit", Cursor, "committed", property(_in_any_epoch), EACH),
    Bug("a commit has the epoch of the first record", Cursor, "epoch_before", _first_epoch, EACH),
    Bug("records of a key are handled side by side", Lanes, "__init__", _in_no_order, ("records",)),
    Bug(
        "a record that is finished finishes those before it",
        Progress,
        "finish",
        _finish_all_before,
        ("records",),
    ),
    Bug(
        "commit() covers what handlers work on",
        Finished,
        "_handed_out_and_done",
        _all_that_was_returned,
        ("records",),
    ),
    Bug("a back-off never ends", Cursor, "end_back_off", _nothing, EACH),
    Bug(
        "a rebalance does not wait for what is being processed",
        Handover,
        "_next_limit",
        _nothing,
        EACH,
    ),
    Bug(
        "auto-commit covers what is being processed",
        Finished,
        "processed_offsets",
        lambda finished: finished.handed_out_offsets(),
        ("plain",),
    ),
    Bug(
        "a transaction commits in the name of a newer generation than its records",
        OffsetsInTransaction,
        "to_commit",
        _in_whatever_generation,
        IN_TRANSACTIONS,
        RECREATED,
    ),
    Bug(
        "a cancelled commit does not wait for its outcome",
        Transactions,
        "outlast_commit",
        _does_not_wait,
        IN_TRANSACTIONS,
        RECREATED,
    ),
    Bug(
        "a batch counts as processed though its transaction is aborted",
        Block,
        "decide",
        _never_aborted,
        IN_TRANSACTIONS,
        RECREATED,
    ),
    Bug(
        "a send of a transaction that is over goes into the next",
        Transactions,
        "require",
        _takes_any,
        IN_TRANSACTIONS,
        RECREATED,
    ),
    Bug(
        "a transaction names the offset after the next",
        group_offsets,
        "commit_request",
        _in_transaction_one_too_far,
        IN_TRANSACTIONS,
        RECREATED,
    ),
    Bug(
        "a transaction is committed without the offsets that its group refuses",
        group_offsets,
        "raise_refusal",
        _nothing,
        IN_TRANSACTIONS,
        RECREATED,
    ),
    Bug(
        "a transaction is committed before its records are acknowledged",
        Accumulator,
        "flush",
        _does_not_wait,
        IN_TRANSACTIONS,
        RECREATED,
    ),
    Bug(
        "a transaction of unknown outcome is taken for an aborted one",
        OffsetsInTransaction,
        "begin_anew",
        _nothing,
        IN_TRANSACTIONS,
        RECREATED,
    ),
    Bug(
        "outputs of an aborted transaction count as written",
        ProducerLease,
        "write",
        _as_written,
        IN_TRANSACTIONS,
        RECREATED,
    ),
    Bug(
        "a record is finished before its dead letter is acknowledged",
        PlainWriter,
        "write",
        _no_acknowledgement,
        ("records",),
    ),
    Bug(
        "a dead letter is written outside of its transaction",
        DeadLetters,
        "_new_writer",
        _outside,
        LETTERS,
        RECREATED,
    ),
    Bug(
        "a dead letter of unknown outcome is written again",
        Outbox,
        "_is_committed_after_all",
        _is_aborted,
        LETTERS,
        RECREATED,
    ),
    Bug(
        "the transaction of a dead letter has no offset",
        ProducerLease,
        "write",
        _without_offsets,
        LETTERS,
        RECREATED,
    ),
    Bug(
        "a commit names a topic that may have been recreated",
        TopicIds,
        "are_known",
        property(lambda _: False),
        EACH,
    ),
    Bug(
        "a commit has the id of the topic that was recreated",
        Commits,
        "_leave_out_former_logs",
        _under_the_present_id,
        EACH,
    ),
    Bug(
        "a position is kept though the topic was recreated",
        TopicChanges,
        "_start_over",
        _nothing,
        EACH,
    ),
    Bug(
        "a recreated topic belongs to the member of the former one",
        Assignment,
        "change",
        _by_name,
        IN_TRANSACTIONS,
        frozenset(ALL_TROUBLES) - RECREATED,
    ),
)
