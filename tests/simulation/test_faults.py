"""Faults that meet others: each is one fault, and no deadlock of the simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.simulation.course import Outcome

pytest.importorskip("simloop", reason="simloop is not installed")


def outcome_of(faults: Mapping[str, tuple[float, float]], **settings: Any) -> Outcome:
    """Run a plan with these faults: for each when it begins and how long it lasts."""
    from aiokafka_lite.simulation.schedule import Fault
    from aiokafka_lite.simulation.trial import quiet
    from tests.simulation import plan
    from tests.simulation.course import run_plan

    drawn = plan.draw(1, 20.0)
    each = tuple(Fault(at_s, lasts_s, name, 0, 0.3) for name, (at_s, lasts_s) in faults.items())
    with quiet(is_logged=False):  # killed processes end nothing themselves
        return run_plan(dataclasses.replace(drawn, faults=each, **settings))


@pytest.mark.parametrize("other", ["loop blocked", "slow link", "one-way cut", "hang"])
def test_a_member_that_faults_stop_at_their_end_ends(other: str) -> None:
    outcome = outcome_of({other: (3.5, 60.0), "twin member": (4.0, 60.0)}, static=True, members=1)
    assert outcome.violations == []


@pytest.mark.parametrize("other", ["one-way cut", "slow link", "loop blocked", "pieces"])
def test_a_throttle_time_that_no_client_receives_is_not_broken(other: str) -> None:
    faults = {other: (4.0, 1.4), "throttled, reset": (4.1, 5.0)}
    outcome = outcome_of(faults, producers=("plain", "plain"))
    assert outcome.violations == []
