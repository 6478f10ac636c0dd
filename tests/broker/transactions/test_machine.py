"""The state machine of a transactional id: what the other tests do not get at from outside."""

from __future__ import annotations

import itertools

import pytest

from aiokafka_lite.broker.log.producers import LAST_EPOCH, ProducerIdentity
from aiokafka_lite.broker.transactions.machine import (
    ALLOWED_FROM,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    EXHAUSTED_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    IllegalTransitionError,
    Transaction,
    TransactionState,
    TransactionValue,
    TransactionVersion,
    check_transition,
)
from aiokafka_lite.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NoError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.for_each import for_each

V1, V2 = TransactionVersion.ORIGINAL, TransactionVersion.EPOCH_PER_TRANSACTION
ID, SPARE, NOW = 7, 8, 1_000
TP = TopicPartition("t", 0)


def machine(
    state: TransactionState = EMPTY, *, epoch: int = 5, version: TransactionVersion = V1
) -> Transaction:
    partitions = (TP,) if state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT) else ()
    return Transaction(
        "txn",
        TransactionValue(
            producer_id=ID,
            epoch=epoch,
            timeout_ms=100,
            state=state,
            partitions=partitions,
            started_ms=NOW if partitions else -1,
            updated_ms=NOW,
            client_version=version,
        ),
    )


def decided(decision: object) -> TransactionValue:
    assert isinstance(decision, TransactionValue)
    return decision


def test_every_transition_is_legal_or_raises() -> None:
    legal = 0
    for old, new in itertools.product(TransactionState, repeat=2):
        if old in ALLOWED_FROM[new]:
            check_transition(old, new)
            legal += 1
        else:
            with pytest.raises(IllegalTransitionError):
                check_transition(old, new)
    assert legal == 3 + 4 + 1 + 5 + 1 + 1 + 3 + 1


def test_nothing_follows_the_end_of_an_id() -> None:
    assert not any(DEAD in before for before in ALLOWED_FROM.values())


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_everything_is_put_off_while_a_transaction_ends(state: TransactionState) -> None:
    transaction = machine(state)
    me = transaction.value.producer
    assert transaction.init(100, None, V2, SPARE, NOW) is ConcurrentTransactions
    assert transaction.add(me, [TP], V1, NOW) is ConcurrentTransactions
    assert transaction.verify(me, TP) is ConcurrentTransactions
    for version, is_commit in itertools.product((V1, V2), (True, False)):
        ended = transaction.end(me, version, SPARE, NOW, is_commit=is_commit)
        assert ended is ConcurrentTransactions


def test_decision_changes_nothing_by_itself() -> None:
    transaction = machine(ONGOING)
    before = transaction.value
    transaction.end(before.producer, V2, SPARE, NOW, is_commit=True)
    transaction.fence(V2, NOW)
    transaction.add(before.producer, [TopicPartition("t", 1)], V1, NOW)
    assert transaction.value is before


def test_partition_without_a_transaction_is_an_error_to_abort_upon() -> None:
    transaction = machine()
    assert transaction.verify(transaction.value.producer, TP) is TransactionAbortableError


def test_partitions_are_unmarked_until_each_has_its_marker() -> None:
    transaction = machine(ONGOING)
    other = TopicPartition("t", 1)
    added = decided(transaction.add(transaction.value.producer, [other, TP], V1, NOW + 1))
    assert (added.partitions, added.started_ms, added.updated_ms) == ((TP, other), NOW, NOW + 1)
    transaction.become(added)
    assert not transaction.unmarked
    transaction.become(decided(transaction.end(added.producer, V1, SPARE, NOW, is_commit=True)))
    assert list(transaction.unmarked) == [TP, other]
    transaction.marked(TP)
    assert list(transaction.unmarked) == [other]


@pytest.mark.parametrize("version", [V1, V2])
def test_fenced_transaction_is_aborted_in_the_next_epoch(version: TransactionVersion) -> None:
    transaction = machine(ONGOING)
    fenced = transaction.fence(version, NOW)
    assert (fenced.state, fenced.epoch) == (PREPARE_ABORT, 6)
    transaction.become(fenced)
    transaction.become(transaction.complete(NOW))
    assert (transaction.state, transaction.value.epoch) == (COMPLETE_ABORT, 6)
    assert decided(transaction.init(100, None, version, SPARE, NOW)).epoch == 7


