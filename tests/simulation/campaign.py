"""The command: runs many seeds in processes, or replays one."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Final

from aiokafka_lite.simulation import schedule
from aiokafka_lite.simulation.schedule import Fault, Order
from tests.simulation import plan, seams
from tests.simulation.course import Outcome, run_plan
from tests.simulation.plan import SHARING, Plan
from tests.simulation.planting import hunt_all
from tests.simulation.ways import WAYS

SHOWN: Final = 3
# In one process. Each leaves up to 4 MB.
SEEDS_AT_ONCE: Final = 25
# Seeds that import, and compile codecs of, what most others need.
WARM_UP: Final = (3, 5, 6)
WARM_UP_S: Final = 10.0
FORKING: Final = get_context("fork")
# A seed takes less than a second; a callback that takes this long does not return.
MOST_CPU_S: Final = 60.0


@dataclass(frozen=True)
class Finding:
    """A seed that broke rules."""

    seed: int
    head: str
    violations: tuple[str, ...]
    rules: tuple[str, ...]


class HangError(KeyboardInterrupt):
    """A seed takes too long. Tasks and callbacks let a KeyboardInterrupt pass."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise HangError("a seed uses too much CPU")


def prepare() -> None:
    """Make a process ready to run seeds."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # Coroutines of killed processes are closed when a run is over.
    sys.unraisablehook = lambda report: None
    signal.signal(signal.SIGVTALRM, _too_long)
    # Nor is what seeds leave collected, which takes a tenth of their time: their process ends soon.
    gc.disable()


def run_seed(
    seed: int, length_s: float, most_cpu_s: float = MOST_CPU_S, way: str = ""
) -> Finding | None:
    """Run a seed. Return what it found."""
    drawn = plan.draw(seed, length_s, way)
    signal.setitimer(signal.ITIMER_VIRTUAL, most_cpu_s)
    try:
        outcome = run_plan(drawn)
    except HangError as hang:
        return Finding(seed, drawn.head(), (f"hang: {hang}",), ("hang",))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if not outcome.violations:
        return None
    texts = tuple(f"{each.rule}: {each.text}" for each in outcome.violations)
    return Finding(seed, drawn.head(), texts, tuple(each.rule for each in outcome.violations))


def run_seeds(seeds: Sequence[int], length_s: float, way: str = "") -> list[Finding]:
    return [found for seed in seeds if (found := run_seed(seed, length_s, way=way)) is not None]


def prepare_forks() -> None:
    """Make a process ready to run seeds in forks, which have what a first seed imports."""
    prepare()
    for seed in WARM_UP:
        run_seed(seed, WARM_UP_S)


def _send_findings(ours: Connection, seeds: Sequence[int], length_s: float, way: str) -> None:
    ours.send(run_seeds(seeds, length_s, way))


def run_in_fork(seeds: Sequence[int], length_s: float, way: str = "") -> list[Finding]:
    """Run seeds in a fork of this process, which leaves this one as it is."""
    theirs, ours = FORKING.Pipe(duplex=False)
    fork = FORKING.Process(target=_send_findings, args=(ours, seeds, length_s, way))
    fork.start()
    ours.close()  # or the end of the fork is not the end of the pipe
    try:
        findings: list[Finding] = theirs.recv()
    except EOFError:
        raise RuntimeError(f"the process of the seeds {seeds} has died") from None
    finally:
        fork.join()
        theirs.close()
    return findings


def campaign(seeds: Sequence[int], jobs: int, length_s: float, way: str = "") -> Iterator[Finding]:
    """Run seeds in several processes. Yield what they find, in the order of the seeds."""
    batches = [seeds[n : n + SEEDS_AT_ONCE] for n in range(0, len(seeds), SEEDS_AT_ONCE)]
    with ProcessPoolExecutor(jobs, get_context("spawn"), prepare_forks) as pool:
        for findings in pool.map(partial(run_in_fork, length_s=length_s, way=way), batches):
            yield from findings


def shrunk(failing: Plan, rule: str) -> Plan:
    """Return a plan with fewer faults that breaks the same rule."""

    def fails(faults: tuple[Fault, ...]) -> bool:
        return any(each.rule == rule for each in run_plan(failing.with_faults(faults)).violations)

    return failing.with_faults(schedule.shrunk(failing.faults, fails))


def show(outcome: Outcome) -> None:
    print(outcome.plan.text())
    for event in outcome.history.events:
        print(event.text())
    for violation in outcome.violations:
        print(f"{violation.at_s:9.3f} {violation.rule}: {violation.text}")
    print(f"{outcome.virtual_s:.1f} virtual seconds, {outcome.steps} steps, {outcome.digest}")


def replay(args: argparse.Namespace) -> int:
    prepare()
    drawn = plan.draw(args.replay, args.length, args.way)
    if args.order is not None:
        drawn = drawn.with_order(Order(args.order))
    outcome = run_plan(drawn, is_traced=args.timeline is not None)
    if args.shrink and outcome.violations:
        outcome = run_plan(
            shrunk(drawn, outcome.violations[0].rule), is_traced=args.timeline is not None
        )
    if args.timeline is not None:
        Path(args.timeline).write_text(outcome.timeline, encoding="utf-8")
    with contextlib.suppress(BrokenPipeError):
        show(outcome)
    return 1 if outcome.violations else 0


def seeds_of(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    made.add_argument("--seeds", type=seeds_of, default=range(1, 201), help="such as 1-200")
    made.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    made.add_argument("--length", type=float, default=60.0, help="virtual seconds of a seed")
    made.add_argument(
        "--way", choices=[*WAYS, SHARING], default="", help="of reading, of all seeds"
    )
    made.add_argument("--replay", type=int, metavar="SEED", help="run one seed, print its events")
    made.add_argument("--shrink", action="store_true", help="replay with fewer faults")
    made.add_argument("--order", choices=[order.value for order in Order], help="of a replay")
    made.add_argument(
        "--planted", nargs="?", const="", metavar="NAME", help="find planted bugs, or one"
    )
    made.add_argument("--pairs", action="store_true", help="which features meet, and how often")
    made.add_argument("--timeline", metavar="FILE", help="write an HTML page of a replay")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets decides what runs first.
        given = sys.argv[1:] if arguments is None else [*arguments]
        os.environ["PYTHONHASHSEED"] = "0"
        sys.stdout.flush()
        command = [sys.executable, "-m", "tests.simulation", *given]
        os.execv(sys.executable, command)  # noqa: S606 — this program again
    args = parser().parse_args(arguments)
    if args.replay is not None:
        return replay(args)
    if args.pairs:
        drawn = (plan.draw(seed, args.length, args.way) for seed in args.seeds)
        print(seams.table(seams.meetings(drawn), len(args.seeds)))
        return 0
    if args.planted is not None:
        return hunt_all(args.planted, args.seeds, args.jobs, args.length)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    for found in campaign(args.seeds, args.jobs, args.length, args.way):
        counts.update(set(found.rules))
        print(found.head)
        for text in found.violations[:SHOWN]:
            print(f"    {text}"[:400])
        sys.stdout.flush()
    took_s = time.monotonic() - began
    print(f"{len(args.seeds)} seeds in {took_s:.0f} s, {len(args.seeds) / took_s:.1f} a second")
    for rule, count in counts.most_common():
        print(f"  {rule}: {count} seeds")
    return 1 if counts else 0
