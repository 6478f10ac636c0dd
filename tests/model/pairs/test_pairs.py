"""Every way of reading meets every event: some rounds here, and all pairs in the long form."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from tests.model.pairs.checking import check
from tests.model.pairs.course import Plan
from tests.model.pairs.known import KNOWN

SHORT: Final = Plan(wild_s=8.0, without=frozenset(KNOWN))
LONG: Final = Plan(without=frozenset(KNOWN))
LONG_S: Final = 1_000.0
# How often each pair meets in the long form at least.
LEAST: Final = 20


@pytest.mark.parametrize("seed", range(3))
def test_records_are_processed_once_and_in_order_whatever_meets(seed: int) -> None:
    check([seed], None, SHORT, within_s=0.0)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
def test_every_pair_meets_twenty_times() -> None:
    table = check(itertools.count(1_000), None, LONG, within_s=LONG_S)
    assert not table.rarer_than(LEAST), table.text()
