from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main


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
    assert all(each["measurement"]["cpu_s"] > 0 for each in document["samples"])
    assert (tmp_path / "bench.png").stat().st_size > 1000


def test_list_names_scenarios_and_contestants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    text = capsys.readouterr().out
    assert "zstd" in text
    assert "Java ConsumerPerformance" in text or "java is not installed" in text


def test_nothing_to_run_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "no-such"]) == 2
    assert "--list" in capsys.readouterr().err
