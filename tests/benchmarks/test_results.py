from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from benchmarks.__main__ import write_json
from benchmarks.catalogue import FULL, scenarios
from benchmarks.contestants import (
    AIOKAFKA_GETMANY,
    FLOOR,
    JAVA_PERFORMANCE,
    LITE_GETMANY,
    LITE_POLL,
)
from benchmarks.figures import BEYOND, CPU_NS, WALL_NS
from benchmarks.goals import GOALS, Flat, Limit, NotAbove, TimesLess, judge
from benchmarks.machine import Machine, describe_machine
from benchmarks.measure import Measurement, percentile
from benchmarks.plot import plot
from benchmarks.results import Failure, Run, Sample, describe_run, summarize
from benchmarks.scenarios import Scenario
from benchmarks.tables import report
from benchmarks.topics import Topic
from tests.support.for_each import for_each

MACHINE = Machine("Test CPU", 2, "Linux 6", "3.11", 0.5)
SCENARIO = Scenario(
    "plain",
    "bulk",
    "1,000 records",
    "bulk",
    (CPU_NS, WALL_NS),
    (LITE_POLL, LITE_GETMANY, AIOKAFKA_GETMANY, JAVA_PERFORMANCE),
    rounds=3,
)


def sample(contestant: str, cpu_ns: float, number: int = 1) -> Sample:
    measurement = Measurement("1.2", {"cpu_ns": cpu_ns, "wall_ns": cpu_ns}, 1000)
    return Sample("plain", contestant, number, measurement)


SAMPLES = [
    sample("lite poll", 200, 1),
    sample("aiokafka getmany", 2000, 1),
    sample("lite poll", 100, 2),
    sample("aiokafka getmany", 1500, 2),
    sample("lite poll", 400, 3),
]


def run_of(samples: Sequence[Sample], scenario: Scenario = SCENARIO) -> Run:
    return describe_run(
        "bench", "2026-11-23T10:00:00+00:00", MACHINE, [scenario], summarize(samples),
        is_quick=False, is_own_kafka=False,
    )  # fmt: skip


def test_summary_keeps_best_median_and_worst() -> None:
    summary = summarize(SAMPLES)["plain", "lite poll"]
    assert summary.runs == 3
    assert astuple(summary.figures["cpu_ns"]) == pytest.approx((100, 200, 400))


def test_floor_is_taken_off_every_figure_of_its_scenario_and_of_no_other() -> None:
    elsewhere = replace(sample("lite poll", 100), scenario="lz4")
    summaries = summarize([*SAMPLES, sample("floor", 30, 1), sample("floor", 25, 2), elsewhere])
    beyond = {
        contestant: astuple(summary.figures[BEYOND.key])
        for (scenario, contestant), summary in summaries.items()
        if scenario == "plain"
    }
    assert beyond["lite poll"] == pytest.approx((75, 175, 375))
    assert beyond["aiokafka getmany"] == pytest.approx((1475, 1725, 1975))
    assert beyond["floor"] == pytest.approx((0, 2.5, 5))
    assert BEYOND.key not in summaries["lz4", "lite poll"].figures
    goal = TimesLess("plain", LITE_POLL, BEYOND, 19, (AIOKAFKA_GETMANY,))
    (verdict,) = judge(summaries, [goal])
    assert (verdict.reached, verdict.is_met) == (pytest.approx(1475 / 75), True)
    assert judge(summarize(SAMPLES), [goal])[0].is_met is None, "not measured"


def test_report_compares_what_is_beyond_the_floor() -> None:
    scenario = replace(
        SCENARIO,
        figures=(CPU_NS, WALL_NS, BEYOND),
        contestants=(LITE_POLL, AIOKAFKA_GETMANY, FLOOR),
    )
    for samples, cells in (
        ([*SAMPLES, sample("floor", 25)], ["1,475 (1,975)", "19.67"]),
        (SAMPLES, ["–", "–"]),
    ):
        text = report(run_of(samples, scenario), [], [])
        (line,) = (each for each in text.splitlines() if "aiokafka getmany" in each)
        assert re.split("  +", line)[3:] == cells


