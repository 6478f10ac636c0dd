"""Reads topics with either source, and says what came of it in a form that can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Literal, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

Source: TypeAlias = Literal["kafka", "aiokafka_lite"]
THEIRS: Final[Source] = "kafka"
OURS: Final[Source] = "aiokafka_lite"

# What queries fail with: what PySpark recognises, and what it leaves as the JVM's.
FAILURES: Final = (PySparkException, Py4JJavaError)

Row: TypeAlias = tuple[object, ...]


@dataclass(frozen=True)
class Read:
    """What a query returned.

    Attributes:
        schema: Names, types and nullability of the columns, as text.
        shares: What each task gave that gave anything: its first place in Kafka, and how much.
        rows: Of each topic and partition by offset, as often as they came.
    """

    schema: str
    shares: Sequence[tuple[tuple[str, int, int], int]]
    rows: Mapping[tuple[str, int], list[Row]]

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(map(len, self.rows.values()))


@dataclass(frozen=True)
class Refused:
    """What a source said instead.

    Attributes:
        message: The text of the error, whose causes follow each other.
    """

    message: str


Outcome: TypeAlias = Read | Refused


def batch(spark: SparkSession, source: Source, options: Mapping[str, str]) -> DataFrame:
    """Return the data frame of a batch query."""
    return spark.read.format(source).options(**options).load()


def read_batch(spark: SparkSession, source: Source, options: Mapping[str, str]) -> Outcome:
    """Run a batch query to its end, which may be an error."""
    try:
        frame = batch(spark, source, options)
        return read_frame(frame)
    except FAILURES as error:
        return Refused(str(error))


def read_frame(frame: DataFrame) -> Read:
    """Collect what a data frame has."""
    rows: dict[tuple[str, int], list[Row]] = {}
    tasks: dict[int, list[tuple[str, int, int]]] = {}
    for *values, task in frame.select("*", spark_partition_id()).collect():
        topic, partition, offset = values[2:5]
        rows.setdefault((topic, partition), []).append(tuple(values))
        tasks.setdefault(task, []).append((topic, partition, offset))
    for of_partition in rows.values():
        of_partition.sort(key=itemgetter(4))  # which of a partition's tasks comes first is open
    for places in tasks.values():
        newest: dict[tuple[str, int], int] = {}
        for topic, partition, offset in places:
            assert newest.get((topic, partition), -1) <= offset, "a task's rows are out of order"
            newest[topic, partition] = offset
    shares = sorted((min(places), len(places)) for places in tasks.values())
    return Read(frame.schema.json(), shares, rows)
