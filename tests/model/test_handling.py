"""Storms of members that `run`, on the embedded broker in virtual time."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from aiokafka_lite.broker import Broker
from tests.model.handling import Journal, Plan, Storm
from tests.model.world import VirtualWorld
from tests.support.cluster import KafkaHandle
from tests.support.protocols import WAYS
from tests.support.rounds import LONG, in_time, random_rounds

OF_A_STORM: Final = 30 if LONG else 5
LATE: Final = {"OffsetCommit": 0.02, "TxnOffsetCommit": 0.02, "EndTxn": 0.05}


def blow(plan: Plan, seed: int) -> Journal:
    """Let a storm blow, and return what happened."""
    world = VirtualWorld()
    journals: list[Journal] = []

    async def conduct() -> None:
        async with Broker(group_consumer_session_timeout_ms=6_000) as broker:
            if plan.bad:  # so that commits and transactions overlap
                for api, late_s in LATE.items():
                    broker.on(api).delay(late_s, times=None)
            storm = Storm(world, KafkaHandle("embedded", broker.bootstrap_servers), plan, seed)
            journals.append(storm.journal)
            await storm.run()

    world.run(conduct)
    return journals[0]


def check_kills(way: str, seed: int) -> Journal:
    journal = blow(Plan(rebalances=OF_A_STORM, settings=WAYS[way]), seed)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert journal.repeated <= journal.at_stake
    return journal


@pytest.mark.parametrize(
    "way", ["consumer", "cooperative", pytest.param("eager", marks=pytest.mark.slow)]
)
def test_nothing_is_lost_whoever_is_killed(way: str) -> None:
    assert check_kills(way, 0).kills


@pytest.mark.slow
@random_rounds
def test_nothing_is_lost_in_storm_after_storm_with_kills() -> None:
    for seed, way in in_time(zip(itertools.count(1), itertools.cycle(WAYS), strict=False)):
        check_kills(way, seed)


@pytest.mark.parametrize(
    ("way", "kills"),
    [
        ("consumer", True),
        ("cooperative", False),
        pytest.param("eager", True, marks=pytest.mark.slow),
        pytest.param("consumer", False, marks=pytest.mark.slow),
        pytest.param("cooperative", True, marks=pytest.mark.slow),
        pytest.param("eager", False, marks=pytest.mark.slow),
    ],
)
def test_each_dead_letter_is_committed_once_whatever_happens(way: str, *, kills: bool) -> None:
    plan = Plan(rebalances=OF_A_STORM, kills=kills, bad=20, settings=WAYS[way])
    journal = blow(plan, 3)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert journal.letters


@pytest.mark.slow
@random_rounds
def test_nothing_is_repeated_in_storm_after_storm_with_dead_letters() -> None:
    for seed, way in in_time(zip(itertools.count(9_000), itertools.cycle(WAYS), strict=False)):
        plan = Plan(rebalances=OF_A_STORM, kills=False, bad=20, settings=WAYS[way])
        journal = blow(plan, seed)
        assert not journal.violations, "\n".join([f"{seed} {way}", *journal.violations[:10]])


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_repeated_where_members_only_come_and_go(way: str) -> None:
    journal = blow(Plan(rebalances=OF_A_STORM, kills=False, settings=WAYS[way]), 7)
    assert not journal.violations, "\n".join(journal.violations[:10])
    assert not journal.repeated
