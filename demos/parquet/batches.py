"""One micro-batch, from Kafka to a commit, in repeatable steps.

    raw → quarantine → aggregate → commit

A batch that fails before its commit leaves files with its id. Readers ignore them, and the next run
deletes them before it repeats the batch with the same offsets, from Spark's checkpoint. A batch
that fails after its commit is finished, even if Spark does not know it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.structs import TopicPartition
from demos.parquet.checkpoints import Checkpoint
from demos.parquet.commits import Commit, CommitLog
from demos.parquet.metrics import BatchMetrics, iso_time
from demos.parquet.parsing import Parser
from demos.parquet.tables import KEPT_BATCHES, TableFiles

_EMPTY_STAGES: Final = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"


class BatchStep(Enum):
    """The steps of a batch. Tests make it crash after one."""

    RAW_WRITTEN = auto()
    QUARANTINE_WRITTEN = auto()
    AGGREGATE_WRITTEN = auto()
    COMMITTED = auto()


OnBatchStep = Callable[[BatchStep, int], None]


@dataclass(frozen=True, slots=True)
class _Found:
    rows: int
    late: int
    latest_ms: dict[TopicPartition, int]
    dates: list[str]
    """Days whose windows get rows."""


class BatchWriter:
    """Writes batches to the tables.

    Args:
        files: The tables.
        parser: Separates good rows from bad ones.
        commits: The commits. This object is their only writer.
        checkpoint: Spark's checkpoint, with the offsets of each batch.
        watermark_delay_ms: See `PipelineOptions`.
        behind: Returns the number of records after given offsets. None if unknown.
        on_step: Called after each step with the batch's id.
    """

    def __init__(
        self,
        files: TableFiles,
        parser: Parser,
        commits: CommitLog,
        checkpoint: Checkpoint,
        watermark_delay_ms: int,
        behind: Callable[[Offsets], int | None],
        on_step: OnBatchStep,
    ) -> None:
        self._files = files
        self._parser = parser
        self._commits = commits
        self._checkpoint = checkpoint
        self._delay_ms = watermark_delay_ms
        self._behind = behind
        self._on_step = on_step
        last = commits.last()
        self.last: Commit = Commit(-1, {}) if last is None else last
        """The latest commit; batch -1 stands for none."""
        self._versions, outdated = files.versions(self.last.batch)
        # Paths of outdated versions, and the batches that replaced them.
        self._outdated: list[tuple[int, str]] = [(self.last.batch, path) for path in outdated]

    def write(self, records: DataFrame, batch: int) -> Commit | None:
        """Take all steps of a batch. Returns its commit, or None if it was committed before."""
        if batch <= self.last.batch:
            return None
        _prepare(records.sparkSession)
        started, clock = time.time(), time.monotonic
        times = [clock()]
        has_bad = self._write_raw(records, batch)
        times.append(clock())
        self._on_step(BatchStep.RAW_WRITTEN, batch)
        bad = self._write_quarantine(records, batch) if has_bad else 0
        times.append(clock())
        self._on_step(BatchStep.QUARANTINE_WRITTEN, batch)
        found = self._examine(records, batch)
        window_count = self._write_aggregate(records, batch, found.dates) if found.dates else 0
        times.append(clock())
        self._on_step(BatchStep.AGGREGATE_WRITTEN, batch)
        offsets = self._checkpoint.offsets(batch)
        watermark = self.last.watermark.advanced(
            self.last.offsets, offsets, found.latest_ms, self._delay_ms
        )
        behind = self._behind(offsets)
        duration_s = clock() - times[0]
        raw_s, quarantine_s, aggregate_s = (round(end - start, 3) for start, end in pairwise(times))
        metrics = BatchMetrics(
            batch=batch,
            started=iso_time(int(started * 1000)),
            rows=found.rows + bad,
            bad=bad,
            late=found.late,
            windows=window_count,
            behind=behind,
            watermark=None if watermark.time_ms is None else iso_time(watermark.time_ms),
            duration_s=round(duration_s, 3),
            raw_s=raw_s,
            quarantine_s=quarantine_s,
            aggregate_s=aggregate_s,
            rows_per_s=round((found.rows + bad) / max(duration_s, 1e-3), 1),
        )
        commit = Commit(batch, offsets, watermark, metrics)
        self._commits.append(commit)
        self.last = commit
        self._on_step(BatchStep.COMMITTED, batch)
        self._replace_versions(batch, found.dates)
        return commit

    def _write_raw(self, records: DataFrame, batch: int) -> bool:
        """Write the good rows in one pass over Kafka. Returns whether there are bad ones."""
        every, good = Observation(), Observation()
        count = sf.count(sf.lit(1)).alias("rows")
        rows = self._parser.good_rows(records, every).observe(good, count)
        self._files.append_raw(rows, batch)
        # Tasks that were run again may count twice, but never a bad record as a good one.
        return int(every.get["rows"]) != int(good.get["rows"])

    def _write_quarantine(self, records: DataFrame, batch: int) -> int:
        """Write the bad records, for which Kafka is read once more. Returns their number."""
        self._files.append_quarantine(self._parser.bad_rows(records), batch)
        return self._files.quarantine(records.sparkSession, batch=batch).count()

    def _is_late(self) -> Column:
        """Whether the window of a row was closed before this batch."""
        closed_ms = self.last.watermark.time_ms
        if closed_ms is None:
            return sf.lit(False)
        return self._files.windows.end_ms() <= closed_ms

    def _examine(self, records: DataFrame, batch: int) -> _Found:
        """Count the good rows of a batch in the table."""
        rows = self._files.raw(records.sparkSession, batch=batch)
        windows = self._files.windows
        parts = rows.groupBy("kafka_topic", "kafka_partition").agg(
            sf.count(sf.lit(1)).alias("rows"),
            sf.count_if(self._is_late()).alias("late"),
            sf.max(windows.event_ms()).alias("latest_ms"),
            sf.collect_set(sf.when(~self._is_late(), windows.date().cast("string"))).alias("dates"),
        )
        found = parts.collect()
        return _Found(
            rows=sum(part["rows"] for part in found),
            late=sum(part["late"] for part in found),
            latest_ms={
                TopicPartition(part["kafka_topic"], part["kafka_partition"]): part["latest_ms"]
                for part in found
            },
            dates=sorted({date for part in found for date in part["dates"]}),
        )

    def _write_aggregate(self, records: DataFrame, batch: int, dates: Collection[str]) -> int:
        """Write new versions of the days that get rows. Returns their number of rows."""
        spark, windows = records.sparkSession, self._files.windows
        rows = self._files.raw(spark, batch=batch).where(~self._is_late())
        counted = windows.count(rows)
        versions = [(date, self._versions[date]) for date in dates if date in self._versions]
        if versions:
            before = self._files.aggregate(spark, versions)
            counted = counted.unionByName(before.select(*counted.columns))
        written, count = Observation(), sf.count(sf.lit(1)).alias("rows")
        self._files.append_aggregate(windows.add_up(counted).observe(written, count), batch)
        return int(written.get["rows"])

    def _replace_versions(self, batch: int, dates: Collection[str]) -> None:
        for date in dates:
            if (before := self._versions.get(date)) is not None:
                self._outdated.append((batch, self._files.version_path(date, before)))
            self._versions[date] = batch
        self.delete_outdated(batch - KEPT_BATCHES)

    def delete_outdated(self, replaced_until: int | None = None) -> None:
        """Delete versions that were replaced by this batch or before it. None deletes all."""
        kept = []
        for batch, path in self._outdated:
            if replaced_until is None or batch <= replaced_until:
                self._files.delete(path)
            else:
                kept.append((batch, path))
        self._outdated = kept


def _prepare(spark: SparkSession) -> None:
    """Change settings of the query's own session, which is a copy of the user's."""
    # Directories of days are listed by as many tasks as there are cores, not by one task each.
    name = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
    spark.conf.set(name, str(spark.sparkContext.defaultParallelism))
    # Streaming queries may disable it, but each batch is an ordinary query.
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    # A stage without rows must stay in the plan, because it counts the bad records.
    name = "spark.sql.adaptive.optimizer.excludedRules"
    rules = {*(spark.conf.get(name, "") or "").split(","), _EMPTY_STAGES} - {""}
    spark.conf.set(name, ",".join(sorted(rules)))
