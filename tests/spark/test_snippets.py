"""The snippets of docs/spark.md that read topics do so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiokafka_lite.broker.thread import BrokerThread

ROOT = Path(__file__).parents[2]
ORDER = {"country": "NO", "amount": 2.5, "placed_at": "2026-01-01T00:00:00Z"}


def snippet(page: str, having: str, broker: BrokerThread, folder: Path) -> str:
    """The one block of a page that has these words, with addresses and paths of the test's."""
    blocks: list[str] = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.M
    )
    (found,) = (each for each in blocks if having in each)
    for name in ("/tables", "/data"):
        found = found.replace(f'"{name}/', f'"{folder}{name}/')
    return found.replace("localhost:9092", broker.bootstrap_servers)


@pytest.mark.parametrize(
    ("page", "having"),
    [
        ("docs/spark.md", "SparkSession.builder"),
        ("docs/spark.md", "readStream"),
    ],
)
def test_flights_are_read(
    page: str, having: str, spark: SparkSession, kafka_broker: BrokerThread, tmp_path: Path
) -> None:
    kafka_broker.produce("flights", "EWR", key="UA")
    names: dict[str, object] = {"spark": spark}
    exec(snippet(page, having, kafka_broker, tmp_path), names)  # noqa: S102 -- the page's own
    if having == "readStream":
        names["query"].awaitTermination(60)  # type: ignore[attr-defined]
        names["flights"] = spark.read.parquet(f"{tmp_path}/tables/flights")
    rows = names["flights"].collect()  # type: ignore[attr-defined]
    assert [(row.key, row.value, row.partition, row.offset) for row in rows] == [
        (b"UA", b"EWR", 0, 0)
    ]


def test_a_schema_reads_only_what_it_names(
    spark: SparkSession, kafka_broker: BrokerThread, tmp_path: Path
) -> None:
    kafka_broker.produce("flights", "EWR")
    names: dict[str, object] = {"spark": spark}
    exec(snippet("docs/spark.md", "value binary", kafka_broker, tmp_path), names)  # noqa: S102
    reader = names["reader"]
    reader = reader.option("kafka.bootstrap.servers", kafka_broker.bootstrap_servers)  # type: ignore[attr-defined]
    assert [tuple(row) for row in reader.option("subscribe", "flights").load().collect()] == [
        (b"EWR", 0)
    ]


@pytest.mark.slow  # the short form runs a pipeline in pipeline/test_pipeline.py
def test_the_pipeline_writes_its_tables(
    spark: SparkSession, kafka_broker: BrokerThread, tmp_path: Path
) -> None:
    for _ in range(3):
        kafka_broker.produce("orders", json.dumps(ORDER))
    names: dict[str, object] = {"spark": spark}
    exec(snippet("docs/spark.md", "PipelineOptions(", kafka_broker, tmp_path), names)  # noqa: S102
    (row,) = names["tables"].aggregate().collect()  # type: ignore[attr-defined]
    assert (row.country, row.records, row.amount_sum) == ("NO", 3, 7.5)
