"""The three tables as files, and how to read them as of a commit.

    raw/event_date=2013-01-31/batch=4/*.parquet
    quarantine/batch=4/*.parquet
    aggregate/window_date=2013-01-31/batch=4/*.parquet

Batches append rows to raw and quarantine. A batch with rows for a day of the aggregate rewrites
this day. The latest version is valid. Outdated versions are deleted a few batches later, so that
running queries can finish, and all of them at the regular end of a run. After that every reader of
Parquet sees the correct tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from demos.parquet.commits import CommitLog
from demos.parquet.errors import PipelineError
from demos.parquet.options import (
    BATCH_COLUMN,
    DATE_COLUMN,
    RECORD_COLUMNS,
    WINDOW_DATE_COLUMN,
)
from demos.parquet.settings import TableSettings, read_settings
from demos.parquet.storage import Storage
from demos.parquet.windows import Windows

RAW: Final = "raw"
QUARANTINE: Final = "quarantine"
AGGREGATE: Final = "aggregate"
KEPT_BATCHES: Final = 5
"""The number of batches for which an outdated version of a day is kept."""

_RECORD_TYPES: Final = (
    StringType(), IntegerType(), LongType(), TimestampType(), BinaryType(),
)  # fmt: skip
_VERSION: Final = re.compile(rf"{WINDOW_DATE_COLUMN}=([^/]+)/{BATCH_COLUMN}=(\d+)$")
_NO_MARKER: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


class TableFiles:
    """The tables' files, including those of uncommitted batches."""

    def __init__(self, storage: Storage, settings: TableSettings) -> None:
        self._storage = storage
        columns = settings.columns()
        record = [
            StructField(name, type_)
            for name, type_ in zip(RECORD_COLUMNS, _RECORD_TYPES, strict=True)
        ]
        batch = StructField(BATCH_COLUMN, LongType())
        self._raw = StructType([*record, *columns, StructField(DATE_COLUMN, DateType()), batch])
        self._quarantine = StructType(
            [
                *record,
                StructField("reason", StringType()),
                StructField("value", BinaryType()),
                batch,
            ]
        )
        self.windows: Final = Windows(
            settings.event_time or "kafka_timestamp",
            settings.window_ms,
            settings.keys,
            settings.measures,
            self._raw,
        )
        self._aggregate = StructType([*self.windows.schema(), batch])

    def append_raw(self, rows: DataFrame, batch: int) -> None:
        """Write the good rows of a batch, which must not have files yet."""
        self._append(rows, batch, RAW, (DATE_COLUMN, BATCH_COLUMN))

    def append_quarantine(self, rows: DataFrame, batch: int) -> None:
        """Write the bad records of a batch, which must not have files yet."""
        self._append(rows, batch, QUARANTINE, (BATCH_COLUMN,))

    def append_aggregate(self, rows: DataFrame, batch: int) -> None:
        """Write new versions of some days. The batch must not have files yet."""
        self._append(rows, batch, AGGREGATE, (WINDOW_DATE_COLUMN, BATCH_COLUMN))

    def _append(self, rows: DataFrame, batch: int, table: str, partitions: tuple[str, ...]) -> None:
        rows = rows.withColumn(BATCH_COLUMN, sf.lit(batch).cast("long"))
        # This writes one file per day, unless a day is large, instead of tasks times days.
        by = [name for name in partitions if name != BATCH_COLUMN]
        rows = rows.hint("rebalance", *by)
        writer = rows.write.mode("append").options(**_NO_MARKER).partitionBy(*partitions)
        writer.parquet(self._storage.path(table))

    def raw(self, spark: SparkSession, *, batch: int | None = None) -> DataFrame:
        """Return the good rows of one batch or of all, including uncommitted ones."""
        one = "*" if batch is None else str(batch)
        return self._read(spark, RAW, self._raw, f"{DATE_COLUMN}=*/{BATCH_COLUMN}={one}")

    def quarantine(self, spark: SparkSession, *, batch: int | None = None) -> DataFrame:
        """Return the bad records of one batch or of all, including uncommitted ones."""
        one = "*" if batch is None else str(batch)
        return self._read(spark, QUARANTINE, self._quarantine, f"{BATCH_COLUMN}={one}")

    def aggregate(self, spark: SparkSession, versions: Iterable[tuple[str, int]]) -> DataFrame:
        paths = [f"{WINDOW_DATE_COLUMN}={date}/{BATCH_COLUMN}={batch}" for date, batch in versions]
        return self._read(spark, AGGREGATE, self._aggregate, *paths)

    def _read(self, spark: SparkSession, table: str, schema: StructType, *paths: str) -> DataFrame:
        found = [path for path in paths if "*" not in path or self._storage.glob(f"{table}/{path}")]
        if not found:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", self._storage.path(table))
        return reader.parquet(*(self._storage.path(f"{table}/{path}") for path in found))

    def versions(self, last_batch: int) -> tuple[dict[str, int], list[str]]:
        """Return the valid version of each day as of a batch, and the paths of earlier versions."""
        current: dict[str, tuple[int, str]] = {}
        outdated = []
        for path in self._storage.glob(f"{AGGREGATE}/{WINDOW_DATE_COLUMN}=*/{BATCH_COLUMN}=*"):
            match = _VERSION.search(path)
            if match is None or int(match[2]) > last_batch:
                continue
            date, batch = match[1], int(match[2])
            other = current.get(date)
            if other is not None:
                outdated.append(min(other, (batch, path))[1])
            current[date] = max(other or (batch, path), (batch, path))
        return {date: batch for date, (batch, _) in current.items()}, outdated

    def version_path(self, date: str, batch: int) -> str:
        return self._storage.path(f"{AGGREGATE}/{WINDOW_DATE_COLUMN}={date}/{BATCH_COLUMN}={batch}")

    def delete(self, path: str) -> None:
        self._storage.delete(path)

    def delete_leftovers(self, batch: int) -> None:
        """Delete the files of an uncommitted batch, and those of unfinished jobs."""
        for pattern in (
            f"{RAW}/{DATE_COLUMN}=*/{BATCH_COLUMN}={batch}",
            f"{QUARANTINE}/{BATCH_COLUMN}={batch}",
            f"{AGGREGATE}/{WINDOW_DATE_COLUMN}=*/{BATCH_COLUMN}={batch}",
            "*/_temporary",
        ):
            for path in self._storage.glob(pattern):
                self._storage.delete(path)


