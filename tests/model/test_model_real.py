"""The random model test on a real Kafka, in a file of its own: its rounds need little CPU."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from tests.model.checking import check
from tests.model.course import Plan
from tests.support.rounds import in_time, random_rounds

SHORT: Final = Plan(wild_s=3.0, calm_s=1.0, cycles=1, silent_s=15.0, ownerless_s=25.0)
pytestmark = pytest.mark.real_kafka


def test_groups_keep_their_promises_on_a_real_kafka(real_kafka: str) -> None:
    check(1, real_kafka, SHORT)


@pytest.mark.slow
@random_rounds
def test_groups_keep_their_promises_in_long_rounds_on_a_real_kafka(real_kafka: str) -> None:
    for seed in in_time(itertools.count(1_000)):
        check(seed, real_kafka)
