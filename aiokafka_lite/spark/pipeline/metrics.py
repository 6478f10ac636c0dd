"""What each micro-batch did, on one line and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from aiokafka_lite.spark.pipeline.errors import PipelineError

_BEGINNING: Final = '{"batch": '
"""Of each line."""


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """The figures of one batch.

    Attributes:
        batch: Its id.
        started: When it began, ISO 8601 in UTC.
        rows: Records read.
        bad: Those of them in the quarantine; the others are in the raw table.
        late: Rows that are in the raw table, but were not aggregated: their windows were closed.
        windows: Rows of the aggregate that were written anew.
        behind: Records between the batch's end and the topic's; None where Kafka did not say.
        watermark: After the batch, ISO 8601 in UTC; None before there is one.
        duration_s: From its beginning to its commit ...
        raw_s: ... of this: reading, parsing and writing the raw table ...
        quarantine_s: ... the quarantine ...
        aggregate_s: ... and the aggregate.
        rows_per_s: Rows by duration.
    """

    batch: int
    started: str
    rows: int
    bad: int
    late: int
    windows: int
    behind: int | None
    watermark: str | None
    duration_s: float
    raw_s: float
    quarantine_s: float
    aggregate_s: float
    rows_per_s: float

    def line(self) -> str:
        """Return the figures on one line."""
        behind = "" if self.behind is None else f", {self.behind:,} behind"
        parts = f"raw {self.raw_s:.1f}, aggregate {self.aggregate_s:.1f}"
        if self.bad:
            parts += f", quarantine {self.quarantine_s:.1f}"
        return (
            f"batch {self.batch}: {self.rows:,} rows, {self.bad:,} bad, {self.late:,} late"
            f"{behind}; {self.duration_s:.1f} s ({parts}), {self.rows_per_s:,.0f} rows/s; "
            f"watermark {self.watermark or 'none yet'}"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return asdict(self)


class MetricsFile:
    """One JSON object per batch and line, in a local file.

    It is written after a batch's commit: what a crash kept from it is made up for from the
    commits at the next start, so that no batch is missing and none is there twice.

    Raises:
        PipelineError: There is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.last_batch = _last_batch(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"{path} is no file of metrics that can be appended to ({error}): name another one"
            ) from None
        """The last batch that is in the file; -1 for none."""

    def append(self, metrics: BatchMetrics) -> None:
        """Add a batch, unless it is there already."""
        if metrics.batch <= self.last_batch:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics.to_dict()) + "\n")
        self.last_batch = metrics.batch


def _last_batch(path: Path) -> int:
    """Return the last batch of a file, whose last line a crash may have cut off; else -1."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return -1
    if lines and not lines[-1].endswith("\n"):
        if lines[-1][: len(_BEGINNING)] != _BEGINNING[: len(lines[-1])]:
            raise ValueError(f"its last line is {lines[-1][:40]!r}")
        path.write_text("".join(lines[:-1]), encoding="utf-8")
        lines.pop()
    return int(json.loads(lines[-1])["batch"]) if lines else -1


def iso_time(time_ms: int) -> str:
    """Write a time, ms since the epoch, as ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(time_ms // 1000, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
