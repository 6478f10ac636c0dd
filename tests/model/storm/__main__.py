"""Run a storm of rebalances over one group on three real nodes that are made for it.

    python -m tests.model.storm --protocol consumer --rebalances 1000 --seed 1

Shows what it does, then what came of it; ends with 1 if a promise was not kept.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.model.ledger import Ledger
from tests.model.storm.cluster import three_nodes
from tests.model.storm.course import PROTOCOLS, run_storm


def main() -> int:
    """Run one storm; return 1 if a promise was not kept."""
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.CRITICAL)
    began = time.monotonic()
    with three_nodes() as kafka:
        report, ledger = run_storm(
            kafka,
            arguments.protocol,
            rebalances=arguments.rebalances,
            seed=arguments.seed,
            members=arguments.members,
            longest_s=arguments.minutes * 60,
            show=lambda words: print(words, flush=True),
        )
    again = f"--protocol {arguments.protocol} --rebalances {arguments.rebalances}"
    print(
        f"python -m tests.model.storm {again} --seed {arguments.seed} --members {arguments.members}"
    )
    print(f"{report}\n{time.monotonic() - began:.0f} s in all", flush=True)
    if arguments.ledger:
        with open(arguments.ledger, "w") as file:
            file.writelines(f"{entry.text()}\n" for entry in ledger.in_order())
    if ledger.violations:
        _tell(ledger, arguments.lines)
    return 1 if ledger.violations else 0


def _tell(ledger: Ledger, lines: int) -> None:
    """Print what was not kept, and what went before the first of each kind."""
    violations = sorted(ledger.violations, key=lambda each: each.order)
    for violation in violations[:40]:
        print(f"  {violation.order:g} {violation}")
    told = set[str]()
    for violation in violations:
        if violation.rule not in told:
            told.add(violation.rule)
            print(f"before {violation.order:g} {violation}")
            print("\n".join(ledger.excerpt(violation, lines)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.model.storm", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--protocol", choices=PROTOCOLS, default="consumer", help="by which the group is joined")
    add("--rebalances", type=int, default=1000, help="how many there have to be")
    add("--seed", type=int, default=1, help="of what happens when")
    add("--members", type=int, default=6, help="how many there are, more or less")
    add("--minutes", type=float, default=13.0, help="when to end though there were not so many")
    add("--lines", type=int, default=150, help="how much of the ledger to print of a failure")
    add("--ledger", help="the file to write down in all that happened")
    add("--verbose", action="store_true", help="show the logs of the consumers")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
