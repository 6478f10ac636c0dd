"""What a streaming query reads: Spark's questions, answered for as long as the query runs.

Spark keeps one reader in a process of its own, which plans, and pickles others into every task,
which read. A reader that plans has a cluster; what is pickled has only the options.

From PySpark 4.2 on a source is told where a batch begins and which trigger it is for (admission
control). One signature of `latestOffset` serves all: without arguments, as 4.0 and 4.1 call it,
and with two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from aiokafka_lite._compat import override
from aiokafka_lite.spark.batch import KafkaInputPartition, TaskReader
from aiokafka_lite.spark.offsets import SparkOffsets, from_spark, to_spark

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

    from aiokafka_lite.spark.planning.driver import StreamPlanning

    HAS_ADMISSION_CONTROL: Final = True
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

        HAS_ADMISSION_CONTROL = True
    except ImportError:
        HAS_ADMISSION_CONTROL = False

        class SupportsTriggerAvailableNow:
            """Nothing: before PySpark 4.2 Spark itself sees to availableNow, in one batch."""


class KafkaStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in a process of the driver's, and reads in tasks."""

    is_streaming = True

    _planned_by: StreamPlanning | None = None

    @property
    def _planning(self) -> StreamPlanning:
        if self._planned_by is None:
            from aiokafka_lite.spark.planning.driver import StreamPlanning

            self._planned_by = StreamPlanning(self.raw, has_admission_control=HAS_ADMISSION_CONTROL)
        return self._planned_by

    @override
    def initialOffset(self) -> SparkOffsets:
        """Return where the query begins; Spark asks only if no checkpoint knows.

        Raises:
            KafkaError: The options cannot be used, no broker was reached, topics or offsets are
                not there.
        """
        return to_spark(self._planning.batches.initial())

    @override
    def latestOffset(
        self, start: SparkOffsets | None = None, limit: ReadLimit | None = None
    ) -> SparkOffsets:
        """Return where the next batch ends: at `start` if there is to be none yet.

        Args:
            start: Where it begins; None before PySpark 4.2.
            limit: What `getDefaultReadLimit` says, or ReadAllAvailable, if the trigger is to
                have everything (once); None before PySpark 4.2.

        Raises:
            KafkaError: No broker was reached, or leaders did not answer.
        """
        planning = self._planning
        begin = None if start is None else from_spark(start)
        if begin is not None:
            # Spark asks for the next batch when the one before is done.
            planning.processed(begin)
        is_limited = limit is None or type(limit).__name__ != "ReadAllAvailable"
        end = planning.batches.next_end(begin, is_limited=is_limited)
        # Spark compares text: what has not changed is to be written the same.
        return start if start is not None and end == begin else to_spark(end)

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit if there is one, however it is made up: `latestOffset` sees to it."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

        options = self._planning.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """End the query where partitions end now.

        Raises:
            KafkaError: No broker was reached, or leaders did not answer.
        """
        self._planning.batches.fix_target()

    @override
    def reportLatestOffset(self) -> SparkOffsets | None:
        """Return the ends of all partitions as last looked up, for the query's progress."""
        newest = self._planning.batches.newest
        return None if newest is None else to_spark(newest)

    @override
    def partitions(self, start: SparkOffsets, end: SparkOffsets) -> Sequence[InputPartition]:
        """Divide among tasks what a batch reads.

        Raises:
            DataLossError: Records of the batch are gone, and failOnDataLoss is true.
            KafkaError: No broker was reached, or leaders did not answer.
        """
        tasks = self._planning.tasks(from_spark(start), from_spark(end))
        return [KafkaInputPartition(task) for task in tasks]

    @override
    def commit(self, end: SparkOffsets) -> None:
        """Take note that everything up to `end` was processed."""
        self._planning.processed(from_spark(end))

    @override
    def stop(self) -> None:
        """Close the connections: the query is over, or this process is."""
        if self._planned_by is not None:
            self._planned_by.close()
            self._planned_by = None
