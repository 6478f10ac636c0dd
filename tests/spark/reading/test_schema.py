"""Columns are to the letter what Spark makes of the same schema."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiokafka_lite.errors import KafkaConfigurationError
from aiokafka_lite.records.arrow import ArrowColumns
from aiokafka_lite.spark.schema import COLUMNS, arrow_schema, default_schema, spark_ddl
from tests.support.for_each import for_each

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
ALL = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
    ]
)


def as_spark_has_it(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


@pytest.mark.parametrize("names", [ALL.names, ["value"], ["offset", "key"], ["headers", "topic"]])
def test_schema_is_what_spark_makes_of_it(names: list[str]) -> None:
    chosen = StructType([ALL[name] for name in names])
    schema = arrow_schema(chosen.fields)
    assert schema.equals(as_spark_has_it(chosen), check_metadata=True)
    assert ArrowColumns(schema).finish().schema.equals(schema)


def test_columns_that_are_never_null_may_say_so() -> None:
    chosen = StructType([StructField("offset", LongType(), nullable=False)])
    assert arrow_schema(chosen.fields).equals(as_spark_has_it(chosen))


@pytest.mark.parametrize("include_headers", [False, True])
def test_default_schema_is_that_of_the_jvm_connector(include_headers: bool) -> None:
    fields = ALL.fields if include_headers else ALL.fields[:-1]
    assert default_schema(include_headers=include_headers) == arrow_schema(fields)
    ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)
    # A plain "timestamp" would be without a time zone where a session's setting says so.
    ddl = ddl.replace("timestamp timestamp", "timestamp timestamp_ltz")
    assert spark_ddl(include_headers=include_headers) == ddl
    assert list(COLUMNS) == ALL.names


@for_each(
    [
        (StructField("delay", LongType()), ["delay", "key, value", "after reading"]),
        (StructField("Value", BinaryType()), ["Value", "rename it to value"]),
        (StructField("value", StringType()), ["value is string", "binary", "cast"]),
        (StructField("offset", IntegerType()), ["offset is int", "bigint"]),
        (StructField("value", BinaryType(), nullable=False), ["value", "NOT NULL"]),
    ]
)
def test_other_columns_are_refused_with_what_can_be_had(
    field: StructField, words: list[str]
) -> None:
    with pytest.raises(KafkaConfigurationError) as caught:
        arrow_schema([field])
    assert all(word in str(caught.value) for word in words)


def test_schema_without_columns_is_refused() -> None:
    with pytest.raises(KafkaConfigurationError, match="choose among key, value"):
        arrow_schema([])
