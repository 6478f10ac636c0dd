"""A few seeds, in processes of their own. `python -m tests.simulation` runs more.

They need simloop. SIMULATION_PYTHON may name a Python that has it, instead of that of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("SIMULATION_PYTHON") or sys.executable
# The virtual seconds of a seed.
LENGTH_S = "30"


@cache
def missing() -> str:
    """Return what the simulation lacks; "" if nothing."""
    tried = subprocess.run(
        [PYTHON, "-c", "import simloop"], capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        return ""
    last = tried.stderr.strip().rpartition("\n")[2]
    return (
        f"the simulation needs simloop (pip install simloop, with Python 3.11 also --no-deps "
        f"--ignore-requires-python), but {PYTHON}: {last}"
    )


@pytest.fixture(autouse=True)
def simloop() -> None:
    if missing():
        pytest.skip(missing())


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "tests.simulation", "--length", LENGTH_S, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_seeds_break_no_rule() -> None:
    run = simulate("--seeds", "1-20", "--jobs", "2")
    assert run.returncode == 0, run.stdout + run.stderr


def test_replay_is_identical() -> None:
    first, second = simulate("--replay", "3"), simulate("--replay", "3")
    assert "faults stop" in first.stdout, first.stderr
    assert first.stdout == second.stdout


def test_timeline_is_written(tmp_path: Path) -> None:
    page = tmp_path / "timeline.html"
    simulate("--replay", "3", "--timeline", str(page))
    assert "<svg" in page.read_text("utf-8")


ENDLESS = """
from tests.simulation import campaign, course
campaign.prepare()
course.Course.look = lambda self: [None for _ in iter(int, 1)]
print(campaign.run_seed(3, 30.0, 0.5).rules)
"""


def test_seed_with_a_callback_that_does_not_return_is_a_hang() -> None:
    run = subprocess.run(
        [PYTHON, "-c", ENDLESS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.stdout == "('hang',)\n", run.stderr


def test_planted_bug_is_found() -> None:
    run = simulate("--planted", "commits one too far", "--seeds", "1-3", "--jobs", "1")
    assert "1 of 1 found" in run.stdout, run.stdout + run.stderr
