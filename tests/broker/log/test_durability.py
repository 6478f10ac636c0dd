"""What is on the disk before a name changes: the order of writes that a crash cannot mix up."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from aiokafka_lite.broker.log.disk import replace_file
from aiokafka_lite.broker.log.partition_log import PartitionLog
from aiokafka_lite.broker.log.storage import STATE_FILE, FolderStore
from tests.broker.logs import append, batch, contents, open_log, reopen
from tests.support.leftovers import OPEN_FILES

SIZE = len(batch())

pytestmark = pytest.mark.skipif(not OPEN_FILES.exists(), reason="it looks at open files in /proc")

Step = tuple[str, str]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """What is flushed, renamed and removed, in order."""
    taken: list[Step] = []
    sync, rename, remove = os.fsync, Path.replace, Path.unlink

    def fsync(fd: int) -> None:
        taken.append(("flush", (OPEN_FILES / str(fd)).resolve().name))
        sync(fd)

    def replace(path: Path, target: Path) -> Path:
        taken.append(("rename", target.name))
        return rename(path, target)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.exists():
            taken.append(("remove", path.name))
        remove(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(Path, "unlink", unlink)
    return taken


def test_file_is_flushed_before_it_takes_the_old_ones_name(
    tmp_path: Path, steps: list[Step]
) -> None:
    replace_file(tmp_path / "state", b"new")
    assert steps == [("flush", "state.new"), ("rename", "state"), ("flush", tmp_path.name)]


def test_index_is_written_after_its_segment_was_flushed(tmp_path: Path, steps: list[Step]) -> None:
    log = reopen(tmp_path)
    append(log, batch())
    log.close()
    segment = "0" * 20
    assert steps[:4] == [
        ("flush", f"{segment}.log"),
        ("flush", f"{segment}.index.new"),
        ("rename", f"{segment}.index"),
        ("flush", tmp_path.name),
    ]


def test_compacted_segment_is_flushed_before_the_old_ones_are_removed(
    tmp_path: Path, steps: list[Step]
) -> None:
    waiting: list[Callable[[], None]] = []
    log = PartitionLog(FolderStore(tmp_path, SIZE), run_slowly=waiting.append)
    for _ in range(3):
        append(log, batch())
    old = log.segments[:2]
    cleaned = log.new_cleaned(0, 2 * SIZE)
    cleaned.append(0, -1, memoryview(batch()))
    assert log.replace_segments(old, cleaned, ())
    assert is_view_of_a_file(log)
    steps.clear()
    waiting[-1]()  # the segment: the state comes before it
    names = [f"{offset:020}" for offset in (0, 1, 2)]
    swap, folder = f"{names[0]}-{names[2]}.log.swap", tmp_path.name
    removed = [step for step in steps if step[0] == "remove"]
    assert removed == [("remove", f"{name}.log") for name in names[:2]]
    first, last = steps.index(removed[0]), steps.index(removed[-1])
    assert steps[first - 3 : first] == [
        ("flush", f"{names[0]}.log.{cleaned_number(steps)}.cleaned"),
        ("rename", swap),
        ("flush", folder),
    ]
    assert steps[last + 1 : last + 3] == [("rename", f"{names[0]}.log"), ("flush", folder)]
    assert ("rename", f"{names[0]}.index") in steps[last:]


def is_view_of_a_file(log: PartitionLog) -> bool:
    """Return whether reads of the first segment are views of one mapping, and no copies."""
    return log.read(0, SIZE).obj is log.read(0, SIZE).obj


def cleaned_number(steps: Sequence[Step]) -> str:
    (name,) = [name for _, name in steps if name.endswith(".cleaned")]
    return name.split(".")[2]


def test_rolled_segment_has_its_index_and_the_state_knows_of_it(tmp_path: Path) -> None:
    log = reopen(tmp_path, SIZE)
    for _ in range(3):
        append(log, batch())
    assert len([*tmp_path.glob("*.index")]) == 2
    assert json.loads((tmp_path / STATE_FILE).read_bytes())["log_end_offset"] == 2
    # What was flushed is not read again, and its checksum is not looked at.
    first = min(tmp_path.glob("*.log"))
    first.write_bytes(first.read_bytes()[:-1] + b"\xff")
    assert reopen(tmp_path, SIZE).log_end_offset == 3


def open_files() -> int:
    gc.collect()  # files of earlier tests close with their objects
    return len(os.listdir(OPEN_FILES))


def test_sealed_and_closed_segments_hold_no_files_open(tmp_path: Path) -> None:
    before = open_files()
    log = reopen(tmp_path, SIZE)
    for _ in range(20):
        append(log, batch())
    # A mapping has a descriptor of its own.
    assert open_files() - before == 20
    again = reopen(tmp_path, SIZE)
    assert open_files() - before == 40
    assert is_view_of_a_file(log)
    assert is_view_of_a_file(again)
    again.truncate_to(5)
    again.delete()
    log.close()
    assert open_files() - before == 19


def test_deleted_segments_leave_no_files(tmp_path: Path) -> None:
    log = reopen(tmp_path, SIZE)
    for _ in range(5):
        append(log, batch())
    log.delete_before(3)
    assert len([*tmp_path.glob("*.log")]) == len(log.segments) == 2
    log.delete()
    (tmp_path / STATE_FILE).unlink()
    log.close()
    assert [*tmp_path.iterdir()] == []


def test_nothing_is_saved_if_there_is_nothing_to_delete(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []
    log = PartitionLog(FolderStore(tmp_path, SIZE), run_slowly=waiting.append)
    append(log, batch(4))
    assert log.delete_before(2) == 2
    waiting.clear()
    assert (log.delete_before(2), log.delete_before(1), waiting) == (2, 2, [])


def test_write_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, bytes(data[:50]), at))
    log, sent = reopen(tmp_path), batch()
    for _ in range(2):
        append(log, sent)
    monkeypatch.undo()
    assert [each[16:] for _, each in contents(open_log(FolderStore(tmp_path, SIZE)))] == [
        sent[16:]
    ] * 2
