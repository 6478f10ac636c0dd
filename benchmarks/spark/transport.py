"""A source that costs as little as a Python source of Spark can: no Kafka, no decoding.

Its tasks hand over one and the same Arrow batch, as often as there are records to be had: what is
left is Spark's own way from a Python worker to the rows of a query. No source written in Python can
be faster, so this tells how much of a figure is the source's.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from aiokafka_lite._compat import override
from aiokafka_lite.spark.schema import default_schema, spark_ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME: Final = "transport"
_TASKS: Final = 4
_ROWS: Final = 10_000
_VALUE: Final = b"v" * 100


class TransportSource(DataSource):
    """Rows of the columns that Kafka has, all alike; the option `records` says how many."""

    @override
    @classmethod
    def name(cls) -> str:
        return NAME

    @override
    def schema(self) -> str:
        return spark_ddl(include_headers=False)

    @override
    def reader(self, schema: StructType) -> TransportReader:
        return TransportReader(int(self.options["records"]))


class _Share(InputPartition):
    def __init__(self, records: int) -> None:
        self.records = records


class TransportReader(DataSourceReader):
    """Gives each of a few tasks the same share."""

    def __init__(self, records: int) -> None:
        """Take how many records there are."""
        self._records = records

    @override
    def partitions(self) -> Sequence[InputPartition]:
        share, rest = divmod(self._records, _TASKS)
        return [_Share(share + (number < rest)) for number in range(_TASKS)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        batch = _batch()
        full, rest = divmod(partition.records, _ROWS)
        for _ in range(full):
            yield batch
        if rest:
            yield batch.slice(0, rest)


def _batch() -> pa.RecordBatch:
    import pyarrow as pa

    columns: dict[str, list[object]] = {
        "key": [b"12345678"],
        "value": [_VALUE],
        "topic": ["transport"],
        "partition": [0],
        "offset": [0],
        "timestamp": [0],
        "timestampType": [0],
    }
    schema = default_schema(include_headers=False)
    repeated = {name: values * _ROWS for name, values in columns.items()}
    batch = pa.RecordBatch.from_pydict(repeated, schema)
    # That has imported pandas where it is installed, and Spark's daemon collects garbage behind
    # each task: 20 ms, for all whose tasks this process runs.
    gc.freeze()
    return batch