def test_goals_compare_the_best_rounds() -> None:
    goals: list[Limit] = [
        TimesLess("plain", LITE_POLL, CPU_NS, 10, (AIOKAFKA_GETMANY,)),
        TimesLess("plain", LITE_POLL, CPU_NS, 16, (AIOKAFKA_GETMANY, JAVA_PERFORMANCE)),
        TimesLess("plain", LITE_POLL, CPU_NS, 3, (JAVA_PERFORMANCE,)),
        NotAbove("plain", LITE_POLL, CPU_NS, 1, (JAVA_PERFORMANCE, AIOKAFKA_GETMANY)),
        NotAbove("plain", AIOKAFKA_GETMANY, CPU_NS, 1.15, (LITE_POLL,)),
        Limit("plain", LITE_POLL, CPU_NS, 100),
        Limit("plain", LITE_POLL, CPU_NS, 99),
        Limit("zstd", LITE_POLL, CPU_NS, 100),
    ]
    verdicts = judge(summarize(SAMPLES), goals)
    assert [each.reached for each in verdicts] == [15, 15, None, 1 / 15, 15, 100, 100]
    assert [each.is_met for each in verdicts] == [True, False, None, True, False, True, False]


def test_goals_name_scenarios_contestants_and_figures_that_exist() -> None:
    known = {each.name: each for each in scenarios(FULL)}
    for goal in GOALS:
        for name in goal.scenarios:
            names = {each.name for each in known[name].contestants}
            assert {each.name for each in (goal.ours, *goal.peers)} <= names
            assert goal.figure in known[name].figures


@for_each([
        # librdkafka's poll is the measure, whatever the others do.
        ("trickle", "p50_ms", "lite async for", {"confluent poll": 2, "aiokafka getmany": 1}, True),
        ("trickle-10", "p50_ms", "lite async for", {"confluent poll": 1.4}, False),
        ("trickle", "cpu_us", "lite async for", {"floor": 1.3, "confluent poll": 2}, False),
        ("trickle", "cpu_us", "lite async for", {"floor": 1.4, "confluent poll": 1}, True),
        ("trickle", "cpu_us", "lite async for, uvloop", {"floor, uvloop": 1.3}, False),
        ("trickle", "cpu_us", "lite async for, uvloop", {"confluent poll": 1.4}, False),
        ("trickle", "cpu_us", "lite async for, uvloop", {"confluent poll": 1.6}, True),
        ("many", "p50_ms", "lite async for", {"confluent poll": 4.4, "aiokafka getmany": 9}, False),
        ("many", "p50_ms", "lite async for", {"confluent poll": 4.6, "aiokafka getmany": 2}, True),
        # In a group the faster of two peers is.
        ("start-group", "first_ms", "lite", {"aiokafka": 2, "confluent": 1}, False),
        ("start-group", "first_ms", "lite", {"aiokafka": 2, "confluent": 1.5}, True),
        ("start-assign", "first_ms", "lite", {"aiokafka": 2, "confluent": 1}, True),
    ])  # fmt: skip
def test_peers_of_a_goal_are_those_that_it_names(
    scenario: str, figure: str, ours: str, figures: dict[str, float], is_met: bool
) -> None:
    samples = [
        Sample(scenario, name, 1, Measurement("1.2", {figure: value}))
        for name, value in {ours: 1.5, **figures}.items()
    ]
    judged = [each for each in judge(summarize(samples)) if each.is_met is not None]
    assert [each.is_met for each in judged] == [is_met]


@pytest.mark.parametrize(
    ("p50_ms", "max_ms", "expected"),
    [(3.0, 20.0, [True, True]), (3.1, 20.0, [False, True]), (3.0, 20.1, [True, False])],
)
def test_moves_are_judged_by_their_middle_and_by_the_longest(
    p50_ms: float, max_ms: float, expected: list[bool]
) -> None:
    figures = {"first_p50_ms": p50_ms, "first_max_ms": max_ms}
    for move in ("seek", "resume", "assign"):
        sample = Sample(f"moves-{move}", "lite", 1, Measurement("1.2", figures, 30))
        assert [each.is_met for each in judge(summarize([sample]))] == expected


