"""What a partition's log knows of transactions, and what a restart or a cut leaves of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker.log.partition_log import AppendResult, PartitionLog
from aiokafka_lite.broker.log.producers import ProducerStates
from aiokafka_lite.broker.log.storage import FolderStore, MemoryStore
from aiokafka_lite.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from aiokafka_lite.protocol.messages.transactions import ProducerState
from aiokafka_lite.records import BatchHeader, ControlType, iter_batches
from tests.support.for_each import for_each

MEGABYTE = 1 << 20
T0 = 1_700_000_000_000
ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT

NewLog = Callable[[], PartitionLog]


@pytest.fixture(params=["memory", "folder"])
def new_log(request: pytest.FixtureRequest, tmp_path: Path) -> NewLog:
    """Open a log; a folder's second one finds what the first left."""

    def open_log() -> PartitionLog:
        store = FolderStore(tmp_path, 2_000) if is_folder else MemoryStore(MEGABYTE)
        return PartitionLog(store, run_slowly=lambda work: work())

    is_folder = request.param == "folder"
    return open_log


@pytest.fixture
def log(new_log: NewLog) -> PartitionLog:
    return new_log()


def batch(
    producer: int, sequence: int, count: int = 1, *, epoch: int = 0, is_transactional: bool = True
) -> bytes:
    return records.build_batch(
        [(T0, b"key", b"value", ())] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def header_of(built: bytes) -> BatchHeader:
    ((header, _),) = iter_batches(memoryview(built))
    return header


def append(log: PartitionLog, built: bytes) -> AppendResult:
    return log.append(header_of(built), built, leader_epoch=0)


def write(log: PartitionLog, producer: int, sequence: int, count: int = 1) -> int:
    return append(log, batch(producer, sequence, count)).base_offset


def end(log: PartitionLog, producer: int, control: ControlType, *, epoch: int = 0) -> int:
    marker = records.control_batch(
        control, producer_id=producer, producer_epoch=epoch, timestamp_ms=T0, coordinator_epoch=3
    )
    return append(log, marker).base_offset


def aborted(log: PartitionLog, start: int = 0, stop: int = 1 << 40) -> list[tuple[int, int, int]]:
    found = log.producers.transactions.aborted_within(start, stop)
    return [(one.producer_id, one.first_offset, one.last_offset) for one in found]


def test_stable_offset_stays_at_the_first_open_transaction(log: PartitionLog) -> None:
    append(log, records.build_batch([(T0, None, b"plain", ())]))
    assert log.last_stable_offset == 1
    write(log, 1, 0, 2)
    write(log, 2, 0)
    write(log, 1, 2)
    assert (log.last_stable_offset, log.log_end_offset) == (1, 5)
    end(log, 1, COMMIT)
    assert log.last_stable_offset == 3
    end(log, 2, ABORT)
    assert log.last_stable_offset == log.log_end_offset == 7


def test_aborted_transactions_are_listed_where_they_have_records(log: PartitionLog) -> None:
    write(log, 1, 0)  # 0
    write(log, 2, 0)  # 1
    end(log, 1, ABORT)  # 2
    write(log, 1, 1)  # 3
    end(log, 2, ABORT)  # 4
    end(log, 1, COMMIT)  # 5
    assert aborted(log) == [(1, 0, 2), (2, 1, 4)]
    assert aborted(log, 3) == [(2, 1, 4)]
    assert aborted(log, 5) == []
    assert aborted(log, 0, 1) == [(1, 0, 2)]
    write(log, 3, 0)  # 6
    end(log, 3, ABORT)  # 7
    kept = log.producers.transactions.snapshot()
    assert [one.last_stable_offset for one in kept] == [1, 3, 8]


def test_marker_without_records_aborts_nothing(log: PartitionLog) -> None:
    end(log, 1, ABORT)
    assert (aborted(log), log.last_stable_offset) == ([], 1)


def test_sequence_goes_on_after_a_marker_of_the_same_epoch(log: PartitionLog) -> None:
    write(log, 1, 0, 3)
    end(log, 1, COMMIT)
    with pytest.raises(OutOfOrderSequenceNumber):
        write(log, 1, 0, 4)
    assert write(log, 1, 3) == 4


def test_sequence_starts_over_after_a_marker_of_a_new_epoch(log: PartitionLog) -> None:
    write(log, 1, 0, 3)
    end(log, 1, COMMIT, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        write(log, 1, 3)
    with pytest.raises(OutOfOrderSequenceNumber):
        append(log, batch(1, 3, epoch=1))
    assert append(log, batch(1, 0, epoch=1)).base_offset == 4


def test_batch_outside_of_the_open_transaction_is_refused(log: PartitionLog) -> None:
    write(log, 1, 0)
    with pytest.raises(InvalidTxnState):
        append(log, batch(1, 1, is_transactional=False))
    end(log, 1, COMMIT)
    assert append(log, batch(1, 1, is_transactional=False)).base_offset == 2


def test_repeated_batch_of_a_transaction_is_not_appended_again(log: PartitionLog) -> None:
    write(log, 1, 0, 2)
    again = append(log, batch(1, 0, 2))
    assert (again.base_offset, again.is_duplicate, log.log_end_offset) == (0, True, 2)


def test_later_batch_does_not_overtake_the_one_being_verified() -> None:
    states = ProducerStates()
    first, second = header_of(batch(1, 0)), header_of(batch(1, 1))
    states.verifying(first, has_epochs=False)
    states.verifying(second, has_epochs=False)
    with pytest.raises(OutOfOrderSequenceNumber):
        states.check(second)
    states.check(first)


def test_batch_being_verified_counts_until_a_newer_epoch_is_verified() -> None:
    states = ProducerStates()

    def verify(sequence: int, epoch: int) -> None:
        states.verifying(header_of(batch(1, sequence, epoch=epoch)), has_epochs=False)

    verify(3, 1)
    verify(0, 0)  # of a producer that is fenced
    states.check(header_of(batch(1, 3, epoch=1)))
    with pytest.raises(OutOfOrderSequenceNumber, match="sequence number 3 must be written first"):
        states.check(header_of(batch(1, 4, epoch=1)))
    verify(2, 1)
    with pytest.raises(OutOfOrderSequenceNumber, match="sequence number 2 must be written first"):
        states.check(header_of(batch(1, 3, epoch=1)))
    verify(5, 2)
    states.check(header_of(batch(1, 5, epoch=2)))


def test_marker_ends_what_is_being_verified(log: PartitionLog) -> None:
    append(log, batch(1, 0, is_transactional=False))
    log.producers.verifying(header_of(batch(1, 1)), has_epochs=False)
    end(log, 1, ABORT)
    for sequence in (1, 2):
        append(log, batch(1, sequence, is_transactional=False))
    assert log.log_end_offset == 4


def test_control_batch_of_another_kind_is_no_producers(log: PartitionLog) -> None:
    unknown = records.control_batch(7, producer_id=1, producer_epoch=0, timestamp_ms=T0)
    append(log, unknown)
    assert [*log.producers.describe()] == []


def test_batch_of_a_new_epoch_repeats_none_of_the_epoch_before(log: PartitionLog) -> None:
    for epoch in (0, 1):
        for sequence in range(3):
            assert not append(log, batch(1, sequence, epoch=epoch)).is_duplicate
    assert log.log_end_offset == 6


def test_compaction_keeps_the_last_batch_that_tells_of_a_producer(log: PartitionLog) -> None:
    append(log, batch(1, 0, 2))
    append(log, batch(1, 2))
    end(log, 2, COMMIT, epoch=4)

    def is_last(built: bytes, offset: int) -> bool:
        return log.producers.is_last_of_producer(header_of(built)._replace(base_offset=offset))

    assert [is_last(batch(1, 0, 2), 0), is_last(batch(1, 2), 2)] == [False, True]
    marker = [
        records.control_batch(COMMIT, producer_id=2, producer_epoch=epoch, timestamp_ms=T0)
        for epoch in (3, 4)
    ]
    assert [is_last(each, 3) for each in marker] == [False, True]
    assert not is_last(batch(2, 0, epoch=4), 3)
    assert not is_last(batch(9, 0), 3)


def test_aborted_transactions_are_forgotten_with_their_records(log: PartitionLog) -> None:
    for sequence in range(3):
        write(log, 1, sequence)
        end(log, 1, ABORT)
    log.delete_before(3)
    assert aborted(log) == [(1, 2, 3), (1, 4, 5)]
    assert aborted(log, 4) == [(1, 4, 5)]
    assert [aborted(log, 0, end_offset) for end_offset in (2, 3, 4, 5)] == [
        [], [(1, 2, 3)], [(1, 2, 3)], [(1, 2, 3), (1, 4, 5)],
    ]  # fmt: skip


def test_transaction_with_an_epoch_of_its_own_starts_at_sequence_0() -> None:
    states = ProducerStates()
    late = header_of(batch(1, 5))
    states.check(late)  # a producer of which nothing is known may go on
    states.verifying(late, has_epochs=True)
    with pytest.raises(OutOfOrderSequenceNumber):
        states.check(late)


MARKERS = [  # marker's epoch, coordinator's, version, error; the log has epoch 5 and coordinator 3
    (4, 3, 0, InvalidProducerEpoch),
    (5, 3, 0, None),
    (6, 3, 0, None),
    (5, 2, 0, TransactionCoordinatorFenced),
    (4, 3, 2, InvalidProducerEpoch),
    (5, 3, 2, InvalidProducerEpoch),
    (6, 3, 2, None),
]


@pytest.mark.parametrize(("epoch", "coordinator", "version", "error"), MARKERS)
def test_marker_is_checked_against_what_the_log_has(
    log: PartitionLog, epoch: int, coordinator: int, version: int, error: type[KafkaError] | None
) -> None:
    append(log, batch(1, 0, epoch=5))
    end(log, 1, COMMIT, epoch=5)
    append(log, batch(1, 1, epoch=5))
    marker = header_of(
        records.control_batch(COMMIT, producer_id=1, producer_epoch=epoch, timestamp_ms=T0)
    )
    if error is None:
        log.producers.check_marker(marker, coordinator, version)
    else:
        with pytest.raises(error):
            log.producers.check_marker(marker, coordinator, version)


def test_marker_may_be_repeated_when_its_transaction_has_ended(log: PartitionLog) -> None:
    write(log, 1, 0)
    end(log, 1, COMMIT, epoch=1)
    again = records.control_batch(COMMIT, producer_id=1, producer_epoch=1, timestamp_ms=T0)
    log.producers.check_marker(header_of(again), 3, 2)


def test_batches_of_a_coordinator_open_a_transaction_without_numbers(log: PartitionLog) -> None:
    for _ in range(2):
        append(log, batch(1, -1))
    assert (log.last_stable_offset, log.log_end_offset) == (0, 2)
    end(log, 1, COMMIT)
    assert log.last_stable_offset == 3


def test_producers_are_described(log: PartitionLog) -> None:
    write(log, 1, 0, 2)
    end(log, 1, COMMIT)
    write(log, 1, 2)
    write(log, 2, 0)
    end(log, 2, ABORT)
    found = {one.producer_id: one for one in log.producers.describe()}
    assert found[1] == ProducerState(
        producer_id=1,
        producer_epoch=0,
        last_sequence=2,
        last_timestamp=T0,
        coordinator_epoch=3,
        current_txn_start_offset=3,
    )
    assert (found[2].coordinator_epoch, found[2].current_txn_start_offset) == (3, -1)


class Facts(NamedTuple):
    """All that a log knows of transactions."""

    stable: int
    aborted: list[tuple[int, int, int]]
    open: list[tuple[int, int, int, int]]


def facts(log: PartitionLog) -> Facts:
    return Facts(
        log.last_stable_offset,
        aborted(log),
        sorted(
            (p.producer_id, p.producer_epoch, p.last_sequence, p.current_txn_start_offset)
            for p in log.producers.describe()
        ),
    )


def write_at_random(log: PartitionLog, rng: random.Random, steps: int) -> None:
    sequences = [0] * 5
    for _ in range(steps):
        producer = rng.randrange(5)
        if rng.random() < 0.3:
            end(log, producer, rng.choice((ABORT, COMMIT)))
        else:
            count = rng.randint(1, 3)
            write(log, producer, sequences[producer], count)
            sequences[producer] += count


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_transactions_are_found_again_in_a_folder(tmp_path: Path, seed: int, how: str) -> None:
    def open_log() -> PartitionLog:
        return PartitionLog(FolderStore(tmp_path, 3_000), run_slowly=lambda work: work())

    log = open_log()
    write_at_random(log, random.Random(seed), 200)
    before = facts(log)
    if how == "closed":
        log.close()
    again = open_log()
    assert facts(again) == before
    assert before.aborted


@pytest.mark.parametrize("seed", range(5))
def test_cut_log_knows_what_a_log_that_ended_there_knows(new_log: NewLog, seed: int) -> None:
    rng = random.Random(seed)
    log = new_log()
    write_at_random(log, rng, 120)
    kept = log.truncate_to(rng.randrange(log.log_end_offset))
    fresh = PartitionLog(MemoryStore(MEGABYTE), run_slowly=lambda work: work())
    offset = 0
    while offset < kept:
        for header, view in iter_batches(log.read(offset, MEGABYTE)):
            fresh.append(header, bytes(view), leader_epoch=0)
            offset = header.last_offset + 1
    assert facts(log) == facts(fresh)
    # And both go on in the same way.
    for one in (log, fresh):
        for producer in range(5):
            end(one, producer, ABORT)
    assert facts(log) == facts(fresh)


def test_log_truncated_after_a_restart_lists_each_aborted_transaction_once(tmp_path: Path) -> None:
    def open_log() -> PartitionLog:
        return PartitionLog(FolderStore(tmp_path, 2_000), run_slowly=lambda work: work())

    log = open_log()
    write(log, 1, 0)  # 0
    end(log, 1, ABORT)  # 1
    write(log, 1, 1)  # 2
    log.close()
    again = open_log()
    again.truncate_to(2)
    assert aborted(again) == [(1, 0, 1)]


@for_each(range(10))
def test_every_aborted_transaction_within_a_range_is_found(seed: int) -> None:
    rng = random.Random(seed)
    log = PartitionLog(MemoryStore(MEGABYTE), run_slowly=lambda work: work())
    write_at_random(log, rng, 200)
    everything = aborted(log)
    for _ in range(50):
        start = rng.randrange(log.log_end_offset)
        stop = rng.randint(start + 1, log.log_end_offset)
        wanted = [one for one in everything if one[2] >= start and one[1] < stop]
        assert aborted(log, start, stop) == wanted


def test_deleted_records_take_their_aborted_transactions_along(log: PartitionLog) -> None:
    for number in range(5):
        write(log, 1, number)
        end(log, 1, ABORT)
    log.delete_before(5)
    assert aborted(log) == [(1, 4, 5), (1, 6, 7), (1, 8, 9)]
