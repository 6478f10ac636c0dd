"""The schema of values: from DDL, from Spark's JSON, or inferred from the topic's first records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, NumericType, StructType, TimestampType

from aiokafka_lite.errors import OptionError
from demos.parquet.errors import PipelineError
from demos.parquet.options import OWN_COLUMNS, PipelineOptions

SAMPLED_RECORDS: Final = 1000
"""Of each task of a batch read: a task reads a range of a partition from its first record on."""


def parse_schema(text: str) -> StructType:
    """Parse DDL ("carrier STRING, dep_delay INT") or Spark's JSON, or raise OptionError."""
    try:
        if text.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(text))
        schema = StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise OptionError(
            "the schema must be Spark's DDL, as in 'carrier STRING, dep_delay INT', or Spark's "
            f"JSON: {reason}"
        ) from None
    if not isinstance(schema, StructType):
        raise OptionError(
            "the schema is a single type, but must list columns: write 'name TYPE, name TYPE'"
        )
    return schema


def check_columns(schema: StructType, options: PipelineOptions) -> None:
    """Check that the schema has the columns of the options, with usable types."""
    types = {each.name: each.dataType for each in schema}
    taken = sorted(name for name in types if name.lower() in OWN_COLUMNS)
    if taken:
        raise OptionError(
            f"the schema must not have columns named {', '.join(taken)}, because the pipeline adds "
            "columns with these names to the tables"
        )
    if options.event_time is not None:
        _require(types, [options.event_time], "event time")
        if not isinstance(types[options.event_time], TimestampType):
            found = types[options.event_time].simpleString()
            raise OptionError(
                f"the event time column {options.event_time!r} is of type {found}, but must be a "
                "TIMESTAMP"
            )
    _require(types, options.keys, "key")
    _require(types, options.measures, "measure")
    for name in options.measures:
        if not isinstance(types[name], NumericType):
            raise OptionError(
                f"measure {name!r} is of type {types[name].simpleString()}, but must be a number"
            )


def _require(types: Mapping[str, DataType], names: Iterable[str], role: str) -> None:
    for name in names:
        if name not in types:
            raise OptionError(
                f"{role} {name!r} is not a column of the schema, which has {', '.join(types)}"
            )


def infer_schema(spark: SparkSession, options: PipelineOptions) -> StructType:
    """Infer the columns from the first records of each partition.

    Raises:
        PipelineError: No record is a JSON object.
    """
    rows = spark.read.format(options.source_format).options(**_batch_options(options)).load()
    texts = rows.select(rows["value"].cast("string"))
    sample = texts.rdd.mapPartitions(lambda task: islice(task, SAMPLED_RECORDS)).collect()
    values = [row[0] for row in sample if row[0] is not None]
    objects = [text for text in values if text.lstrip().startswith("{")]
    if not objects:
        raise PipelineError(
            f"topic {options.topic!r} has no JSON objects to infer a schema from: give a schema"
        )
    inferred = spark.read.json(spark.sparkContext.parallelize(objects, 1), mode="DROPMALFORMED")
    schema = StructType()
    for each in inferred.schema:
        is_event_time = each.name == options.event_time
        schema.add(each.name, TimestampType() if is_event_time else each.dataType)
    return schema


def _batch_options(options: PipelineOptions) -> dict[str, str]:
    streaming_only = ("startingoffsets", "maxoffsetspertrigger", "minoffsetspertrigger",
                      "maxtriggerdelay", "commitoffsetstogroup")  # fmt: skip
    return {
        name: value
        for name, value in options.source_options().items()
        if name.lower() not in streaming_only
    }
