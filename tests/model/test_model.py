"""The random model test: a few rounds of it here, and many in the long form."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from tests.model.checking import check
from tests.model.course import Plan
from tests.support.rounds import in_time, random_rounds

SHORT: Final = Plan(wild_s=8.0, calm_s=12.0, cycles=1)


@pytest.mark.few_rows(1)
@pytest.mark.parametrize("seed", range(3))
def test_groups_keep_their_promises_whatever_members_do(seed: int) -> None:
    check(seed, None, SHORT)


@pytest.mark.slow
@random_rounds
def test_groups_keep_their_promises_in_long_rounds() -> None:
    for seed in in_time(itertools.count(1_000)):
        check(seed, None)
