"""Storms of members that `run`, on a real Kafka: each member in a thread of its own."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from tests.model.handling import Journal, Plan, Storm
from tests.model.world import RealWorld
from tests.support.cluster import KafkaHandle
from tests.support.protocols import WAYS
from tests.support.rounds import in_time, random_rounds

pytestmark = pytest.mark.real_kafka
# By the consumer protocol a member that was killed keeps its partitions for 45 s there.
KILLS: Final = ("cooperative", "eager")


def blow(address: str, plan: Plan, seed: int) -> Journal:
    """Let a storm blow, and return what happened."""
    world = RealWorld()
    storm = Storm(world, KafkaHandle("real", address), plan, seed)
    world.run(storm.run)
    return storm.journal


def check_kills(address: str, way: str, seed: int, rebalances: int) -> Journal:
    journal = blow(address, Plan(rebalances=rebalances, settings=WAYS[way]), seed)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert journal.repeated <= journal.at_stake
    return journal


@pytest.mark.slow  # the short form has kills with dead letters, below
def test_nothing_is_lost_whoever_is_killed(real_kafka: str) -> None:
    assert check_kills(real_kafka, "cooperative", 1, 12).kills


@pytest.mark.slow
@random_rounds
def test_nothing_is_lost_in_storm_after_storm_with_kills(real_kafka: str) -> None:
    for seed, way in in_time(zip(itertools.count(2), itertools.cycle(KILLS), strict=False)):
        check_kills(real_kafka, way, seed, 40)


@pytest.mark.parametrize(
    "way",
    [
        "consumer",
        pytest.param("cooperative", marks=pytest.mark.slow),
        pytest.param("eager", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_repeated_where_members_only_come_and_go(real_kafka: str, way: str) -> None:
    journal = blow(real_kafka, Plan(rebalances=6, kills=False, settings=WAYS[way]), 7)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert not journal.repeated


@pytest.mark.parametrize(
    "rebalances", [12, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_each_dead_letter_is_committed_once_whoever_is_killed(
    real_kafka: str, rebalances: int
) -> None:
    plan = Plan(rebalances=rebalances, bad=20, settings=WAYS["cooperative"])
    journal = blow(real_kafka, plan, 3)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert journal.letters
    assert journal.kills
