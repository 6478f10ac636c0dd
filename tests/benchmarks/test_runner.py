from __future__ import annotations

import pytest

from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.measure import Measurement, Workload
from benchmarks.results import Failure, Sample
from benchmarks.runner import Plan, RunError, execute_in_process, run
from benchmarks.scenarios import PARTITION_COUNT, Scenario

SCENARIO = Scenario("plain", "none", 100, 50)
FAST = Contestant("fast", "x", "fast:run")
SLOW = Contestant("slow", "x", "slow:run")


def read_all(contestant: Contestant, workload: Workload) -> Measurement:
    assert workload == Workload("kafka:9092", SCENARIO.topic, PARTITION_COUNT, 50)
    cost_s = 1.0 if contestant is FAST else 2.0
    return Measurement(50, 50 * 108, cost_s, cost_s, "1.0")


def plan(rounds: int = 3) -> Plan:
    return Plan("kafka:9092", [SCENARIO], [FAST, SLOW], rounds)


def test_every_contestant_runs_once_per_round() -> None:
    outcomes = list(run(plan(), read_all))
    assert all(isinstance(each, Sample) for each in outcomes)
    runs = [(each.round, each.contestant) for each in outcomes if isinstance(each, Sample)]
    assert sorted(runs) == [(n, name) for n in (1, 2, 3) for name in ("fast", "slow")]
    assert [number for number, _ in runs] == [1, 1, 2, 2, 3, 3], "rounds are interleaved"


def test_failed_contestant_is_left_out_and_the_others_go_on() -> None:
    def execute(contestant: Contestant, workload: Workload) -> Measurement:
        if contestant is SLOW:
            raise RunError("no broker")
        return read_all(contestant, workload)

    outcomes = list(run(plan(), execute))
    assert [each for each in outcomes if isinstance(each, Failure)] == [
        Failure("plain", "slow", "no broker")
    ]
    assert len(outcomes) == 4


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        (Measurement(49, 49 * 108, 1.0, 1.0, "1.0"), "read 49 records"),
        (Measurement(50, 50 * 100, 1.0, 1.0, "1.0"), "touched 5000 bytes"),
    ],
)
def test_less_work_than_asked_for_does_not_count(measurement: Measurement, reason: str) -> None:
    outcomes = list(run(plan(rounds=1), lambda contestant, workload: measurement))
    assert all(isinstance(each, Failure) and reason in each.reason for each in outcomes)


def test_process_that_fails_says_why() -> None:
    nobody = Contestant("nobody", "x", "no_such_module:run")
    with pytest.raises(RunError, match="ModuleNotFoundError"):
        execute_in_process(nobody, Workload("kafka:9092", "topic", 4, 1))


def test_names_of_contestants_are_unique() -> None:
    assert len({each.name for each in CONTESTANTS}) == len(CONTESTANTS)


def test_contestant_without_its_package_says_what_to_install() -> None:
    missing = Contestant("x", "x", "x:run", requires="no_such_package").missing()
    assert missing is not None
    assert "pip install" in missing
