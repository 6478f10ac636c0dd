"""The columns of the source, with Spark's and Arrow's names of their types.

The columns are those of Spark's own Kafka source. The Arrow schema must equal the result of Spark's
`to_arrow_schema(…, timezone="UTC")`, or Spark rejects the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from aiokafka_lite.errors import KafkaConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructField


class ColumnType(NamedTuple):
    """A column's type, as Spark's `simpleString` returns it, and Arrow's."""

    spark_type: str
    arrow_type: pa.DataType
    is_never_null: bool = False


# Spark calls the elements of lists "element".
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))

COLUMNS: Final[Mapping[str, ColumnType]] = {
    "key": ColumnType("binary", pa.binary()),
    "value": ColumnType("binary", pa.binary()),
    "topic": ColumnType("string", pa.string(), is_never_null=True),
    "partition": ColumnType("int", pa.int32(), is_never_null=True),
    "offset": ColumnType("bigint", pa.int64(), is_never_null=True),
    "timestamp": ColumnType("timestamp", pa.timestamp("us", "UTC")),
    "timestampType": ColumnType("int", pa.int32()),
    "headers": ColumnType("array<struct<key:string,value:binary>>", _HEADERS),
}


def column_names(*, include_headers: bool) -> list[str]:
    return [name for name in COLUMNS if include_headers or name != "headers"]


def spark_ddl(*, include_headers: bool) -> str:
    """Return the default schema, as Spark parses it."""
    # A plain "timestamp" may mean the type without a time zone, by a setting of the session.
    return ", ".join(
        f"{name} {COLUMNS[name].spark_type.replace('timestamp', 'timestamp_ltz')}"
        for name in column_names(include_headers=include_headers)
    )


def default_schema(*, include_headers: bool) -> pa.Schema:
    return pa.schema(
        [(name, COLUMNS[name].arrow_type) for name in column_names(include_headers=include_headers)]
    )


def arrow_schema(fields: Sequence[StructField]) -> pa.Schema:
    """Return the schema of the batches for the fields of a schema of Spark's."""
    if not fields:
        raise KafkaConfigurationError(
            f"the schema has no columns: choose among {', '.join(COLUMNS)}"
        )
    return pa.schema([_arrow_field(field) for field in fields])


def _arrow_field(field: StructField) -> pa.Field:
    column = COLUMNS.get(field.name)
    if column is None:
        raise KafkaConfigurationError(_no_such_column(field.name))
    if (given := field.dataType.simpleString()) != column.spark_type:
        raise KafkaConfigurationError(
            f"the schema's column {field.name} is {given}, but must be {column.spark_type}: cast "
            "the column after reading"
        )
    if not field.nullable and not column.is_never_null:
        raise KafkaConfigurationError(
            f"the schema declares column {field.name} as NOT NULL, but in Kafka the {field.name} "
            "can be null: leave NOT NULL out"
        )
    return pa.field(field.name, column.arrow_type, field.nullable)


def _no_such_column(name: str) -> str:
    alike = [known for known in COLUMNS if known.lower() == name.lower()]
    if alike:
        return f"the schema's column {name} has the wrong case: rename it to {alike[0]}"
    return (
        f"the schema has a column {name}, which Kafka records do not have: choose among "
        f"{', '.join(COLUMNS)}, and parse the values after reading"
    )
