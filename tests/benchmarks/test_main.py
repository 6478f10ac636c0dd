from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import EXIT_FAILED, EXIT_GOAL_MISSED, EXIT_USAGE, exit_code, main
from benchmarks.goals import Verdict
from benchmarks.results import Failure


@pytest.mark.real_kafka
def test_contestants_are_compared_on_a_real_kafka(
    real_kafka: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contestants = (
        "lite poll",
        "lite async for",
        "aiokafka getmany",
        "confluent consume, least CPU",
    )
    arguments = ["--records", "2000", "--rounds", "1", "--scenario", "zstd", "--drop"]
    arguments += ["--bootstrap", real_kafka, "--out", str(tmp_path)]
    for contestant in contestants:
        arguments += ["--only", contestant]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert all(contestant in table for contestant in contestants)
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["failures"] == []
    assert {each["contestant"] for each in document["samples"]} >= set(contestants)
    assert all(each["measurement"]["figures"]["cpu_ns"] > 0 for each in document["samples"])
    assert (tmp_path / "bulk.png").stat().st_size > 1000


def test_list_names_scenarios_and_contestants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr()
    assert "zstd" in listed.out
    assert "Java ConsumerPerformance" in listed.out or "java is not installed" in listed.err


def test_nothing_to_run_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "no-such"]) == EXIT_USAGE
    assert "--list" in capsys.readouterr().err


def test_family_is_chosen_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--scenario", "hold", "--only", "lite async for"]) == 0
    listed = capsys.readouterr().out
    assert "hold-zstd" in listed
    assert "lite async for, uvloop" in listed
    assert "trickle" not in listed
    assert "aiokafka" not in listed


def test_families_of_one_kin_are_chosen_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--scenario", "broker"]) == 0
    listed = capsys.readouterr().out
    assert "confluent-consume" in listed
    assert "broker-footprint" in listed
    assert "Java" not in listed or "Java producer, Kafka" in listed
    assert "trickle" not in listed


@pytest.mark.parametrize(
    ("is_met", "is_strict", "expected"),
    [
        (True, True, 0),
        (None, True, 0),
        (False, False, 0),
        (False, True, EXIT_GOAL_MISSED),
    ],
)
def test_missed_goal_fails_the_strict_form_only(
    is_met: bool | None, is_strict: bool, expected: int
) -> None:
    verdicts = [Verdict("plain", "lite poll", "CPU", "at most 1 ns", 2.0, is_met)]
    assert exit_code([], verdicts, is_strict=is_strict) == expected
    failures = [Failure("plain", "lite poll", "no broker")]
    assert exit_code(failures, verdicts, is_strict=is_strict) == EXIT_FAILED


def test_quick_form_leaves_out_the_long_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--list"]) == 0
    quick = capsys.readouterr().out
    assert "memory-zstd" not in quick
    assert "java-produce" not in quick
    assert "broker-drain" in quick
    assert "confluent consume, least CPU" in quick
    assert main(["--quick", "--list", "--scenario", "memory"]) == 0
    assert "memory-zstd" in capsys.readouterr().out
