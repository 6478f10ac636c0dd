"""Three real brokers are killed, shut down and hang under 1,000 records a second.

The short form kills each once, in well under a minute; the others take one to three minutes and are
for the long form. The writer has acks=all and is
idempotent; min.insync.replicas is 2; a broker's session lasts 3 s. While a broker is missing and
in sync nothing can be acknowledged, so nobody can read: silences are compared with those of the
peers that read the same records at the same time, and with the writer's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.failover.course import Outcome, running
from tests.support.failover.scenarios import (
    CONTROLLER_KILL,
    HANG,
    KILLS,
    hang,
    kill_controller_only,
    kill_each,
    restart_each,
)
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable

pytestmark = [
    pytest.mark.real_kafka,
    pytest.mark.java,
    pytest.mark.timeout(600),
]

HEAP_MIB = 256
SHORT_RATE = 300
OURS = "lite"
PEERS = ("aiokafka", "confluent")
# Looking for the new leader, told by an error answer or by metadata; and a machine that is busy.
OWN_PART_S = 3.0
# fetch_max_wait_ms, ten seconds until a connection counts as dead, one more.
HANG_FOUND_S = 11.5


def cluster_of(controllers: int = 0, properties: dict[str, str] | None = None) -> RealKafka:
    try:
        return RealKafka(3, properties=properties, controllers=controllers, heap_mib=HEAP_MIB)
    except KafkaUnavailableError as error:
        unavailable(error)


@pytest.fixture(scope="module")
def brokers() -> Iterator[RealKafka]:
    """Three nodes that are brokers and controllers."""
    with cluster_of() as cluster:
        yield cluster


def assert_faithful(outcome: Outcome) -> None:
    """Each record once, in order, no rebalance; and nothing that the application had to handle."""
    findings = outcome.findings[OURS]
    assert findings.records > 0, str(outcome)
    assert findings.is_faithful, str(outcome)
    assert findings.failures == (), str(outcome)


@pytest.mark.slow
async def test_each_of_three_brokers_is_killed_once_and_no_record_is_lost_or_repeated() -> None:
    # A second and a half until a dead one is missed: half of what the long form has.
    quick = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "250"}
    with cluster_of(properties=quick) as brokers:
        async with running(brokers, (OURS,), rate=SHORT_RATE) as course:
            await kill_each(course, down_s=0.0, moves_back=False)
            outcome = await course.finish()
    assert_faithful(outcome)
    assert [window.name for window in outcome.windows] == list(KILLS)
    for name in KILLS:
        assert outcome.findings[OURS].effects[name].late_s <= OWN_PART_S, str(outcome)


@pytest.mark.slow
async def test_three_kills_cost_no_record_no_rebalance_and_no_more_time_than_the_peers(
    brokers: RealKafka,
) -> None:
    async with running(brokers, (OURS, *PEERS), required=(OURS,)) as course:
        await kill_each(course)
        outcome = await course.finish()
    assert_faithful(outcome)
    medians = {name: found.median_silence_s(KILLS) for name, found in outcome.findings.items()}
    assert medians[OURS] <= 1.1 * max(medians[peer] for peer in PEERS), str(outcome)
    for name in KILLS:
        assert outcome.findings[OURS].effects[name].late_s <= OWN_PART_S, str(outcome)


@pytest.mark.slow
async def test_a_rolling_restart_is_hardly_noticed(brokers: RealKafka) -> None:
    async with running(brokers, (OURS,)) as course:
        await restart_each(course)
        outcome = await course.finish()
    assert_faithful(outcome)
    for name, effect in outcome.findings[OURS].effects.items():
        allowed_s = max(OWN_PART_S, outcome.writer[name].partition_silence_s + 1)
        assert effect.partition_silence_s <= allowed_s, str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("is_coordinator", [False, True], ids=["leader", "and coordinator"])
async def test_a_broker_that_hangs_is_left_and_the_membership_kept(
    brokers: RealKafka, *, is_coordinator: bool
) -> None:
    async with running(brokers, (OURS,)) as course:
        await hang(course, is_coordinator=is_coordinator)
        outcome = await course.finish()
    assert_faithful(outcome)
    assert outcome.findings[OURS].effects[HANG].late_s <= HANG_FOUND_S, str(outcome)


@pytest.mark.slow
async def test_a_controller_that_is_no_broker_dies_unnoticed() -> None:
    with cluster_of(controllers=3) as brokers:
        async with running(brokers, (OURS,)) as course:
            await kill_controller_only(course)
            outcome = await course.finish()
    assert_faithful(outcome)
    effect, writer = (
        outcome.findings[OURS].effects[CONTROLLER_KILL],
        outcome.writer[CONTROLLER_KILL],
    )
    assert effect.partition_silence_s <= max(OWN_PART_S, writer.partition_silence_s + 1), str(
        outcome
    )
