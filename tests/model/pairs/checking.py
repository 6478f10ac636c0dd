"""Rounds by their seeds: run, counted, told."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Final

import pytest

from tests.model.pairs.course import Outcome, Plan, new_table, promise, run_round
from tests.model.pairs.table import Pair, Table

SHOWN: Final = 20
# Of so many seeds the one comes next whose round may have most of the pairs that are rare.
CHOICE: Final = 100


def told(outcome: Outcome, seed: int, address: str | None, lines: int = 100) -> str:
    """Return what was not kept in a round, what went before, and how to see it again."""
    again = f"python -m tests.model.pairs --seed {seed} --rounds 1"
    if address is not None:
        again += " --bootstrap ADDRESS"
    return "\n".join(
        [*outcome.violations[:SHOWN], *outcome.journal.lines(lines), f"again: {again}"]
    )


def check(seeds: Iterable[int], address: str | None, plan: Plan, *, within_s: float) -> Table:
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


def until_met(
    first_seed: int, plan: Plan, least: int, *, within_s: float, processes: int | None = None
) -> tuple[Table, int]:
    """Run rounds on embedded brokers until all pairs have met so often, or the time is over.

    Each is a course of its own by its seed. Which seed comes next depends on the pairs that are
    rare. Fails at the first round that does not keep the rules.

    Returns:
        The table, and how many rounds there were.
    """
    table, count = new_table(plan), 0
    later = itertools.count(first_seed)
    seeds = [next(later) for _ in range(CHOICE)]
    ends_at = time.monotonic() + within_s
    os.environ["PYTHONHASHSEED"] = "0"  # the order of sets decides what happens first
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=spawn) as pool:
        running: set[Future[tuple[dict[Pair, int], str]]] = set()
        try:
            while time.monotonic() < ends_at and table.rarer_than(least):
                while len(running) < (processes or os.cpu_count() or 1):
                    seed = max(seeds, key=lambda each: promise(each, plan, table, least))
                    seeds[seeds.index(seed)] = next(later)
                    running.add(pool.submit(_counted, seed, plan))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for counts, words in (each.result() for each in done):
                    count += 1
                    table.counts.update(counts)
                    if words:
                        pytest.fail(words)
        finally:
            for each in running:
                each.cancel()
    print(table.text())
    return table, count


def _counted(seed: int, plan: Plan) -> tuple[dict[Pair, int], str]:
    """Run a round in another process; return what has met, and what was not kept."""
    outcome = run_round(seed, None, plan)
    return dict(outcome.table.counts), told(outcome, seed, None) if outcome.violations else ""
