"""The options of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiokafka_lite._settings import Settings
from aiokafka_lite.errors import OptionError

OUR_FORMAT: Final = "aiokafka_lite"
JVM_FORMAT: Final = "kafka"
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

RECORD_COLUMNS: Final = (
    "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_key",
)  # fmt: skip
"""The record of a row; every table of rows begins with these columns."""
DATE_COLUMN: Final = "event_date"
WINDOW_DATE_COLUMN: Final = "window_date"
BATCH_COLUMN: Final = "batch"
OWN_COLUMNS: Final = frozenset(
    {*RECORD_COLUMNS, DATE_COLUMN, WINDOW_DATE_COLUMN, BATCH_COLUMN}
    | {"window_start", "window_end", "records"}
)
"""Column names that a schema cannot have."""


class PipelineOptions(Settings):
    """A topic, and the tables to write from it.

    Attributes:
        bootstrap_servers: "host:port", several separated by commas.
        out: The directory of the tables: a path, or a URL that Spark's Hadoop can write to.
        schema: The columns of the values, which are JSON objects, as Spark's DDL or JSON. None uses
            the tables' schema, or infers one from the topic's first records.
        event_time: The TIMESTAMP column that dates the rows. None is Kafka's timestamp.
        keys: Columns. Each has its own aggregate.
        measures: Numeric columns to count, sum and average.
        window_ms: The length of the aggregate's windows.
        watermark_ms: How far event times may be behind their partition's latest one. A row whose
            window ended earlier is late: it is in the raw table, but is not aggregated.
        source_format: The data source: ours, or Spark's "kafka" for comparison.
        max_offsets_per_trigger: The largest number of offsets in a micro-batch.
        group: The Kafka group that commits the offsets of committed batches.
        source: Other options of the source, including `kafka.*`. They may contain secrets.
    """

    secrets = frozenset({"source"})

    bootstrap_servers: str
    topic: str
    out: str
    schema: str | None = None
    event_time: str | None = None
    keys: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    window_ms: int = HOUR_MS
    watermark_ms: int = DAY_MS
    source_format: str = OUR_FORMAT
    max_offsets_per_trigger: int | None = None
    group: str | None = None
    source: Mapping[str, str] = {}

    def _check(self) -> None:
        if not self.topic or "," in self.topic:
            raise OptionError(f"topic must be the name of a single topic, not {self.topic!r}")
        if self.window_ms < 1:
            raise OptionError(f"window_ms must be at least 1, not {self.window_ms}")
        if self.watermark_ms < 0:
            raise OptionError(f"watermark_ms={self.watermark_ms} is negative")
        if self.source_format not in (OUR_FORMAT, JVM_FORMAT):
            raise OptionError(
                f"source_format must be {OUR_FORMAT!r} or {JVM_FORMAT!r}, not "
                f"{self.source_format!r}"
            )
        if both := set(self.keys) & set(self.measures):
            raise OptionError(
                f"a column cannot be both a key and a measure: {', '.join(sorted(both))}"
            )

    def source_options(self) -> dict[str, str]:
        """Return the streaming source's options. By default it starts at the topic's beginning."""
        options = {
            "startingOffsets": "earliest",
            **self.source,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.topic,
        }
        if self.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        return options


_UNIT_MS: Final = {
    "week": 604_800_000,
    "day": 86_400_000,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1000,
}


def format_duration(duration_ms: int) -> str:
    """Return a duration's text, such as "1 day 12 hours"."""
    parts = []
    for name, unit_ms in _UNIT_MS.items():
        count, duration_ms = divmod(duration_ms, unit_ms)
        if count:
            parts.append(f"{count} {name}{'s' if count > 1 else ''}")
    if duration_ms or not parts:
        parts.append(f"{duration_ms} ms")
    return " ".join(parts)
