from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import EXIT_USAGE, main


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
