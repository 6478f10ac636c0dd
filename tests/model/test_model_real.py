"""The random model test on a real Kafka, in a file of its own: its half hour needs no CPU."""

from __future__ import annotations

import time
from typing import Final

import pytest

from tests.model.checking import LONG_S, check
from tests.model.course import Plan

SHORT: Final = Plan(wild_s=3.0, calm_s=1.0, cycles=1, silent_s=15.0, ownerless_s=25.0)
pytestmark = pytest.mark.real_kafka


def test_groups_keep_their_promises_on_a_real_kafka(real_kafka: str) -> None:
    check(1, real_kafka, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
def test_half_an_hour_of_rounds_on_a_real_kafka(real_kafka: str) -> None:
    ends_at = time.monotonic() + LONG_S
    seed = 1_000
    while time.monotonic() < ends_at:
        check(seed, real_kafka)
        seed += 1
