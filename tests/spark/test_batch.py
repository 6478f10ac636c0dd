"""Batch queries of Spark on the source: the embedded broker, and a real Kafka."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.spark import KafkaDataSource
from tests.support.cluster import KafkaHandle, unique
from tests.support.threads import wait

# The first test of a worker starts the session, too.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True, scope="module")
def _source_is_registered(spark: SparkSession) -> None:
    spark.dataSource.register(KafkaDataSource)


def load(spark: SparkSession, servers: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("aiokafka_lite").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", topic).options(**options).load()


async def test_rows_are_the_records(spark: SparkSession, kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, [(b"k", b"v"), (None, b"w"), (b"x", None)])
    await kafka.produce(topic, 1, [(None, b"other")])
    rows = load(spark, kafka.bootstrap_servers, topic, includeHeaders="true")
    assert all(field.nullable for field in rows.schema.fields)
    found = await wait(rows.orderBy("partition", "offset").collect)
    assert [tuple(row)[:5] for row in found] == [
        (b"k", b"v", topic, 0, 0),
        (None, b"w", topic, 0, 1),
        (b"x", None, topic, 0, 2),
        (None, b"other", topic, 1, 0),
    ]
    assert {(row.timestampType, row.headers) for row in found} == {(0, None)}


@pytest.mark.real_if_long
async def test_a_schema_reads_its_columns_only(spark: SparkSession, kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, [(b"k", b"v"), (b"l", b"w")])
    reader = spark.read.format("aiokafka_lite").schema("offset long, value binary")
    reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    rows = reader.option("subscribe", topic).load()
    assert rows.columns == ["offset", "value"]
    assert [tuple(row) for row in await wait(rows.collect)] == [(0, b"v"), (1, b"w")]


@pytest.mark.real_if_long
async def test_an_empty_topic_has_no_rows(spark: SparkSession, kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    assert await wait(load(spark, kafka.bootstrap_servers, topic).count) == 0


def test_a_view_of_sql_reads_a_topic(spark: SparkSession, kafka_broker: BrokerThread) -> None:
    kafka_broker.produce("orders", "7", key="k")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING aiokafka_lite OPTIONS "
        f"(kafka.bootstrap.servers '{kafka_broker.bootstrap_servers}', subscribe 'orders')"
    )
    rows = spark.sql("SELECT CAST(value AS STRING) AS v, offset FROM orders").collect()
    assert [tuple(row) for row in rows] == [("7", 0)]


def test_an_option_that_is_not_known_is_refused_at_load(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"startingoffset is not known.*startingOffsets"):
        load(spark, "localhost:9", "t", startingOffset="earliest")


def test_a_column_that_is_not_there_is_refused(spark: SparkSession) -> None:
    reader = spark.read.format("aiokafka_lite").schema("values binary")
    rows = reader.option("kafka.bootstrap.servers", "localhost:9").option("subscribe", "t").load()
    with pytest.raises(PySparkException, match="column values, which Kafka records do not have"):
        rows.collect()


def test_a_topic_that_is_not_there_is_named(
    spark: SparkSession, kafka_broker: BrokerThread
) -> None:
    name = unique("gone")
    options = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1"}
    with pytest.raises(PySparkException, match=f"UnknownTopicOrPartitionError.*{name}"):
        load(spark, kafka_broker.bootstrap_servers, name, **options).collect()


def test_secrets_are_neither_in_plans_nor_in_errors(spark: SparkSession) -> None:
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="u" password="hunter22";'
        ),
        "kafka.request.timeout.ms": "2000",
        "fetchOffset.numRetries": "1",
    }
    rows = load(spark, "127.0.0.1:1", "t", **given)
    plan = rows._jdf.queryExecution().analyzed().toString()
    with pytest.raises(PySparkException) as raised:
        rows.collect()
    assert "hunter22" not in plan
    assert "hunter22" not in str(raised.value)
    assert "127.0.0.1:1" in str(raised.value)


# --- Ending early --------------------------------------------------------------------------


def test_a_limit_reads_no_more_than_it_needs(
    spark: SparkSession, kafka_broker: BrokerThread
) -> None:
    kafka_broker.create_topic("long", 1)
    for number in range(50):
        kafka_broker.produce("long", f"{number}")
    rows = load(spark, kafka_broker.bootstrap_servers, "long")
    for _ in range(2):
        assert [row.value for row in rows.limit(3).collect()] == [b"0", b"1", b"2"]


def test_a_query_that_is_cancelled_ends_while_the_broker_keeps_silent(
    spark: SparkSession, kafka_broker: BrokerThread
) -> None:
    kafka_broker.create_topic("silent", 1)
    kafka_broker.produce("silent", "v")
    rows = load(spark, kafka_broker.bootstrap_servers, "silent")
    caught: list[Exception] = []

    def collect() -> None:
        spark.sparkContext.setJobGroup("cancelled", "", interruptOnCancel=True)
        try:
            rows.collect()
        except Exception as error:  # noqa: BLE001 -- looked at below
            caught.append(error)

    with kafka_broker.on("Fetch").hold() as rule:
        thread = threading.Thread(target=collect)
        thread.start()
        rule.reached(timeout_s=60)
        began = time.monotonic()
        spark.sparkContext.cancelJobGroup("cancelled")
        thread.join(30)
    assert not thread.is_alive()
    assert time.monotonic() - began < 15
    assert "cancelled" in str(caught[0])
