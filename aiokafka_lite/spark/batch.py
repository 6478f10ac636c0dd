"""The reader of a batch query, and how a task reads its part.

Readers are pickled into every task. So they hold only the options as text and the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from aiokafka_lite._compat import Self, override
from aiokafka_lite.spark.process import Build, answer_at_once, compare, own_build

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
        self.raw = dict(raw)
        self.schema = schema

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], object, object, Build]]:
        return _unpickled, (type(self), self.raw, self.schema, own_build())

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the records of a task's input, which is a plain InputPartition or None if empty."""
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
    answer_at_once()
    compare(sender)
    return kind(raw, schema)


class KafkaBatchReader(TaskReader, DataSourceReader):
    @override
    def partitions(self) -> Sequence[InputPartition]:
        from aiokafka_lite.spark.planning.planner import batch_tasks

        return [KafkaInputPartition(task) for task in batch_tasks(self.raw)]
