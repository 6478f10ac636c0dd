"""Batches by themselves: sizes, outcomes, and those that an application fills."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from aiokafka_lite.errors import KafkaError
from aiokafka_lite.producing.batch import (
    BATCH_OVERHEAD_BYTES,
    MAX_TIMESTAMP_MS,
    RECORD_OVERHEAD_BYTES,
    Headers,
    OwnBatch,
    OwnReceipt,
    ProducerBatch,
    ProducerIdAndEpoch,
    Tell,
    record_size_bound,
)
from aiokafka_lite.records import read_header
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.structs import RecordMetadata, TopicPartition

TP = TopicPartition("t", 1)
ME = ProducerIdAndEpoch(7, 0)
RECORD_BYTES = RECORD_OVERHEAD_BYTES + 1


def batch_of(receipts: Sequence[object], tell: Tell | None = None) -> ProducerBatch:
    """A batch with a record for each receipt, with timestamps from 10 on."""
    batch = ProducerBatch(
        TP, 1.0, codec=Codec.NONE, is_transactional=False, linger_s=5.0, tell=tell
    )
    for number, receipt in enumerate(receipts):
        batch.append(10 + number, None, b"v", (), RECORD_BYTES, receipt)  # type: ignore[arg-type]
    return batch


def metadata(offset: int) -> RecordMetadata:
    return RecordMetadata(*TP, TP, offset, 0, 0, 0)


def own_batch(most_bytes: int = 1_000, records: int = 0) -> OwnBatch:
    def encode(
        key: object, value: object, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None, Headers]:
        return None, b"v", headers or ()

    own = OwnBatch(most_bytes, encode)
    for _ in range(records):
        own.append(timestamp=0, key=None, value=None)
    return own


# --- Sizes -----------------------------------------------------------------------------------
def test_the_size_of_a_record_is_at_most_the_sum_of_its_parts() -> None:
    headers = [("name", b"12345"), ("n", None)]
    assert record_size_bound(None, None, ()) == RECORD_OVERHEAD_BYTES
    assert record_size_bound(b"12", b"123", headers) == RECORD_OVERHEAD_BYTES + 5 + 31 + 14


def test_parts_are_as_large_as_they_may_be_and_keep_the_sequences() -> None:
    batch = batch_of(range(5))
    batch.number(ME, 3)
    parts = batch.split(BATCH_OVERHEAD_BYTES + 2 * RECORD_BYTES, Codec.NONE)
    assert [part.count for part in parts] == [2, 2, 1]
    assert [part.base_sequence for part in parts] == [3, 5, 7]
    assert [part.receipts for part in parts] == [[0, 1], [2, 3], [4]]
    assert batch.receipts == []


def test_another_sequence_is_written_into_the_bytes_of_a_batch() -> None:
    batch = batch_of([0])
    with pytest.raises(AssertionError, match="no sequence"):
        batch.encoded()
    for identity, sequence in ((ME, 3), (ME._replace(epoch=1), 0)):
        batch.number(identity, sequence)
        header = read_header(memoryview(batch.encoded()), 0)
        assert header is not None
        assert (header.producer_epoch, header.base_sequence) == (identity.epoch, sequence)
    batch.split(100, Codec.NONE)
    with pytest.raises(AssertionError, match="already finished"):
        batch.encoded()


def test_closing_a_batch_ends_its_linger_once() -> None:
    batch = batch_of([0])
    assert batch.due_at == 6.0
    batch.close()
    assert batch.due_at == 1.0
    batch.due_at = 9.0  # the next attempt
    batch.close()
    assert batch.due_at == 9.0


# --- Outcomes --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("base_offset", "append_ms", "offsets", "timestamps", "kind"),
    [
        (5, -1, [5, 7], [10, 12], 0),
        (0, 0, [0, 2], [0, 0], 1),
        (-1, 99, [-1, -1], [99, 99], 1),
    ],
)
async def test_records_are_placed_one_after_the_other(
    base_offset: int, append_ms: int, offsets: list[int], timestamps: list[int], kind: int
) -> None:
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    batch = batch_of(futures)
    futures[1].cancel()
    batch.number(ME, 0)
    batch.succeed(base_offset, append_ms, 4)
    placed = [futures[0].result(), futures[2].result()]
    assert [each.offset for each in placed] == offsets
    assert [each.timestamp for each in placed] == timestamps
    assert {
        (each.topic_partition, each.timestamp_type, each.log_start_offset) for each in placed
    } == {(TP, kind, 4)}
    assert (batch.receipts, batch.count) == ([], 3)


@pytest.mark.parametrize(("append_ms", "timestamp"), [(-1, 10), (99, 99)])
def test_numbers_of_records_are_told_with_the_place_of_the_first(
    append_ms: int, timestamp: int
) -> None:
    told: list[tuple[list[int], RecordMetadata | KafkaError]] = []
    batch = batch_of([4, 5], lambda numbers, outcome: told.append((list(numbers), outcome)))
    batch.succeed(8, append_ms, 0)
    ((numbers, outcome),) = told
    assert isinstance(outcome, RecordMetadata)
    assert (numbers, outcome.offset, outcome.timestamp) == ([4, 5], 8, timestamp)
    assert batch.receipts == []


# --- Batches of an application -----------------------------------------------------------------
def test_a_batch_of_ones_own_is_full_at_its_size_and_takes_one_record_at_least() -> None:
    own = own_batch(BATCH_OVERHEAD_BYTES + 2 * RECORD_BYTES)
    for number in range(2):
        assert own.append(timestamp=5, key=None, value=None) == (number, RECORD_BYTES, 5)
    assert not own.closed()
    assert own.append(timestamp=5, key=None, value=None) is None
    assert own.closed()
    assert (own.record_count(), own.size()) == (2, BATCH_OVERHEAD_BYTES + 2 * RECORD_BYTES)
    assert own_batch(10, records=1).record_count() == 1


def test_a_batch_of_ones_own_that_is_closed_takes_no_more() -> None:
    own = own_batch(records=1)
    own.close()
    assert own.append(timestamp=None, key=None, value=None) is None
    assert own.record_count() == 1


def test_timestamps_of_ones_own_are_checked_and_otherwise_the_time() -> None:
    own = own_batch()
    before_ms = int(time.time() * 1_000)
    appended = own.append(timestamp=None, key=None, value=None)
    assert appended is not None
    assert before_ms <= appended.timestamp <= time.time() * 1_000
    for allowed in (0, MAX_TIMESTAMP_MS):
        assert own.append(timestamp=allowed, key=None, value=None) is not None
    for wrong in (-1, MAX_TIMESTAMP_MS + 1, 1.5, True, "1"):
        with pytest.raises((TypeError, ValueError), match="timestamp"):
            own.append(timestamp=wrong, key=None, value=None)  # type: ignore[arg-type]
    assert own.record_count() == 3


@pytest.mark.parametrize("end", ["written", "failed", "cancelled"])
async def test_a_batch_of_ones_own_has_its_outcome_with_the_last_of_its_parts(end: str) -> None:
    future = asyncio.get_running_loop().create_future()
    receipt = OwnReceipt(future, own_batch(records=3), is_quiet=False)
    receipt.tell([0], metadata(5))
    assert not future.done()
    if end == "cancelled":
        future.cancel()
    receipt.tell([1], KafkaError("lost") if end == "failed" else metadata(6))
    assert future.done() is (end != "written")
    receipt.tell([2], metadata(7))
    if end == "written":
        assert future.result().offset == 5
    elif end == "failed":
        with pytest.raises(KafkaError, match="lost"):
            future.result()
