"""Fuzz everything that takes bytes or text from others.

    make fuzz SECONDS=60                          every target, in turn
    make fuzz ARGS="requests responses --seed 7"  some of them
    make fuzz ARGS="--replay FILE"                one input again
    make fuzz ARGS=--keep                         with new seeds, and add the run to the totals
    make fuzz ARGS=--totals                       how many inputs have been run so far

A run of one seed has the same inputs each time. Inputs that break a rule are in out/fuzz.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import catalogue, guided, running, totals
from tests.fuzz.engine import Violation, replay_command
from tests.fuzz.running import Result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("targets", nargs="*", help=", ".join(catalogue.TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0, help="of all targets together")
    parser.add_argument("--executions", type=int, default=0, help="at least, of each")
    parser.add_argument("--seed", type=int, help="0 is the default, and with --keep a new one")
    parser.add_argument("--keep", action="store_true", help="add up what kept every rule")
    parser.add_argument("--totals", action="store_true", help="print the sums of kept runs")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the input of a file")
    parser.add_argument("--guided", action="store_true", help="by coverage, with atheris")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--shared", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.replay is not None:
        return _replay(chosen.replay)
    if chosen.totals:
        print(totals.table(totals.read()))
        return 0
    if chosen.child is not None:
        result = running.fuzz_here(
            chosen.child, chosen.seed or 0, chosen.seconds, chosen.executions, chosen.shared
        )
        print(json.dumps(dataclasses.asdict(result)))
        return 0
    names = chosen.targets or [*catalogue.TARGETS]
    for name, reason in [(name, catalogue.missing(name)) for name in names]:
        if reason:
            print(f"{name} is left out: {reason}")
            names.remove(name)
    if not names:
        return 1
    weights = {name: catalogue.make(name).weight for name in names}
    print(f"{'target':22}{'executions':>12}{'a second':>10}{'outcomes':>10}{'inputs':>8}")
    results = []
    for name in names:
        seconds = chosen.seconds * weights[name] / sum(weights.values())
        is_kept = chosen.keep and not chosen.guided
        seed = chosen.seed
        if seed is None:
            seed = totals.new_seed(name) if is_kept else 0
        if chosen.guided:
            results.append(guided.fuzz(name, seed, seconds))
        else:
            results.append(running.fuzz(name, seed, seconds, chosen.executions))
        _print(results[-1])
        if is_kept:
            totals.keep(name, seed, 0 if results[-1].found else results[-1].executions)
    total = sum(result.executions for result in results)
    seconds = sum(result.seconds for result in results)
    print(f"{'all':22}{total:12,}{total / max(seconds, 0.001):10,.0f}")
    count = sum(len(result.found) for result in results)
    print(f"{count} broken rules" if count else "every rule was kept")
    return 1 if count else 0


def _print(result: Result) -> None:
    print(
        f"{result.name:22}{result.executions:12,}{result.per_second:10,.0f}"
        f"{result.outcomes:10,}{result.pool:8,}",
        flush=True,
    )
    for rule, key, path in result.found:
        print(f"    {rule}: {key}\n        {replay_command(Path(path))}", flush=True)


def _replay(path: Path) -> int:
    found = running.replay(path)
    if isinstance(found, Violation):
        print(f"{found.rule}: {found.key}\n{found.report}")
        return 1
    print(f"every rule was kept: {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