@pytest.mark.parametrize("version", [V1, V2])
def test_last_epoch_of_a_producer_is_left_for_fencing_it(version: TransactionVersion) -> None:
    transaction = machine(ONGOING, epoch=EXHAUSTED_EPOCH)
    transaction.become(transaction.fence(version, NOW))
    transaction.become(transaction.complete(NOW))
    assert transaction.value.producer == (ID, LAST_EPOCH)
    renewed = decided(transaction.init(100, None, version, SPARE, NOW))
    assert (renewed.producer, renewed.previous_producer_id) == ((SPARE, 0), ID)


def test_producer_goes_on_with_another_id_when_epochs_run_out() -> None:
    """KIP-360: whoever knows the last epoch is the one to get the new id."""
    transaction = machine(epoch=EXHAUSTED_EPOCH)
    me = ProducerIdentity(ID, EXHAUSTED_EPOCH)
    late = ProducerIdentity(ID, EXHAUSTED_EPOCH - 1)
    assert transaction.init(100, late, V1, SPARE, NOW) is UnknownError
    renewed = decided(transaction.init(100, me, V1, SPARE, NOW))
    assert (renewed.producer, renewed.last_epoch) == ((SPARE, 0), EXHAUSTED_EPOCH)
    transaction.become(renewed)
    # Its answer got lost, and it asks again.
    again = decided(transaction.init(100, me, V1, 9, NOW))
    assert again.producer == (SPARE, 0)
    stranger = ProducerIdentity(99, EXHAUSTED_EPOCH)
    for other in (late, stranger):
        assert transaction.init(100, other, V1, 9, NOW) is ProducerFencedError


def test_transaction_of_version_2_ends_with_another_id_when_epochs_run_out() -> None:
    transaction = machine(ONGOING, epoch=EXHAUSTED_EPOCH, version=V2)
    me = transaction.value.producer
    assert transaction.needs_producer_id
    ended = decided(transaction.end(me, V2, SPARE, NOW, is_commit=True))
    # Markers have an epoch that no records have.
    assert (ended.producer, ended.next_producer_id) == ((ID, LAST_EPOCH), SPARE)
    transaction.become(ended)
    completed = transaction.complete(NOW)
    transaction.become(completed)
    assert (completed.producer, completed.previous_producer_id) == ((SPARE, 0), ID)
    # Its answer got lost, and it asks again, as who it was.
    assert transaction.end(me, V2, 9, NOW, is_commit=True) is NoError
    assert transaction.end(me, V2, 9, NOW, is_commit=False) is InvalidTxnState


def test_producer_with_another_id_ends_nothing_in_the_first_epoch_either() -> None:
    transaction = machine(ONGOING, epoch=0)
    stranger = ProducerIdentity(99, 0)
    ended = transaction.end(stranger, V2, SPARE, NOW, is_commit=True)
    assert ended is InvalidProducerIdMapping


def test_last_epoch_is_never_bumped() -> None:
    transaction = machine(epoch=LAST_EPOCH)
    ended = decided(transaction.end(transaction.value.producer, V2, SPARE, NOW, is_commit=False))
    assert ended.producer == (ID, LAST_EPOCH)


def test_only_an_open_transaction_is_fenced() -> None:
    with pytest.raises(IllegalTransitionError):
        machine().fence(V1, NOW)


def test_abort_of_version_2_needs_no_transaction() -> None:
    transaction = machine()
    ended = decided(
        transaction.end(transaction.value.producer, V2, SPARE, NOW + 5, is_commit=False)
    )
    assert (ended.state, ended.epoch, ended.started_ms) == (PREPARE_ABORT, 6, NOW + 5)
    transaction.become(ended)
    assert not transaction.unmarked


@for_each([EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT, ONGOING, PREPARE_ABORT])
def test_only_idle_ids_expire(state: TransactionState) -> None:
    transaction = machine(state)
    is_idle = state not in (ONGOING, PREPARE_ABORT)
    assert transaction.may_expire(NOW) is is_idle
    assert transaction.may_expire(NOW - 1) is False


def test_value_that_does_not_follow_is_refused() -> None:
    transaction = machine()
    with pytest.raises(IllegalTransitionError, match="cannot change from Empty to CompleteCommit"):
        transaction.become(transaction.value._replace(state=COMPLETE_COMMIT))
