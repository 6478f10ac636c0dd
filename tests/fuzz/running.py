"""Each target in a process of its own, which another one watches: only so a crash has a witness.

The process writes each input into a file that it shares, and counts: if it dies, or if a count does
not change although the process computes, that is the input.
"""

from __future__ import annotations

import itertools
import json
import logging
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz import catalogue
from tests.fuzz.engine import (
    LARGEST_INPUT_BYTES,
    ROOT,
    SLOWNESS,
    Fuzzer,
    Runner,
    Violation,
    read_input,
    replay_command,
    write_input,
)

# Where inputs that break a rule are written.
OUT: Final = Path(os.environ.get("AIOKAFKA_LITE_FUZZ_OUT", ROOT / "out" / "fuzz"))
_HEAD: Final = struct.Struct("=QQ")  # executions, and the size of the input
SHARED_BYTES: Final = _HEAD.size + LARGEST_INPUT_BYTES
WATCHED_EVERY_S: Final = 0.25
# As a hang in C counts so much processor time in one execution; Python code is interrupted before.
DEAF_S: Final = 4.0 * SLOWNESS


@dataclass
class Result:
    """What a process has reached with one target."""

    name: str
    executions: int = 0
    seconds: float = 0.0
    outcomes: int = 0
    pool: int = 0
    # (rule, key, file) of each broken rule.
    found: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.executions / self.seconds if self.seconds else 0.0


# --- The process that fuzzes -------------------------------------------------------------------
def fuzz_here(name: str, seed: int, seconds: float, executions: int, shared: Path | None) -> Result:
    """Fuzz one target in this process."""
    logging.disable(logging.CRITICAL)
    fuzzer = Fuzzer(catalogue.make(name), seed)
    began = time.monotonic()
    with _shared(shared) as note:
        fuzzer.runner.before = note
        fuzzer.run(
            lambda: (
                fuzzer.count >= executions if executions else time.monotonic() - began >= seconds
            )
        )
    result = Result(name, fuzzer.count, time.monotonic() - began, fuzzer.outcome_count)
    result.pool = len(fuzzer.pool)
    for key, found in fuzzer.found.items():
        path = write_input(OUT, name, found.content)
        path.with_suffix(".txt").write_text(
            f"{found.violation.rule}: {key}\n{replay_command(path)}\n\n{found.violation.report}\n",
            encoding="utf-8",
            errors="backslashreplace",
        )
        result.found.append((found.violation.rule, key, str(path)))
    return result


@contextmanager
def _shared(path: Path | None) -> Iterator[Callable[[bytes], None]]:
    if path is None:
        yield lambda content: None
        return
    with path.open("r+b") as file, mmap.mmap(file.fileno(), SHARED_BYTES) as memory:
        numbers = itertools.count(1)  # also of the runs that shrink an input

        def note(content: bytes) -> None:
            memory[_HEAD.size : _HEAD.size + len(content)] = content
            _HEAD.pack_into(memory, 0, next(numbers), len(content))

        yield note


# --- The process that watches ------------------------------------------------------------------
def fuzz(name: str, seed: int, seconds: float, executions: int = 0) -> Result:
    """Fuzz one target in another process. If that dies, report its input."""
    with tempfile.TemporaryDirectory(prefix="aiokafka-lite-fuzz-") as folder:
        shared = Path(folder) / "shared"
        shared.write_bytes(bytes(SHARED_BYTES))
        command = [
            *(sys.executable, "-m", "tests.fuzz", "--child", name, "--seed", str(seed)),
            *("--seconds", str(seconds), "--executions", str(executions)),
            *("--shared", str(shared)),
        ]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
            is_deaf = _watch(child, shared)
            output = child.stdout.read() if child.stdout is not None else b""
        if child.returncode == 0:
            lines = output.decode().splitlines()
            return Result(**json.loads(lines[-1]))
        number, size = _HEAD.unpack_from(shared.read_bytes())
        content = shared.read_bytes()[_HEAD.size : _HEAD.size + size]
        how = "hang in C" if is_deaf else f"exit code {child.returncode}"
        result = Result(name, number, time.monotonic() - began)
        path = write_input(OUT, name, content)
        result.found.append(("hang" if is_deaf else "crash", how, str(path)))
        return result


def _watch(child: subprocess.Popen[bytes], shared: Path) -> bool:
    """Wait for a process. End it, and return True, if one execution takes too long."""
    last, began_at = -1, 0.0
    while True:
        try:
            child.wait(WATCHED_EVERY_S)
            return False
        except subprocess.TimeoutExpired:
            pass
        with shared.open("rb") as file:
            number, _ = _HEAD.unpack(file.read(_HEAD.size))
        used_s = _processor_time(child.pid)
        if number != last:
            last, began_at = number, used_s
        elif number and used_s - began_at > DEAF_S:
            child.send_signal(signal.SIGKILL)
            child.wait()
            return True


def _processor_time(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def replay(path: Path) -> str | Violation:
    """Run an input of a file in this process."""
    name, content = read_input(path)
    return Runner(catalogue.make(name)).execute(content)
