"""The readers of batch and streaming queries, and how a task reads its part.

Readers are pickled into every task. So they hold only the options as text and the columns. Spark
keeps one reader of a streaming query in a separate process, for planning. Only this one has a
connection to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from aiokafka_lite._compat import Self, override
from aiokafka_lite.spark.process import Build, answer_at_once, compare, own_build
from aiokafka_lite.spark.ranges import SparkOffsets, from_spark, to_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

    from aiokafka_lite.spark.micro_batches import MicroBatches
    from aiokafka_lite.spark.ranges import KafkaOffsetRange

    HAS_ADMISSION_CONTROL: Final = True
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

        HAS_ADMISSION_CONTROL = True
    except ImportError:
        HAS_ADMISSION_CONTROL = False

        class SupportsTriggerAvailableNow:
            """An empty base class: before PySpark 4.2 Spark runs availableNow as one batch."""


Reader = TypeVar("Reader", bound="TaskReader")


class KafkaInputPartition(InputPartition):
    """The input of one task: ranges of offsets of one or several partitions."""

    def __init__(self, ranges: Sequence[KafkaOffsetRange]) -> None:
        self.ranges = tuple(ranges)

    @override
    def __repr__(self) -> str:
        ranges = ", ".join(
            f"{each.topic}-{each.partition}[{each.start}..{each.end})" for each in self.ranges
        )
        return f"KafkaInputPartition({ranges})"


class TaskReader:
    """The base class of batch and streaming readers: it reads the input of a task."""

    is_streaming = False

    def __init__(self, raw: Mapping[str, str], schema: pa.Schema) -> None:
        self.raw = dict(raw)
        self.schema = schema

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], object, object, Build]]:
        return _unpickled, (type(self), self.raw, self.schema, own_build())

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the records of a task's input, which is a plain InputPartition or None if empty."""
        if not isinstance(partition, KafkaInputPartition):
            return iter(())
        from aiokafka_lite.spark.reading import read_ranges
        from aiokafka_lite.spark.worker import options_of

        options = options_of(self.raw, is_streaming=self.is_streaming)
        return read_ranges(partition.ranges, options, self.schema)


def _unpickled(
    kind: Callable[[Mapping[str, str], pa.Schema], Reader],
    raw: Mapping[str, str],
    schema: pa.Schema,
    sender: Build,
) -> Reader:
    answer_at_once()
    compare(sender)
    return kind(raw, schema)


class KafkaBatchReader(TaskReader, DataSourceReader):
    @override
    def partitions(self) -> Sequence[InputPartition]:
        from aiokafka_lite.spark.planner import batch_tasks

        return [KafkaInputPartition(task) for task in batch_tasks(self.raw)]


class KafkaStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    is_streaming = True

    _planned_by: MicroBatches | None = None

    @property
    def _batches(self) -> MicroBatches:
        if self._planned_by is None:
            from aiokafka_lite.spark.micro_batches import MicroBatches

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
