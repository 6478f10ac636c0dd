"""Every way of reading meets every event: some rounds here, and all pairs in the long form."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

from tests.model.pairs.checking import until_met
from tests.model.pairs.course import Plan
from tests.model.pairs.known import KNOWN
from tests.support.rounds import RANDOM_S, random_rounds

LONG: Final = Plan(without=frozenset(KNOWN))
# Within this time each pair meets so often, on two quiet cores.
WHOLE_S: Final = 1_150.0
LEAST: Final = 20


def test_records_are_processed_once_and_in_order_whatever_meets() -> None:
    # In a process of its own, where sets have the same order each time.
    command = [sys.executable, "-m", "tests.model.pairs", "--wild-s", "8", "--rounds", "1"]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
@random_rounds
def test_every_pair_meets_in_rounds_by_their_seeds() -> None:
    table, _ = until_met(1_000, LONG, LEAST, within_s=RANDOM_S)
    if RANDOM_S >= WHOLE_S:
        assert not table.rarer_than(LEAST), table.text()
