"""Streaming queries of Spark on the source: the embedded broker, and a real Kafka."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.spark import KafkaDataSource
from tests.support.cluster import KafkaHandle
from tests.support.threads import wait

# The first test of a worker starts the session, too.
pytestmark = pytest.mark.timeout(300)

TIMEOUT_S = 120


@pytest.fixture(autouse=True, scope="module")
def _source_is_registered(spark: SparkSession) -> None:
    spark.dataSource.register(KafkaDataSource)


class Stream:
    """A streaming query into Parquet, run again and again from one checkpoint."""

    def __init__(
        self, spark: SparkSession, folder: Path, servers: str, topic: str, **options: str
    ) -> None:
        self.spark = spark
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"
        reader = spark.readStream.format("aiokafka_lite").options(**options)
        reader = reader.option("kafka.bootstrap.servers", servers).option("subscribe", topic)
        rows = reader.load().select("partition", "offset", "value")
        writer = rows.writeStream.format("parquet").option("path", str(self.table))
        self.writer = writer.option("checkpointLocation", str(self.checkpoint))

    def run(self) -> StreamingQuery:
        """Read what there is."""
        query = self.writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(TIMEOUT_S)
        finally:
            query.stop()
        return query

    def start(self) -> StreamingQuery:
        return self.writer.trigger(processingTime="50 milliseconds").start()

    def rows(self) -> list[tuple[int, int]]:
        """The partition and the offset of each row in the table, in order."""
        table: DataFrame = self.spark.read.parquet(str(self.table))
        return sorted((row.partition, row.offset) for row in table.collect())

    def ends(self) -> list[dict[str, dict[str, int]]]:
        """Where the checkpoint says that batches end."""
        logs = sorted(
            (path for path in (self.checkpoint / "offsets").iterdir() if path.name.isdigit()),
            key=lambda path: int(path.name),
        )
        return [json.loads(path.read_text().splitlines()[2]) for path in logs]


@pytest.mark.real_if_long
async def test_each_run_reads_what_has_come_since_the_last(
    spark: SparkSession, kafka: KafkaHandle, tmp_path: Path
) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, [(None, b"a")] * 5)
    stream = Stream(
        spark,
        tmp_path,
        kafka.bootstrap_servers,
        topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="3",
    )
    query = await wait(stream.run)
    assert await wait(stream.rows) == [(0, offset) for offset in range(5)]
    assert stream.ends() == [{topic: {"0": 3, "1": 0}}, {topic: {"0": 5, "1": 0}}]
    source = query.recentProgress[-1]["sources"][0]
    assert json.loads(source["latestOffset"]) == {topic: {"0": 5, "1": 0}}
    await kafka.produce(topic, 1, [(None, b"b")])
    await kafka.add_partitions(topic, 3)
    await kafka.produce(topic, 2, [(None, b"c")])
    await wait(stream.run)
    assert (await wait(stream.rows))[5:] == [(1, 0), (2, 0)]


def test_a_query_from_the_latest_reads_what_comes_after_its_start(
    spark: SparkSession, kafka_broker: BrokerThread, tmp_path: Path
) -> None:
    kafka_broker.create_topic("t", 1)
    kafka_broker.produce("t", "before")
    stream = Stream(
        spark, tmp_path, kafka_broker.bootstrap_servers, "t", commitOffsetsToGroup="shown"
    )
    query = stream.start()
    try:
        # The first batch is empty; it is what the next run would go on from.
        kafka_broker.wait_for_commits("shown", "t", timeout_s=TIMEOUT_S)
        kafka_broker.produce("t", "after")
        kafka_broker.wait_for_commits("shown", "t", timeout_s=TIMEOUT_S)
    finally:
        query.stop()
    assert stream.rows() == [(0, 1)]
    assert stream.ends()[0] == {"t": {"0": 1}}


@pytest.mark.slow  # planning/test_planner.py has the planner's answer to a restart
def test_a_first_batch_that_was_not_done_is_read_though_partitions_have_come_since(
    spark: SparkSession, kafka_broker: BrokerThread, tmp_path: Path
) -> None:
    kafka_broker.create_topic("t", 2)
    for partition in (0, 1):
        kafka_broker.produce("t", "early", partition=partition)
    beginning = json.dumps({"t": {"0": 0, "1": -2}})
    stream = Stream(spark, tmp_path, kafka_broker.bootstrap_servers, "t", startingOffsets=beginning)
    stream.run()
    # As a driver leaves them that was killed when the batch was in the checkpoint.
    shutil.rmtree(stream.table)
    shutil.rmtree(stream.checkpoint / "commits")
    kafka_broker.add_partitions("t", 3)
    kafka_broker.produce("t", "late", partition=2)
    stream.run()
    assert stream.rows() == [(0, 0), (1, 0), (2, 0)]
    assert stream.ends() == [{"t": {"0": 1, "1": 1}}, {"t": {"0": 1, "1": 1, "2": 1}}]


@pytest.mark.slow  # test_checkpoints.py has one of the connector's own
def test_a_checkpoint_of_the_jvm_is_taken_over(
    spark: SparkSession, kafka_broker: BrokerThread, tmp_path: Path
) -> None:
    kafka_broker.create_topic("t", 2)
    for number in range(6):
        kafka_broker.produce("t", f"{number}", partition=number % 2)
    stream = Stream(spark, tmp_path, kafka_broker.bootstrap_servers, "t")
    stream.run()
    (offsets,) = (tmp_path / "checkpoint/offsets").glob("0")
    version, settings, _ = offsets.read_text().splitlines()
    offsets.write_text("\n".join([version, settings, '{"t":{"1":1,"0":2}}']))
    (tmp_path / "checkpoint/offsets/.0.crc").unlink()
    stream.run()
    assert stream.rows() == [(0, 2), (1, 1), (1, 2)]


@pytest.mark.slow  # planning/test_planner.py has each kind of loss
def test_records_that_are_gone_fail_the_query_with_their_place(
    spark: SparkSession, kafka_broker: BrokerThread, tmp_path: Path
) -> None:
    kafka_broker.create_topic("t", 1)
    for _ in range(3):
        kafka_broker.produce("t", "v")
    stream = Stream(
        spark, tmp_path, kafka_broker.bootstrap_servers, "t", startingOffsets="earliest"
    )
    stream.run()
    kafka_broker.recreate_topic("t")
    kafka_broker.produce("t", "v")
    with pytest.raises(StreamingQueryException, match=r"DataLossError.*topic t, partition 0"):
        stream.run()


def test_what_streaming_refuses_is_said_when_the_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, "localhost:9", "t", endingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="endingOffsets"):
        stream.run()
