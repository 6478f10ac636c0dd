"""What a record set gives out, where it says to go on, and when errors come."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

from aiokafka_lite import records
from aiokafka_lite.errors import (
    CorruptRecordException,
    DecompressionLimitError,
    KafkaError,
    RecordTooLargeError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.crafted import (
    CODECS,
    CONTROL,
    aborted,
    batch,
    committed,
    corrupted,
    interleaved,
    message,
    numbered,
    of_transaction,
    offsets,
    raw_batch,
    record,
    record_set,
    take_all,
)
from tests.support.for_each import for_each

pytestmark = pytest.mark.usefixtures("decoder")


# --- taking --------------------------------------------------------------------------------------


@for_each(CODECS)
def test_batch_is_taken_in_parts(codec: str) -> None:
    taken_in_parts = record_set(batch(10, base_offset=5, codec=codec))
    assert offsets(taken_in_parts.take(4)) == [5, 6, 7, 8]
    assert (taken_in_parts.next_offset, taken_in_parts.is_exhausted) == (9, False)
    assert offsets(taken_in_parts.take(4)) == [9, 10, 11, 12]
    assert offsets(taken_in_parts.take(4)) == [13, 14]
    assert (taken_in_parts.next_offset, taken_in_parts.is_exhausted) == (15, True)
    assert taken_in_parts.take(4) == []


def test_take_goes_over_batches_until_it_has_enough() -> None:
    several = record_set(batch(3) + batch(3, base_offset=3, codec="zstd") + batch(3, base_offset=6))
    assert offsets(several.take(7)) == [0, 1, 2, 3, 4, 5, 6]
    assert offsets(several.take(7)) == [7, 8]
    packed = record_set(batch(3, codec="zstd") + batch(3, base_offset=3, codec="zstd"))
    assert offsets(packed.take(4)) == [0, 1, 2, 3]


def test_set_that_is_taken_in_part_can_be_collected_with_a_cycle() -> None:
    class Holder:
        """Something that refers to itself by way of the set."""

    holder = Holder()
    record_sets = [record_set(batch(3) + batch(3, base_offset=3)) for _ in range(3)]
    for number, each in enumerate(record_sets):
        each.take(number)
    holder.cycle = holder, record_sets  # type: ignore[attr-defined]
    gone = weakref.ref(holder)
    del holder, record_sets, each
    gc.collect()
    assert gone() is None


def test_nothing_is_taken_when_nothing_is_asked_for() -> None:
    untouched = record_set(batch(3))
    assert untouched.take(0) == []
    assert untouched.take(-1) == []
    assert offsets(untouched.take(5)) == [0, 1, 2]
    broken = record_set(corrupted(batch(3)))
    for _ in range(2):
        assert broken.take(0) == []
    with pytest.raises(CorruptRecordException):
        broken.take(1)


def test_empty_record_set_is_exhausted() -> None:
    empty = record_set(b"", fetch_offset=17)
    assert (empty.take(5), empty.is_exhausted, empty.next_offset) == ([], True, 17)
    assert (empty.inflate_estimate_s, empty.inflated_bytes, empty.epochs) == (0, 0, [])


def test_set_is_exhausted_with_its_last_record_also_before_a_marker() -> None:
    trailing = record_set(of_transaction(1, 0) + committed(1, 2))
    assert offsets(trailing.take(2)) == [0, 1]
    assert (trailing.is_exhausted, trailing.next_offset) == (True, 3)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_epochs_begin_where_batches_of_another_leader_epoch_do(codec: str) -> None:
    epochs = (4, 4, 6, -1, 6, 7)
    taken = record_set(
        b"".join(
            batch(2, base_offset=2 * n, leader_epoch=epoch, codec=codec)
            for n, epoch in enumerate(epochs)
        )
    )
    assert taken.epochs == []
    assert offsets(taken.take(1)) == [0]
    assert taken.epochs == [(0, 4)]
    assert offsets(taken.take(20)) == list(range(1, 12))
    assert taken.epochs == [(0, 4), (4, 6), (10, 7)]


def test_records_own_their_bytes() -> None:
    content = bytearray(batch(3))
    taken = records.RecordSet("topic", 7, memoryview(content), fetch_offset=0).take(3)
    content[:] = bytes(len(content))
    assert [record.value for record in taken] == [b"v0", b"v1", b"v2"]


def test_records_own_their_bytes_when_the_scratch_buffer_is_used_again() -> None:
    taken = take_all(record_set(batch(30, codec="gzip")))
    take_all(record_set(records.build_batch([(0, b"x" * 400, b"y" * 400, ())], codec="gzip")))
    assert [record.value for record in taken] == [value for _, _, value, _ in numbered(30)]


# --- decompression -------------------------------------------------------------------------------


@for_each(CODECS[1:])
def test_batch_is_inflated_ahead_in_another_thread(codec: str) -> None:
    ahead = record_set(batch(3) + batch(100, base_offset=3, codec=codec))
    assert ahead.inflate_estimate_s == 0  # the first batch is not compressed
    ahead.take(3)
    assert 0 < ahead.inflate_estimate_s < 0.001
    thread = threading.Thread(target=ahead.inflate)
    thread.start()
    thread.join()
    assert ahead.inflate_estimate_s == 0
    assert ahead.inflated_bytes > 100
    assert offsets(ahead.take(50)) == list(range(3, 53))
    assert ahead.inflated_bytes > 0
    assert offsets(ahead.take(50)) == list(range(53, 103))
    assert ahead.inflated_bytes == 0


@for_each(CODECS[1:])
def test_decompression_takes_long_of_many_bytes_with_gzip_and_of_many_records(codec: str) -> None:
    large = records.build_batch([(1, None, os.urandom(100_000), ())], codec=codec)
    many = records.build_batch([(1, None, None, ())] * 10_000, codec=codec)
    estimates = [record_set(content).inflate_estimate_s for content in (large, many)]
    assert estimates == pytest.approx([1e-3 if codec == "gzip" else 0.15e-3, 1e-3], rel=0.01)


def test_inflate_does_nothing_where_nothing_is_compressed() -> None:
    plain = record_set(batch(3))
    plain.inflate()
    assert offsets(plain.take(5)) == [0, 1, 2]


def test_error_of_inflate_is_raised_by_take() -> None:
    broken = record_set(raw_batch(b"this is no gzip", count=2, attributes=1))
    broken.inflate()
    assert broken.inflate_estimate_s == 0
    assert not broken.is_exhausted
    with pytest.raises(CorruptRecordException):
        broken.take(1)


# --- what is passed over -------------------------------------------------------------------------


@for_each(CODECS)
def test_records_below_the_fetch_offset_are_passed_over(codec: str) -> None:
    started = record_set(batch(10, base_offset=10, codec=codec), fetch_offset=17)
    assert offsets(started.take(2)) == [17, 18]
    assert offsets(started.take(2)) == [19]


def test_batches_below_the_fetch_offset_are_not_decompressed() -> None:
    lower = raw_batch(b"no gzip at all", count=2, attributes=1) + batch(2, base_offset=2)
    assert offsets(take_all(record_set(lower, fetch_offset=2))) == [2, 3]


def test_overlapping_batches_give_each_offset_once() -> None:
    overlapping = record_set(batch(5) + batch(5, base_offset=3) + batch(2, base_offset=1))
    assert offsets(take_all(overlapping, 2)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert overlapping.next_offset == 8


def test_position_passes_records_that_compaction_removed_from_the_end() -> None:
    compacted = record_set(raw_batch(record(0) + record(4), count=2, last_offset_delta=9))
    assert offsets(compacted.take(10)) == [0, 4]
    assert (compacted.next_offset, compacted.is_exhausted) == (10, True)


def test_position_passes_a_batch_that_compaction_emptied() -> None:
    emptied = raw_batch(b"", count=0, base_offset=4, last_offset_delta=5)
    compacted = record_set(batch(4) + emptied + batch(1, base_offset=20))
    assert offsets(compacted.take(4)) == [0, 1, 2, 3]
    assert compacted.next_offset == 10
    assert offsets(compacted.take(4)) == [20]
    only_empty = record_set(emptied, fetch_offset=4)
    assert (only_empty.take(1), only_empty.next_offset) == ([], 10)


def test_position_passes_a_batch_whose_records_left_are_below_the_fetch_offset() -> None:
    below = record_set(
        raw_batch(record(0) + record(4), count=2, last_offset_delta=9), fetch_offset=6
    )
    assert (below.take(1), below.next_offset, below.is_exhausted) == ([], 10, True)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@for_each(
    [
        pytest.param(bytes.fromhex("0000 0000"), id="abort"),
        pytest.param(bytes.fromhex("0000 0001"), id="commit"),
        pytest.param(bytes.fromhex("0000 0002"), id="leader change"),
        pytest.param(bytes.fromhex("0007 0063 ffff"), id="unknown version and type"),
    ]
)
def test_control_records_are_never_delivered(key: bytes, isolation: str) -> None:
    marker = record(0, key=b"\x08" + key if len(key) == 4 else b"\x0c" + key)
    control = raw_batch(marker, count=1, base_offset=3, attributes=CONTROL, producer_id=8)
    aborted_list: list[tuple[int, int]] | None = [] if isolation == "read_committed" else None
    controlled = record_set(batch(3) + control + batch(1, base_offset=4), aborted=aborted_list)
    assert offsets(take_all(controlled)) == [0, 1, 2, 4]
    only_control = record_set(control, aborted=aborted_list, fetch_offset=3)
    assert (only_control.take(1), only_control.next_offset) == ([], 4)
    assert only_control.is_exhausted


@pytest.mark.parametrize("codec", [0, 1])
def test_empty_control_batch_is_passed(codec: int) -> None:
    empty = raw_batch(b"", count=0, last_offset_delta=0, attributes=CONTROL | codec, producer_id=8)
    assert offsets(take_all(record_set(empty + batch(1, base_offset=1), aborted=[]))) == [1]


def compressed_markers(count: int) -> bytes:
    """A control batch whose first marker ends an aborted transaction."""
    import gzip

    markers = record(0, key=b"\x08\0\0\0\0") + b"".join(
        record(delta, key=b"\x08\0\0\0\x01") for delta in range(1, count)
    )
    return raw_batch(
        gzip.compress(markers), count=count, base_offset=2, attributes=CONTROL | 1, producer_id=8
    )


def test_the_first_marker_of_a_control_batch_counts_and_it_may_be_compressed() -> None:
    content = of_transaction(8, 0) + compressed_markers(2) + of_transaction(8, 4)
    assert offsets(take_all(record_set(content, aborted=[(8, 0)]))) == [4, 5]


def test_a_control_batch_of_many_markers_is_refused_before_they_are_decompressed() -> None:
    content = of_transaction(8, 0) + compressed_markers(2000)
    with pytest.raises(DecompressionLimitError, match="16384 bytes"):
        take_all(record_set(content, aborted=[(8, 0)]))


def test_control_record_without_a_type_is_corrupt_for_who_has_to_know_it() -> None:
    control = raw_batch(record(0), count=1, attributes=CONTROL, producer_id=8)
    with pytest.raises(CorruptRecordException, match="control"):
        record_set(control, aborted=[]).take(1)
    assert record_set(control).take(1) == []


# --- transactions --------------------------------------------------------------------------------


@for_each([1, 3, 100])
def test_reader_of_committed_records_sees_exactly_the_committed_ones(at_a_time: int) -> None:
    unsorted = [(1, 10), (99, 0), (2, 2)]
    reader = record_set(interleaved(), aborted=unsorted)
    assert offsets(take_all(reader, at_a_time)) == [0, 1, 6, 7, 8, 9, 14, 15]
    assert reader.next_offset == 16


def test_reader_of_uncommitted_records_sees_all() -> None:
    assert offsets(take_all(record_set(interleaved()))) == [0, 1, 2, 3, *range(6, 12), 14, 15]


def test_records_outside_transactions_are_seen_between_those_of_an_aborted_one() -> None:
    content = of_transaction(1, 0) + batch(1, base_offset=2, producer_id=1) + of_transaction(1, 3)
    assert offsets(take_all(record_set(content, aborted=[(1, 0)]))) == [2]


def test_second_abort_marker_of_a_producer_does_no_harm() -> None:
    content = of_transaction(1, 0) + aborted(1, 2) + aborted(1, 3) + of_transaction(1, 4)
    assert offsets(take_all(record_set(content, aborted=[(1, 0)]))) == [4, 5]


def test_reply_of_aborted_records_only_moves_the_position() -> None:
    reader = record_set(of_transaction(1, 0), aborted=[(1, 0)])
    assert (reader.take(10), reader.next_offset, reader.is_exhausted) == ([], 2, True)


def test_cut_batch_behind_aborted_ones_is_not_too_large() -> None:
    reader = record_set(of_transaction(1, 0) + batch(5, base_offset=2)[:-1], aborted=[(1, 0)])
    assert (reader.take(10), reader.next_offset) == ([], 2)


# --- errors come after the records ahead of them -------------------------------------------------


@for_each([0, 1, 2])
def test_batches_ahead_of_a_wrong_checksum_are_delivered(good: int) -> None:
    content = b"".join(batch(3, base_offset=3 * number) for number in range(good))
    broken = record_set(content + corrupted(batch(3, base_offset=3 * good)))
    if good:
        assert offsets(broken.take(100)) == list(range(3 * good))
    for _ in range(2):
        assert broken.take(0) == []
        with pytest.raises(CorruptRecordException, match="checksum") as caught:
            broken.take(100)
        assert caught.value.tp == TopicPartition("topic", 7)
        assert caught.value.offset == 3 * good == broken.next_offset
    assert not broken.is_exhausted


@pytest.mark.parametrize("magic", [0, 1])
def test_wrong_checksum_of_a_message_is_found(magic: int) -> None:
    broken = record_set(message(0, b"a", magic=magic) + corrupted(message(1, b"b", magic=magic)))
    assert offsets(broken.take(9)) == [0]
    with pytest.raises(CorruptRecordException, match="checksum"):
        broken.take(9)


def test_checksums_may_be_left_unchecked() -> None:
    unchecked = record_set(corrupted(batch(3)), check_crcs=False)
    with pytest.raises(CorruptRecordException, match=r"header count -1"):
        take_all(unchecked)
    content = bytearray(batch(3))
    content[17:21] = bytes(4)
    assert offsets(take_all(record_set(bytes(content), check_crcs=False))) == [0, 1, 2]


def test_records_ahead_of_a_malformed_one_are_delivered() -> None:
    broken = record_set(raw_batch(record(0) + record(1) + record(1), count=3))
    assert offsets(broken.take(100)) == [0, 1]
    with pytest.raises(CorruptRecordException) as caught:
        broken.take(100)
    assert caught.value.offset == 2


@for_each([3, 127, 128, 255])
def test_batch_of_an_unknown_format_is_refused(magic: int) -> None:
    content = bytearray(batch(3, base_offset=3))
    content[16] = magic
    broken = record_set(batch(3) + bytes(content))
    assert len(broken.take(100)) == 3
    with pytest.raises(UnsupportedMagicError) as caught:
        broken.take(100)
    assert caught.value.offset == 3


@for_each([5, 6, 7])
def test_batch_of_an_unknown_codec_is_refused(codec: int) -> None:
    broken = record_set(batch(3) + raw_batch(b"?" * 9, count=1, base_offset=3, attributes=codec))
    assert len(broken.take(100)) == 3
    with pytest.raises(UnsupportedCodecError, match=rf"{codec}.*zstd"):
        broken.take(100)


def test_error_does_not_grow_with_each_time_it_is_raised() -> None:
    broken = record_set(corrupted(batch(3)))
    depths = []
    for _ in range(3):
        with pytest.raises(KafkaError) as caught:
            broken.take(1)
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


# --- truncation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_last_batch_may_be_cut_at_every_byte(codec: str) -> None:
    last = batch(3, base_offset=3, codec=codec)
    for cut in range(len(last)):
        cut_set = record_set(batch(3) + last[:cut])
        assert offsets(take_all(cut_set)) == [0, 1, 2]
        assert cut_set.next_offset == 3
        assert cut_set.is_exhausted


@pytest.mark.parametrize("magic", [0, 1])
def test_last_message_may_be_cut_at_every_byte(magic: int) -> None:
    last = message(1, b"value", magic=magic)
    for cut in range(len(last)):
        assert offsets(take_all(record_set(message(0, b"a", magic=magic) + last[:cut]))) == [0]


def test_first_batch_cut_at_any_byte_is_too_large_for_the_fetch() -> None:
    first = batch(3)
    for cut in range(1, len(first)):
        too_large = record_set(first[:cut])
        with pytest.raises(RecordTooLargeError) as caught:
            too_large.take(1)
        assert caught.value.tp == TopicPartition("topic", 7)
        assert caught.value.offset == 0
        if cut >= 12:
            assert f"{len(first)} bytes" in str(caught.value)


# --- ahead of decoding ---------------------------------------------------------------------------


def test_end_offset_is_that_of_the_last_whole_batch() -> None:
    assert records.end_offset(memoryview(b"")) is None
    assert records.end_offset(memoryview(batch(3)[:-1])) is None
    content = batch(3) + batch(4, base_offset=10, codec="zstd")
    assert records.end_offset(memoryview(content)) == 14
    assert records.end_offset(memoryview(content + batch(9, base_offset=14)[:-1])) == 14
    assert records.end_offset(memoryview(content + message(30, b"v", magic=1))) == 31


@for_each(
    [
        pytest.param(batch(1, base_offset=5)[:8] + b"\0\0\0\x05" + bytes(99), id="short length"),
        pytest.param(b"\xff" + batch(1)[1:], id="negative offset"),
        pytest.param(raw_batch(b"", count=0, last_offset_delta=-2), id="negative delta"),
        pytest.param(
            raw_batch(b"", count=0, base_offset=2**63 - 2, last_offset_delta=1),
            id="no offset after it",
        ),
        pytest.param(
            bytes(7) + b"\x09\0\0\0\x14" + bytes(4) + b"\x02" + bytes(99), id="no room for header"
        ),
    ]
)
def test_end_offset_stops_ahead_of_a_header_that_cannot_be_true(broken: bytes) -> None:
    assert records.end_offset(memoryview(batch(3) + broken)) == 3
    with pytest.raises(CorruptRecordException):
        take_all(record_set(batch(3) + broken))


# --- decode_all ----------------------------------------------------------------------------------


def test_decode_all_gives_all_records_but_markers() -> None:
    content = batch(3) + committed(1, 3) + batch(2, base_offset=4, codec="zstd")
    assert offsets(records.decode_all(memoryview(content))) == [0, 1, 2, 4, 5]


def test_decode_all_raises_even_when_there_are_good_records_ahead() -> None:
    with pytest.raises(CorruptRecordException):
        records.decode_all(memoryview(batch(3) + corrupted(batch(3, base_offset=3))))
