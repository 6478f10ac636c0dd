"""Spark's own Kafka source takes and refuses what ours does, but for what is listed as stricter.

Its batch reader checks options when a frame is loaded. Its stream is made by hand, as a query
makes it, so that no query has to be started for each case. Kafka's consumer checks kafka.* and
Java's `Pattern` is asked as themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from py4j.java_gateway import JVMView
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.spark.java_pattern import JavaPatternError, compile_java
from aiokafka_lite.spark.options import Subscribed
from tests.spark.options.cases import ACCEPTED, BROKER, REFUSED, STRICTER, Case
from tests.spark.options.kafka_cases import KAFKA_ACCEPTED, KAFKA_REFUSED, KAFKA_STRICTER
from tests.spark.options.patterns import BROKEN, NAMES, NOT_HERE, PATTERNS, random_pattern

pytestmark = pytest.mark.java

BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


def jvm_of(spark: SparkSession) -> JVMView:
    """Return the session's JVM, whose classes are reached by their names."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return jvm


def takes_batch(spark: SparkSession, options: dict[str, str]) -> bool:
    try:
        spark.read.format("kafka").options(**{**BROKER, **options}).load()
    except (PySparkException, Py4JJavaError):
        return False
    return True


def takes_stream(spark: SparkSession, options: dict[str, str]) -> bool:
    jvm = jvm_of(spark)
    provider = jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider()
    try:
        given = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap({**BROKER, **options})
        scan = provider.getTable(given).newScanBuilder(given).build()
        scan.toMicroBatchStream("checkpoint").stop()
    except (PySparkException, Py4JJavaError):
        return False
    return True


def differences(
    spark: SparkSession, cases: list[Case], *, expected: bool
) -> list[tuple[str, dict[str, str]]]:
    """Return the cases that Spark's source does not treat as expected."""
    kinds: dict[str, Callable[[Case], bool]] = {
        "batch": lambda case: case.batch and takes_batch(spark, case.options) is not expected,
        "stream": lambda case: case.stream and takes_stream(spark, case.options) is not expected,
    }
    return [(kind, case.options) for case in cases for kind in kinds if kinds[kind](case)]


def test_what_we_accept_is_accepted(spark_with_connector: SparkSession) -> None:
    assert differences(spark_with_connector, ACCEPTED, expected=True) == []


def test_what_we_refuse_is_refused(spark_with_connector: SparkSession) -> None:
    assert differences(spark_with_connector, REFUSED, expected=False) == []


def test_what_only_we_refuse_is_accepted_at_first(spark_with_connector: SparkSession) -> None:
    assert differences(spark_with_connector, STRICTER, expected=True) == []


def test_kafkas_consumer_checks_values_as_we_do(spark_with_connector: SparkSession) -> None:
    jvm = jvm_of(spark_with_connector)
    consumer = jvm.org.apache.kafka.clients.consumer

    def takes(name: str, value: str) -> bool:
        given = {"bootstrap.servers": "a:1", "key.deserializer": BYTES, "value.deserializer": BYTES}
        try:
            consumer.ConsumerConfig(jvm.java.util.HashMap({**given, name: value}))
        except (PySparkException, Py4JJavaError):
            return False
        return True

    assert [case for case in KAFKA_ACCEPTED if not takes(*case)] == []
    assert [case for case in KAFKA_REFUSED if takes(*case)] == []
    assert [case for case in KAFKA_STRICTER if not takes(*case)] == []


def test_patterns_find_in_java_what_they_find_here(spark_with_connector: SparkSession) -> None:
    jvm = jvm_of(spark_with_connector)

    def found(pattern: str) -> list[str]:
        compiled = jvm.java.util.regex.Pattern.compile(pattern)
        return [name for name in NAMES if compiled.matcher(name).find()]

    ours = {
        pattern: [name for name in NAMES if compile_java(pattern).search(name)]
        for pattern in PATTERNS
    }
    assert ours == {pattern: found(pattern) for pattern in PATTERNS}
    for pattern in BROKEN:
        with pytest.raises((PySparkException, Py4JJavaError)):
            found(pattern)
    for pattern in NOT_HERE:
        found(pattern)


@pytest.mark.slow
def test_made_up_patterns_find_in_java_what_they_find_here(
    spark_with_connector: SparkSession,
) -> None:
    compiler = jvm_of(spark_with_connector).java.util.regex.Pattern
    random = Random(1)
    alike = 0
    for pattern in {random_pattern(random) for _ in range(800)}:
        try:
            ours = compile_java(pattern)
        except JavaPatternError:
            continue  # some of these Java takes
        theirs = compiler.compile(pattern)
        found = [name for name in NAMES if theirs.matcher(name).find()]
        assert found == [name for name in NAMES if ours.search(name)], pattern
        alike += 1
    assert alike > 300


@pytest.mark.slow  # the short form asks Java's `Pattern` itself, above
def test_pattern_chooses_the_topics_that_spark_chooses(
    spark_with_connector: SparkSession, kafka_broker: BrokerThread
) -> None:
    for name in ("flights", "flights.old", "Flights", "weather", "__internal"):
        kafka_broker.produce(name, name.encode())
    pattern = "li|^__"
    frame = spark_with_connector.read.format("kafka").option("subscribePattern", pattern)
    frame = frame.option("kafka.bootstrap.servers", kafka_broker.bootstrap_servers)
    theirs = {row.topic for row in frame.load().select("topic").collect()}
    ours = Subscribed("subscribePattern", pattern=pattern)
    assert theirs == {name for name in kafka_broker.topics if ours.matches(name)}
    assert theirs == {"flights", "flights.old", "Flights", "__internal"}
