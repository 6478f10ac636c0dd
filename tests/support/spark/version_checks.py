"""What has to work with every PySpark: a program that reads a topic in each way, and checks it.

Run by the interpreter that has the PySpark in question:
``python version_checks.py BOOTSTRAP TOPIC EMPTY_TOPIC FOLDER``. The topic has two partitions of
ROWS / 2 records each, values of 100 bytes. Prints one line of JSON at the end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

ROWS = 2000
LIMIT = 500
TIMEOUT_S = 60


def available_now(writer: DataStreamWriter) -> StreamingQuery:
    return writer.trigger(availableNow=True).start()


def every_100_ms(writer: DataStreamWriter) -> StreamingQuery:
    return writer.trigger(processingTime="100 milliseconds").start()


def refusal(call: Callable[[], object]) -> str:
    """Call what Spark is to refuse, and return what it says."""
    try:
        call()
    except PySparkException as error:
        return str(error)
    raise AssertionError("this was not refused")


class Checks:
    """The checks of one PySpark."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder
        release = pyspark.__version__.split(".")
        self.has_admission_control = (int(release[0]), int(release[1])) >= (4, 2)

    def load(self, topic: str, source: str = "aiokafka_lite", **options: str) -> DataFrame:
        reader = self.spark.read.format(source).option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def stream(self, topic: str, **options: str) -> DataStreamReader:
        reader = self.spark.readStream.format("aiokafka_lite").options(**options)
        return reader.option("kafka.bootstrap.servers", self.bootstrap).option("subscribe", topic)

    def batch(self, topic: str, empty: str) -> None:
        rows = self.load(topic)
        total = rows.selectExpr(
            "count(*)", "sum(length(value))", "count(distinct partition, offset)"
        )
        assert tuple(total.first() or ()) == (ROWS, 100 * ROWS, ROWS)
        assert [name for name, _ in rows.dtypes] == [
            "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
        ]  # fmt: skip
        assert self.load(topic, includeHeaders="true").dtypes[-1] == (
            "headers",
            "array<struct<key:string,value:binary>>",
        )
        assert len(rows.limit(5).collect()) == 5
        assert self.load(empty).count() == 0
        reader = self.spark.read.format("aiokafka_lite").schema("offset long, value binary")
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        chosen = reader.option("subscribe", topic).load()
        assert chosen.columns == ["offset", "value"]
        assert chosen.selectExpr("max(offset)").first() == (ROWS // 2 - 1,)

    def found_by_itself(self, topic: str) -> None:
        assert self.load(topic, source="pyspark_aiokafka_lite").count() == ROWS

    def errors(self, topic: str) -> None:
        message = refusal(lambda: self.load(topic, startingOffset="earliest"))
        assert "option startingoffset is not known" in message, message
        assert "startingOffsets" in message, message

    def run(
        self,
        reader: DataStreamReader,
        name: str,
        start: Callable[[DataStreamWriter], StreamingQuery],
    ) -> int:
        """Run a query until it has read everything, or ends, and return how many rows that were."""
        writer = reader.load().writeStream.format("parquet")
        writer = writer.option("path", str(self.folder / name))
        writer = writer.option("checkpointLocation", str(self.folder / f"{name}-checkpoint"))
        query = start(writer)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while query.isActive and time.monotonic() < deadline:
                if start is every_100_ms and self.rows(name) == ROWS:
                    break
                query.awaitTermination(1)  # raises what the query failed of
        finally:
            query.stop()
        return sum(
            {each["batchId"]: each["numInputRows"] for each in query.recentProgress}.values()
        )

    def rows(self, name: str) -> int:
        path = self.folder / name
        if not (path / "_spark_metadata").exists():
            return 0
        table = self.spark.read.schema("partition int, offset long").parquet(str(path))
        return table.distinct().count()

    def available_now(self, topic: str) -> None:
        reader = self.stream(topic, startingOffsets="earliest")
        self.run(reader, "now", available_now)
        assert self.rows("now") == ROWS
        assert self.run(reader, "now", available_now) == 0  # from the checkpoint
        assert self.rows("now") == ROWS

    def limits(self, topic: str) -> None:
        limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(LIMIT)}
        if self.has_admission_control:
            self.run(self.stream(topic, **limit), "limited", available_now)
            assert len(list((self.folder / "limited-checkpoint/commits").glob("[0-9]*"))) == (
                ROWS // LIMIT
            )
        else:
            unlimited = self.stream(topic, **limit)
            message = refusal(lambda: self.run(unlimited, "refused", available_now))
            assert "PySpark 4.2" in message, message
            reader = self.stream(topic, admissionControl="source", **limit)
            self.run(reader, "limited", every_100_ms)
            assert len(list((self.folder / "limited-checkpoint/offsets").glob("[0-9]*"))) >= (
                ROWS // LIMIT
            )
        assert self.rows("limited") == ROWS


def main(bootstrap: str, topic: str, empty: str, folder: str) -> None:
    from aiokafka_lite.spark import KafkaDataSource

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(KafkaDataSource)
    checks = Checks(spark, bootstrap, Path(folder))
    checks.batch(topic, empty)
    checks.found_by_itself(topic)
    checks.errors(topic)
    checks.available_now(topic)
    checks.limits(topic)
    spark.stop()
    print(json.dumps({"pyspark": pyspark.__version__, "checked": True}))


if __name__ == "__main__":
    main(*sys.argv[1:])
