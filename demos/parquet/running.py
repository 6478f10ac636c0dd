"""The streaming query: once until the current end of the topic, or continuously."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from aiokafka_lite.spark.source import KafkaDataSource
from demos.parquet.batches import BatchWriter, OnBatchStep
from demos.parquet.checkpoints import Checkpoint
from demos.parquet.commits import Commit, CommitLog
from demos.parquet.errors import StoppedBetweenBatches
from demos.parquet.metrics import BatchMetrics, MetricsFile
from demos.parquet.options import OUR_FORMAT, PipelineOptions
from demos.parquet.parsing import Parser
from demos.parquet.settings import settle
from demos.parquet.storage import Storage
from demos.parquet.tables import TableFiles, Tables
from demos.parquet.topic_end import TopicEnd

_POLL_S: Final = 0.5


class Pipeline:
    """Maintains the tables of a topic: Kafka → raw, quarantine, aggregate.

    The process may be stopped or killed at any point. The next run continues after the last
    committed batch. So each record is once in either raw or quarantine, and the aggregate covers
    the raw table without its late rows.

    Args:
        spark: A session of PySpark in this process (not Spark Connect).
        options: The topic and the tables.
        on_batch: Called with the metrics of each batch, in a thread of Spark.
        metrics_file: A file to which each batch appends one line of JSON.
        on_step: Called after each step of a batch. An error that it raises fails the query.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: PipelineOptions,
        *,
        on_batch: Callable[[BatchMetrics], None] = lambda metrics: None,
        metrics_file: Path | None = None,
        on_step: OnBatchStep = lambda step, batch: None,
    ) -> None:
        self._spark = spark
        self._options = options
        self._on_batch = on_batch
        self._metrics = None if metrics_file is None else MetricsFile(metrics_file)
        self._on_step = on_step
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the run after the current batch. A signal handler may call it."""
        self._stopping.set()

    def run_once(self) -> Tables:
        """Read the topic up to its current end and return the tables.

        Raises:
            KafkaError: The run failed. PipelineError and OptionError are among its subclasses.
            pyspark.errors.StreamingQueryException: The query failed for another reason.
        """
        return self._run(trigger_s=None)

    def run_continuously(self, trigger_s: float = 10.0) -> Tables:
        """Run until `stop`, with a batch every `trigger_s` seconds if there are records.

        Raises as `run_once`.
        """
        return self._run(trigger_s=trigger_s)

    def _run(self, trigger_s: float | None) -> Tables:
        storage = Storage(self._spark, self._options.out)
        if self._options.source_format == OUR_FORMAT:
            self._spark.dataSource.register(KafkaDataSource)
        settings = settle(self._spark, storage, self._options)
        commits, checkpoint = CommitLog(storage), Checkpoint(storage)
        last = commits.last()
        checkpoint.require(last)
        files = TableFiles(storage, settings)
        files.delete_leftovers(0 if last is None else last.batch + 1)
        with TopicEnd(self._options) as topic_end:
            writer = BatchWriter(
                files,
                Parser(settings.columns(), settings.event_time),
                commits,
                checkpoint,
                self._options.watermark_ms,
                topic_end.behind,
                self._on_step,
            )
            self._publish_earlier(commits)
            batches = _Batches(writer, lambda commit: self._publish(commit, topic_end))
            if last is not None:
                topic_end.commit(last.offsets)
            self._wait(self._start(checkpoint.path, batches.run, trigger_s), batches)
        writer.delete_outdated()
        return Tables(self._spark, files, writer.last.batch)

    def _start(
        self,
        checkpoint: str,
        write_batch: Callable[[DataFrame, int], None],
        trigger_s: float | None,
    ) -> StreamingQuery:
        reader = self._spark.readStream.format(self._options.source_format)
        records = reader.options(**self._options.source_options()).load()
        writer = records.writeStream.queryName(f"pipeline of {self._options.topic}")
        writer = writer.foreachBatch(write_batch).option("checkpointLocation", checkpoint)
        if trigger_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(trigger_s * 1000)} milliseconds").start()

    def _wait(self, query: StreamingQuery, batches: _Batches) -> None:
        """Wait until the query ends, or end it after a batch if `stop` was called."""
        try:
            while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type] # seconds
                if self._stopping.is_set():
                    batches.close()
                    break
        except StreamingQueryException:
            if batches.failure is None:
                raise
            raise batches.failure from None
        finally:
            if query.isActive:
                query.stop()

    def _publish(self, commit: Commit, topic_end: TopicEnd) -> None:
        topic_end.commit(commit.offsets)
        assert commit.metrics is not None  # noqa: S101 - every batch has its figures
        if self._metrics is not None:
            self._metrics.append(commit.metrics)
        self._on_batch(commit.metrics)

    def _publish_earlier(self, commits: CommitLog) -> None:
        """Add the lines of metrics that are missing because of a crash after a commit."""
        if self._metrics is None:
            return
        for batch in commits.batches():
            metrics = commits.read(batch).metrics
            if batch > self._metrics.last_batch and metrics is not None:
                self._metrics.append(metrics)


class _Batches:
    """Spark's callback for each batch, in turn, until it is closed.

    Closing waits for the current batch. A later one fails, because Spark would consider a batch
    that just returned as finished.
    """

    def __init__(self, writer: BatchWriter, publish: Callable[[Commit], None]) -> None:
        self._writer = writer
        self._publish = publish
        self._turn = threading.Lock()
        self._is_closed = False
        self.failure: Exception | None = None
        """The error of a batch that failed, if it was not Spark's."""

    def run(self, records: DataFrame, batch: int) -> None:
        with self._turn:
            if self._is_closed:
                raise StoppedBetweenBatches
            try:
                commit = self._writer.write(records, batch)
                if commit is not None:
                    self._publish(commit)
            except PySparkException:
                raise  # Spark's own report is better than a copy
            except Exception as error:
                self.failure = error
                raise

    def close(self) -> None:
        """Wait for the current batch, and reject later ones."""
        with self._turn:
            self._is_closed = True
