"""Every way of reading meets every event: some rounds here, and all pairs in the long form."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.model.pairs.checking import until_met
from tests.model.pairs.course import Plan
from tests.model.pairs.known import KNOWN

LONG: Final = Plan(without=frozenset(KNOWN))
LONG_S: Final = 1_150.0
# How often each pair meets in the long form at least.
LEAST: Final = 20


def test_records_are_processed_once_and_in_order_whatever_meets() -> None:
    # In a process of its own, where sets have the same order each time.
    command = [sys.executable, "-m", "tests.model.pairs", "--wild-s", "8", "--rounds", "3"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
def test_every_pair_meets_twenty_times() -> None:
    table, _ = until_met(1_000, LONG, LEAST, within_s=LONG_S)
    assert not table.rarer_than(LEAST), table.text()
