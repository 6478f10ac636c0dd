"""Bugs that are planted are found by the model within some rounds."""

from __future__ import annotations

import pytest

from tests.model.pairs.course import Plan, run_round
from tests.model.pairs.known import KNOWN
from tests.model.pairs.planted import BUGS, Bug

MOST_ROUNDS = 100


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the bug
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_model_finds_a_planted_bug(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    plan = Plan(wild_s=15.0, without=bug.without | KNOWN.keys(), kinds=bug.kinds)
    assert any(run_round(seed, None, plan).violations for seed in range(MOST_ROUNDS))
