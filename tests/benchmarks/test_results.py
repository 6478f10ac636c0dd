from __future__ import annotations

import json
from dataclasses import astuple
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.contestants import CONTESTANTS
from benchmarks.goals import GOALS, Goal, judge
from benchmarks.machine import Machine, describe_machine
from benchmarks.measure import Measurement
from benchmarks.plot import plot
from benchmarks.report import show
from benchmarks.results import Failure, Sample, summarize, write_json
from benchmarks.scenarios import PARTITION_COUNT, Scenario, scenarios

MACHINE = Machine("Test CPU", 2, "Linux 6", "3.11", 0.5)
SCENARIO = Scenario("plain", "none", 100, 1000)


def sample(contestant: str, cpu_s: float, number: int = 1, wall_s: float = 1.0) -> Sample:
    return Sample("plain", contestant, number, Measurement(1000, None, wall_s, cpu_s, "1.2"))


SAMPLES = [
    sample("lite poll", 0.0002, 1),
    sample("aiokafka getmany", 0.002, 1),
    sample("lite poll", 0.0001, 2),
    sample("aiokafka getmany", 0.0015, 2),
    sample("lite poll", 0.0004, 3),
]


def test_summary_keeps_best_median_and_worst_in_ns_per_record() -> None:
    summary = summarize(SAMPLES)["plain", "lite poll"]
    assert summary.runs == 3
    assert astuple(summary.cpu_ns) == pytest.approx((100, 200, 400))


def test_goals_compare_the_best_of_each() -> None:
    met = Goal("plain", "lite poll", "aiokafka getmany", 10)
    missed = Goal("plain", "lite poll", "aiokafka getmany", 16)
    not_run = Goal("plain", "lite poll", "Java ConsumerPerformance", 3)
    other_scenario = Goal("zstd", "lite poll", "aiokafka getmany", 6)
    verdicts = judge(summarize(SAMPLES), [met, missed, not_run, other_scenario])
    assert [each.goal for each in verdicts] == [met, missed, not_run]
    assert verdicts[0].ratio == pytest.approx(15)
    assert [each.is_met for each in verdicts] == [True, False, False]


def test_goals_name_scenarios_and_contestants_that_exist() -> None:
    names = {each.name for each in CONTESTANTS}
    known = {each.name for each in scenarios(1000)}
    assert all(goal.ours in names and goal.peer in names for goal in GOALS)
    assert {goal.scenario for goal in GOALS} <= known


def test_report_shows_ratios_failures_and_the_machine() -> None:
    output = StringIO()
    summaries = summarize(SAMPLES)
    failures = [Failure("plain", "lite getmany", "no broker")]
    console = Console(file=output, width=120)
    show(MACHINE, [SCENARIO], summaries, judge(summaries), failures, console)
    text = output.getvalue()
    assert "Test CPU" in text
    assert "15.00" in text
    assert "met" in text
    assert "not run" in text
    assert "FAILED plain, lite getmany: no broker" in text


def test_json_holds_all_samples(tmp_path: Path) -> None:
    path = tmp_path / "out" / "bench.json"
    write_json(path, MACHINE, SAMPLES, [])
    document = json.loads(path.read_text())
    assert len(document["samples"]) == len(SAMPLES)
    assert document["machine"]["cpu"] == "Test CPU"
    assert document["summaries"][0]["cpu_ns"]["best"] == pytest.approx(100)


def test_plot_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "out" / "bench.png"
    plot(path, MACHINE, [SCENARIO], summarize(SAMPLES))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_machine_is_described() -> None:
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.cpu


def test_scenario_rows_have_the_sizes_that_it_names() -> None:
    for scenario in scenarios(400):
        rows = list(scenario.rows())
        assert len(rows) == scenario.records
        assert sum(len(key) + len(value) for key, value, _ in rows) == scenario.touched_bytes
        assert {partition for _, _, partition in rows} == set(range(PARTITION_COUNT))
        assert rows == list(scenario.rows()), "the same every time"
