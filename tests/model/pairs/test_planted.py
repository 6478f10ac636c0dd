"""Bugs that are planted are found by the model within some rounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiokafka_lite._implementation import SETTING
from tests.model.pairs.course import Plan, run_round
from tests.model.pairs.known import KNOWN
from tests.model.pairs.planted import BUGS, Bug

MOST_ROUNDS = 100


def _run_in_plain_python(item: pytest.Item) -> None:
    """Run a test again with the modules in plain Python, whose methods can be replaced."""
    name = f"{Path(__file__)}::{item.name}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    environment = {**os.environ, SETTING: "python"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in ended.stdout, ended.stdout[-2000:] + ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the bug
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_model_finds_a_planted_bug(
    bug: Bug, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    try:
        bug.plant(monkeypatch)
    except TypeError:  # the class is compiled
        if os.environ.get(SETTING) == "python":
            raise
        _run_in_plain_python(request.node)
        return
    plan = Plan(wild_s=15.0, without=bug.without | KNOWN.keys(), kinds=bug.kinds)
    assert any(run_round(seed, None, plan).violations for seed in range(MOST_ROUNDS))
