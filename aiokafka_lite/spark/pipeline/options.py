"""What a pipeline is asked to do."""

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
"""Where a row comes from; every table of rows begins with them."""
DATE_COLUMN: Final = "event_date"
WINDOW_DATE_COLUMN: Final = "window_date"
BATCH_COLUMN: Final = "batch"
OWN_COLUMNS: Final = frozenset(
    {*RECORD_COLUMNS, DATE_COLUMN, WINDOW_DATE_COLUMN, BATCH_COLUMN}
    | {"window_start", "window_end", "records"}
)
"""Names that a schema cannot have."""


class PipelineOptions(Settings):
    """A topic, the tables made of it, and how.

    Attributes:
        bootstrap_servers: "host:port", several with commas.
        topic: The topic.
        out: Directory of the tables: a path, or a URL that Spark's Hadoop can write to.
        schema: Columns of the values, which are JSON objects: Spark's DDL or its JSON. None: as
            the tables have it, or else inferred from the topic's first records.
        event_time: The column, a TIMESTAMP, that rows are dated by; None: Kafka's timestamp.
        keys: Columns that each have their own aggregate.
        measures: Numeric columns that are counted, added up and averaged.
        window_ms: Length of the aggregate's windows.
        watermark_ms: How far a partition's event times may be behind its latest one. A row whose
            window has ended so long ago is late: it is in the raw table, but not aggregated.
        source_format: The data source: ours, or Spark's "kafka", to compare.
        max_offsets_per_trigger: How many offsets a micro-batch covers at most.
        group: The Kafka group to which the offsets of committed batches are committed.
        source: Other options of the source, `kafka.*` among them; may hold secrets.
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
            raise OptionError(f"topic {self.topic!r} is not the name of one topic")
        if self.window_ms < 1:
            raise OptionError(f"window_ms={self.window_ms}: a window needs a length")
        if self.watermark_ms < 0:
            raise OptionError(f"watermark_ms={self.watermark_ms} is negative")
        if self.source_format not in (OUR_FORMAT, JVM_FORMAT):
            raise OptionError(
                f"source_format={self.source_format!r}: it is {OUR_FORMAT!r} or {JVM_FORMAT!r}"
            )
        if both := set(self.keys) & set(self.measures):
            raise OptionError(f"{', '.join(sorted(both))}: both a key and a measure")

    def source_options(self) -> dict[str, str]:
        """Return the options of the streaming source; it begins at the topic's beginning."""
        options = {
            "startingOffsets": "earliest",
            **self.source,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.topic,
        }
        if self.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        return options
