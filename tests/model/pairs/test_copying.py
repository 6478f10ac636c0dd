"""copy() of docs/producing.md, and `run` in transactions: each output is there exactly once.

Members come, go and are killed, their turns are cancelled, connections are cut, leaders and
coordinators move. Readers of committed records find one output of each record.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.model.pairs.checking import told
from tests.model.pairs.course import Outcome, Plan, run_round
from tests.model.pairs.known import KNOWN
from tests.model.pairs.ways import TRANSACTIONS
from tests.support.committed import read_java, read_librdkafka
from tests.support.java import JavaTools
from tests.support.rounds import LONG, in_time, random_rounds

# What has outputs written twice, or none, by the application's own wish, or that of the topic.
OTHERS: Final = frozenset(
    (
        "seek",
        "looked-up seek",
        "log truncated",
        "topic recreated",
        "topic recreated smaller",
        "retention past the position",
    )
)
# The most; in the long form the time may be over before.
REAL_ROUNDS: Final = 100 if LONG else 1
in_each_way: Final = pytest.mark.parametrize(
    "way",
    [
        pytest.param(way.name, marks=[pytest.mark.skip(KNOWN[way.name])])
        if way.name in KNOWN
        else way.name
        for way in TRANSACTIONS
    ],
)


def copy(seed: int, address: str, way: str, wild_s: float) -> Outcome:
    """Run one round in which one group copies in one way."""
    others = {each.name for each in TRANSACTIONS} - {way}
    plan = Plan(wild_s=wild_s, without=OTHERS | others, kinds=("transactions",))
    outcome = run_round(seed, address, plan)
    assert not outcome.violations, told(outcome, seed, address)
    return outcome


@pytest.mark.few_rows(1)
@pytest.mark.real_kafka
@pytest.mark.java
@random_rounds
@in_each_way
def test_readers_of_all_kinds_find_each_record_copied_once(
    real_kafka: str, java_tools: JavaTools, way: str
) -> None:
    for seed in in_time(range(REAL_ROUNDS)):
        outcome = copy(seed, real_kafka, way, wild_s=5.0)
        for topic, due in outcome.outputs.items():
            found = read_librdkafka(real_kafka, topic, len(due))
            assert found == dict.fromkeys(due, 1)
            if seed % 10 == 0:  # a JVM for each
                assert asyncio.run(read_java(java_tools, real_kafka, topic)) == found
