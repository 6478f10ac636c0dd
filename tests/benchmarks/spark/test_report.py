from __future__ import annotations

import pytest

from benchmarks.goals import judge
from benchmarks.machine import Machine
from benchmarks.measure import Measurement
from benchmarks.results import Sample, Summaries, describe_run, summarize
from benchmarks.spark import transport
from benchmarks.spark.catalogue import (
    FULL,
    JVM,
    JVM_TUNED,
    LITE,
    LITE_VALUE,
    PARTS,
    TRANSPORT,
    scenarios,
)
from benchmarks.spark.goals import SPARK_GOALS
from benchmarks.spark.meter import CpuTimes
from benchmarks.spark.sessions import figures, reason
from benchmarks.tables import family_table

MACHINE = Machine("Test CPU", 2, "Linux 6", "3.11", 0.5)
RECORDS = 1_000_000


def sample(scenario: str, contestant: str, wall_s: float, cpu: CpuTimes) -> Sample:
    measurement = Measurement("1.2", figures(wall_s, cpu, RECORDS, 1), RECORDS)
    return Sample(scenario, contestant, 1, measurement)


def summaries() -> Summaries:
    return summarize(
        [
            sample("agg", "lite", 0.20, CpuTimes(0.25, 0.05, 0.01)),
            sample("agg", "lite", 0.25, CpuTimes(0.30, 0.10, 0.02)),
            sample("agg", "lite", 0.40, CpuTimes(0.50, 0.20, 0.03)),
            sample("agg", "jvm", 0.60, CpuTimes(0.48, 0.02, 0.16)),
            sample("agg", "jvm tuned", 0.40, CpuTimes(0.50, 0.02, 0.04)),
            sample("small", "lite", 0.30, CpuTimes(0.2, 0.1, 0)),
            sample("small", "jvm", 1.20, CpuTimes(0.5, 0, 0)),
        ]
    )


CHOSEN = [each for each in scenarios(FULL) if each.name in {"agg", "small", "plan"}]


def test_figures_are_of_a_record_and_of_each_time() -> None:
    found = figures(wall_s=0.1, cpu=CpuTimes(2, 1, 0.5), records=40_000, times=20)
    assert found["wall_ms"] == pytest.approx(100)
    assert found["wall_us"] == pytest.approx(50)  # 20 times 0.1 s for 40,000
    assert found["cpu_ms"] == pytest.approx(150)
    assert found["cpu_us"] == pytest.approx(75)
    assert [found[f"{part}_ms"] for part in PARTS] == pytest.approx([100, 50, 25])


def test_reason_of_a_failure_is_what_the_worker_raised() -> None:
    message = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "reading.py", line 78, in read_ranges
aiokafka_lite.errors.OffsetOutOfRangeError: flights-0 begins at 7

JVM stacktrace:
    at java.base/java.lang.Thread.run(Thread.java:840)
"""
    assert reason(message) == (
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
        "aiokafka_lite.errors.OffsetOutOfRangeError: flights-0 begins at 7"
    )
    assert reason("no such topic") == "no such topic"


def test_tables_have_the_time_of_each_process_and_compare_with_the_first_source() -> None:
    run = describe_run(
        "spark", "2026-11-23T10:00:00+00:00", MACHINE, CHOSEN, summaries(),
        is_quick=False, is_own_kafka=False,
    )  # fmt: skip
    rows = family_table(run, "spark-bulk").splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells[1:] == [
        ["lite", "0.200 (0.250)", "0.300 (0.400)", "0.250 (0.300)", "0.050 (0.100)",
         "0.010 (0.020)", "1.00"],
        ["jvm tuned", "0.400", "0.520", "0.500", "0.020", "0.040", "2.00"],
        ["jvm", "0.600", "0.500", "0.480", "0.020", "0.160", "3.00"],
    ]  # fmt: skip
    _, title, line, _ = family_table(run, "spark-fixed").splitlines()[1:]
    assert "a query of 40,000 records" in title
    assert line.startswith("| lite | 300 | 300 | 200 | 100 | 0 | 1.00 |")


def test_goals_compare_best_with_best() -> None:
    verdicts = {(each.scenario, each.goal): each for each in judge(summaries(), SPARK_GOALS)}
    assert verdicts["agg", "2.6 × less than jvm"].reached == pytest.approx(3)
    assert verdicts["agg", "2.6 × less than jvm"].is_met is True
    assert verdicts["agg", "2.2 × less than jvm tuned"].is_met is False
    assert verdicts["agg", "at most 0.65 × jvm"].reached == pytest.approx(0.6)
    assert verdicts["small", "at most 0.3 × jvm"].is_met is True
    assert {scenario for scenario, _ in verdicts} == {"agg", "small"}


def test_every_goal_is_about_a_scenario_and_contestants_in_it() -> None:
    known = {scenario.name: scenario for scenario in scenarios(FULL)}
    for goal in SPARK_GOALS:
        (name,) = goal.scenarios
        assert goal.ours == LITE
        assert goal.ours in known[name].contestants
        assert goal.figure in known[name].figures
        assert set(getattr(goal, "peers", ())) <= set(known[name].contestants)
    assert {LITE, LITE_VALUE, JVM, JVM_TUNED, TRANSPORT} == set(known["agg"].contestants)
    assert TRANSPORT.subject == transport.NAME
