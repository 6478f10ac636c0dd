"""The queries: what a run does in Spark, and how it is known that it did all of it."""

from __future__ import annotations

import shutil
import statistics
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.contestants import Contestant
from benchmarks.measure import RunError, Workload
from benchmarks.spark.catalogue import OPTIONS, SCHEMAS, TRANSPORT, TRIGGER_RECORDS

_VALUE_BYTES: Final = 100
_TIMEOUT_S: Final = 600
# The first ones of a query start its workers, and know nothing yet.
_FIRST_TRIGGERS: Final = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One contestant with one query.

    Attributes:
        spark: The session it runs in.
        contestant: Whose source it reads by.
        workload: What there is to read.
        folder: Where it may write; a folder of its own.
    """

    spark: SparkSession
    contestant: Contestant
    workload: Workload
    folder: Path

    @property
    def options(self) -> dict[str, str]:
        """What the source is told."""
        if self.contestant is TRANSPORT:
            return {"records": str(self.workload.records)}
        return {
            "kafka.bootstrap.servers": self.workload.bootstrap_servers,
            "subscribe": ",".join(self.workload.topics),
            **OPTIONS.get(self.contestant.name, {}),
        }

    def batch(self) -> DataFrame:
        """Return all records as a batch."""
        reader = self.spark.read.format(self.contestant.subject).options(**self.options)
        schema = SCHEMAS.get(self.contestant.name)
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, options: Mapping[str, str]) -> DataFrame:
        """Return all records as a stream."""
        reader = self.spark.readStream.format(self.contestant.subject)
        options = {"startingOffsets": "earliest", **self.options, **options}
        return reader.options(**options).load()


@dataclass(frozen=True, slots=True)
class Done:
    """What a query came to.

    Attributes:
        check: Returns how many records it read, and raises RunError if that is not all; looked at
            when the query has been measured.
        times: How often the same was done.
        wall_s: How long each of them took, where that is not the whole divided by `times`.
    """

    check: Callable[[], int]
    times: int = 1
    wall_s: float | None = None


def aggregate(run: Run) -> Done:
    """Count the records and add up the lengths of their values."""
    row = run.batch().selectExpr("count(*)", "sum(length(value))").first()
    assert row is not None
    count, length = row

    def check() -> int:
        if length != count * _VALUE_BYTES:
            raise RunError(f"{count} values of {_VALUE_BYTES} bytes have {length} bytes")
        return _all(run, count)

    return Done(check)


def parquet(run: Run) -> Done:
    """Write all columns to Parquet."""
    table = run.folder / "table"
    run.batch().write.parquet(str(table))
    return Done(lambda: _all(run, _rows(table)))


def stream(run: Run) -> Done:
    """Write all columns to Parquet, exactly once."""
    table = run.folder / "table"
    writer = run.stream({}).writeStream.format("parquet").option("path", str(table))
    _run_to_the_end(run, writer)
    return Done(lambda: _all(run, _rows(table)))


def trigger(run: Run) -> Done:
    """Read in small micro-batches, and write nothing."""
    options = {"maxOffsetsPerTrigger": str(TRIGGER_RECORDS)}
    query = _run_to_the_end(run, run.stream(options).writeStream.format("noop"))
    batches = [each for each in query.recentProgress if each.numInputRows > 0]
    took_ms = [each.durationMs["triggerExecution"] for each in batches[_FIRST_TRIGGERS:]]
    if not took_ms:
        raise RunError(f"only {len(batches)} micro-batches: give it more records")
    wall_s = statistics.median(took_ms) / 1000
    count = sum(each.numInputRows for each in batches)
    return Done(lambda: _all(run, count), len(batches), wall_s)


def plan(run: Run) -> Done:
    """Plan a query, and read nothing."""
    planned = run.batch()._jdf.queryExecution().toRdd().getNumPartitions()

    def check() -> int:
        if not planned:
            raise RunError("no tasks were planned")
        return run.workload.records

    return Done(check)


QUERIES: Final[Mapping[str, Callable[[Run], Done]]] = {
    "aggregate": aggregate,
    "parquet": parquet,
    "stream": stream,
    "trigger": trigger,
    "plan": plan,
}
"""By the tasks of scenarios."""


def fresh_folder(base: Path) -> Path:
    """Return a folder that nobody has used yet."""
    folder = base / uuid.uuid4().hex
    folder.mkdir(parents=True)
    return folder


def _run_to_the_end(run: Run, writer: DataStreamWriter) -> StreamingQuery:
    checkpoint = str(run.folder / "checkpoint")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    if not query.awaitTermination(_TIMEOUT_S):
        query.stop()
        raise RunError(f"did not end within {_TIMEOUT_S} s")
    return query


def _rows(table: Path) -> int:
    """Count the rows of a table, and remove it."""
    count: int = pyarrow.dataset.dataset(table, format="parquet").count_rows()
    shutil.rmtree(table)
    return count


def _all(run: Run, count: int) -> int:
    if count != run.workload.records:
        raise RunError(f"read {count} records, expected {run.workload.records}")
    return count
