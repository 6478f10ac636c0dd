"""Separates records that are good rows from bad ones, with reasons."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, StringType, StructType

from demos.parquet.options import DATE_COLUMN, RECORD_COLUMNS

_BROKEN: Final = "broken"
_PARSED: Final = "parsed"
_RECORD_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key")
_DAY_S: Final = 86_400


class Parser:
    """Parses records whose values are JSON objects.

    `event_time` is the column that dates rows. None is the record's own timestamp.
    """

    def __init__(self, schema: StructType, event_time: str | None) -> None:
        self._schema = schema
        self._event_time = event_time
        # Each value becomes a member of an object that ends with another member. Otherwise the
        # text after the first closing brace would be ignored: {"a":1} x {"a":2}
        self._wrapped = (
            StructType().add("value", schema).add("end", IntegerType()).add(_BROKEN, StringType())
        )

    @property
    def event_time(self) -> str:
        return self._event_time or "kafka_timestamp"

    def good_rows(self, records: DataFrame, every: Observation) -> DataFrame:
        """Return the good records: their origin, their date, the columns of the values.

        `every` gets the number of all records, as `rows`. It also prevents that filters are moved
        before it, so values are parsed once.
        """
        parsed = self._parsed(records).observe(every, sf.count(sf.lit(1)).alias("rows"))
        rows = parsed.where(self._is_good()).select(
            *_record_columns(), sf.col(f"{_PARSED}.value.*")
        )
        # Days since the epoch, because directories must not depend on a session's time zone.
        day = sf.floor(sf.unix_seconds(sf.col(quoted(self.event_time))) / _DAY_S).cast("int")
        return rows.withColumn(DATE_COLUMN, sf.date_from_unix_date(day))

    def bad_rows(self, records: DataFrame) -> DataFrame:
        """Return the other records with the reason and their original bytes."""
        parsed = self._parsed(records)
        return parsed.where(~self._is_good()).select(
            *_record_columns(), self._reason().alias("reason"), "value"
        )

    def _parsed(self, records: DataFrame) -> DataFrame:
        text = sf.col("value").cast("string")
        wrapped = sf.concat(sf.lit('{"value":'), text, sf.lit(',"end":0}'))
        options = {
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": _BROKEN,
            "timeZone": "UTC",  # of times without one
        }
        return records.withColumn("text", text).withColumn(
            _PARSED, sf.from_json(wrapped, self._wrapped, options)
        )

    def _is_good(self) -> Column:
        time = "timestamp" if self._event_time is None else self._path(self._event_time)
        conditions = (
            sf.col("text").isNotNull()
            & sf.is_valid_utf8("text")
            & sf.col(f"{_PARSED}.value").isNotNull()
            & sf.col(f"{_PARSED}.{_BROKEN}").isNull()
            & (sf.col(f"{_PARSED}.end") == 0)
            & sf.col(time).isNotNull()
        )
        return sf.coalesce(conditions, sf.lit(False))

    def _reason(self) -> Column:
        is_object = sf.schema_of_variant(sf.try_parse_json("text")).startswith("OBJECT")
        # Fields that exist but were not read have another type than the column.
        mistyped = sf.concat_ws(
            ", ",
            *(
                sf.when(
                    sf.get_json_object("text", f"$['{each.name}']").isNotNull()
                    & sf.col(self._path(each.name)).isNull(),
                    sf.lit(f"{each.name} is no {each.dataType.simpleString()}"),
                )
                for each in self._schema
                if "'" not in each.name
            ),
        )
        is_broken = sf.col(f"{_PARSED}.{_BROKEN}").isNotNull()
        is_whole = sf.col(f"{_PARSED}.end") == 0
        return (
            sf.when(sf.col("text").isNull(), "no value")
            .when(~sf.is_valid_utf8("text"), "not UTF-8")
            .when(sf.trim("text") == "", "not JSON: empty")
            .when(
                is_object & is_broken & is_whole & (mistyped != ""),
                sf.concat(sf.lit("type: "), mistyped),
            )
            .when(~is_object & sf.try_parse_json("text").isNotNull(), "JSON, but no object")
            .when(
                is_broken | sf.col(f"{_PARSED}.end").isNull() | sf.col(f"{_PARSED}.value").isNull(),
                "not JSON",
            )
            .otherwise(f"no event time: {self._event_time or 'the record has no timestamp'}")
        )

    @staticmethod
    def _path(column: str) -> str:
        return f"{_PARSED}.value.{quoted(column)}"


def _record_columns() -> list[Column]:
    return [
        sf.col(field).alias(name)
        for field, name in zip(_RECORD_FIELDS, RECORD_COLUMNS, strict=True)
    ]


def quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"
