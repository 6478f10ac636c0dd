from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.spark.__main__ import main


def test_list_names_scenarios_and_contestants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--quick", "--records", "1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert lines[0].startswith("agg ")
    assert "1,000 records, 100-byte values, uncompressed: lite, jvm, jvm tuned" in lines[0]
    assert main(["--list", "--only", "jvm", "--scenario", "plan"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("planning of 3,000 partitions: jvm")


def test_nothing_to_run_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "no-such"]) == 2
    assert "see --list" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.real_kafka
@pytest.mark.timeout(600)
def test_everything_runs_once(real_kafka: str, tmp_path: Path) -> None:
    size = ["--records", "20000", "--partitions", "20", "--rounds", "1", "--warm", "0"]
    arguments = ["--bootstrap", real_kafka, *size, "--drop", "--memory", "1g"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "spark.json").read_text())
    assert results["failures"] == []
    ran = {(each["scenario"], each["contestant"]) for each in results["summaries"]}
    assert len(ran) == 5 * 3 + 2 + 4 * 2
    for each in results["samples"]:
        assert each["measurement"]["figures"]["wall_us"] > 0
    assert all(goal["reached"] is not None for goal in results["goals"])
    assert (tmp_path / "spark-bulk.png").stat().st_size > 10_000
    assert "Mrows/s" in (tmp_path / "spark.md").read_text()
