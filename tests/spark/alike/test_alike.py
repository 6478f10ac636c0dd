"""The same batch query gives the same with this source and with Spark's own, or neither runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql import SparkSession

from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from tests.spark.alike.cases import (
    BATCH,
    BEYOND,
    COMMITTED,
    EVERYTHING,
    REFUSED,
    Case,
    completed,
    parameters,
)
from tests.spark.alike.comparing import OURS, THEIRS, Read, Refused, read_batch
from tests.spark.alike.topics import filled

# The first test of a session starts it, and fills the topics.
pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

# The connector never has two ranges in a task.
SMALL_TASKS = {"minRecordsPerTask": "1"}


@pytest.mark.real_kafka
@pytest.mark.parametrize("case", parameters(BATCH))
def test_batch_gives_what_the_connector_gives(
    case: Case, spark_with_connector: SparkSession, topics: Mapping[str, str], real_kafka: str
) -> None:
    options = completed(case.options, topics, real_kafka)
    theirs = read_batch(spark_with_connector, THEIRS, options)
    ours = read_batch(spark_with_connector, OURS, {**options, **SMALL_TASKS})
    if case.rows == REFUSED:
        assert isinstance(theirs, Refused), theirs
        assert isinstance(ours, Refused), ours
        return
    assert isinstance(theirs, Read), theirs
    assert isinstance(ours, Read), ours
    assert theirs.count == case.rows
    assert ours.schema == theirs.schema
    assert ours.rows == theirs.rows
    assert not case.has_equal_tasks or ours.shares == theirs.shares


@pytest.mark.slow
@pytest.mark.real_kafka
@pytest.mark.parametrize("case", parameters(BEYOND))
def test_batch_gives_what_the_connector_fails_to_give(
    case: Case, spark: SparkSession, topics: Mapping[str, str], real_kafka: str
) -> None:
    ours = read_batch(spark, OURS, completed(case.options, topics, real_kafka))
    assert isinstance(ours, Read), ours
    assert ours.count == case.rows


@pytest.mark.slow
@pytest.mark.real_kafka
def test_rows_are_the_same_in_fewer_tasks(
    spark_with_connector: SparkSession, topics: Mapping[str, str], real_kafka: str
) -> None:
    options = completed(EVERYTHING, topics, real_kafka)
    theirs = read_batch(spark_with_connector, THEIRS, options)
    ours = read_batch(spark_with_connector, OURS, options)
    assert isinstance(theirs, Read), theirs
    assert isinstance(ours, Read), ours
    assert len(ours.shares) < len(theirs.shares)
    assert ours.rows == theirs.rows


@pytest.mark.slow
def test_the_embedded_broker_is_read_as_the_connector_reads_it(
    spark_with_connector: SparkSession,
) -> None:
    with (
        BrokerThread(BrokerConfig(log_cleaner_backoff_ms=100)) as broker,
        filled(broker.bootstrap_servers) as topics,
    ):
        for level in ({}, COMMITTED):
            options = completed({**EVERYTHING, **level}, topics, broker.bootstrap_servers)
            theirs = read_batch(spark_with_connector, THEIRS, options)
            ours = read_batch(spark_with_connector, OURS, {**options, **SMALL_TASKS})
            assert isinstance(theirs, Read), theirs
            assert theirs.count == (617 if level else 700)
            assert ours == theirs
