"""Rounds of the model of pairs on a real Kafka: what can happen to one of one node."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from tests.model.pairs.checking import check
from tests.model.pairs.course import Plan
from tests.model.pairs.known import KNOWN
from tests.support.rounds import RANDOM_S, random_rounds

PLAN: Final = Plan(wild_s=8.0, without=frozenset(KNOWN))
pytestmark = pytest.mark.real_kafka


@pytest.mark.slow  # a course in real time is another one each time
def test_records_are_processed_once_and_in_order_on_a_real_kafka(real_kafka: str) -> None:
    check([1], real_kafka, PLAN, within_s=0.0)


@pytest.mark.slow
@random_rounds
def test_records_are_processed_once_and_in_order_in_round_after_round(real_kafka: str) -> None:
    check(itertools.count(1_000), real_kafka, PLAN, within_s=RANDOM_S)
