"""The aggregate: counts and sums per window and key, which can be added up batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    DataType,
    DateType,
    DoubleType,
    IntegralType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from demos.parquet.options import WINDOW_DATE_COLUMN
from demos.parquet.parsing import quoted

_DAY_MS: Final = 86_400_000


class Windows:
    """Windows of equal length since the epoch.

    Args:
        event_time: The column that dates rows.
        length_ms: The length of a window.
        keys: Columns that have their own windows.
        measures: Columns to add up: whole numbers exactly, others as doubles.
        rows: The columns of the rows.
    """

    def __init__(
        self,
        event_time: str,
        length_ms: int,
        keys: Sequence[str],
        measures: Sequence[str],
        rows: StructType,
    ) -> None:
        self._event_time = event_time
        self._length_ms = length_ms
        self._keys = keys
        self._measures = measures
        self._rows = rows

    def event_ms(self) -> Column:
        return sf.unix_millis(sf.col(quoted(self._event_time)))

    def end_ms(self) -> Column:
        return self._start_ms() + self._length_ms

    def date(self) -> Column:
        """The day, in UTC, on which a row's window begins."""
        return sf.date_from_unix_date(sf.floor(self._start_ms() / _DAY_MS).cast("int"))

    def _start_ms(self) -> Column:
        return self.event_ms() - sf.pmod(self.event_ms(), sf.lit(self._length_ms))

    def count(self, rows: DataFrame) -> DataFrame:
        """Count rows: one row per window and key."""
        starts = rows.withColumn("window_start", sf.timestamp_millis(self._start_ms()))
        parts = [sf.count(sf.lit(1)).alias("records")]
        for measure in self._measures:
            value = sf.col(quoted(measure))
            parts += [
                sf.count(value).alias(f"{measure}_count"),
                sf.sum(value.cast(self._sum_type(measure))).alias(f"{measure}_sum"),
                sf.min(value).alias(f"{measure}_min"),
                sf.max(value).alias(f"{measure}_max"),
            ]
        return starts.groupBy("window_start", *map(quoted, self._keys)).agg(*parts)

    def add_up(self, counted: DataFrame) -> DataFrame:
        """Add up the results of several `count`s, and complete the columns of the table."""
        parts = [sf.sum("records").alias("records")]
        for measure in self._measures:
            parts += [
                sf.sum(quoted(f"{measure}_count")).alias(f"{measure}_count"),
                sf.sum(quoted(f"{measure}_sum")).alias(f"{measure}_sum"),
                sf.min(quoted(f"{measure}_min")).alias(f"{measure}_min"),
                sf.max(quoted(f"{measure}_max")).alias(f"{measure}_max"),
            ]
        sums = counted.groupBy("window_start", *map(quoted, self._keys)).agg(*parts)
        start_ms = sf.unix_millis("window_start")
        columns: list[Column] = [
            sf.col("window_start"),
            sf.timestamp_millis(start_ms + self._length_ms).alias("window_end"),
            *(sf.col(quoted(key)) for key in self._keys),
            sf.col("records"),
        ]
        for measure in self._measures:
            count, total = quoted(f"{measure}_count"), quoted(f"{measure}_sum")
            columns += [
                sf.col(count),
                sf.col(total),
                sf.col(quoted(f"{measure}_min")),
                sf.col(quoted(f"{measure}_max")),
                sf.try_divide(sf.col(total).cast("double"), sf.col(count)).alias(f"{measure}_mean"),
            ]
        date = sf.date_from_unix_date(sf.floor(start_ms / _DAY_MS).cast("int"))
        return sums.select(*columns, date.alias(WINDOW_DATE_COLUMN))

    def _sum_type(self, measure: str) -> DataType:
        return (
            LongType() if isinstance(self._rows[measure].dataType, IntegralType) else DoubleType()
        )

    def schema(self) -> StructType:
        columns = StructType(
            [
                StructField("window_start", TimestampType()),
                StructField("window_end", TimestampType()),
            ]
        )
        for key in self._keys:
            columns.add(StructField(key, self._rows[key].dataType))
        columns.add(StructField("records", LongType()))
        for measure in self._measures:
            given = self._rows[measure].dataType
            columns.add(StructField(f"{measure}_count", LongType()))
            columns.add(StructField(f"{measure}_sum", self._sum_type(measure)))
            columns.add(StructField(f"{measure}_min", given))
            columns.add(StructField(f"{measure}_max", given))
            columns.add(StructField(f"{measure}_mean", DoubleType()))
        return columns.add(StructField(WINDOW_DATE_COLUMN, DateType()))
