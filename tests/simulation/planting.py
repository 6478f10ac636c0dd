"""Runs planted bugs: `python -m tests.simulation --planted`.

Each bug runs in a process of its own, which also imports the changed source:

    python -m tests.simulation.planting NAME SEEDS SECONDS WAY
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple

from tests.simulation.plan import draw
from tests.simulation.planted import BUGS, Bug

ROOT: Final = Path(__file__).parents[2]
# A planted bug may run without an end; a seed takes less than a second.
MOST_CPU_S: Final = 10.0
# Seeds of one bug: each takes a fifth of a second. Those that cannot meet the bug are not run.
MOST_SEEDS: Final = 100
LIVELOCK: Final = "course failed"
# The name of no bug: the seeds run on the source as it is.
NOTHING: Final = "nothing"


class Found(NamedTuple):
    """What the seeds of one bug have found.

    Attributes:
        seed: The first that broke a rule; 0: none has.
        rules: Those that it broke, in their order.
        text: What the first of them says.
        seed_count: How many seeds ran.
        cpu_s: Of the process.
    """

    seed: int
    rules: list[str]
    text: str
    seed_count: int
    cpu_s: float


# --- In the process of a bug ----------------------------------------------------------------
def source_path(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def planted_source(bug: Bug, module: str, source: str) -> str:
    """Return a module's source with a bug.

    Raises:
        LookupError: The text that the bug replaces is not there, or more than once.
    """
    for edit in bug.edits:
        if edit.module != module:
            continue
        if (count := source.count(edit.text)) != 1:
            raise LookupError(f"{bug.name}: {module} has {count} times:\n{edit.text}")
        source = source.replace(edit.text, edit.replacement)
    return source


def plant(bug: Bug) -> None:
    """Have the modules that are imported from now on contain a bug."""
    modules = {edit.module for edit in bug.edits}
    if early := modules & sys.modules.keys():
        raise ImportError(f"{early} are imported already")
    loader = importlib.machinery.SourceFileLoader
    compiled = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        if name not in modules:
            return compiled(self, name)
        path = self.get_filename(name)
        source = planted_source(bug, name, Path(path).read_text("utf-8"))
        return compile(source, path, "exec", dont_inherit=True)

    loader.get_code = get_code  # type: ignore[method-assign, assignment]


def search(bug: Bug | None, seeds: Sequence[int], length_s: float, way: str) -> Found:
    """Run seeds until one breaks a rule."""
    if bug is not None:
        plant(bug)
    from tests.simulation import campaign

    campaign.prepare()
    count = 0
    for seed in seeds:
        count += 1
        found = campaign.run_seed(seed, length_s, MOST_CPU_S, way)
        if found is not None:
            rules = [*dict.fromkeys(found.rules)]
            return Found(seed, rules, found.violations[0], count, time.process_time())
    if bug is not None and (unused := {each.module for each in bug.edits} - sys.modules.keys()):
        raise ImportError(f"{bug.name}: no seed has imported {unused}")
    return Found(0, [], "", count, time.process_time())


def main(arguments: Sequence[str]) -> None:
    name, seeds, length_s, way = arguments
    bug = None if name == NOTHING else BUGS[name]
    found = search(bug, [int(seed) for seed in seeds.split(",")], float(length_s), way)
    print(json.dumps(found))


# --- The table ------------------------------------------------------------------------------
def run_apart(name: str, seeds: Sequence[int], length_s: float, way: str) -> Found:
    """Run seeds with a bug in a process of its own, until one breaks a rule."""
    command = [sys.executable, "-m", "tests.simulation.planting", name]
    done = subprocess.run(
        [*command, ",".join(map(str, seeds)), str(length_s), way],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONHASHSEED": "0",
            "AIOKAFKA_LITE_IMPL": "python",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return Found(*json.loads(done.stdout))


@cache
def without_a_bug(seed: int, length_s: float, way: str) -> Found:
    return run_apart(NOTHING, [seed], length_s, way)


plan_of = cache(draw)


def hunt(bug: Bug, seeds: Sequence[int], length_s: float) -> Found:
    """Run the seeds whose plans can meet a bug, until one finds it.

    A seed that breaks rules without the bug as well finds nothing. Nor does a livelock alone: with
    some orders of callbacks a run has one by chance.
    """
    able = (seed for seed in seeds if bug.can_be_met(plan_of(seed, length_s, bug.way)))
    left = [*islice(able, MOST_SEEDS)]
    count, cpu_s = 0, 0.0
    while left:
        found = run_apart(bug.name, left, length_s, bug.way)
        count, cpu_s = count + found.seed_count, cpu_s + found.cpu_s
        if not found.seed:
            break
        is_livelock = found.rules == [LIVELOCK] != [bug.rule]
        as_it_is = without_a_bug(found.seed, length_s, bug.way)
        cpu_s += as_it_is.cpu_s
        if not (is_livelock or as_it_is.seed):
            return found._replace(seed_count=count, cpu_s=cpu_s)
        left = left[left.index(found.seed) + 1 :]
    return Found(0, [], "", count, cpu_s)


def row(bug: Bug, found: Found, seeds: range) -> str:
    first = str(found.seed - seeds.start + 1) if found.seed else "not found"
    rules = ", ".join(found.rules) or "-"
    mark = "" if not found.rules or bug.rule in found.rules else f" (not {bug.rule})"
    return f"| {bug.name} | {rules}{mark} | {first} | {found.seed_count} | {found.cpu_s:.1f} |"


def hunt_all(name: str, seeds: range, jobs: int, length_s: float) -> int:
    """Run one bug, or all that can be found, and print a table. Return 1 if one was missed."""
    if name not in ("", *BUGS):
        print(f"no bug is called {name!r}: {', '.join(BUGS)}")
        return 1
    left_out = {} if name else {each.name: each for each in BUGS.values() if each.missed_because}
    bugs = [each for each in BUGS.values() if name in ("", each.name)]
    bugs = [each for each in bugs if each.name not in left_out]
    print("| bug | rules | seeds until found | run | core-s |\n|---|---|---|---|---|")
    missed, total_s = 0, 0.0
    with ThreadPoolExecutor(jobs) as pool:
        hunts = {pool.submit(hunt, bug, seeds, length_s): bug for bug in bugs}
        for done in as_completed(hunts):
            bug, found = hunts[done], done.result()
            total_s += found.cpu_s
            missed += not found.seed
            print(row(bug, found, seeds), flush=True)
            if len(bugs) == 1:
                print(bug.what, found.text, sep="\n")
    print(f"{len(bugs) - missed} of {len(bugs)} found, {total_s:.0f} core-seconds")
    for bug in left_out.values():
        print(f"not run: {bug.name}, because {bug.missed_because}")
    return 1 if missed else 0


if __name__ == "__main__":
    main(sys.argv[1:])
