"""The same plans as Spark's own Kafka source makes, found by running both."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import min as smallest_of
from pyspark.sql.functions import spark_partition_id

from aiokafka_lite.broker import NewRecord
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.spark.micro_batches import Admission
from aiokafka_lite.spark.options import parse_options
from aiokafka_lite.spark.planner import Planner, divide
from aiokafka_lite.spark.ranges import KafkaOffsetRange, from_spark

pytestmark = pytest.mark.slow

CASES = 150
SIZES = (400, 30, 0, 1)
FIRST_TIME_MS = 1_000_000
# A part of a partition: its topic, number, first offset, and the one behind the last.
Piece: TypeAlias = tuple[str, int, int, int]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A broker with the topics "t", of uneven partitions, and "u", of one."""
    with BrokerThread() as broker:
        for topic, partitions in (("t", len(SIZES)), ("u", 1)):
            broker.create_topic(
                topic, partitions, {"retention.ms": "-1"}
            )  # the records are of 1970
        broker.produce_all("t", [
            NewRecord(b"value", None, (), partition, FIRST_TIME_MS + offset)
            for partition, size in enumerate(SIZES)
            for offset in range(size)
        ])  # fmt: skip
        broker.produce_all("u", [NewRecord(b"value", None, (), 0, FIRST_TIME_MS)] * 20)
        yield broker.bootstrap_servers


# --- Splitting -------------------------------------------------------------------------------
def split_by_connector(
    spark: SparkSession,
    ranges: list[KafkaOffsetRange],
    min_partitions: int | None,
    max_records: int | None,
) -> list[Piece]:
    """What `KafkaOffsetRangeCalculator` makes of ranges."""
    jvm = spark._jvm
    assert jvm is not None
    kafka = jvm.org.apache.spark.sql.kafka010
    convert = jvm.scala.jdk.javaapi.CollectionConverters.asScala
    nowhere = jvm.scala.Option.empty()
    options, given = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
    if min_partitions is not None:
        options.put("minPartitions", str(min_partitions))
    if max_records is not None:
        options.put("maxRecordsPerPartition", str(max_records))
    for each in ranges:
        tp = jvm.org.apache.kafka.common.TopicPartition(each.topic, each.partition)
        given.add(kafka.KafkaOffsetRange(tp, each.start, each.end, nowhere))
    calculator = kafka.KafkaOffsetRangeCalculator.apply(
        jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)
    )
    pieces = calculator.getRanges(
        convert(given).toSeq(), convert(jvm.java.util.ArrayList()).toSeq()
    )
    found = re.findall(r"KafkaOffsetRange\((\w+)-(\d+),(\d+),(\d+),None\)", pieces.mkString("|"))
    return [(topic, int(partition), int(start), int(end)) for topic, partition, start, end in found]


