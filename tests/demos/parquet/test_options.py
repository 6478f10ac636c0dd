from __future__ import annotations

import pytest

from aiokafka_lite.errors import OptionError
from demos.parquet import PipelineOptions
from demos.parquet.schemas import check_columns, parse_schema
from tests.support.for_each import for_each

GIVEN = {"bootstrap_servers": "localhost:9092", "topic": "t", "out": "/tables"}
COLUMNS = "carrier STRING, delay INT, time TIMESTAMP"


def test_secrets_of_the_source_are_not_shown() -> None:
    options = PipelineOptions(
        bootstrap_servers="b:1", topic="t", out="o", source={"kafka.sasl.jaas.config": "hunter2"}
    )
    assert "hunter2" not in repr(options)
    assert options.source_options()["kafka.sasl.jaas.config"] == "hunter2"


def test_query_begins_at_the_beginning_unless_told_otherwise() -> None:
    options = PipelineOptions(bootstrap_servers="b:1", topic="t", out="o")
    assert options.source_options()["startingOffsets"] == "earliest"
    later = PipelineOptions(
        bootstrap_servers="b:1", topic="t", out="o", source={"startingOffsets": "latest"}
    )
    assert later.source_options()["startingOffsets"] == "latest"


def test_column_cannot_be_key_and_measure() -> None:
    with pytest.raises(OptionError, match="a column cannot be both a key and a measure: a"):
        PipelineOptions(
            bootstrap_servers="b:1", topic="t", out="o", keys=("a",), measures=("a", "b")
        )


def test_several_topics_are_refused() -> None:
    with pytest.raises(OptionError, match="a single topic, not 'a,b'"):
        PipelineOptions(bootstrap_servers="b:1", topic="a,b", out="o")


@for_each(
    [
        (COLUMNS, {"event_time": "when"}, "event time 'when' is not a column"),
        (COLUMNS, {"event_time": "carrier"}, "of type string, but must be a TIMESTAMP"),
        (COLUMNS, {"keys": ("who",)}, "key 'who' is not a column"),
        (COLUMNS, {"measures": ("carrier",)}, "but must be a number"),
        ("Batch INT", {}, "must not have columns named Batch, "),
    ]
)
def test_columns_that_will_not_do_are_named(
    schema: str, wanted: dict[str, object], complaint: str
) -> None:
    from pyspark.sql.types import StructType

    json_schema = {
        COLUMNS: StructType()
        .add("carrier", "string")
        .add("delay", "integer")
        .add("time", "timestamp"),
        "Batch INT": StructType().add("Batch", "integer"),
    }[schema].json()
    options = PipelineOptions(**GIVEN, **wanted)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=complaint):
        check_columns(parse_schema(json_schema), options)


def test_json_that_is_no_schema_is_refused() -> None:
    with pytest.raises(OptionError, match="must be Spark's DDL"):
        parse_schema('{"fields": 3}')
