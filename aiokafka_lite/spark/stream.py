"""The reader of a streaming query.

Spark keeps one reader in a separate process, for planning, and pickles other readers into every
task. Only the reader that plans has a connection to the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from aiokafka_lite._compat import override
from aiokafka_lite.spark.batch import KafkaInputPartition, TaskReader
from aiokafka_lite.spark.ranges import SparkOffsets, from_spark, to_spark

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

    from aiokafka_lite.spark.planning.micro_batches import MicroBatches

    HAS_ADMISSION_CONTROL: Final = True
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

        HAS_ADMISSION_CONTROL = True
    except ImportError:
        HAS_ADMISSION_CONTROL = False

        class SupportsTriggerAvailableNow:
            """An empty base class: before PySpark 4.2 Spark runs availableNow as one batch."""


class KafkaStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    is_streaming = True

    _planned_by: MicroBatches | None = None

    @property
    def _batches(self) -> MicroBatches:
        if self._planned_by is None:
            from aiokafka_lite.spark.planning.micro_batches import MicroBatches

            self._planned_by = MicroBatches(self.raw, has_admission_control=HAS_ADMISSION_CONTROL)
        return self._planned_by

    @override
    def initialOffset(self) -> SparkOffsets:
        """Return the start of the query. Spark calls it only without a checkpoint."""
        return to_spark(self._batches.initial())

    @override
    def latestOffset(
        self, start: SparkOffsets | None = None, limit: ReadLimit | None = None
    ) -> SparkOffsets:
        """Return the end of the next batch: `start` if there is no batch yet.

        `limit` is the result of `getDefaultReadLimit`, or ReadAllAvailable if the trigger reads
        everything (once). Before PySpark 4.2 both are None.
        """
        batches = self._batches
        begin = None if start is None else from_spark(start)
        if begin is not None:
            # Spark requests the next batch when the previous one is finished.
            batches.processed(begin)
        is_limited = limit is None or type(limit).__name__ != "ReadAllAvailable"
        end = batches.next_end(begin, is_limited=is_limited)
        # Spark compares the text, so unchanged offsets need the same text.
        return start if start is not None and end == begin else to_spark(end)

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits of the options. `latestOffset` applies all of them."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

        options = self._batches.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._batches.fix_target()

    @override
    def reportLatestOffset(self) -> SparkOffsets | None:
        """Return the latest known ends of all partitions, for the query's progress."""
        newest = self._batches.newest
        return None if newest is None else to_spark(newest)

    @override
    def partitions(self, start: SparkOffsets, end: SparkOffsets) -> Sequence[InputPartition]:
        tasks = self._batches.tasks(from_spark(start), from_spark(end))
        return [KafkaInputPartition(task) for task in tasks]

    @override
    def commit(self, end: SparkOffsets) -> None:
        self._batches.processed(from_spark(end))

    @override
    def stop(self) -> None:
        """Close the connections at the end of the query or of this process."""
        if self._planned_by is not None:
            self._planned_by.close()
            self._planned_by = None
