"""Cutting a log's end off: what is left, what may be appended, what a restart finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aiokafka_lite.broker.log import segment
from aiokafka_lite.broker.log.partition_log import PartitionLog
from aiokafka_lite.broker.log.storage import FolderStore
from aiokafka_lite.errors import OffsetOutOfRangeError
from tests.broker.log.conftest import OpenLog
from tests.broker.logs import (
    MEGABYTE,
    T0,
    append,
    batch,
    contents,
    headers,
    open_log,
    topic_config,
)

SIZE = len(batch(2))


def filled(new_log: OpenLog, batches: int = 200, *, per_segment: int = 4) -> PartitionLog:
    """Make a log of batches of two records, one epoch for each ten of them."""
    log = new_log(per_segment * SIZE)
    for number in range(batches):
        append(log, batch(2, timestamp=T0 + 10 * number), epoch=number // 10)
    return log


@pytest.mark.few_rows(8)
@pytest.mark.parametrize("target", [398, 396, 392, 391, 350, 8, 7, 2, 1, 0])
def test_log_ends_at_the_batch_that_holds_the_offset(new_log: OpenLog, target: int) -> None:
    log = filled(new_log)
    before = contents(log)
    boundary = target - target % 2
    assert log.truncate_to(target) == boundary
    assert log.log_end_offset == log.high_watermark == boundary
    assert contents(log) == before[: boundary // 2]
    assert log.size == boundary // 2 * SIZE
    assert log.read(boundary, MEGABYTE) == b""
    with pytest.raises(OffsetOutOfRangeError):
        log.read(boundary + 1, MEGABYTE)


def test_offset_behind_the_end_cuts_nothing(new_log: OpenLog) -> None:
    log = filled(new_log, 5)
    assert log.truncate_to(10) == log.truncate_to(99) == log.log_end_offset == 10


@pytest.mark.parametrize("target", [391, 8, 0])
def test_log_goes_on_where_it_was_cut(new_log: OpenLog, target: int) -> None:
    log = filled(new_log)
    end = log.truncate_to(target)
    for number in range(20):
        assert append(log, batch(3), epoch=99).base_offset == end + 3 * number
    assert [header.leader_epoch for header in headers(log.read(end, MEGABYTE))][:2] == [99, 99]
    assert contents(log)[end // 2][0] == end


@pytest.mark.parametrize("target", [391, 386, 11])
def test_views_handed_out_keep_what_was_cut(new_log: OpenLog, target: int) -> None:
    log = filled(new_log)
    views = [log.read(offset, MEGABYTE) for offset in range(0, 400, 2)]
    before = [bytes(view) for view in views]
    log.truncate_to(target)
    for _ in range(50):
        append(log, batch(2, size=49), epoch=99)
    assert [bytes(view) for view in views] == before


@pytest.mark.parametrize("map_from_bytes", [0, 10 * MEGABYTE])
def test_views_of_a_growing_segment_keep_what_was_cut(
    new_log: OpenLog, monkeypatch: pytest.MonkeyPatch, map_from_bytes: int
) -> None:
    monkeypatch.setattr(segment, "MAP_FROM_BYTES", map_from_bytes)
    log = new_log(MEGABYTE)
    views, expected = [], []
    for number in range(300):  # larger than a page, and than what was mapped before
        append(log, batch(2, timestamp=T0 + number), epoch=0)
        if number % 7 == 0:
            views.append(log.read(number, MEGABYTE))
            expected.append(bytes(views[-1]))
    log.truncate_to(101)
    before = contents(log)
    for number in range(300):
        append(log, batch(2, size=49), epoch=99)
        if number % 7 == 0:
            assert len(headers(log.read(100, MEGABYTE))) == number + 1
    assert [bytes(view) for view in views] == expected
    assert contents(log)[: len(before)] == before
    assert log.log_end_offset == 700


def test_epochs_that_were_cut_are_forgotten(new_log: OpenLog) -> None:
    log = filled(new_log, 30)
    log.truncate_to(41)
    assert log.epochs.entries == [(0, 0), (1, 20)]
    assert log.end_of_epoch(1) == (1, 40)
    assert log.end_of_epoch(2) == (-1, -1)


def test_times_that_were_cut_are_not_found(new_log: OpenLog) -> None:
    log = filled(new_log)
    log.truncate_to(100)
    assert log.offset_at_time(T0 + 49 * 10) == (98, T0 + 490)
    assert log.offset_at_time(T0 + 50 * 10) is None
    assert log.offset_of_newest() == (99, T0 + 491)


def test_segment_that_is_the_last_again_is_rolled_at_its_own_time(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    log.configure(topic_config(segment_ms="1000"))
    for timestamp in (T0, T0, T0 + 5_000):
        append(log, batch(2, timestamp=timestamp))
    log.truncate_to(2)
    append(log, batch(2, timestamp=T0 + 3_000))
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_what_was_deleted_stays_deleted(new_log: OpenLog) -> None:
    log = filled(new_log)
    log.delete_before(51)
    assert log.truncate_to(51) == log.truncate_to(3) == 51
    assert (log.log_start_offset, log.log_end_offset) == (51, 51)
    assert append(log, batch()).base_offset == 51


def test_producers_go_on_from_their_last_batch_that_is_left(new_log: OpenLog) -> None:
    log = new_log(4 * SIZE)

    def sent(producer_id: int, epoch: int, sequence: int) -> bytes:
        return batch(1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)

    append(log, sent(1, 0, 0))  # offset 0, and nothing after the cut
    for sequence in range(20):
        append(log, sent(2, 0, sequence))  # 1 to 20
    for sequence in range(10):
        append(log, sent(2, 1, sequence))  # 21 to 30: a newer epoch, all of it cut
    append(log, sent(3, 0, 0))  # 31: all of it cut
    assert log.truncate_to(19) == 19

    assert append(log, sent(1, 0, 0)).is_duplicate
    for sequence in range(13, 18):  # the five newest that are left, at 14 to 18
        assert append(log, sent(2, 0, sequence)) == (sequence + 1, sequence + 1, -1, True)
    assert append(log, sent(2, 0, 18)).base_offset == 19
    assert append(log, sent(3, 0, 7)).base_offset == 20  # as any new producer


@pytest.mark.parametrize("per_segment", [4, 1000])
@pytest.mark.parametrize("more", [0, 1, 90])
def test_cut_survives_a_kill(tmp_path: Path, per_segment: int, more: int) -> None:
    def reopened() -> PartitionLog:
        return open_log(FolderStore(tmp_path / "log", per_segment * SIZE))

    log = reopened()
    for number in range(40):
        sent = batch(2, producer_id=5, producer_epoch=0, base_sequence=2 * number)
        append(log, sent, epoch=number // 4)
    log.close()  # so that there is an index and a state that know all of it
    log = reopened()
    assert log.truncate_to(31) == 30
    for number in range(more):
        sent = batch(2, producer_id=6, producer_epoch=0, base_sequence=2 * number, size=70)
        append(log, sent, epoch=99)
    before = (contents(log), log.epochs.entries, log.producers.snapshot(), log.log_end_offset)

    again = reopened()  # without a close
    assert (
        contents(again), again.epochs.entries, again.producers.snapshot(), again.log_end_offset,
    ) == before  # fmt: skip
    again.close()


def test_state_that_the_disk_saves_late_does_not_undo_a_cut(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []
    store = FolderStore(tmp_path / "log", 4 * SIZE)
    log = PartitionLog(store, run_slowly=waiting.append)
    for number in range(40):
        append(log, batch(2), epoch=number)
    log.truncate_to(0)
    append(log, batch(), epoch=99)
    for work in waiting:
        work()
    again = open_log(FolderStore(tmp_path / "log", 4 * SIZE))
    assert (again.epochs.entries, again.log_end_offset) == ([(99, 0)], 1)
    again.close()
