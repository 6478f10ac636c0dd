"""One Spark session for all tests of a worker, as starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from aiokafka_lite.spark import KafkaDataSource
from tests.support.required import unavailable
from tests.support.spark.session import SparkUnavailableError, find_settings, spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that tests share: two cores, UTC; has Spark's own Kafka source if it can be had.

    A test changes settings by `spark.newSession()`, which shares the JVM and costs nothing.
    """
    try:
        with spark_session(find_settings()) as session:
            session.dataSource.register(KafkaDataSource)
            yield session
    except SparkUnavailableError as error:
        unavailable(error)


@pytest.fixture(scope="session")
def spark_with_connector(spark: SparkSession) -> SparkSession:
    """The same, for tests that compare; they are skipped where Spark's own source is missing."""
    if not spark.conf.get("spark.jars", ""):
        unavailable("Spark's own Kafka source could not be fetched: install Maven")
    return spark
