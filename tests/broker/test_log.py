"""The log: offsets, reads, times, deletion; in memory and in a folder."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aiokafka_lite.broker.log import segment
from aiokafka_lite.broker.log.segment import MemorySegment
from aiokafka_lite.broker.log.storage import FolderStore, LogStore, MemoryStore
from aiokafka_lite.errors import (
    CorruptRecordException,
    KafkaStorageError,
    OffsetOutOfRangeError,
)
from aiokafka_lite.records import iter_batches
from tests.broker.logs import MEGABYTE, T0, append, batch, headers, open_log

NewStore = Callable[[int], LogStore]


@pytest.fixture(params=["memory", "folder"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewStore:
    """Make a store with segments of a given size."""
    if request.param == "memory":
        return MemoryStore
    return lambda segment_bytes: FolderStore(tmp_path / "log", segment_bytes)


def test_empty_log_starts_and_ends_at_0(new_store: NewStore) -> None:
    log = open_log(new_store(MEGABYTE))
    assert (log.log_start_offset, log.log_end_offset, log.size) == (0, 0, 0)
    assert log.read(0, MEGABYTE) == b""
    assert log.offset_at_time(0) is None
    assert log.offset_of_newest() is None
    with pytest.raises(OffsetOutOfRangeError):
        log.read(1, MEGABYTE)


def test_offsets_are_given_in_order_and_written_into_the_batch(new_store: NewStore) -> None:
    log = open_log(new_store(MEGABYTE))
    results = [append(log, batch(count), epoch=3) for count in (2, 1, 4)]
    assert [(r.base_offset, r.last_offset) for r in results] == [(0, 1), (2, 2), (3, 6)]
    assert log.log_end_offset == log.high_watermark == log.last_stable_offset == 7
    read = headers(log.read(0, MEGABYTE))
    assert [(h.base_offset, h.leader_epoch, h.count) for h in read] == [
        (0, 3, 2), (2, 3, 1), (3, 3, 4),
    ]  # fmt: skip


def test_bytes_given_are_not_changed_and_writable_memory_is(new_store: NewStore) -> None:
    log = open_log(new_store(MEGABYTE))
    append(log, batch())
    given = batch()
    append(log, given)
    assert given == batch()
    writable = bytearray(batch())
    ((header, _),) = iter_batches(memoryview(writable))
    log.append(header, writable, leader_epoch=0)
    assert headers(memoryview(writable))[0].base_offset == 2


def test_read_starts_with_the_batch_that_holds_the_offset(new_store: NewStore) -> None:
    log = open_log(new_store(MEGABYTE))
    for _ in range(5):
        append(log, batch(2))
    for offset in range(10):
        first = headers(log.read(offset, MEGABYTE))[0]
        assert first.base_offset == offset - offset % 2, offset


def test_read_returns_whole_batches_only(new_store: NewStore) -> None:
    log = open_log(new_store(MEGABYTE))
    for _ in range(4):
        append(log, batch())
    one = log.size // 4
    for max_bytes, expected in (
        (0, 1), (1, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2), (4 * one, 4), (9 * one, 4),
    ):  # fmt: skip
        assert len(log.read(0, max_bytes)) == expected * one
    assert log.read(0, one - 1, at_least_one=False) == b""


def test_segments_are_rolled_and_reads_stay_within_one(new_store: NewStore) -> None:
    size = len(batch())
    log = open_log(new_store(2 * size))
    for _ in range(200):
        append(log, batch())
    offset = reads = 0
    while offset < log.log_end_offset:
        read = headers(log.read(offset, MEGABYTE))
        assert read[0].base_offset == offset
        offset, reads = read[-1].last_offset + 1, reads + 1
    assert (offset, log.size) == (200, 200 * size)
    assert reads == len(log.segments) == 100


def test_batch_larger_than_a_segment_gets_one_of_its_own(new_store: NewStore) -> None:
    log = open_log(new_store(100))
    for _ in range(3):
        append(log, batch(10, size=1000))
    assert [header.base_offset for header in headers(log.read(10, MEGABYTE))] == [10]


def test_view_stays_valid_when_the_log_moves_on(new_store: NewStore) -> None:
    log = open_log(new_store(1000))
    append(log, batch(3))
    view = log.read(0, MEGABYTE)
    before = bytes(view)
    for _ in range(50):
        append(log, batch(3))
    log.delete_before(100)
    log.delete()
    assert bytes(view) == before
    with pytest.raises(TypeError):
        view[0] = 1


def test_bytes_from_counts_to_the_end_over_segments(new_store: NewStore) -> None:
    size = len(batch())
    log = open_log(new_store(3 * size))
    for _ in range(10):
        append(log, batch())
    assert [log.bytes_from(offset, MEGABYTE) for offset in (0, 4, 9, 10)] == [
        10 * size, 6 * size, size, 0,
    ]  # fmt: skip
    assert log.bytes_from(0, size + 1) == size + 1
    assert [log.bytes_from(offset, MEGABYTE, 4) for offset in (0, 3, 4)] == [4 * size, size, 0]


def test_times_are_found_over_segments(new_store: NewStore) -> None:
    log = open_log(new_store(400))
    for minute in range(20):
        append(log, batch(2, timestamp=T0 + minute * 60_000))
    for minute in range(20):
        at = T0 + minute * 60_000
        assert log.offset_at_time(at) == (2 * minute, at)
        assert log.offset_at_time(at + 1) == (2 * minute + 1, at + 1)
    assert log.offset_at_time(T0 + 19 * 60_000 + 2) is None
    assert log.offset_of_newest() == (39, T0 + 19 * 60_000 + 1)


def test_time_is_found_among_all_segments_after_each_append(new_store: NewStore) -> None:
    log = open_log(new_store(2 * len(batch())))
    times = [T0 + after for after in (5, 1, 1, 9, 2, 2, 2, 12, 3, 3, 15, 1, 1, 1)]
    for count, timestamp in enumerate(times, 1):
        append(log, batch(timestamp=timestamp))
        found = list(enumerate(times[:count]))
        for at in range(T0, T0 + 17):
            assert log.offset_at_time(at) == next((each for each in found if each[1] >= at), None)


def test_time_of_a_deleted_record_leads_to_a_later_segment(new_store: NewStore) -> None:
    log = open_log(new_store(2 * len(batch())))
    for after in (9, 1, 1, 1, 9):
        append(log, batch(timestamp=T0 + after))
    log.delete_before(1)
    assert log.offset_at_time(T0 + 5) == (4, T0 + 9)
    assert log.offset_at_time(T0) == (1, T0 + 1)


def test_times_that_go_backward_find_the_first_that_is_late_enough(new_store: NewStore) -> None:
    log = open_log(new_store(MEGABYTE))
    for minute in (5, 1, 9, 2):
        append(log, batch(timestamp=T0 + minute))
    assert log.offset_at_time(T0 + 2) == (0, T0 + 5)
    assert log.offset_at_time(T0 + 6) == (2, T0 + 9)
    assert log.offset_of_newest() == (2, T0 + 9)


def test_deleting_moves_the_start_and_drops_whole_segments(new_store: NewStore) -> None:
    size = len(batch())
    log = open_log(new_store(4 * size))
    for _ in range(300):
        append(log, batch())
    assert log.epochs.entries == [(0, 0)]
    assert log.delete_before(250) == 250
    assert log.log_start_offset == 250
    assert log.epochs.entries == [(0, 250)]
    assert log.size < 300 * size
    with pytest.raises(OffsetOutOfRangeError):
        log.read(249, MEGABYTE)
    assert headers(log.read(250, 1))[0].last_offset == 250
    assert log.delete_before(100) == 250
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_before(301)
    assert log.delete_before(300) == 300
    assert log.offset_at_time(0) is None
    assert append(log, batch()).base_offset == 300


def test_epochs_end_where_the_next_began(new_store: NewStore) -> None:
    log = open_log(new_store(MEGABYTE))
    for epoch, count in ((0, 3), (2, 4), (5, 1)):
        append(log, batch(count), epoch=epoch)
    assert [log.end_of_epoch(epoch) for epoch in (-1, 0, 1, 2, 4, 5, 6)] == [
        (-1, -1), (0, 3), (0, 3), (2, 7), (2, 7), (5, 8), (-1, -1),
    ]  # fmt: skip


def test_repeated_batch_of_a_producer_is_appended_once(new_store: NewStore) -> None:
    log = open_log(new_store(MEGABYTE))
    sent = batch(3, producer_id=9, producer_epoch=0, base_sequence=0)
    append(log, batch())
    first, second = append(log, sent), append(log, sent)
    assert (first.is_duplicate, second.is_duplicate) == (False, True)
    assert first[:2] == second[:2] == (1, 3)
    assert log.log_end_offset == 4


def test_failed_write_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(FolderStore(tmp_path / "log", MEGABYTE))
    append(log, batch())

    (path,) = (tmp_path / "log").glob("*.log")
    write, size = os.pwrite, path.stat().st_size

    def full(fd: int, data: memoryview, offset: int) -> int:
        if len(data) < len(batch()):
            raise OSError(28, "No space left on device")
        return write(fd, data[:20], offset)

    for count in (1, 2):  # it is logged once, until a write succeeds
        with monkeypatch.context() as patched:
            patched.setattr("os.pwrite", full)
            for _ in range(3):
                with pytest.raises(KafkaStorageError, match="No space left"):
                    append(log, batch())
        assert caplog.text.count("No space left") == count
        assert log.log_end_offset == count
        assert path.stat().st_size == count * size
        assert append(log, batch()).base_offset == count
    log.close()


def test_file_that_was_truncated_by_others_cannot_be_read(tmp_path: Path) -> None:
    log = open_log(FolderStore(tmp_path, MEGABYTE))
    append(log, batch())
    (path,) = tmp_path.glob("*.log")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(KafkaStorageError, match="was truncated: the file has 20 bytes"):
        log.read(0, MEGABYTE)


def test_small_reads_of_a_file_that_grows_are_copies_and_large_ones_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(batch())
    monkeypatch.setattr(segment, "MAP_FROM_BYTES", 2 * size)
    log = open_log(FolderStore(tmp_path, MEGABYTE))
    for _ in range(4):
        append(log, batch())
    for offset, count, kind in ((0, 1, bytes), (2, 1, bytes), (0, 2, mmap.mmap), (1, 2, mmap.mmap)):
        assert type(log.read(offset, count * size).obj) is kind


def test_segment_in_memory_takes_no_more_than_its_room() -> None:
    assert MemoryStore(MEGABYTE).new_cleaned(0, 100_000).has_room(300_000)
    small = MemorySegment(0, 10)
    small.append(0, T0, memoryview(bytes(10)))
    assert (small.has_room(0), small.has_room(1)) == (True, False)
    with pytest.raises(KafkaStorageError, match=r"1 bytes does not fit into .* 0 free bytes"):
        small.append(1, T0, memoryview(b"x"))
    with pytest.raises(CorruptRecordException, match="batch 0 of a log segment is incomplete"):
        small.header(0)
