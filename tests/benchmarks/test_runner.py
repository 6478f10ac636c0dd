from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.catalogue import FULL, QUICK, scenarios
from benchmarks.contestants import LITE_POLL, Contestant
from benchmarks.figures import CPU_NS
from benchmarks.measure import Measurement, RunError, Workload
from benchmarks.results import Failure, Sample
from benchmarks.runner import Plan, execute_in_process, run
from benchmarks.scenarios import Scenario
from benchmarks.topics import Topic

FAST = Contestant("fast", "x", "fast:run")
SLOW = Contestant("slow", "x", "slow:run", task="a task of its own")
SCENARIO = Scenario(
    "plain", "bulk", "?", "bulk", (CPU_NS,), (FAST, SLOW), rounds=3, topics=(Topic(records=50),)
)
ALL = Measurement("1.0", {"cpu_ns": 1.0}, 50, 50 * 108)


def execute_all(task: str, contestant: Contestant, workload: Workload) -> Measurement:
    assert workload.topics == [Topic(records=50).name]
    assert workload.records == 50
    assert task == ("bulk" if contestant is FAST else "a task of its own")
    return ALL


def plan(scenario: Scenario = SCENARIO) -> Plan:
    return Plan("kafka:9092", [scenario])


def test_every_contestant_runs_once_per_round() -> None:
    outcomes = list(run(plan(), execute_all))
    assert all(isinstance(each, Sample) for each in outcomes)
    runs = [(each.round, each.contestant) for each in outcomes if isinstance(each, Sample)]
    assert sorted(runs) == [(n, name) for n in (1, 2, 3) for name in ("fast", "slow")]
    assert [number for number, _ in runs] == [1, 1, 2, 2, 3, 3], "rounds are interleaved"


def test_failed_contestant_is_left_out_and_the_others_go_on() -> None:
    def execute(task: str, contestant: Contestant, workload: Workload) -> Measurement:
        if contestant is SLOW:
            raise RunError("no broker")
        return ALL

    outcomes = list(run(plan(), execute))
    assert [each for each in outcomes if isinstance(each, Failure)] == [
        Failure("plain", "slow", "no broker")
    ]
    assert len(outcomes) == 4


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        (replace(ALL, records=49), "read 49 records"),
        (replace(ALL, touched_bytes=5000), "touched 5000 bytes"),
    ],
)
def test_less_work_than_asked_for_does_not_count(measurement: Measurement, reason: str) -> None:
    outcomes = list(run(plan(), lambda task, contestant, workload: measurement))
    assert len(outcomes) == 2
    assert all(isinstance(each, Failure) and reason in each.reason for each in outcomes)


def test_paced_run_that_saw_too_few_records_does_not_count() -> None:
    paced = replace(SCENARIO, topics=(Topic(use="paced"),), rate=100, seconds=2)
    paced.check(Measurement("1.0", {}, records=195))
    with pytest.raises(RunError, match="saw 100 records in 2 s"):
        paced.check(Measurement("1.0", {}, records=100))


def test_process_that_fails_says_why() -> None:
    nobody = Contestant("nobody", "x", "no_such_module:run")
    with pytest.raises(RunError, match="ModuleNotFoundError"):
        execute_in_process("bulk", nobody, Workload("kafka:9092"))


@pytest.mark.parametrize("size", [FULL, QUICK])
def test_names_are_unique(size: object) -> None:
    all_scenarios = scenarios(FULL if size is FULL else QUICK)
    assert len({each.name for each in all_scenarios}) == len(all_scenarios)
    for scenario in all_scenarios:
        names = [each.name for each in scenario.contestants]
        assert len(set(names)) == len(names)
        assert len({topic.name for topic in scenario.topics}) == len(scenario.topics)


@pytest.mark.parametrize("family", ["moves", "rebalance"])
def test_no_round_hides_the_longest_wait_of_another(family: str) -> None:
    chosen = [each for each in scenarios(FULL) if each.family == family]
    assert chosen
    assert {each.rounds for each in chosen} == {1}


def test_contestant_without_its_package_says_what_to_install() -> None:
    missing = Contestant("x", "x", "x:run", requires="no_such_package").missing()
    assert missing is not None
    assert "pip install" in missing


def test_contestant_without_a_package_of_ours_says_that_it_is_not_there() -> None:
    missing = Contestant("x", "x", "x:run", requires="aiokafka_lite.no_such_package").missing()
    assert missing == "this checkout has no aiokafka_lite.no_such_package"


def test_contestant_on_uvloop_keeps_everything_but_name_and_loop() -> None:
    contestant = LITE_POLL.on_uvloop()
    assert contestant == replace(LITE_POLL, name="lite poll, uvloop", loop="uvloop")
