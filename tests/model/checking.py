"""One round of the model test, told by its seed."""

from __future__ import annotations

import pytest

from tests.model.course import Plan, run_round
from tests.model.ledger import Violation


def check(seed: int, address: str, plan: Plan | None = None) -> None:
    """Run a round, and fail with what was not kept and what went before."""
    outcome = run_round(seed, address, plan)
    violations: list[Violation] = sorted(outcome.violations, key=lambda each: each.order)
    if violations:
        words = [str(each) for each in violations[:20]] + outcome.ledger.excerpt(violations[0])
        again = f"python -m tests.model --bootstrap ADDRESS --seed {seed} --rounds 1"
        pytest.fail("\n".join([*words, f"as long rounds: {again}"]))
