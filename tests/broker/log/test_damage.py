"""Data directories that something was taken from: it is said what, and reading goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import CorruptRecordException
from aiokafka_lite.records import build_batch
from tests.broker.logs import T0, append, batch, contents, reopen

TP = TopicPartition("t", 0)
SEGMENT_BYTES = 300  # two batches
RECORDS = 20
OPEN_FILES = Path("/proc/self/fd")


def records_of(log_folder: Path) -> list[Path]:
    return sorted(log_folder.glob("*.log"))


def fill(folder: Path, count: int = RECORDS) -> None:
    log = reopen(folder, SEGMENT_BYTES)
    for _ in range(count):
        append(log, batch())
    log.close()


def remove(segment: Path) -> None:
    segment.unlink()
    segment.with_suffix(".index").unlink()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_segment_missing_in_the_middle_is_named_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "log"
    fill(folder)
    before, _, gone, after, *_ = records_of(folder)
    first, behind = int(gone.stem), int(after.stem)
    remove(gone)
    log = reopen(folder, SEGMENT_BYTES)
    (warning,) = warnings_in(caplog)
    assert f"offsets {first} to {behind - 1} " in warning
    assert after.name in warning
    assert before.name not in warning
    assert records_of(folder)[1].name in warning
    assert (log.log_start_offset, log.log_end_offset, log.was_clean) == (0, RECORDS, False)
    for offset in range(first, behind):
        assert contents_from(log.read(offset, 10_000)) == behind
    log.close()

    caplog.clear()
    again = reopen(folder, SEGMENT_BYTES)  # it was said once
    assert (warnings_in(caplog), again.was_clean) == ([], True)
    assert contents_from(again.read(first, 10_000)) == behind
    again.close()


def contents_from(records: memoryview) -> int:
    """Return the offset of the first record."""
    return int.from_bytes(records[:8], "big")


def test_segment_missing_at_the_start_moves_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "log"
    fill(folder)
    first, second, *_ = records_of(folder)
    remove(first)
    log = reopen(folder, SEGMENT_BYTES)
    (warning,) = warnings_in(caplog)
    assert f"offsets 0 to {int(second.stem) - 1} " in warning
    assert second.name in warning
    assert (log.log_start_offset, log.log_end_offset) == (int(second.stem), RECORDS)
    assert len(contents(log)) == RECORDS - int(second.stem)
    log.close()


def test_log_without_any_of_its_segments_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "log"
    fill(folder)
    for segment in records_of(folder):
        remove(segment)
    log = reopen(folder, SEGMENT_BYTES)
    (warning,) = warnings_in(caplog)
    assert f"offsets 0 to {RECORDS - 1} " in warning
    assert str(folder) in warning
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    log.close()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_records_missing_at_the_end_of_a_closed_log_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """Whole batches are gone, so that nothing in the file looks torn."""
    folder = tmp_path / "log"
    log = reopen(folder)
    for _ in range(RECORDS):
        append(log, batch())
    log.close()
    (path,) = records_of(folder)
    size = path.stat().st_size // RECORDS
    path.write_bytes(path.read_bytes()[: (RECORDS - count) * size])
    again = reopen(folder)
    (warning,) = warnings_in(caplog)
    assert f"offsets {RECORDS - count} to {RECORDS - 1} " in warning
    assert path.name in warning
    assert (again.log_end_offset, again.was_clean) == (RECORDS - count, False)
    again.close()

    caplog.clear()
    reopen(folder).close()
    assert not warnings_in(caplog)


@pytest.mark.parametrize("at_end", [1, 40, 80])
def test_torn_batch_is_named_with_file_and_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at_end: int
) -> None:
    folder = tmp_path / "log"
    log = reopen(folder)
    for _ in range(3):
        append(log, batch())
    (path,) = records_of(folder)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-at_end])
    again = reopen(folder)
    (warning,) = warnings_in(caplog)
    assert str(path) in warning
    assert f"byte {size // 3 * 2} of {size - at_end}" in warning
    assert again.log_end_offset == 2
    again.close()


def test_what_a_kill_or_compaction_leaves_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "log"
    log = reopen(folder, SEGMENT_BYTES)
    for _ in range(RECORDS):
        append(log, batch())
    log.delete_before(5)
    assert log.replace_segments(log.segments[1:3], None, ())
    end = log.truncate_to(RECORDS - 3)
    reopen(folder, SEGMENT_BYTES)  # without a close
    assert not warnings_in(caplog)
    again = reopen(folder, SEGMENT_BYTES)
    assert (again.log_end_offset, contents(again)) == (end, contents(log))


async def test_consumers_read_on_behind_a_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        topic = broker.create_topic("t", configs={"segment.ms": "1500"})
        for number in range(RECORDS):
            broker.partition(*TP).append(
                build_batch([(T0 + 1_000 * number, None, b"%d" % number, ())])
            )
        folder = tmp_path / topic_folder(tmp_path) / "0"
        assert topic.partition_count == 1
    gone = records_of(folder)[2]
    behind = int(records_of(folder)[3].stem)
    remove(gone)
    async with Broker(data_dir=tmp_path) as broker:
        (warning,) = warnings_in(caplog)
        assert "t-0" in warning
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        async with consumer:
            consumer.assign([TP])
            expected = [*range(int(gone.stem)), *range(behind, RECORDS)]
            found = [await asyncio.wait_for(consumer.getone(), 10) for _ in range(len(expected))]
        assert [record.offset for record in found] == expected
        assert [int(record.value or b"") for record in found] == expected


def topic_folder(data_dir: Path) -> str:
    (folder,) = data_dir.glob("t.*")
    return folder.name


@pytest.mark.parametrize("column", ["offsets", "positions", "timestamps"])
@pytest.mark.parametrize("number", [-2, 0, 1 << 40])
def test_index_with_impossible_numbers_is_made_again(
    tmp_path: Path, column: str, number: int
) -> None:
    folder = tmp_path / "log"
    fill(folder)
    before = contents(reopen(folder, SEGMENT_BYTES))
    index = records_of(folder)[-2].with_suffix(".index")
    stored = bytearray(index.read_bytes())
    # Two rows, after a header of 12 bytes: the first column has the base offsets.
    at = 12 + 16 * ["offsets", "positions", "timestamps"].index(column) + 8 * (number <= 0)
    stored[at : at + 8] = number.to_bytes(8, sys.byteorder, signed=True)
    index.write_bytes(stored)
    log = reopen(folder, SEGMENT_BYTES)
    assert contents(log) == before
    assert (log.log_start_offset, log.log_end_offset) == (0, RECORDS)
    log.close()


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="this system does not list open files")
def test_log_that_cannot_be_loaded_keeps_no_file_open(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    fill(folder)
    first = records_of(folder)[0]
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(CorruptRecordException, match="is damaged at byte"):
        reopen(folder, SEGMENT_BYTES)
    names = [os.readlink(path) for path in OPEN_FILES.iterdir() if path.is_symlink()]
    assert not [name for name in names if name.startswith(str(folder))]


def test_empty_segment_behind_a_gap_is_the_end(tmp_path: Path) -> None:
    """A broker that is killed before the first batch of a segment leaves it empty."""
    folder = tmp_path / "log"
    fill(folder)
    (folder / f"{RECORDS + 30:020}.log").touch()
    log = reopen(folder, SEGMENT_BYTES)
    assert log.log_end_offset == RECORDS + 30
    for offset in (RECORDS, RECORDS + 29, RECORDS + 30):
        assert (len(log.read(offset, 10_000)), log.bytes_from(offset, 99)) == (0, 0)
    assert log.bytes_from(RECORDS - 1, 10_000) == len(batch())
    append(log, batch())
    assert contents_from(log.read(RECORDS, 10_000)) == RECORDS + 30
    log.close()
    log = reopen(folder, SEGMENT_BYTES)
    assert log.truncate_to(RECORDS + 5) == RECORDS
    append(log, batch())
    assert log.log_end_offset == RECORDS + 1
    log.close()


def test_empty_segment_is_truncated(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    fill(folder)
    (folder / f"{RECORDS + 30:020}.log").touch()
    log = reopen(folder, SEGMENT_BYTES)
    assert log.truncate_to(RECORDS + 5) == RECORDS
    assert records_of(folder)[-1].stem != f"{RECORDS + 30:020}"
    append(log, batch())
    assert contents_from(log.read(RECORDS, 10_000)) == RECORDS
    log.close()
