"""Tests that one seed decides a whole run: in two processes, with different hashes of texts.

simloop and simloom need Python 3.12. SIMULATION_PYTHON may name another Python that has them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import started

ROOT = Path(__file__).parents[1]
PYTHON = os.environ.get("SIMULATION_PYTHON", sys.executable)
SECONDS = 60
MEMBERS = 3


@cache
def why_not(library: str) -> str:
    """Return why there is no simulation, or ""."""
    command = f"import sys; assert sys.version_info >= (3, 12), sys.version; import {library}"
    done = subprocess.run([PYTHON, "-c", command], capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    last = done.stderr.strip().rpartition("\n")[2]
    return f"this needs Python 3.12 and {library} (pip install {library}), but {PYTHON}: {last}"


async def runs_of(library: str, *runs: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the outcomes of simulations with a seed and a PYTHONHASHSEED, one process each."""
    if reason := why_not(library):
        pytest.skip(reason)
    return list(await asyncio.gather(*(run_of(library, *run) for run in runs)))


async def run_of(library: str, seed: int, hash_seed: int) -> dict[str, Any]:
    async with started(
        PYTHON,
        "-m",
        "tests.support.simulated",
        *(library, str(seed), str(SECONDS), str(MEMBERS)),
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    outcome: dict[str, Any] = json.loads(out)
    return outcome


@pytest.mark.parametrize("library", ["simloop", "simloom"])
async def test_a_seed_replays_a_group_whatever_the_hashes(library: str) -> None:
    first, again, other = await runs_of(library, (1, 0), (1, 7), (2, 0))
    assert first == again
    assert first["hash"] != other["hash"]
    for each in (first, other):
        assert each["written"] > SECONDS * 3
        assert len(each["received"]) == each["written"]
