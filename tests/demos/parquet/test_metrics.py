from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from demos.parquet.errors import PipelineError
from demos.parquet.metrics import BatchMetrics, MetricsFile

METRICS = BatchMetrics(
    batch=3,
    started="2026-01-01T00:00:00Z",
    rows=120_000,
    bad=2,
    late=1,
    windows=40,
    behind=7_500,
    watermark="2013-01-31T23:00:00Z",
    duration_s=4.25,
    raw_s=2.5,
    quarantine_s=0.25,
    aggregate_s=1.5,
    rows_per_s=28_235.3,
)


def test_line_has_all_that_one_looks_for() -> None:
    assert METRICS.line() == (
        "batch 3: 120,000 rows (2 bad, 1 late) in 4.2 s (raw 2.5 s, aggregate 1.5 s, quarantine "
        "0.2 s), 28,235 rows/s, lag 7,500 records, watermark 2013-01-31T23:00:00Z"
    )


def test_file_has_each_batch_once_however_often_it_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    MetricsFile(path).append(METRICS)
    again = MetricsFile(path)
    assert again.last_batch == 3
    again.append(METRICS)
    again.append(replace(METRICS, batch=4))
    lines = path.read_text().splitlines()
    assert [json.loads(line)["batch"] for line in lines] == [3, 4]
    assert json.loads(lines[0]) == METRICS.to_dict()


@pytest.mark.parametrize("text", ["do not lose this\n", "nor this"])
def test_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(PipelineError, match="cannot append metrics to"):
        MetricsFile(path)
    assert path.read_text() == text


def test_line_that_a_crash_cut_off_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path).append(METRICS)
    with path.open("a") as file:
        file.write('{"batch": 4, "sta')
    again = MetricsFile(path)
    assert again.last_batch == 3
    again.append(replace(METRICS, batch=4))
    assert [json.loads(line)["batch"] for line in path.read_text().splitlines()] == [3, 4]
