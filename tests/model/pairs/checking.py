"""Rounds by their seeds: run, counted, told."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import pytest

from tests.model.pairs.course import Outcome, Plan, new_table, run_round
from tests.model.pairs.table import Table

SHOWN: Final = 20


def told(outcome: Outcome, seed: int, address: str, lines: int = 100) -> str:
    """Return what was not kept in a round, what went before, and how to see it again."""
    again = f"python -m tests.model.pairs --bootstrap {address} --seed {seed} --rounds 1"
    return "\n".join(
        [*outcome.violations[:SHOWN], *outcome.journal.lines(lines), f"again: {again}"]
    )


def check(seeds: Iterable[int], address: str, plan: Plan, *, within_s: float) -> Table:
    """Run rounds until the time is over; fail at the first that does not keep the rules."""
    table = new_table(plan)
    ends_at = time.monotonic() + within_s
    for seed in seeds:
        outcome = run_round(seed, address, plan)
        table.add(outcome.table)
        if outcome.violations:
            pytest.fail(told(outcome, seed, address))
        if time.monotonic() > ends_at:
            break
    print(table.text())
    return table
