from __future__ import annotations

import sys

import pytest
from pyspark.sql import SparkSession

from tests.support.spark.connector import CONNECTOR_VERSION


def test_session_runs_functions_of_tests_in_its_workers(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([1, 2]).map(where_it_runs).collect() == [
        (1, sys.executable),
        (2, sys.executable),
    ]


def where_it_runs(number: int) -> tuple[int, str]:
    return number, sys.executable


def test_session_counts_time_in_utc(spark: SparkSession) -> None:
    row = spark.sql("SELECT date_format(timestamp_micros(0), 'yyyy-MM-dd HH:mm')").first()
    assert row is not None
    assert row[0] == "1970-01-01 00:00"


@pytest.mark.java
def test_session_has_the_connector(spark_with_connector: SparkSession) -> None:
    frame = spark_with_connector.read.format("kafka")
    frame = frame.option("kafka.bootstrap.servers", "127.0.0.1:1").option("assign", '{"t": [0]}')
    assert frame.load().columns[:2] == ["key", "value"]
    assert f"-{CONNECTOR_VERSION}.jar" in str(spark_with_connector.conf.get("spark.jars"))
