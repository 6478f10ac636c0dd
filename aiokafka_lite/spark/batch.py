"""The reader of a batch query, which plans once, and how a task reads its part.

A reader is pickled into every task. So it holds the options as text and the columns, and imports
the code for planning only when it plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from aiokafka_lite._compat import Self, override
from aiokafka_lite.spark.build import Build, compare, own_build
from aiokafka_lite.spark.process import answer_at_once

if TYPE_CHECKING:
    import pyarrow as pa

    from aiokafka_lite.spark.ranges import KafkaOffsetRange

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
        """Take the given options, and the schema of the rows."""
        self.raw = dict(raw)
        self.schema = schema

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], object, object, Build]]:
        """Pickle only the data that a task needs, without the state of planning."""
        return _unpickled, (type(self), self.raw, self.schema, own_build())

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the records of a task's input.

        Args:
            partition: None or a plain InputPartition if the plan is empty.

        Raises:
            KafkaError: See `read_ranges`.
        """
        if not isinstance(partition, KafkaInputPartition):
            return iter(())
        from aiokafka_lite.spark.reading.batches import read_ranges
        from aiokafka_lite.spark.worker import options_of

        options = options_of(self.raw, is_streaming=self.is_streaming)
        return read_ranges(partition.ranges, options, self.schema)


def _unpickled(
    kind: Callable[[Mapping[str, str], pa.Schema], Reader],
    raw: Mapping[str, str],
    schema: pa.Schema,
    sender: Build,
) -> Reader:
    """Return a reader in a task, before Spark sends the task's ranges."""
    answer_at_once()
    compare(sender)
    return kind(raw, schema)


class KafkaBatchReader(TaskReader, DataSourceReader):
    """Plans a batch query in a process of the driver, and reads it in tasks."""

    @override
    def partitions(self) -> Sequence[InputPartition]:
        """Look up the query's start and end offsets, and divide the records among tasks.

        Raises:
            KafkaError: The options are not valid, no broker was reached, or topics or offsets do
                not exist.
        """
        from aiokafka_lite.spark.planning.driver import batch_tasks

        return [KafkaInputPartition(task) for task in batch_tasks(self.raw)]
