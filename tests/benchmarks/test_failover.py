"""What a course among failing brokers comes to as a benchmark."""

from __future__ import annotations

import pytest

from benchmarks.catalogue import FULL, scenarios
from benchmarks.contestants import AIOKAFKA_GETMANY, CONFLUENT_POLL, LITE_GETMANY
from benchmarks.failover import COURSES, READERS, measured
from benchmarks.figures import FAILOVER, SILENCE
from benchmarks.goals import NotAboveSlowest
from benchmarks.measure import Measurement
from benchmarks.results import Sample, summarize
from tests.support.failover.reader import READERS as PROCESSES
from tests.support.failover.scenarios import ELECTION, KILLS
from tests.support.failover.verdict import Effect, Findings

PEERS = (AIOKAFKA_GETMANY, CONFLUENT_POLL)
GOAL = NotAboveSlowest("failover-kill", LITE_GETMANY, SILENCE, 1.1, PEERS)


def test_every_course_and_every_reader_is_there() -> None:
    chosen = [each for each in scenarios(FULL) if each.course]
    assert {each.course for each in chosen} == COURSES.keys()
    for scenario in chosen:
        readers = [READERS[contestant.client] for contestant in scenario.contestants]
        assert len(set(readers)) == len(readers)
        assert set(readers) <= PROCESSES.keys()


def test_moving_leaders_back_is_no_failure_that_counts() -> None:
    effects = {name: Effect(1.0, place + 3.0, 0.5, 2.0) for place, name in enumerate(KILLS)}
    effects[f"{ELECTION} after: {KILLS[0]}"] = Effect(50.0, 50.0, 50.0, 50.0)
    findings = Findings(100, 1, 2, 3, 0, 4, (), effects)
    found = measured(LITE_GETMANY, findings)
    assert found.records == 100
    assert found.figures == {
        "silence_s": 4.0,
        "silence_max_s": 5.0,
        "behind_s": 0.5,
        "age_p99_s": 2.0,
        "rebalances": 4.0,
        "lost": 1.0,
        "repeated": 2.0,
        "disordered": 3.0,
    }
    assert found.figures.keys() == {figure.key for figure in FAILOVER}


@pytest.mark.parametrize(("ours", "is_met"), [(6.5, True), (7.0, False)])
def test_the_slower_of_two_peers_is_the_measure(ours: float, *, is_met: bool) -> None:
    silences = {LITE_GETMANY: ours, AIOKAFKA_GETMANY: 5.0, CONFLUENT_POLL: 6.0}
    samples = [
        Sample("failover-kill", contestant.name, 1, Measurement("1", {"silence_s": silence}))
        for contestant, silence in silences.items()
    ]
    verdict = GOAL.judge(summarize(samples))
    assert verdict.is_met is is_met
    assert verdict.reached == ours / 6.0
    assert GOAL.judge({}).is_met is None
