"""The random model test: a few rounds of it here, and half an hour in the long form."""

from __future__ import annotations

import time
from typing import Final

import pytest

from tests.model.course import Plan, run_round
from tests.model.ledger import Violation

SHORT: Final = Plan(wild_s=8.0, calm_s=12.0, cycles=1)
LONG_S: Final = 1800.0


def check(seed: int, address: str | None, plan: Plan | None = None) -> None:
    """Run a round, and fail with what was not kept and what went before."""
    outcome = run_round(seed, address, plan)
    violations: list[Violation] = sorted(outcome.violations, key=lambda each: each.order)
    if violations:
        broker = "embedded" if address is None else "real"
        words = [str(each) for each in violations[:20]] + outcome.ledger.excerpt(violations[0])
        again = f"python -m tests.model --broker {broker} --seed {seed} --rounds 1"
        pytest.fail("\n".join([*words, f"as long rounds: {again}"]))


@pytest.mark.parametrize("seed", range(3))
def test_groups_keep_their_promises_whatever_members_do(seed: int) -> None:
    check(seed, None, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
def test_half_an_hour_of_rounds() -> None:
    ends_at = time.monotonic() + LONG_S
    seed = 1_000
    while time.monotonic() < ends_at:
        check(seed, None)
        seed += 1
