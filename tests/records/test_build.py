"""What is built is read again, and is what brokers and other clients expect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite import records
from aiokafka_lite.errors import CorruptRecordException
from tests.support.crafted import batch, offsets, record_set, take_all

nullable_bytes = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=12), nullable_bytes), max_size=4)
timestamps = st.integers(min_value=-1, max_value=2**62)
record_lists = st.lists(
    st.tuples(timestamps, nullable_bytes, nullable_bytes, headers), min_size=1, max_size=20
)


@pytest.mark.parametrize("decoder", sorted(records.DECODERS))
@given(
    built=record_lists,
    codec=st.sampled_from(records.Codec),
    base_offset=st.integers(min_value=0, max_value=2**62),
    at_a_time=st.integers(min_value=1, max_value=25),
)
def test_what_is_built_is_read_again(
    decoder: str,
    built: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: records.Codec,
    base_offset: int,
    at_a_time: int,
) -> None:
    content = records.build_batch(built, codec=codec, base_offset=base_offset, leader_epoch=2)
    with records.use_decoder(decoder):
        read = record_set(content, fetch_offset=base_offset)
        taken = take_all(read, at_a_time)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in taken] == built
    assert offsets(taken) == list(range(base_offset, base_offset + len(built)))
    assert (read.next_offset, read.epochs) == (base_offset + len(built), [(base_offset, 2)])


def test_header_tells_what_the_builder_was_told() -> None:
    content = records.build_batch(
        [(30, b"k", b"v", ()), (10, None, None, ()), (40, None, None, ())],
        codec="lz4",
        base_offset=9,
        producer_id=77,
        producer_epoch=3,
        base_sequence=12,
        is_transactional=True,
        leader_epoch=5,
    )
    header = records.read_header(memoryview(content), 0)
    assert header is not None
    assert (header.size, header.base_offset, header.last_offset) == (len(content), 9, 11)
    assert (header.base_timestamp, header.max_timestamp, header.timestamp_type) == (30, 40, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 12)
    assert (header.magic, header.count, header.leader_epoch) == (2, 3, 5)
    assert (header.codec, header.is_compressed) == (records.Codec.LZ4, True)
    assert (header.is_transactional, header.is_control) == (True, False)


def test_batch_without_records_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one record"):
        records.build_batch([])


def test_control_batch_is_a_transactions_end() -> None:
    content = records.control_batch(
        records.ControlType.ABORT,
        producer_id=4,
        producer_epoch=2,
        timestamp_ms=99,
        base_offset=17,
        coordinator_epoch=6,
        leader_epoch=1,
    )
    ((header, view),) = records.iter_batches(memoryview(content))
    assert (header.is_control, header.is_transactional, header.count) == (True, True, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 2, -1)
    assert (header.last_offset, header.max_timestamp, header.leader_epoch) == (17, 99, 1)
    # length 17: attributes, deltas; key: version 0, type 0; value: version 0, epoch 6; no headers
    assert bytes(view[61:]).hex() == "20 00 00 00 08 0000 0000 0c 0000 00000006 00".replace(" ", "")


# --- headers and patches -------------------------------------------------------------------------


def test_batches_are_walked_over() -> None:
    content = batch(2) + batch(3, base_offset=2, codec="gzip") + batch(1, base_offset=5)[:-1]
    walked = list(records.iter_batches(memoryview(content)))
    assert [header.base_offset for header, _ in walked] == [0, 2]
    assert b"".join(bytes(view) for _, view in walked) == batch(2) + batch(
        3, base_offset=2, codec="gzip"
    )


def test_walk_stops_at_a_wrong_checksum_unless_told_not_to() -> None:
    content = batch(2) + batch(2)[:-1] + b"?"
    walk = records.iter_batches(memoryview(content))
    next(walk)
    with pytest.raises(CorruptRecordException, match="checksum"):
        next(walk)
    assert len(list(records.iter_batches(memoryview(content), check_crcs=False))) == 2


def test_broker_patches_offset_and_epoch_without_touching_the_checksum() -> None:
    content = bytearray(batch(2) + batch(3))
    records.patch_batch(content, len(batch(2)), base_offset=1000, leader_epoch=8)
    assert content[: len(batch(2))] == batch(2)
    _, (header, _) = records.iter_batches(memoryview(content))
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (1000, 1002, 8)


def test_broker_patches_its_append_time() -> None:
    content = bytearray(batch(2) + batch(3, base_offset=2))
    records.patch_batch(memoryview(content), base_offset=5, leader_epoch=1, append_time_ms=123)
    taken = take_all(record_set(bytes(content), fetch_offset=0))
    assert [(r.timestamp_type, r.timestamp == 123) for r in taken[:2]] == [(1, True)] * 2
    assert offsets(taken) == [5, 6]  # the second batch lies below them now
