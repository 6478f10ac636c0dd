"""Run rounds of the random model of pairs, and print the table of pairs.

python -m tests.model.pairs --bootstrap 127.0.0.1:9092 --minutes 10
python -m tests.model.pairs --bootstrap 127.0.0.1:9092 --seed 17 --rounds 1 --lines 500
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from collections import Counter

from tests.model.pairs.checking import told
from tests.model.pairs.course import Plan, new_table, run_round
from tests.model.pairs.known import KNOWN


def main() -> int:
    """Run rounds; return 1 if a rule was broken."""
    arguments = _arguments()
    logging.basicConfig(level=logging.DEBUG if arguments.verbose else logging.CRITICAL)
    left_out = frozenset(arguments.without) | (frozenset() if arguments.all else KNOWN.keys())
    plan = Plan(wild_s=arguments.wild_s, without=left_out)
    table, failed = new_table(plan), Counter[str]()
    ends_at = time.monotonic() + arguments.minutes * 60
    for seed in itertools.count(arguments.seed):
        if arguments.rounds is None and time.monotonic() > ends_at:
            break
        if arguments.rounds is not None and seed >= arguments.seed + arguments.rounds:
            break
        outcome = run_round(seed, arguments.bootstrap, plan)
        table.add(outcome.table)
        returned = sum(state.returned for state in outcome.journal.groups.values())
        print(
            f"seed {seed}: {outcome.seconds:.0f} s, {outcome.members} members, {returned} records",
            flush=True,
        )
        if arguments.rounds == 1 and not outcome.violations:
            print("\n".join(outcome.journal.lines(arguments.lines)))
        if outcome.violations:
            failed[outcome.violations[0].partition(":")[0]] += 1
            print(told(outcome, seed, arguments.bootstrap, arguments.lines), flush=True)
            if not arguments.keep_going:
                break
    print(table.text())
    print(f"failed: {dict(failed) or 'none'}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.model.pairs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--bootstrap", required=True, help="where the Kafka is")
    add("--seed", type=int, default=1, help="of the first round")
    add("--minutes", type=float, default=1.0, help="how long; the last round is finished")
    add("--rounds", type=int, default=None, help="how many, instead of --minutes")
    add("--wild-s", type=float, default=20.0, help="how long events happen in a round")
    add("--without", nargs="*", default=(), help="ways and events to leave out")
    add("--all", action="store_true", help="do not leave out what is known not to work")
    add("--lines", type=int, default=200, help="how much of the journal to print of a failure")
    add("--keep-going", action="store_true", help="count failures instead of stopping at one")
    add("--verbose", action="store_true", help="show the logs of consumers and broker")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
