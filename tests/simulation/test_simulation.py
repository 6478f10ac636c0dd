"""A few seeds, in processes of their own. `python -m tests.simulation` runs more."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The virtual seconds of a seed.
LENGTH_S = "30"

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 11), reason="simloop needs Python 3.11"),
    pytest.mark.skipif(
        importlib.util.find_spec("simloop") is None,
        reason="simloop is not installed: pip install --no-deps --ignore-requires-python "
        "simloop==0.2.2",
    ),
]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--length", LENGTH_S, *arguments],
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
    assert "faults stop" in first.stdout
    assert first.stdout == second.stdout


def test_timeline_is_written(tmp_path: Path) -> None:
    page = tmp_path / "timeline.html"
    simulate("--replay", "3", "--timeline", str(page))
    assert "<svg" in page.read_text("utf-8")
