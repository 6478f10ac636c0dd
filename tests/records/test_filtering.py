"""Batches with some of their records left out: the others are as they were."""

from __future__ import annotations

import itertools

import pytest

from aiokafka_lite import records
from aiokafka_lite.errors import CorruptRecordException
from aiokafka_lite.records.filtering import filter_batch
from tests.support.crafted import (
    CODECS,
    FIRST_TIMESTAMP,
    batch,
    raw_batch,
    record,
    record_set,
    take_all,
    varint,
)
from tests.support.for_each import for_each


def header_of(content: bytes) -> records.BatchHeader:
    header = records.read_header(memoryview(content), 0)
    assert header is not None
    return header


def filtered(content: bytes, *kept: bool, horizon_ms: int | None = None) -> bytes:
    return filter_batch(
        header_of(content),
        memoryview(content),
        kept,
        max_timestamp=FIRST_TIMESTAMP + 9,
        delete_horizon_ms=horizon_ms,
    )


@for_each(itertools.product(CODECS, [None, *(FIRST_TIMESTAMP + n for n in (0, -70, 2**40))]))
def test_records_that_are_kept_are_as_they_were(codec: str, horizon_ms: int | None) -> None:
    content = batch(6, base_offset=5, codec=codec)
    left = filtered(content, False, True, True, False, True, False, horizon_ms=horizon_ms)
    taken = take_all(record_set(content))
    assert take_all(record_set(left)) == [taken[1], taken[2], taken[4]]
    header = header_of(left)
    assert (header.base_offset, header.last_offset, header.count) == (5, 10, 3)
    assert (header.max_timestamp, header.delete_horizon_ms) == (FIRST_TIMESTAMP + 9, horizon_ms)
    assert header.codec is header_of(content).codec


def test_timestamp_that_is_far_from_the_first_is_kept_with_a_horizon() -> None:
    far = record(0, timestamp_delta=varint(-(2**63)))
    (read,) = take_all(
        record_set(filtered(raw_batch(far, count=1, base_timestamp=0), True, horizon_ms=-5))
    )
    assert read.timestamp == -(2**63)


def test_batch_of_which_nothing_is_kept_has_its_offsets() -> None:
    decoded = record_set(filtered(batch(3, base_offset=5, codec="gzip"), *[False] * 3))
    assert (decoded.take(9), decoded.next_offset) == ([], 8)


@pytest.mark.parametrize("bad", [record(1, length=9), record(1, length=-1), b"\x80", b"\xff" * 12])
def test_records_of_other_lengths_than_they_say_are_corruption(bad: bytes) -> None:
    with pytest.raises(CorruptRecordException):
        filtered(raw_batch(record(0) + bad, count=2), True, True)
