"""The pipeline on the embedded broker: its tables are exact, whatever happens to it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from aiokafka_lite.broker.thread import BrokerThread
from demos.parquet import BatchMetrics, Pipeline, PipelineError, open_tables
from demos.parquet.batches import BatchStep
from demos.parquet.schemas import SAMPLED_RECORDS
from tests.demos.parquet.topic import (
    Event,
    aggregate_in,
    aggregate_of,
    options,
    places_in,
    produce,
)
from tests.support.cluster import KafkaHandle

DAY = 24 * 60
GOOD: Final = Event(0).value()
BAD: Final[list[tuple[bytes | None, str]]] = [
    (None, "no value"),
    (b"", "not JSON: empty"),
    (b"nonsense", "not JSON"),
    (GOOD[:-1], "not JSON"),
    (GOOD + b" and more", "not JSON"),
    (GOOD + b"}", "not JSON"),
    (GOOD + b"," + GOOD, "not JSON"),
    (b"[" + GOOD + b"]", "JSON, but no object"),
    (b"3", "JSON, but no object"),
    (b"null", "JSON, but no object"),
    (GOOD.replace(b'"delay": 1', b'"delay": "soon"'), "type: delay is no int"),
    (GOOD.replace(b'"delay": 1', b'"delay": 3000000000'), "type: delay is no int"),
    (GOOD.replace(b"2013-", b"soon-"), "type: time is no timestamp"),
    (b'{"carrier": "UA"}', "no event time: time"),
    (GOOD.replace(b"2013-01-01T00:00:00Z", b"").replace(b'""', b"null"), "no event time: time"),
    (GOOD.replace(b"UA", b"\xff\xfe"), "not UTF-8"),
]
# The short form has these alone.
SOME_BAD: Final = [BAD[number] for number in (0, 2, 7, 10, 12, 15)]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        yield broker


class Crash(Exception):
    """Stands for a process that ends in the middle of a batch."""


@pytest.mark.timeout(600)  # a query of Spark for each crash
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((BatchStep.RAW_WRITTEN,), id="first step"),
        pytest.param(tuple(BatchStep), id="every step", marks=pytest.mark.slow),
    ],
)
def test_tables_are_exact_wherever_it_crashes(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path, steps: Sequence[BatchStep]
) -> None:
    topic = f"crashes-{len(steps)}"
    broker.create_topic(topic, partitions=2)
    events = [Event(i, "UA" if i % 3 else "AA", i % 7 or None, i % 2) for i in range(240)]
    for event in events:
        produce(broker, topic, [event])
        if event.minute % 40 == 0:
            value, _ = SOME_BAD[event.minute // 40]
            broker.produce(topic, value, partition=0)
    # A batch for each crash, and one more.
    at_once = 246 // (len(steps) + 1)
    wanted = options(broker, topic, tmp_path, max_offsets_per_trigger=at_once, group=topic)
    metrics = tmp_path / "metrics.jsonl"
    committed = -1
    # One crash per batch: the batch before was committed, this one may or may not be.
    for batch, step in enumerate(steps):

        def crash(done: BatchStep, at: int, step: BatchStep = step, batch: int = batch) -> None:
            if done is step and at == batch:
                raise Crash(step.name)

        with pytest.raises(Crash, match=step.name):
            Pipeline(spark, wanted, metrics_file=metrics, on_step=crash).run_once()
        committed = batch if step is BatchStep.COMMITTED else batch - 1
        # What is there is whole batches, and the aggregate is that of the raw table.
        seen = open_tables(spark, str(tmp_path))
        assert seen.batch == committed
        offsets = {place: events_at(events)[place] for place in raw_places(seen)}
        assert aggregate_in(seen) == aggregate_of(offsets.values())
    tables = Pipeline(spark, wanted, metrics_file=metrics).run_once()

    assert places_in(tables) == sorted([(0, i) for i in range(126)] + [(1, i) for i in range(120)])
    bad = tables.quarantine().orderBy("kafka_offset").collect()
    assert [row["reason"] for row in bad] == [reason for _, reason in SOME_BAD]
    assert aggregate_in(tables) == aggregate_of(events)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["batch"] for line in lines] == list(range(tables.batch + 1))
    assert sum(line["rows"] for line in lines) == 246
    assert sum(line["bad"] for line in lines) == 6
    read = list(accumulate(line["rows"] for line in lines))
    assert [line["behind"] for line in lines] == [246 - rows for rows in read]
    assert {line["late"] for line in lines} == {0}
    # Every reader of Parquet sees the same: nothing is left of crashed batches and old versions.
    directory = pyarrow.dataset.dataset(tmp_path / "aggregate", partitioning="hive")
    assert directory.to_table().num_rows == len(aggregate_of(events))
    directory = pyarrow.dataset.dataset(tmp_path / "raw", partitioning="hive")
    assert directory.to_table().num_rows == len(events)


def events_at(events: list[Event]) -> dict[tuple[int, int], Event]:
    """The events of the test by partition and offset; each fortieth has a bad record behind it."""
    places: dict[tuple[int, int], Event] = {}
    ends = [0, 0]
    for event in events:
        places[event.partition, ends[event.partition]] = event
        ends[event.partition] += 1
        if event.minute % 40 == 0:
            ends[0] += 1
    return places


def raw_places(tables: object) -> list[tuple[int, int]]:
    from demos.parquet import Tables

    assert isinstance(tables, Tables)
    rows = tables.raw().select("kafka_partition", "kafka_offset").collect()
    return [(row[0], row[1]) for row in rows]


@pytest.mark.slow  # the short form has some of them, above
@pytest.mark.timeout(600)
def test_bad_records_are_put_aside_with_their_place_and_the_reason(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    broker.create_topic("bad", partitions=1)
    for value, _ in BAD:
        broker.produce("bad", value, key=b"k")
    produce(broker, "bad", [Event(0)])
    metrics: list[BatchMetrics] = []
    # A batch of these alone, and one without any.
    wanted = options(broker, "bad", tmp_path, max_offsets_per_trigger=len(BAD))
    tables = Pipeline(spark, wanted, on_batch=metrics.append).run_once()

    rows = tables.quarantine().orderBy("kafka_offset").collect()
    found = [
        (row["value"] if row["value"] is None else bytes(row["value"]), row["reason"])
        for row in rows
    ]
    assert found == BAD
    assert [row["kafka_offset"] for row in rows] == list(range(len(BAD)))
    assert {(row["kafka_topic"], row["kafka_partition"]) for row in rows} == {("bad", 0)}
    assert {bytes(row["kafka_key"]) for row in rows} == {b"k"}
    assert all(row["kafka_timestamp"] is not None for row in rows)
    assert tables.raw().count() == 1
    assert [(each.rows, each.bad) for each in metrics] == [(len(BAD), len(BAD)), (1, 0)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_late_rows_are_counted_and_kept_out_of_the_aggregate_alone(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    broker.create_topic("late", partitions=2)
    wanted = options(broker, "late", tmp_path, watermark_ms=3_600_000)
    metrics: list[BatchMetrics] = []

    def run() -> None:
        Pipeline(spark, wanted, on_batch=metrics.append).run_once()

    # Partition 1 is three days behind partition 0: it holds the watermark back.
    first = [Event(3 * DAY, partition=0), Event(0, partition=1)]
    produce(broker, "late", first)
    run()
    assert metrics[-1].watermark == "2012-12-31T23:00:00Z"
    # So this is not late; and the window, which a run has written already, goes on.
    second = [Event(30, delay=5, partition=1), Event(3 * DAY, partition=1)]
    produce(broker, "late", second)
    run()
    assert (metrics[-1].late, metrics[-1].watermark) == (0, "2013-01-03T23:00:00Z")
    # Now the windows up to 23:00 of the third are closed, and that of 23:00 is not.
    third = [Event(3 * DAY - 61), Event(3 * DAY - 59), Event(3 * DAY - 1)]
    produce(broker, "late", third)
    run()
    assert metrics[-1].late == 1

    tables = open_tables(spark, str(tmp_path))
    assert tables.raw().count() == 7
    assert aggregate_in(tables) == aggregate_of([*first, *second, *third[1:]])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_tables_than_those_that_are_there_are_refused(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    broker.create_topic("settings", partitions=1)
    produce(broker, "settings", [Event(0)])
    Pipeline(spark, options(broker, "settings", tmp_path)).run_once()
    other = options(broker, "settings", tmp_path, window_ms=7_200_000)
    with pytest.raises(PipelineError, match="created with window 1 hour, not 2 hours"):
        Pipeline(spark, other).run_once()
    # And what the tables were made with need not be said again.
    again = options(broker, "settings", tmp_path, schema=None)
    assert Pipeline(spark, again).run_once().raw().count() == 1
    # Without its checkpoint a run would read all of the topic again.
    shutil.rmtree(tmp_path / "_pipeline" / "checkpoint")
    with pytest.raises(PipelineError, match="does not match the last batch that was written"):
        Pipeline(spark, again).run_once()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stop_ends_it_behind_the_batch_under_way(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    broker.create_topic("stopped", partitions=1)
    produce(broker, "stopped", [Event(i) for i in range(30)])
    wanted = options(broker, "stopped", tmp_path, max_offsets_per_trigger=10)
    batches: list[int] = []

    def stop(step: BatchStep, batch: int) -> None:
        if step is BatchStep.RAW_WRITTEN and batch == 1:
            pipeline.stop()

    pipeline = Pipeline(
        spark, wanted, on_batch=lambda metrics: batches.append(metrics.batch), on_step=stop
    )
    tables = pipeline.run_continuously(trigger_s=0.1)
    assert tables.batch == batches[-1] >= 1
    assert (
        tables.raw().count()
        == 10 * len(batches)
        == sum(records for records, _, _ in aggregate_in(tables).values())
    )
    # The next run reads the rest.
    tables = Pipeline(spark, wanted).run_once()
    assert places_in(tables) == [(0, offset) for offset in range(30)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_schema_is_inferred_where_none_is_given(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    broker.create_topic("inferred", partitions=2)
    wanted = options(broker, "inferred", tmp_path, schema=None)
    with pytest.raises(PipelineError, match="no JSON objects to infer a schema from"):
        Pipeline(spark, wanted).run_once()
    # The offsets below are deleted, as by the topic's retention.
    handle = KafkaHandle("embedded", broker.bootstrap_servers)
    for partition in range(2):
        for _ in range(SAMPLED_RECORDS):
            broker.produce("inferred", b'{"deleted": 1}', partition=partition)
        asyncio.run(handle.delete_records("inferred", partition, SAMPLED_RECORDS))
    broker.produce("inferred", b"nonsense")
    events = [Event(i, partition=i % 2) for i in range(10)]
    produce(broker, "inferred", events)
    tables = Pipeline(spark, wanted).run_once()
    types = {name: kind for name, kind in tables.raw().dtypes if not name.startswith("kafka_")}
    assert types == {
        "carrier": "string",
        "delay": "bigint",
        "time": "timestamp",
        "event_date": "date",
        "batch": "bigint",
    }
    assert aggregate_in(tables) == aggregate_of(events)
