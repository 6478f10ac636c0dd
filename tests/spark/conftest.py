"""The session of the tests, for those that compare it with Spark's own source."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.required import unavailable


@pytest.fixture(scope="session")
def spark_with_connector(spark: SparkSession) -> SparkSession:
    """The same, for tests that compare; they are skipped where Spark's own source is missing."""
    if not spark.conf.get("spark.jars", ""):
        unavailable("Spark's own Kafka source could not be fetched: install Maven")
    return spark
