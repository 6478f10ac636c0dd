"""Change the package at random, and list the changes that no test notices.

    make contexts                         which tests run which line (out/contexts.json)
    make mutants N=300 SEED=7             draw 300 changes, try each
    make mutants N=50 PATHS='consumer/commits consumer/membership'

Tests that run the line of a change are run with it, in three groups of some seconds each: those
that run the fewest lines, those whose files are named like the changed one, and others at random.
A change survives if all of them pass. A test that fails without the change too does not count.

A change that alters nothing that a test could see is listed in equivalents.txt with the reason, and
is not drawn.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.changes import changes_of
from tests.mutants.contexts import FILE, Contexts, kept
from tests.mutants.trials import NOTICED, Mutant, Outcome, Soundness, Trial, Trials
from tests.support.durations import ROOT

_PACKAGE: Final = "aiokafka_lite"
_NEITHER: Final = ("cli", "spark", "extras")
"""Folders of which no change is drawn unless PATHS names them: their tests start processes."""

_EQUIVALENTS: Final = ROOT / "tests" / "mutants" / "equivalents.txt"


def equivalents(text: str) -> frozenset[str]:
    """Return the keys of the changes that alter nothing a test could see; a reason follows each.

    Raises:
        ValueError: A change has no reason.
    """
    keys = set()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            place, arrow, rest = line.partition("  ->  ")  # the place's line may have a comment
            new, _, reason = rest.partition("  # ")
            if not reason:
                raise ValueError(f"the reason is missing: {line}")
            keys.add(place + arrow + new)
    return frozenset(keys)


def files_below(paths: Sequence[str]) -> set[Path]:
    """Return the files below these paths of the package; without paths those of most folders.

    Raises:
        ValueError: There is no file below one of the paths.
    """
    home = ROOT / _PACKAGE
    files = set(home.rglob("*.py"))
    if not paths:
        return {file for file in files if file.relative_to(home).parts[0] not in _NEITHER}
    chosen: set[Path] = set()
    for path in paths:
        place = Path(os.path.normpath(home / path))
        found = {file for file in files if file == place or place in file.parents}
        if not found:
            raise ValueError(
                f"there is no Python file at {_PACKAGE}/{path}: paths are below {_PACKAGE}, "
                "for example consumer/commits"
            )
        chosen |= found
    return chosen


def drawn(paths: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw changes of the files below these paths of the package, of most files without paths.

    Raises:
        ValueError: No change can be made below the paths.
    """
    files = files_below(paths)
    left_out = equivalents(_EQUIVALENTS.read_text(encoding="utf-8"))
    mutants = [
        mutant
        for file in sorted(files)
        for change in changes_of(file.read_text(encoding="utf-8"))
        if (mutant := Mutant(file.relative_to(ROOT).as_posix(), change)).key not in left_out
    ]
    if not mutants:
        raise ValueError(f"no change can be made of {' '.join(paths)}")
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


def positive(text: str) -> int:
    """Return the number of an argument."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw changes and try them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("paths", nargs="*", help="below the package; all of it without")
    parser.add_argument("--count", type=positive, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=positive, default=4)
    parser.add_argument(
        "--seconds", type=float, default=20.0,
        help="of each group of tests of a change",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    if not FILE.exists():
        parser.error(f"{FILE.relative_to(ROOT)} is missing: make contexts")
    contexts = kept()
    count_of = breadth(contexts)
    try:
        mutants = drawn(given.paths, given.count, given.seed)
    except ValueError as error:
        parser.error(str(error))
    if changed := contexts.changed(mutant.file for mutant in mutants):
        print(
            f"-- {len(changed)} files, such as {changed[0]}, are not as they were when "
            f"{FILE.relative_to(ROOT)} was measured: make contexts"
        )
    outcomes: dict[Mutant, Outcome] = {}
    soundness, begun_at = Soundness(), time.monotonic()

    def begin(mutant: Mutant) -> Trial:
        groups = groups_of_tests(mutant, contexts, count_of, given.seconds, given.seed)
        return soundness.trial(mutant, groups)

    def tell(mutant: Mutant, outcome: Outcome) -> None:
        outcomes[mutant] = outcome
        if outcome not in NOTICED:
            print(f"{outcome.value}: {mutant}", flush=True)
        if len(outcomes) % 20 == 0:
            minutes = (time.monotonic() - begun_at) / 60
            print(f"-- {len(outcomes)} of {len(mutants)} tried in {minutes:.0f} min", flush=True)

    # As with Ctrl-C: the processes of the trials are in sessions of their own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    trials = Trials(mutants, begin, tell, contexts.seconds, given.workers)
    status = pytest.main(
        ["-qq", "-s", "-p", "no:cacheprovider", "-p", "no:randomly", str(ROOT / "tests")], [trials]
    )
    if outcomes:
        print(share_by_package(outcomes))
    return int(status)


def share_by_package(outcomes: dict[Mutant, Outcome]) -> str:
    """Return a table: how many changes of each package were noticed."""
    tried = {
        mutant: outcome for mutant, outcome in outcomes.items() if outcome is not Outcome.NOT_TRIED
    }
    drawn_of = Counter(mutant.package for mutant in tried)
    killed_of = Counter(mutant.package for mutant, outcome in tried.items() if outcome in NOTICED)
    rows = [
        f"{package:<28} {killed_of[package]:>4} of {count:>4} killed"
        for package, count in sorted(drawn_of.items())
    ]
    total = f"{'all':<28} {killed_of.total():>4} of {drawn_of.total():>4} killed"
    return "\n".join([*rows, total])


if __name__ == "__main__":
    sys.exit(main())