class Tables:
    """The tables as of one commit. Later batches are not visible."""

    def __init__(self, spark: SparkSession, files: TableFiles, batch: int) -> None:
        self._spark = spark
        self._files = files
        self.batch: Final = batch
        """The last visible batch; -1 if there is none."""

    def raw(self) -> DataFrame:
        rows = self._files.raw(self._spark)
        return rows.where(rows[BATCH_COLUMN] <= self.batch)

    def quarantine(self) -> DataFrame:
        rows = self._files.quarantine(self._spark)
        return rows.where(rows[BATCH_COLUMN] <= self.batch)

    def aggregate(self) -> DataFrame:
        """Return a row per window and key, including windows that are still open."""
        current, _ = self._files.versions(self.batch)
        return self._files.aggregate(self._spark, current.items())


def open_tables(spark: SparkSession, directory: str) -> Tables:
    """Open the tables of a pipeline, as of its last commit. The pipeline may be running.

    Raises:
        PipelineError: The directory has no tables.
    """
    storage = Storage(spark, directory)
    settings = read_settings(storage)
    if settings is None:
        raise PipelineError(f"no pipeline has written tables to {storage.root}")
    last = CommitLog(storage).last()
    return Tables(spark, TableFiles(storage, settings), -1 if last is None else last.batch)
