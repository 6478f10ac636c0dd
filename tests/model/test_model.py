"""The random model test: a few rounds of it here, and half an hour in the long form."""

from __future__ import annotations

import time
from typing import Final

import pytest

from tests.model.checking import LONG_S, check
from tests.model.course import Plan

SHORT: Final = Plan(wild_s=8.0, calm_s=12.0, cycles=1)


@pytest.mark.parametrize("seed", range(3))
def test_groups_keep_their_promises_whatever_members_do(seed: int) -> None:
    check(seed, None, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
def test_half_an_hour_of_rounds() -> None:
    ends_at = time.monotonic() + LONG_S
    seed = 1_000
    while time.monotonic() < ends_at:
        check(seed, None)
        seed += 1
