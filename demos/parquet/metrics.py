"""The metrics of each micro-batch, on one line and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from demos.parquet.errors import PipelineError

_BEGINNING: Final = '{"batch": '
"""Of each line."""


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """The metrics of one batch.

    Attributes:
        started: ISO 8601 in UTC.
        bad: The records in the quarantine. The others are in the raw table.
        late: The rows in the raw table that were not aggregated, because their windows were closed.
        windows: The rows of the aggregate that were rewritten.
        behind: The records between the batch's end and the topic's end. None if Kafka did not
            respond.
        watermark: The watermark after the batch, ISO 8601 in UTC. None before the first one.
        duration_s: The time from its start to its commit. The other times are parts of it.
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
        lag = "" if self.behind is None else f", lag {self.behind:,} records"
        parts = f"raw {self.raw_s:.1f} s, aggregate {self.aggregate_s:.1f} s"
        if self.bad:
            parts += f", quarantine {self.quarantine_s:.1f} s"
        return (
            f"batch {self.batch}: {self.rows:,} rows ({self.bad:,} bad, {self.late:,} late) in "
            f"{self.duration_s:.1f} s ({parts}), {self.rows_per_s:,.0f} rows/s{lag}, watermark "
            f"{self.watermark or 'none yet'}"
        )

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


class MetricsFile:
    """One JSON object per batch and line, in a local file.

    A line is written after the batch's commit. If a crash prevents that, the next start adds it.

    Raises:
        PipelineError: The file has another content.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.last_batch = _last_batch(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"cannot append metrics to {path} ({error}): name another file"
            ) from None
        """The last batch that is in the file; -1 for none."""

    def append(self, metrics: BatchMetrics) -> None:
        if metrics.batch <= self.last_batch:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics.to_dict()) + "\n")
        self.last_batch = metrics.batch


def _last_batch(path: Path) -> int:
    """Return the last batch of a file, or -1, and remove an incomplete last line (a crash)."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return -1
    if lines and not lines[-1].endswith("\n"):
        if lines[-1][: len(_BEGINNING)] != _BEGINNING[: len(lines[-1])]:
            raise ValueError(
                f"the last line does not contain the metrics of a batch: {lines[-1][:40]!r}"
            )
        path.write_text("".join(lines[:-1]), encoding="utf-8")
        lines.pop()
    return int(json.loads(lines[-1])["batch"]) if lines else -1


def iso_time(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms // 1000, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
