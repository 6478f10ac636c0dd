"""Change the package at random, and list the changes that no test notices.

    make contexts                         which tests run which line (out/contexts.json)
    make mutants N=300 SEED=7             draw 300 changes, try each
    make mutants N=50 PATHS='consumer/commits consumer/membership'

Each change is made in a copy of the tree, and tests that run its line are run, in three groups of
some seconds each: those that run the fewest lines, those whose files are named like the changed
one, and others at random. A change survives if all of them pass. A test that fails without the
change too does not count.

A change that alters nothing that a test could see is listed in equivalents.txt with the reason, and
is not drawn.
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
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.changes import Change, changes_of
from tests.mutants.contexts import FILE, Contexts, kept, name_of_test
from tests.support.durations import ROOT

_PACKAGE: Final = "aiokafka_lite"
_NEITHER: Final = ("cli", "spark", "extras")
"""Folders of which no change is drawn unless PATHS names them: their tests start processes."""

_EQUIVALENTS: Final = ROOT / "tests" / "mutants" / "equivalents.txt"
_NOT_COPIED: Final = (".venv", ".git", "__pycache__", "out", "results", "build", ".*_cache")
_START_S: Final = 30.0
"""How long pytest may take to begin."""


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

    @property
    def key(self) -> str:
        """Return how equivalents.txt names it: with the line's text, as its number may change."""
        return f"{self.file}: {self.change.around}: {self.change}"

    def __str__(self) -> str:
        return f"{self.file}:{self.change.line}: {self.change}"


def equivalents(text: str) -> frozenset[str]:
    """Return the keys of the changes that alter nothing a test could see; a reason follows each.

    Raises:
        ValueError: A change has no reason.
    """
    keys = set()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, reason = line.partition("  # ")
            if not reason:
                raise ValueError(f"the reason is missing: {line}")
            keys.add(key)
    return frozenset(keys)


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
    left_out = equivalents(_EQUIVALENTS.read_text(encoding="utf-8"))
    mutants = [
        mutant
        for file in sorted(files)
        for change in changes_of(file.read_text(encoding="utf-8"))
        if (mutant := Mutant(file.relative_to(ROOT).as_posix(), change)).key not in left_out
    ]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def breadth(contexts: Contexts) -> Counter[str]:
    """Count the lines that each test runs."""
    return Counter(
        test
        for of_file in contexts.lines.values()
        for running in of_file.values()
        for test in running
    )


def groups_of_tests(
    mutant: Mutant, contexts: Contexts, count_of: Mapping[str, int], seconds: float, seed: int
) -> list[list[str]]:
    """Choose three groups of tests that run a line of the change, each for this many seconds.

    The first has those that run the fewest lines, the second those whose files have the most words
    of the changed file's path in theirs, the third is drawn from the others: for a line that
    hundreds of tests run, neither are always those that look at it.
    """
    of_file = contexts.lines.get(mutant.file, {})
    change = mutant.change
    running = {
        test
        for line in range(change.line, change.end_line + 1)
        for test in of_file.get(line, frozenset())
    }
    rng, words = random.Random(f"{seed} {mutant}"), words_of(mutant.file)
    left = sorted(running)
    lots = {test: rng.random() for test in left}
    orders: tuple[Callable[[str], tuple[float, float]], ...] = (
        lambda test: (count_of[test], lots[test]),
        lambda test: (-len(words & words_of(test)), lots[test]),
        lambda test: (0, lots[test]),
    )
    groups = []
    for order in orders:
        left.sort(key=order)
        groups.append(within(left, contexts.seconds, seconds))
        left = left[len(groups[-1]) :]
    return [group for group in groups if group]


def words_of(path: str) -> frozenset[str]:
    """Return the words in the path of a file, or of a test's file."""
    return frozenset(re.findall("[a-z0-9]+", path.partition("::")[0].removesuffix(".py")))


def within(tests: Iterable[str], seconds_of: Mapping[str, float], seconds: float) -> list[str]:
    """Return the first tests that take at most these seconds together, one at least."""
    chosen: list[str] = []
    for test in tests:
        seconds -= seconds_of[test]
        if chosen and seconds < 0:
            break
        chosen.append(test)
    return chosen


@contextmanager
def copied_tree() -> Iterator[Path]:
    """Make a copy of the tree to change."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        tree = Path(name) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        yield tree


def run(tests: Sequence[str], tree: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run tests on a copy of the tree until one fails."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly",
         "-p", "tests.mutants.choice", *tests],
        cwd=tree, capture_output=True, text=True, timeout=timeout_s, check=False,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


class Trial:
    """Tries changes, and remembers the tests that fail without any."""

    def __init__(self, contexts: Contexts) -> None:
        self._seconds_of = contexts.seconds
        self._sound: set[str] = set()
        self._unsound: set[str] = set()

    def outcome(self, mutant: Mutant, groups: Sequence[Sequence[str]], tree: Path) -> Outcome:
        """Run groups of tests on the changed package until one of the tests fails."""
        path = tree / mutant.file
        source = (ROOT / mutant.file).read_text(encoding="utf-8")
        changed = mutant.change.apply(source)
        for group in groups:
            while tests := [test for test in group if test not in self._unsound]:
                path.write_text(changed, encoding="utf-8")
                try:
                    done = run(tests, tree, self._timeout_s(tests))
                except subprocess.TimeoutExpired:
                    return Outcome.TIMED_OUT
                finally:
                    path.write_text(source, encoding="utf-8")
                if done.returncode == 0:
                    break
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
                if failed is None or self._is_sound(name_of_test(failed[1]), tree):
                    return Outcome.KILLED
        return Outcome.SURVIVED if groups else Outcome.NOT_RUN

    def _timeout_s(self, tests: Sequence[str]) -> float:
        return _START_S + 3 * sum(self._seconds_of.get(test, 0.0) for test in tests)

    def _is_sound(self, test: str, tree: Path) -> bool:
        """Run a test without a change: whether it passes."""
        if test not in self._sound | self._unsound:
            done = run([test], tree, self._timeout_s([test]))
            (self._unsound if done.returncode else self._sound).add(test)
        return test in self._sound


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw changes and try them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("paths", nargs="*", help="below the package; all of it without")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=20.0,
        help="of each group of tests of a change",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    if not FILE.exists():
        parser.error(f"{FILE.relative_to(ROOT)} is missing: make contexts")
    contexts = kept()
    count_of = breadth(contexts)
    mutants = drawn(given.paths, given.count, given.seed)
    outcomes: dict[Mutant, Outcome] = {}
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
    trial, begun_at = Trial(contexts), time.monotonic()

    def attempt(mutant: Mutant) -> None:
        tree = trees.get()
        groups = groups_of_tests(mutant, contexts, count_of, given.seconds, given.seed)
        try:
            outcomes[mutant] = outcome = trial.outcome(mutant, groups, tree)
        finally:
            trees.put(tree)
        if outcome in (Outcome.SURVIVED, Outcome.NOT_RUN):
            count = sum(map(len, groups))
            print(f"{outcome.value} ({count} tests): {mutant}", flush=True)
        if len(outcomes) % 20 == 0:
            minutes = (time.monotonic() - begun_at) / 60
            print(f"-- {len(outcomes)} of {len(mutants)} tried in {minutes:.0f} min", flush=True)

    with ExitStack() as stack:
        for _ in range(given.workers):
            trees.put(stack.enter_context(copied_tree()))
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
