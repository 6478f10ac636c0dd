from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.spark.__main__ import main
from benchmarks.spark.catalogue import FULL, scenarios

ROOT = Path(__file__).parents[3]
OF_EACH_KIND = ("agg", "plan", "trigger")


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
def test_scenarios_run_once_with_every_contestant(real_kafka: str, tmp_path: Path) -> None:
    size = ["--records", "20000", "--partitions", "20", "--rounds", "1", "--warm", "0"]
    place = ["--bootstrap", real_kafka, "--out", str(tmp_path), "--memory", "1g", "--drop"]
    # A process has one Spark session, and this one may have that of other tests.
    command = [sys.executable, "-m", "benchmarks.spark", *place, *size]
    command += [f"--scenario={name}" for name in OF_EACH_KIND]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    results = json.loads((tmp_path / "spark.json").read_text())
    assert results["failures"] == []
    ran = {(each["scenario"], each["contestant"]) for each in results["summaries"]}
    everybody = {
        (scenario.name, who.name)
        for scenario in scenarios(FULL)
        if scenario.name in OF_EACH_KIND
        for who in scenario.contestants
    }
    assert ran == everybody
    for each in results["samples"]:
        assert each["measurement"]["figures"]["wall_us"] > 0
    assert any(goal["reached"] is not None for goal in results["goals"])
    assert (tmp_path / "spark-bulk.png").stat().st_size > 10_000
    assert "wall, µs a record" in run.stdout
