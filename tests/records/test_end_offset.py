"""Record sets that end at an offset: wherever that is, both decoders, all formats."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite import records
from aiokafka_lite.errors import CorruptRecordException
from aiokafka_lite.records import decoders
from tests.support.crafted import batch, message, raw_batch, record

GAPPED = (0, 3, 4, 9)
"""Offset deltas of a batch that compaction has been through."""


def gapped(base_offset: int) -> bytes:
    payload = b"".join(record(delta) for delta in GAPPED)
    return raw_batch(
        payload, count=len(GAPPED), base_offset=base_offset, last_offset_delta=GAPPED[-1] + 2
    )


MAGIC_2 = batch(5) + gapped(5) + batch(4, base_offset=30, codec="lz4") + gapped(40)
OFFSETS_2 = [*range(5), *(5 + n for n in GAPPED), *range(30, 34), *(40 + n for n in GAPPED)]
MAGIC_1 = b"".join(message(offset, b"v", magic=1) for offset in (2, 3, 9))
MAGIC_0 = b"".join(message(offset, b"v", magic=0) for offset in (2, 3, 9))


def limited(content: bytes, start: int, end: int, *, may_block: bool = False) -> records.RecordSet:
    return records.RecordSet(
        "topic",
        0,
        memoryview(content),
        fetch_offset=start,
        end_offset=end,
        may_block=may_block,
    )


def taken(record_set: records.RecordSet, at_a_time: int) -> list[int]:
    found: list[int] = []
    while some := record_set.take(at_a_time):
        found += [each.offset for each in some]
    return found


def rows_taken(record_set: records.RecordSet, at_a_time: int) -> list[int]:
    columns = decoders.current().columns_class()()
    found: list[int] = []
    while record_set.take_columns(columns, at_a_time):
        offsets = columns.finish().offsets
        found += memoryview(offsets).cast("B").cast("q").tolist()  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("name", sorted(records.DECODERS))
@pytest.mark.parametrize(
    ("content", "offsets"), [(MAGIC_2, OFFSETS_2), (MAGIC_1, [2, 3, 9]), (MAGIC_0, [2, 3, 9])]
)
@given(st.integers(0, 55), st.integers(0, 55), st.sampled_from([1, 2, 3, 1000]))
def test_records_from_start_to_end_and_no_others_are_taken(
    name: str, content: bytes, offsets: list[int], start: int, end: int, at_a_time: int
) -> None:
    wanted = [offset for offset in offsets if start <= offset < end]
    with records.use_decoder(name):
        for take, may_block in product((taken, rows_taken), (False, True)):
            record_set = limited(content, start, end, may_block=may_block)
            assert take(record_set, at_a_time) == wanted
            assert record_set.is_exhausted
            assert record_set.next_offset >= min(end, offsets[-1] + 1)


@pytest.mark.parametrize("name", sorted(records.DECODERS))
def test_what_lies_behind_the_end_is_not_looked_at(name: str) -> None:
    broken = bytearray(MAGIC_2 + batch(3, base_offset=60))
    broken[-1] ^= 0xFF
    with records.use_decoder(name):
        for end in (52, 55, 60):
            record_set = limited(bytes(broken), 0, end)
            assert taken(record_set, 1000) == OFFSETS_2
            assert record_set.is_exhausted
        with pytest.raises(CorruptRecordException):
            taken(limited(bytes(broken), 0, 61), 1000)


@pytest.mark.parametrize("name", sorted(records.DECODERS))
def test_a_batch_behind_newer_ones_does_not_move_the_end_back(name: str) -> None:
    content = memoryview(batch(5, base_offset=10) + batch(5))
    with records.use_decoder(name):
        assert records.end_offset(content) == 15
