"""Runs drivers as processes of their own, finds what they started, and kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from aiokafka_lite._compat import Self
from tests.support.spark.session import REPOSITORY

WAIT_S = 300.0
LOOK_EVERY_S = 0.02
DAEMON = "pyspark.daemon"
# What a daemon's children run for tasks; others plan.
TASKS = "pyspark.worker"
EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Job:
    """What a driver is to do.

    Attributes:
        folder: Where table and checkpoint are.
        options: The source's.
        settings: Spark's, which go before those of tests.
        is_once: Ends when it has read what is there.
    """

    folder: str
    options: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    is_once: bool = False

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Return it as an argument for a command."""
        return json.dumps(asdict(self))

    def logged(self, log: str) -> set[int]:
        """Return the batches in one of the checkpoint's logs."""
        files = (Path(self.folder) / "checkpoint" / log).glob("[0-9]*")
        return {int(file.name) for file in files if file.name.isdigit()}

    def rows(self) -> pa.Table:
        """Return the rows of the table, which are those of the files that the sink's log names."""
        columns = ["topic", "partition", "offset", "key", "value"]
        tables = [
            pq.ParquetFile(path).read(columns) for path in _files(Path(self.folder) / "table")
        ]
        return pa.concat_tables(tables)


def _files(table: Path) -> list[str]:
    """Read Spark's log of a file sink: what was compacted last, and the batches after that."""
    logs = {int(file.name.split(".")[0]): file for file in _log_files(table)}
    compacted = [batch for batch, file in logs.items() if file.suffix == ".compact"]
    first = max(compacted, default=-1)
    return [
        str(json.loads(line)["path"]).removeprefix("file://")
        for batch in sorted(logs)
        if batch >= first
        for line in logs[batch].read_text().splitlines()[1:]
    ]


def _log_files(table: Path) -> list[Path]:
    """Of a batch that has both, the compacted file comes last."""
    files = (table / "_spark_metadata").glob("[0-9]*")
    return sorted(files, key=lambda file: file.suffix == ".compact")


class Process(NamedTuple):
    """A process that runs."""

    pid: int
    parent: int
    command: str


class Driver:
    """A driver in a session (of the operating system) of its own, with all that it starts.

    Args:
        job: What it does.
        log: Gets what it prints.
    """

    def __init__(self, job: Job, log: Path) -> None:
        self.job = job
        self._log = log
        # What a killed driver cannot remove goes with the test's folder.
        scratch = Path(job.folder) / "scratch"
        scratch.mkdir(exist_ok=True)
        with log.open("ab") as out:
            self._begins = out.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.chaos.driver", job.to_json()],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                cwd=REPOSITORY, start_new_session=True,
                env={**os.environ, "TMPDIR": str(scratch), "SPARK_LOCAL_IP": "127.0.0.1"},
            )  # fmt: skip

    @property
    def printed(self) -> str:
        """What it has said."""
        return self._log.read_bytes()[self._begins :].decode(errors="replace")

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait for something that the driver does."""
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert self._process.poll() is None, f"it ended before {what}: {self.printed[-3000:]}"
            assert time.monotonic() < deadline, f"not {what} in time: {self.printed[-3000:]}"
            time.sleep(LOOK_EVERY_S)

    def wait_for_batches(self, count: int) -> None:
        """Wait until so many more batches than now are committed."""
        goal = len(self.job.logged("commits")) + count
        self.wait_until(lambda: len(self.job.logged("commits")) >= goal, f"{count} batches")

    def wait(self) -> int:
        """Wait until it ends by itself; returns its exit code."""
        return self._process.wait(WAIT_S)

    def kill(self) -> None:
        """Kill the driver, its JVM and what is in their process group, all at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def processes(self) -> list[Process]:
        """Return what runs in its session."""
        return [process for process in _every() if _session(process.pid) == self._process.pid]

    def workers(self) -> list[int]:
        """Return the Python processes that tasks run in: children of a daemon."""
        forked = {
            process.pid: process.parent
            for process in self.processes()
            if DAEMON in process.command and TASKS in process.command
        }
        return [pid for pid, parent in forked.items() if parent in forked]

    def executors(self) -> list[int]:
        """Return the JVMs of executors."""
        return [p.pid for p in self.processes() if EXECUTOR in p.command]

    def wait_until_nothing_is_left(self) -> None:
        """Wait until what it started has ended, too: workers end when their JVM does."""
        deadline = time.monotonic() + WAIT_S
        while left := self.processes():
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(LOOK_EVERY_S)


def _every() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state, parent = _status(entry)
            except OSError:
                continue
            if state != "Z":
                yield Process(int(entry.name), parent, command)


def _status(entry: Path) -> tuple[str, int]:
    """Return state and parent; the name before them may hold anything, in parentheses."""
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1])


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


@contextmanager
def driving(job: Job, log: Path) -> Iterator[Driver]:
    """Start a driver, and see to it that nothing of it is left."""
    driver = Driver(job, log)
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait_until_nothing_is_left()