def some_ranges(rng: random.Random) -> list[KafkaOffsetRange]:
    scale = rng.choice([1, 10, 1000, 10**6, 10**12])
    starts = [rng.randrange(scale * 3) for _ in range(rng.choice([1, 2, 3, 5, 8, 20]))]
    sizes = [rng.choice([0, 1, rng.randrange(scale * 10 + 1), 1000]) for _ in starts]
    return [
        KafkaOffsetRange(f"t{number % 2}", number, start, start + size)
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def test_ranges_are_split_as_its_calculator_splits_them(spark_with_connector: SparkSession) -> None:
    rng = random.Random()
    for _ in range(CASES):
        ranges = some_ranges(rng)
        largest = max(each.size for each in ranges)
        min_partitions = rng.choice([None, len(ranges) + 1, rng.randrange(1, 50)])
        max_records = rng.choice([None, max(1, largest // rng.randrange(1, 12)), largest + 1])
        ours = divide(ranges, min_partitions=min_partitions, max_records_per_partition=max_records)
        theirs = split_by_connector(spark_with_connector, ranges, min_partitions, max_records)
        assert [each[:4] for each in ours] == theirs, (ranges, min_partitions, max_records)


# --- Batches ---------------------------------------------------------------------------------
def read_by_connector(spark: SparkSession, options: dict[str, str]) -> set[Piece]:
    """Which offsets each of its tasks reads; partitions without records are not seen."""
    rows = spark.read.format("kafka").options(**options).load()
    grouped = rows.groupBy(spark_partition_id(), "topic", "partition")
    bounds = grouped.agg(
        smallest_of("offset").alias("first"), largest_of("offset").alias("last")
    ).collect()
    return {(row["topic"], row["partition"], row["first"], row["last"] + 1) for row in bounds}


def planned_by_us(options: dict[str, str]) -> set[Piece]:
    parsed = parse_options({**options, "minRecordsPerTask": "1"}, is_streaming=False)
    cluster = BlockingCluster(parsed.client)
    try:
        planner = Planner(parsed, cluster)
        tasks = planner.tasks(planner.batch_ranges())
    finally:
        cluster.close()
    assert all(len(task) == 1 for task in tasks)
    return {task[0][:4] for task in tasks}


def offsets(*each: int) -> str:
    return json.dumps({"t": {str(partition): offset for partition, offset in enumerate(each)}})


BATCHES: dict[str, dict[str, str]] = {
    "everything": {},
    "two topics": {"subscribe": "t,u"},
    "pattern in the middle of no name": {"subscribePattern": "x"},
    "pattern": {"subscribePattern": "^[tu]"},
    "assigned, one of them not there": {"assign": json.dumps({"t": [1, 3, 8], "u": [0]})},
    "offsets": {
        "startingOffsets": offsets(100, -2, -2, 0),
        "endingOffsets": offsets(-1, 20, -1, 1),
    },
    "many tasks": {"minPartitions": "9"},
    "small tasks of given offsets": {
        "maxRecordsPerPartition": "70",
        "startingOffsets": offsets(0, 0, 0, 0),
        "endingOffsets": offsets(*SIZES),
    },
    "many small tasks of given offsets": {
        "maxRecordsPerPartition": "90",
        "minPartitions": "13",
        "startingOffsets": offsets(0, 0, 0, 0),
        "endingOffsets": offsets(*SIZES),
    },
    "between times": {
        "assign": json.dumps({"t": [0, 1]}),
        "startingTimestamp": str(FIRST_TIME_MS + 10),
        "endingTimestamp": str(FIRST_TIME_MS + 100),
    },
    "times of each partition": {
        "startingOffsetsByTimestamp": offsets(*[FIRST_TIME_MS + 20] * 4),
        "startingOffsetsByTimestampStrategy": "latest",
        "endingOffsetsByTimestamp": offsets(*[FIRST_TIME_MS + 25] * 4),
    },
}
REFUSALS: dict[str, dict[str, str]] = {
    "no such topic": {"subscribe": "t,nowhere", "fetchOffset.retryIntervalMs": "1"},
    "a partition left out": {"startingOffsets": offsets(0, 0, 0)},
    "a partition too many": {"endingOffsets": offsets(-1, -1, -1, -1, -1)},
    "assigned partition that is not there, with its offset": {
        "assign": json.dumps({"t": [0, 8]}),
        "startingOffsets": json.dumps({"t": {"0": 0, "8": 0}}),
    },
    "beyond the end": {"startingOffsets": offsets(500, 0, 0, 0)},
    "end before start": {
        "startingOffsets": offsets(50, 0, 0, 0),
        "endingOffsets": offsets(40, -1, -1, -1),
    },
    "end beyond the log": {
        "endingOffsets": offsets(401, -1, -1, -1),
        "kafkaConsumer.pollTimeoutMs": "1000",
    },
    "nothing that late": {"startingTimestamp": str(FIRST_TIME_MS * 2)},
    "start in time after the end": {
        "assign": json.dumps({"t": [0, 1]}),
        "startingTimestamp": str(FIRST_TIME_MS + 20),
        "endingTimestamp": str(FIRST_TIME_MS + 10),
    },
}


def with_topic(servers: str, options: dict[str, str]) -> dict[str, str]:
    is_named = options.keys() & {"subscribe", "subscribePattern", "assign"}
    named = {} if is_named else {"subscribe": "t"}
    return {"kafka.bootstrap.servers": servers, **named, **options}


@pytest.mark.parametrize("case", BATCHES)
def test_tasks_of_a_batch_read_the_same_ranges(
    spark_with_connector: SparkSession, servers: str, case: str
) -> None:
    options = with_topic(servers, BATCHES[case])
    assert planned_by_us(options) == read_by_connector(spark_with_connector, options)


@pytest.mark.parametrize("case", REFUSALS)
def test_what_it_refuses_is_refused(
    spark_with_connector: SparkSession, servers: str, case: str
) -> None:
    options = with_topic(servers, REFUSALS[case])
    with pytest.raises(KafkaError):
        planned_by_us(options)
    with pytest.raises((PySparkException, Py4JJavaError)):
        read_by_connector(spark_with_connector, options)


# --- Micro-batches ---------------------------------------------------------------------------
@pytest.mark.parametrize(("topic", "limit"), [("u", 3), ("u", 7), ("t", 100), ("t", 1000)])
def test_micro_batches_end_at_the_same_offsets(
    spark_with_connector: SparkSession, servers: str, tmp_path: Path, topic: str, limit: int
) -> None:
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(limit),
    }
    stream = spark_with_connector.readStream.format("kafka").options(**options).load()
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    theirs = [
        from_spark(progress["sources"][0]["endOffset"])
        for progress in map(json.loads, (each.json for each in query.recentProgress))
    ]
    parsed = parse_options(options, is_streaming=True)
    cluster = BlockingCluster(parsed.client)
    try:
        planner = Planner(parsed, cluster)
        admission = Admission(parsed)
        end, target, ours = planner.beginning()[0], planner.latest(), []
        while end != target:
            end = admission.admit(end, target, planner.earliest)
            ours.append(end)
    finally:
        cluster.close()
    assert ours == theirs
