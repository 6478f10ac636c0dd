"""Storms of members that `run`, on the embedded broker in virtual time."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker import Broker
from tests.model.handling import Journal, Plan, Storm
from tests.model.world import VirtualWorld
from tests.support.cluster import KafkaHandle
from tests.support.protocols import WAYS


def blow(plan: Plan, seed: int) -> Journal:
    """Let a storm blow, and return what happened."""
    world = VirtualWorld()
    journals: list[Journal] = []

    async def conduct() -> None:
        async with Broker(group_consumer_session_timeout_ms=6_000) as broker:
            storm = Storm(world, KafkaHandle("embedded", broker.bootstrap_servers), plan, seed)
            journals.append(storm.journal)
            await storm.run()

    world.run(conduct)
    return journals[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_whoever_is_killed(way: str, seed: int) -> None:
    journal = blow(Plan(settings=WAYS[way]), seed)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert journal.kills
    assert journal.repeated <= journal.at_stake


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_repeated_where_members_only_come_and_go(way: str) -> None:
    journal = blow(Plan(kills=False, settings=WAYS[way]), 7)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert not journal.repeated
