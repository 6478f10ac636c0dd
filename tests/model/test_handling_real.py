"""Storms of members that `run`, on a real Kafka: each member in a thread of its own."""

from __future__ import annotations

import pytest

from tests.model.handling import Journal, Plan, Storm
from tests.model.world import RealWorld
from tests.support.cluster import KafkaHandle
from tests.support.protocols import WAYS

pytestmark = pytest.mark.real_kafka
# By the consumer protocol a member that was killed keeps its partitions for 45 s there.
KILLS = ("eager", "cooperative")


def blow(address: str, plan: Plan, seed: int) -> Journal:
    """Let a storm blow, and return what happened."""
    world = RealWorld()
    storm = Storm(world, KafkaHandle("real", address), plan, seed)
    world.run(storm.run)
    return storm.journal


@pytest.mark.parametrize("way", KILLS)
def test_nothing_is_lost_whoever_is_killed(real_kafka: str, way: str) -> None:
    journal = blow(real_kafka, Plan(rebalances=8, settings=WAYS[way]), 1)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert journal.kills
    assert journal.repeated <= journal.at_stake


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_repeated_where_members_only_come_and_go(real_kafka: str, way: str) -> None:
    journal = blow(real_kafka, Plan(rebalances=8, kills=False, settings=WAYS[way]), 7)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert not journal.repeated
