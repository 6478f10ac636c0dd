"""Run the random model test: rounds of seeds that count up, until the time is over.

python -m tests.model --bootstrap 127.0.0.1:9092 --minutes 30
python -m tests.model --bootstrap 127.0.0.1:9092 --seed 17 --rounds 1      one round again
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter

from tests.model.course import Outcome, run_round
from tests.model.habits import PROTOCOLS

SHOW_EVERY_S = 10.0


def main() -> int:
    """Run rounds; return 1 if a promise was not kept."""
    arguments = _arguments()
    logging.basicConfig(level=logging.DEBUG if arguments.verbose else logging.CRITICAL)
    began = shown = time.monotonic()
    seed, failed = arguments.seed, Counter[str]()
    totals = Counter[str]()
    while arguments.rounds is None or totals["rounds"] < arguments.rounds:
        if arguments.rounds is None and time.monotonic() - began > arguments.minutes * 60:
            break
        outcome = run_round(
            seed,
            arguments.bootstrap,
            without=arguments.without,
            protocols=arguments.protocols,
        )
        totals.update(
            rounds=1,
            members=outcome.members,
            crashes=outcome.crashes,
            faults=outcome.faults,
            gets=outcome.handed,
            commits=outcome.commits,
        )
        if outcome.violations:
            failed.update({each.rule for each in outcome.violations[:1]})
            report(outcome, seed, arguments)
            if not arguments.keep_going:
                return 1
        if time.monotonic() - shown > SHOW_EVERY_S:
            shown = time.monotonic()
            print(
                f"{shown - began:6.0f} s: seed {seed}; {dict(totals)}; {dict(failed)}", flush=True
            )
        seed += 1
    print(f"{time.monotonic() - began:6.0f} s: {dict(totals)}; failed: {dict(failed) or 'none'}")
    return 1 if failed else 0


def report(outcome: Outcome, seed: int, arguments: argparse.Namespace) -> None:
    """Print what was not kept, what went before, and how to see it again."""
    print(f"seed {seed}: {len(outcome.violations)} violations")
    violations = sorted(outcome.violations, key=lambda each: each.order)
    for violation in violations[:20]:
        print(f"  {violation.order:g} {violation}")
    if arguments.lines:
        print("\n".join(outcome.ledger.excerpt(violations[0], arguments.lines)))
    again = f"--bootstrap {arguments.bootstrap} --seed {seed} --rounds 1"
    protocols = " ".join(arguments.protocols)
    print(f"again: python -m tests.model {again} --protocols {protocols}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.model", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--bootstrap", default=os.environ.get("BOOTSTRAP"), help="where the real Kafka is")
    add("--seed", type=int, default=1, help="of the first round")
    add("--minutes", type=float, default=1.0, help="how long; the last round is finished")
    add("--rounds", type=int, default=None, help="how many, instead of --minutes")
    add("--without", nargs="*", default=(), help="actions to leave out, as habits.py names them")
    add(
        "--protocols",
        nargs="*",
        choices=PROTOCOLS,
        default=("classic",),
        help="by which groups are joined; each member draws one",
    )
    add("--lines", type=int, default=200, help="how much of the ledger to print of a failure")
    add("--keep-going", action="store_true", help="count failures instead of stopping at one")
    add("--verbose", action="store_true", help="show the logs of consumers and broker")
    arguments = parser.parse_args()
    if not arguments.bootstrap:
        parser.error("give --bootstrap, or BOOTSTRAP in the environment")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