def test_report_shows_ratios_goals_failures_and_the_machine() -> None:
    failures = [Failure("plain", "lite getmany", "no broker")]
    goals: list[Limit] = [
        TimesLess("plain", LITE_POLL, CPU_NS, 10, (AIOKAFKA_GETMANY,)),
        Limit("plain", LITE_POLL, CPU_NS, 20),
        TimesLess("plain", LITE_POLL, CPU_NS, 3, (JAVA_PERFORMANCE,)),
    ]
    text = report(run_of(SAMPLES), judge(summarize(SAMPLES), goals), failures)
    assert "Test CPU" in text
    assert "100 (400)" in text
    assert "15.00" in text
    assert "10 × less than aiokafka getmany" in text
    assert "at most 20 ns a record" in text
    assert all(word in text for word in ("met", "missed", "not run"))
    assert "FAILED plain, lite getmany: no broker" in text


def test_json_holds_samples_goals_and_summaries(tmp_path: Path) -> None:
    path = tmp_path / "out" / "bench.json"
    verdicts = judge(summarize(SAMPLES), [Limit("plain", LITE_POLL, CPU_NS, 20)])
    write_json(path, run_of(SAMPLES), SAMPLES, verdicts, [])
    document = json.loads(path.read_text())
    assert len(document["samples"]) == len(SAMPLES)
    assert document["machine"]["cpu"] == "Test CPU"
    assert document["summaries"][0]["figures"]["cpu_ns"]["best"] == pytest.approx(100)
    assert document["goals"][0]["is_met"] is False


GROWTH = [
    replace(SCENARIO, name=f"records-{at}", contestants=(LITE_POLL,), axis="records", at=at)
    for at in (10, 1000)
]


@pytest.mark.parametrize(
    ("scenarios", "samples"),
    [
        pytest.param([SCENARIO], SAMPLES, id="bars"),
        pytest.param(
            GROWTH, [replace(SAMPLES[0], scenario=each.name) for each in GROWTH], id="growth"
        ),
        pytest.param(
            [SCENARIO],
            [replace(SAMPLES[0], measurement=Measurement("1", {}, series={"cpu_ns": [1.0, 2.0]}))],
            id="over time",
        ),
    ],
)
def test_plot_is_a_png(
    tmp_path: Path, scenarios: Sequence[Scenario], samples: Sequence[Sample]
) -> None:
    path = tmp_path / "out" / "bench.png"
    plot(path, MACHINE, scenarios, samples)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_cost_is_flat_when_the_worst_is_near_the_best() -> None:
    names = tuple(each.name for each in GROWTH)
    summaries = summarize(
        [
            replace(sample("lite poll", cpu_ns), scenario=name)
            for name, cpu_ns in zip(names, (200, 300), strict=True)
        ]
    )
    flat = Flat("scaling, records", LITE_POLL, CPU_NS, 1.5, names=(*names, "not run"))
    (met,) = judge(summaries, [flat])
    assert (met.reached, met.is_met) == (1.5, True)
    assert judge(summaries, [replace(flat, bound=1.4)])[0].is_met is False
    assert judge(summaries, [replace(flat, names=names[:1])])[0].is_met is None


def test_machine_is_described() -> None:
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.cpu


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 50), (99, 99), (100, 100)])
def test_percentile_is_one_of_the_figures(percent: float, expected: float) -> None:
    assert percentile(range(1, 101), percent) == expected
    assert percentile([7.0], percent) == 7.0


def test_topic_rows_have_the_sizes_that_it_names() -> None:
    for topic in (Topic("lz4", 100, 400), Topic("none", 1000, 100, partition_count=7)):
        rows = list(topic.rows())
        assert len(rows) == topic.records
        assert sum(len(key) + len(value) for key, value, _ in rows) == topic.touched_bytes
        assert {partition for _, _, partition in rows} == set(range(topic.partition_count))
        assert rows == list(topic.rows()), "the same every time"


def test_topics_of_other_content_have_other_names() -> None:
    topic = Topic("lz4", 100, 400)
    others = [
        topic,
        replace(topic, codec="zstd"),
        replace(topic, value_bytes=101),
        replace(topic, records=401),
        replace(topic, partition_count=5),
        replace(topic, batch_records=1),
        replace(topic, use="other"),
    ]
    assert len({each.name for each in others}) == len(others)
