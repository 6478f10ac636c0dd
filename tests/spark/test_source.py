"""The source as Spark's processes use it, called by the test."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version

import pyspark
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import aiokafka_lite.spark
import pyspark_aiokafka_lite
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.errors import KafkaConfigurationError, OptionError
from aiokafka_lite.spark import KafkaDataSource, worker
from aiokafka_lite.spark.readers import KafkaBatchReader, KafkaInputPartition, KafkaStreamReader

SCHEMA = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])


@pytest.fixture(autouse=True)
def _connections_are_closed() -> Iterator[None]:
    yield
    worker.close_all()


def source(servers: str = "localhost:9092", **given: str) -> KafkaDataSource:
    options = CaseInsensitiveDict({"kafka.bootstrap.servers": servers, "subscribe": "t"})
    options.update(given)
    return KafkaDataSource(options)  # type: ignore[arg-type] # what Spark itself gives


# --- Writing ---------------------------------------------------------------------------------
def test_who_wants_to_write_is_told_what_writes() -> None:
    options = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}
    unread = KafkaDataSource(CaseInsensitiveDict(options))  # type: ignore[arg-type]
    for refuse in (unread.writer, unread.streamWriter):
        with pytest.raises(OptionError, match=r"cannot write\. .*format\('kafka'\).*foreachBatch"):
            refuse(SCHEMA, False)


def test_a_query_without_topics_is_refused_when_it_loads_or_is_planned() -> None:
    nothing = KafkaDataSource({"kafka.bootstrap.servers": "localhost:9092"})
    for ask in (
        nothing.schema,
        lambda: nothing.reader(SCHEMA),
        lambda: nothing.streamReader(SCHEMA),
    ):
        with pytest.raises(
            OptionError, match="set one of the options subscribe, subscribePattern, assign"
        ):
            ask()


# --- Loading ---------------------------------------------------------------------------------
def test_options_are_refused_when_a_query_loads() -> None:
    with pytest.raises(OptionError, match=r"startingoffset is not known.*startingOffsets"):
        source(startingOffset="earliest")


def test_options_of_either_kind_of_query_load() -> None:
    source(endingOffsets="latest")  # batch
    source(startingOffsets="latest")  # streaming


def test_options_that_no_query_could_use_say_why_of_both_kinds() -> None:
    with pytest.raises(OptionError, match=r"startingOffsets.*streaming query: .*endingOffsets"):
        source(startingOffsets="latest", endingOffsets="latest")


def test_what_only_streaming_refuses_is_refused_when_the_query_starts() -> None:
    reader = source(endingOffsets="latest").streamReader(SCHEMA)
    with pytest.raises(OptionError, match="endingOffsets"):
        reader.initialOffset()


def test_the_schema_is_that_of_sparks_own_source() -> None:
    assert source().schema() == (
        "key binary, value binary, topic string, partition int, offset bigint, "
        "timestamp timestamp_ltz, timestampType int"
    )
    assert (
        source(includeHeaders="true")
        .schema()
        .endswith(", headers array<struct<key:string,value:binary>>")
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType([StructField("values", BinaryType())]), "values"),
        (StructType([StructField("value", LongType())]), r"value.*binary"),
        (StructType([StructField("value", BinaryType(), nullable=False)]), "null"),
        (StructType([]), "no columns"),
    ],
)
def test_schemas_that_cannot_be_had_are_refused(schema: StructType, message: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=message):
        source().reader(schema)
    with pytest.raises(KafkaConfigurationError, match=message):
        source().streamReader(schema)


# --- Pickles ---------------------------------------------------------------------------------
def test_what_tasks_get_is_small_and_has_no_connection(kafka_broker: BrokerThread) -> None:
    kafka_broker.create_topic("t", 1)
    reader = source(kafka_broker.bootstrap_servers).streamReader(SCHEMA)
    reader.initialOffset()
    pickled = pickle.dumps(reader)
    assert len(pickled) < 700
    again = pickle.loads(pickled)  # noqa: S301 -- our own
    assert isinstance(again, KafkaStreamReader)
    assert again.raw == reader.raw
    assert again.schema.equals(reader.schema)
    reader.stop()
    reader.stop()


def test_a_task_imports_nothing_that_plans() -> None:
    program = (
        "import sys\n"
        "from aiokafka_lite.spark.readers import KafkaStreamReader\n"
        "import aiokafka_lite.spark.reading\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = set(loaded.stdout.decode().split())
    assert "aiokafka_lite.spark.reading" in modules
    for absent in ("aiokafka_lite.spark.planner", "aiokafka_lite.consumer"):
        assert absent not in modules


# --- Batch -----------------------------------------------------------------------------------
def test_a_batch_reader_reads_what_it_planned(kafka_broker: BrokerThread) -> None:
    kafka_broker.create_topic("t", 2)
    for number in range(6):
        kafka_broker.produce("t", f"{number}", partition=number % 2)
    reader = source(kafka_broker.bootstrap_servers).reader(SCHEMA)
    (partition,) = reader.partitions()
    rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert sorted(row["value"] for row in rows) == [b"%d" % number for number in range(6)]
    assert repr(partition) == "KafkaInputPartition(t-0[0..3), t-1[0..3))"


@pytest.mark.parametrize("nothing", [None, InputPartition(None)])
def test_an_empty_plan_reads_nothing(nothing: InputPartition | None) -> None:
    reader = source().reader(SCHEMA)
    assert isinstance(reader, KafkaBatchReader)
    assert list(reader.read(nothing)) == []


def test_a_reader_that_is_given_up_leaves_its_connection_to_the_next(
    kafka_broker: BrokerThread,
) -> None:
    kafka_broker.create_topic("t", 1)
    for _ in range(10):
        kafka_broker.produce("t", "v")
    reader = source(kafka_broker.bootstrap_servers).reader(SCHEMA)
    (partition,) = reader.partitions()
    for _ in range(3):  # as of limit(5): Spark takes a batch, and closes the generator
        rows = reader.read(partition)
        assert next(rows).num_rows == 10
        del rows
    assert len(kafka_broker.requests.of("ApiVersions")) == 1


# --- Streaming -------------------------------------------------------------------------------
def test_a_stream_reader_answers_in_the_layout_of_checkpoints(kafka_broker: BrokerThread) -> None:
    kafka_broker.create_topic("t", 2)
    kafka_broker.produce("t", "v", partition=1)
    reader = source(kafka_broker.bootstrap_servers, startingOffsets="earliest").streamReader(SCHEMA)
    start = reader.initialOffset()
    assert start == {"t": {"0": 0, "1": 0}}
    assert reader.reportLatestOffset() is None
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == reader.reportLatestOffset() == {"t": {"0": 0, "1": 1}}
    (partition,) = reader.partitions(start, end)
    assert isinstance(partition, KafkaInputPartition)
    assert [row["offset"] for batch in reader.read(partition) for row in batch.to_pylist()] == [0]
    assert reader.partitions(end, end) == []
    reader.commit(end)
    reader.stop()


def test_where_nothing_has_come_the_start_is_returned_as_spark_wrote_it(
    kafka_broker: BrokerThread,
) -> None:
    kafka_broker.create_topic("t", 11)
    reader = source(kafka_broker.bootstrap_servers).streamReader(SCHEMA)
    start = {"t": {str(partition): 0 for partition in range(11)}}  # the JVM's order is another
    assert list(reader.latestOffset(start, ReadAllAvailable())["t"]) == list(start["t"])
    reader.stop()


def test_the_limit_that_spark_is_told_of_is_that_of_the_options() -> None:
    def limit(**given: str) -> object:
        return source(**given).streamReader(SCHEMA).getDefaultReadLimit()

    assert limit() == ReadAllAvailable()
    assert limit(maxOffsetsPerTrigger="7") == ReadMaxRows(7)
    assert limit(minOffsetsPerTrigger="3") == ReadMinRows(3)
    assert limit(minOffsetsPerTrigger="3", maxOffsetsPerTrigger="7") == ReadMaxRows(7)


def test_processed_offsets_are_committed_before_the_next_batch_comes(
    kafka_broker: BrokerThread,
) -> None:
    kafka_broker.create_topic("t", 1)
    kafka_broker.produce("t", "v")
    reader = source(kafka_broker.bootstrap_servers, commitOffsetsToGroup="g").streamReader(SCHEMA)
    reader.latestOffset({"t": {"0": 1}}, ReadAllAvailable())
    assert list(kafka_broker.committed("g").values()) == [1]
    reader.stop()


# --- What is exported, and found ---------------------------------------------------------------
def test_spark_finds_the_source_under_the_packages_name() -> None:
    assert issubclass(pyspark_aiokafka_lite.DefaultSource, KafkaDataSource)
    assert pyspark_aiokafka_lite.DefaultSource.name() == "pyspark_aiokafka_lite"
    assert KafkaDataSource.name() == "aiokafka_lite"


@pytest.mark.parametrize(
    ("module", "message"),
    [("pyspark", "needs PySpark 4.0 or newer: run pip"), ("pyarrow", "needs pyarrow: run pip")],
)
def test_what_is_missing_is_named_with_how_to_install_it(module: str, message: str) -> None:
    program = (
        "import sys\n"
        f"sys.modules[{module!r}] = None\n"
        "import pyspark_aiokafka_lite\n"  # Spark's search for sources goes on
        "assert not hasattr(pyspark_aiokafka_lite, 'DefaultSource')\n"
        "from aiokafka_lite.spark import KafkaDataSource\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, text=True
    )
    assert message in ended.stderr.splitlines()[-1]


def test_a_pyspark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.4")
    monkeypatch.delitem(vars(aiokafka_lite.spark), "KafkaDataSource")
    with pytest.raises(ImportError, match=r"4\.0 or newer.*3\.5\.4 has no Python data sources"):
        _ = aiokafka_lite.spark.KafkaDataSource
    assert version("pyspark")


def test_other_names_are_not_exported() -> None:
    with pytest.raises(AttributeError, match="KafkaSource"):
        _ = aiokafka_lite.spark.KafkaSource


def test_a_small_task_starts_no_thread(
    kafka_broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka_broker.create_topic("t", 1)
    kafka_broker.produce("t", "v")
    reader = source(kafka_broker.bootstrap_servers).reader(SCHEMA)
    (partition,) = reader.partitions()
    threads: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", threads.append)
    assert [batch.num_rows for batch in reader.read(partition)] == [1]
    assert threads == []
