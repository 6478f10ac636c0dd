"""What a folder gives back: after a clean close, and after a process that was killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aiokafka_lite.broker.log.storage import STATE_FILE
from aiokafka_lite.errors import CorruptRecordException, KafkaStorageError
from tests.broker.logs import MEGABYTE, append, batch, contents, headers, reopen


def test_clean_close_gives_back_everything(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder, 700)
    for epoch in (0, 0, 1, 3):
        for _ in range(5):
            append(log, batch(2), epoch=epoch)
    append(log, batch(2, producer_id=5, producer_epoch=1, base_sequence=0), epoch=3)
    log.delete_before(3)
    before = (contents(log), log.epochs.entries, log.log_start_offset, log.log_end_offset)
    log.close()

    again = reopen(folder, 700)
    assert again.was_clean
    assert (
        contents(again), again.epochs.entries, again.log_start_offset, again.log_end_offset,
    ) == before  # fmt: skip
    repeated = batch(2, producer_id=5, producer_epoch=1, base_sequence=0)
    assert append(again, repeated, epoch=3).is_duplicate
    assert append(again, batch(), epoch=3).base_offset == 42
    again.close()


def test_process_that_was_killed_loses_nothing_it_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder, 2000)
    sent = [batch(1, producer_id=5, producer_epoch=0, base_sequence=n) for n in range(40)]
    for number, each in enumerate(sent):
        append(log, each, epoch=number // 15)
    before = contents(log)

    again = reopen(folder, 2000)  # without a close
    assert not again.was_clean
    assert contents(again) == before
    assert again.epochs.entries == [(0, 0), (1, 15), (2, 30)]
    assert append(again, sent[-1], epoch=2).is_duplicate
    again.close()
    third = reopen(folder, 2000)
    assert third.was_clean
    assert contents(third) == before
    third.close()


def test_tail_torn_at_any_byte_is_cut_to_whole_batches(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder)
    for _ in range(3):
        append(log, batch(2))
    (path,) = folder.glob("*.log")
    whole = path.read_bytes()
    size = len(whole) // 3
    for end in range(2 * size, len(whole)):
        path.write_bytes(whole[:end])
        again = reopen(folder)
        assert (again.log_end_offset, again.size) == (4, 2 * size)
        assert path.stat().st_size == 2 * size
        assert append(again, batch()).base_offset == 4
        for each in folder.iterdir():
            each.unlink()


@pytest.mark.parametrize("position", [16, 20, 40, 61, 80])
def test_damaged_batch_ends_the_log(tmp_path: Path, position: int) -> None:
    folder = tmp_path / "log"
    log = reopen(folder)
    for _ in range(3):
        append(log, batch(2))
    (path,) = folder.glob("*.log")
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 3 + position] ^= 0x40
    path.write_bytes(damaged)
    again = reopen(folder)
    assert again.log_end_offset == 2
    assert [header.base_offset for header in headers(again.read(0, MEGABYTE))] == [0]
    again.close()


def test_garbage_behind_the_log_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder)
    append(log, batch(2))
    log.close()
    (path,) = folder.glob("*.log")
    with path.open("ab") as file:
        file.write(b"\0" * 500)
    again = reopen(folder)
    assert (again.log_end_offset, again.was_clean) == (2, False)
    again.close()


def test_batch_that_was_there_before_ends_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder)
    for _ in range(3):
        append(log, batch(2))
    (path,) = folder.glob("*.log")
    whole = path.read_bytes()
    size = len(whole) // 3
    path.write_bytes(whole[: 2 * size] + whole[:size] + whole[2 * size :])
    again = reopen(folder)
    assert (again.log_end_offset, again.size, path.stat().st_size) == (4, 2 * size, 2 * size)
    again.close()


def test_epochs_of_records_that_are_missing_are_forgotten(tmp_path: Path) -> None:
    log = reopen(tmp_path)
    for epoch in range(6):
        append(log, batch(), epoch=epoch)
    log.close()
    (path,) = tmp_path.glob("*.log")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again = reopen(tmp_path)
    # The fourth began where the log ends: its records may be written again.
    assert again.epochs.entries == [(0, 0), (1, 1), (2, 2), (3, 3)]
    again.close()


def test_empty_file_at_the_end_takes_the_next_batch(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.log").touch()
    log = reopen(tmp_path, 100)
    append(log, batch(10, size=1_000))
    assert [segment.base_offset for segment in log.segments] == [0]
    log.close()


def test_what_was_flushed_is_not_checked_again(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder)
    append(log, batch(2))
    append(log, batch(2))
    log.close()
    (path,) = folder.glob("*.log")
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    again = reopen(folder)
    assert (again.log_end_offset, again.was_clean) == (4, True)
    again.close()


NOT_INDEXES: list[Callable[[bytes], bytes]] = [
    lambda index: b"",
    lambda index: b"xx",
    lambda index: b"\0" * 100,
    lambda index: index[:12],  # its header, with no rows
    lambda index: index[:-1],
    lambda index: bytes(4) + index[4:],
    lambda index: index[:4] + (10**6).to_bytes(8, sys.byteorder) + index[12:],
]


@pytest.mark.parametrize("damaged", NOT_INDEXES)
def test_index_that_is_none_is_built_anew(
    tmp_path: Path, damaged: Callable[[bytes], bytes]
) -> None:
    folder = tmp_path / "log"
    log = reopen(folder)
    for _ in range(3):
        append(log, batch(2))
    log.close()
    (index,) = folder.glob("*.index")
    index.write_bytes(damaged(index.read_bytes()))
    again = reopen(folder)
    assert [header.base_offset for header in headers(again.read(0, MEGABYTE))] == [0, 2, 4]
    again.close()


def test_hole_in_the_middle_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder, 300)
    for _ in range(6):
        append(log, batch(2))
    first = min(folder.glob("*.log"))
    first.with_suffix(".index").unlink()
    first.write_bytes(first.read_bytes()[:-5])
    with pytest.raises(CorruptRecordException, match=first.name):
        reopen(folder, 300)


def test_state_that_is_none_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder)
    append(log, batch())
    log.close()
    for wrong in (b"{", json.dumps({"no": "such"}).encode()):
        (folder / STATE_FILE).write_bytes(wrong)
        with pytest.raises(KafkaStorageError, match=STATE_FILE):
            reopen(folder)


def test_log_that_was_never_written_leaves_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder)
    log.begin_epoch(0)
    log.close()
    assert not folder.exists()


def test_deletion_survives_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = reopen(folder, 300)
    for _ in range(6):
        append(log, batch(2))
    log.delete_before(12)
    again = reopen(folder, 300)
    assert (again.log_start_offset, again.log_end_offset) == (12, 12)
    again.close()
