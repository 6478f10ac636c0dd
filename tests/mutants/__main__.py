"""Change the package at random, and list the changes that no test notices.

    make contexts                         which tests run which line (out/contexts.json)
    make mutants N=300 SEED=7             draw 300 changes, try each
    make mutants N=50 PATHS='consumer/commits consumer/membership'

Each change is made in a copy of the tree. The tests that run its line are run, those that run the
fewest lines first. A change survives if all of them pass. Tests that fail without a change do not
count.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.changes import Change, changes_of
from tests.mutants.contexts import FILE, Lines, kept
from tests.support.durations import ROOT

_PACKAGE: Final = "aiokafka_lite"
_NEITHER: Final = ("cli", "spark", "extras")
"""Folders of which no change is drawn unless PATHS names them: their tests start processes."""

_COPIED: Final = (_PACKAGE, "tests", "benchmarks", "docs", "pyproject.toml", "README.md")


class Outcome(Enum):
    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    NOT_RUN = "no test runs the line"


class Mutant(NamedTuple):
    """A change of a file, whose path is that of the tree."""

    file: str
    change: Change

    @property
    def package(self) -> str:
        return "/".join(self.file.split("/")[1:-1][:2]) or "."

    def __str__(self) -> str:
        return f"{self.file}:{self.change.line}: {self.change}"


def drawn(paths: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw changes of the files below these paths of the package, of all if there is none."""
    home = ROOT / _PACKAGE
    folders = [home / path for path in paths] or [home]
    files = {
        file
        for folder in folders
        for file in (folder.rglob("*.py") if folder.is_dir() else [folder])
        if paths or file.relative_to(home).parts[0] not in _NEITHER
    }
    mutants = [
        Mutant(file.relative_to(ROOT).as_posix(), change)
        for file in sorted(files)
        for change in changes_of(file.read_text(encoding="utf-8"))
    ]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def breadth(lines: Lines) -> Counter[str]:
    """Count the lines that each test runs."""
    return Counter(
        test for of_file in lines.values() for running in of_file.values() for test in running
    )


def tests_of(mutant: Mutant, lines: Lines, count_of: Mapping[str, int], limit: int) -> list[str]:
    """Return the tests that run a line of the change, those that run the fewest lines first."""
    of_file = lines.get(mutant.file, {})
    change = mutant.change
    running = {
        test
        for line in range(change.line, change.end_line + 1)
        for test in of_file.get(line, frozenset())
    }
    return sorted(running, key=lambda test: (count_of[test], test))[:limit]


@contextmanager
def copied_tree() -> Iterator[Path]:
    """Make a copy of the tree to change."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        tree = Path(name)
        for each in _COPIED:
            if (ROOT / each).is_dir():
                leave_out = shutil.ignore_patterns("__pycache__", "results")
                shutil.copytree(ROOT / each, tree / each, ignore=leave_out)
            else:
                shutil.copy2(ROOT / each, tree / each)
        yield tree


def run(
    tests: Sequence[str], tree: Path, *options: str, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run tests on a copy of the tree."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly",
         "-m", "not real_kafka and not java", *options, *tests],
        cwd=tree, capture_output=True, text=True, timeout=timeout_s, check=False,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def failing(tests: Sequence[str], tree: Path, workers: int) -> frozenset[str]:
    """Return the tests that fail without a change: they notice nothing."""
    if not tests:
        return frozenset()
    done = run(tests, tree, "-n", str(workers), "--dist", "loadfile")
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the tests do not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return frozenset(re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", done.stdout, re.MULTILINE))


def tried(mutant: Mutant, tests: Sequence[str], tree: Path, timeout_s: float) -> Outcome:
    """Run the tests on the changed package."""
    if not tests:
        return Outcome.NOT_RUN
    path = tree / mutant.file
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    path.write_text(mutant.change.apply(source), encoding="utf-8")
    try:
        done = run(tests, tree, "-x", timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return Outcome.TIMED_OUT
    finally:
        path.write_text(source, encoding="utf-8")
    if done.returncode not in (0, 1, 2, 3, 4):
        raise RuntimeError(f"{mutant}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Outcome.KILLED if done.returncode else Outcome.SURVIVED


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw changes and try them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("paths", nargs="*", help="below the package; all of it without")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tests", type=int, default=60, help="the most tests to run of a change")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one change")
    given = parser.parse_args(arguments)
    if not FILE.exists():
        parser.error(f"{FILE.relative_to(ROOT)} is missing: make contexts")
    lines = kept()
    count_of = breadth(lines)
    mutants = drawn(given.paths, given.count, given.seed)
    chosen = {mutant: tests_of(mutant, lines, count_of, given.tests) for mutant in mutants}
    outcomes: dict[Mutant, Outcome] = {}
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def attempt(mutant: Mutant) -> None:
        tree = trees.get()
        tests = [test for test in chosen[mutant] if test not in failed]
        try:
            outcomes[mutant] = outcome = tried(mutant, tests, tree, given.timeout)
        finally:
            trees.put(tree)
        if outcome in (Outcome.SURVIVED, Outcome.NOT_RUN):
            print(f"{outcome.value} ({len(tests)} tests): {mutant}", flush=True)

    with ExitStack() as stack:
        for _ in range(given.workers):
            trees.put(stack.enter_context(copied_tree()))
        union = sorted({test for tests in chosen.values() for test in tests})
        tree = trees.get()
        failed = failing(union, tree, given.workers)
        trees.put(tree)
        print(f"{len(mutants)} changes, {len(union)} tests, {len(failed)} fail without a change")
        pool = stack.enter_context(ThreadPoolExecutor(given.workers))
        for _ in pool.map(attempt, mutants):
            pass
    print(share_by_package(outcomes))
    return 0


def share_by_package(outcomes: dict[Mutant, Outcome]) -> str:
    """Return a table: how many changes of each package were noticed."""
    drawn_of = Counter(mutant.package for mutant in outcomes)
    killed_of = Counter(
        mutant.package
        for mutant, outcome in outcomes.items()
        if outcome in (Outcome.KILLED, Outcome.TIMED_OUT)
    )
    rows = [
        f"{package:<28} {killed_of[package]:>4} of {count:>4} killed"
        for package, count in sorted(drawn_of.items())
    ]
    total = f"{'all':<28} {killed_of.total():>4} of {drawn_of.total():>4} killed"
    return "\n".join([*rows, total])


if __name__ == "__main__":
    sys.exit(main())
