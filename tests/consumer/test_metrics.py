"""metrics(): stable names that are documented, counted without a cost per record."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.monitoring.diagnosis import Cause
from aiokafka_lite.events import EVENT_CLASSES
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import consumer_of, offsets_read, reading
from tests.support.rows import rows

DOCS = Path(__file__).parents[2] / "docs" / "monitoring.md"
Row = dict[str, object]


def number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return value


def rows_of(metrics: Row, name: str) -> list[Row]:
    found = metrics[name]
    assert isinstance(found, list)
    return found


async def until_metrics(consumer: AIOKafkaConsumer, is_reached: Callable[[Row], object]) -> Row:
    """Wait until the metrics are as wanted."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 20
    while not is_reached(metrics := consumer.metrics()):
        assert loop.time() < deadline, metrics
        await asyncio.sleep(0.005)
    return metrics


@pytest.mark.real_if_long
async def test_names_are_the_same_before_the_start_and_after_the_stop(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
    )
    before = consumer.metrics()
    zero = [name for name in before if name.endswith("_total") or name.startswith("processing_")]
    assert [name for name in zero if before[name] != 0] == []
    assert before["assigned_without_position_seconds"] == 0.0
    assert before["partitions"] == before["nodes"] == []
    await consumer.start()
    await offsets_read(consumer, 5)
    running = consumer.metrics()
    await consumer.stop()
    after = consumer.metrics()
    for metrics in (before, running, after):
        assert json.loads(json.dumps(metrics)) == metrics
        assert metrics.keys() == before.keys()
    assert after["records_total"] == 5
    assert number(after, "fetched_bytes_total") == number(running, "fetched_bytes_total") > 0
    (row,), (after_row,) = rows_of(running, "partitions"), rows_of(after, "partitions")
    assert 0 <= number(row, "last_fetch_age_seconds") < 20
    assert isinstance(row["node"], int)
    assert (after_row["node"], after_row["standstill_seconds"]) == (None, 0.0)


@pytest.mark.real_if_long
async def test_records_are_counted_however_they_are_read(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 40))
    async with reading(kafka, topic) as consumer:
        await consumer.poll(max_records=10)
        assert consumer.metrics()["records_total"] == 10
        for _ in range(3):
            await consumer.getone()
        assert consumer.metrics()["records_total"] == 13
        async for record in consumer:
            if record.offset == 19:
                break
        assert consumer.metrics()["records_total"] == 20
        batch = await consumer.poll_arrow(max_rows=5)
        assert consumer.metrics()["records_total"] == 20 + batch.num_rows
        await offsets_read(consumer, 20 - batch.num_rows)
        assert consumer.metrics()["records_total"] == 40
        assert await consumer.poll(timeout_ms=1) == {}
        assert consumer.metrics()["lag"] == 0


@pytest.mark.real_if_long
async def test_a_partition_is_told_by_its_offsets(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    await kafka.produce(topic, 0, rows(5, 5))
    await kafka.delete_records(topic, 0, 5)
    async with reading(kafka, topic, group_id=unique("g"), enable_auto_commit=False) as consumer:
        await consumer.poll(max_records=2)
        await consumer.commit()
        (row,) = rows_of(consumer.metrics(), "partitions")
        assert row["state"] == "buffered"
        offsets = ("position", "committed", "high_watermark", "log_start_offset", "lag")
        assert [row[name] for name in offsets] == [7, 7, 10, 5, 3]
        assert (row["topic"], row["partition"], row["is_paused"]) == (topic, 0, False)
        await offsets_read(consumer, 3)
        assert await consumer.poll(timeout_ms=1) == {}
        metrics = await until_metrics(
            consumer, lambda metrics: rows_of(metrics, "partitions")[0]["state"] == "at_end"
        )
        (row,) = rows_of(metrics, "partitions")
        assert row["node"] in [node["node"] for node in rows_of(metrics, "nodes")]
        assert (metrics["commits_total"], metrics["commit_failures_total"]) == (1, 0)


async def test_heartbeats_and_assignments_are_counted(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic, group_id=unique("g"), heartbeat_interval_ms=50) as consumer:
        # The first group of a broker: its coordinator may refuse the first heartbeat.
        first = await until_metrics(
            consumer, lambda metrics: number(metrics, "heartbeats_total") >= 1
        )
        metrics = await until_metrics(
            consumer, lambda metrics: number(metrics, "heartbeats_total") >= 3
        )
        assert metrics["heartbeat_failures_total"] == first["heartbeat_failures_total"]
        assert metrics["assignments_total"] == 1
        assert number(metrics, "last_heartbeat_age_seconds") < 20


async def test_fetches_their_latency_and_failures_are_counted_per_node() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        async with consumer_of(broker, "t", fetch_max_wait_ms=20) as consumer:
            metrics = await until_metrics(
                consumer, lambda metrics: number(metrics, "fetches_total") >= 3
            )
            assert number(metrics, "fetch_latency_seconds") > 0.0
            assert number(metrics, "fetch_latency_seconds") <= number(
                metrics, "fetch_latency_max_seconds"
            )
            assert metrics["fetch_failures_total"] == metrics["reconnects_total"] == 0
            broker.on("Fetch").disconnect()
            metrics = await until_metrics(
                consumer, lambda metrics: metrics["reconnects_total"] == 1
            )
            assert metrics["fetch_failures_total"] == 1
            fetches = number(metrics, "fetches_total")
            metrics = await until_metrics(consumer, lambda m: number(m, "fetches_total") > fetches)
            (node,) = rows_of(metrics, "nodes")
            assert node["node"] == 1
            assert node["is_reachable"] is True
            assert node["address"] == broker.bootstrap_servers
            assert node["fetches_total"] == metrics["fetches_total"]
            assert node["down_seconds"] is None
            await broker.stop_node(1, clean=False)
            metrics = await until_metrics(
                consumer, lambda m: not rows_of(m, "nodes")[0]["is_reachable"]
            )
            (node,) = rows_of(metrics, "nodes")
            assert 0 <= number(node, "down_seconds") < 20
            assert (node["address"], node["throttle_seconds"]) == (broker.bootstrap_servers, 0.0)
            await broker.start_node(1)


async def test_a_broker_that_left_the_cluster_is_not_reachable() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 2)
        async with consumer_of(broker, "t", fetch_max_wait_ms=20) as consumer:
            await until_metrics(consumer, lambda m: len(rows_of(m, "nodes")) == 2)
            await until_metrics(
                consumer, lambda m: all(n["fetches_total"] for n in rows_of(m, "nodes"))
            )
            gone = broker.live_nodes[-1].id
            await broker.stop_node(gone)
            metrics = await until_metrics(
                consumer, lambda m: None in [node["address"] for node in rows_of(m, "nodes")]
            )
            reachable = {n["node"]: n["is_reachable"] for n in rows_of(metrics, "nodes")}
            assert reachable == {broker.live_nodes[0].id: True, gone: False}


@pytest.mark.real_if_long
async def test_buffered_bytes_are_those_of_the_budget(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, b"x" * 10_000)] * 10)
    async with reading(kafka, topic, max_buffered_bytes=1_000_000) as consumer:
        metrics = await until_metrics(
            consumer, lambda m: number(m, "fetched_bytes_total") > 100_000
        )
        assert number(metrics, "buffered_bytes") >= 100_000
        assert metrics["buffered_limit_bytes"] == 1_000_000
    assert consumer.metrics()["buffered_bytes"] == 0


@pytest.mark.real_if_long
async def test_lost_offsets_are_counted(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    for first in range(0, 10, 2):
        await kafka.produce(topic, 0, rows(first, 2))
    await kafka.delete_records(topic, 0, 6)
    async with reading(kafka, topic, auto_offset_reset="latest") as consumer:
        consumer.seek(TopicPartition(topic, 0), 3)
        metrics = await until_metrics(consumer, lambda metrics: metrics["lost_offsets_total"])
        assert (metrics["lost_offsets_total"], metrics["skipped_offsets_total"]) == (7, 4)


# --- The documentation --------------------------------------------------------------------------
def documented(heading: str) -> set[str]:
    """The names in the first columns of the tables below a heading of docs/monitoring.md."""
    section = re.split(r"^#+ ", DOCS.read_text(), flags=re.MULTILINE)
    (text,) = [part for part in section if part.partition("\n")[0] == heading]
    cells = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", text, flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall("`([a-z_]+)`", cell)}


async def test_every_metric_is_documented_and_there_is_every_one_that_is() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        async with consumer_of(broker, "t") as consumer:
            metrics = await until_metrics(consumer, lambda metrics: metrics["fetches_total"])
    assert documented("Of the consumer") == metrics.keys()
    assert documented("Of each partition") == rows_of(metrics, "partitions")[0].keys()
    assert documented("Of each node") == rows_of(metrics, "nodes")[0].keys()


def test_every_event_is_documented_and_there_is_every_one_that_is() -> None:
    assert documented("Events") == {event_class.name for event_class in EVENT_CLASSES}


def test_every_cause_is_documented_and_there_is_every_one_that_is() -> None:
    assert documented("Why a partition returns no records") == {cause.value for cause in Cause}


async def test_while_the_loop_is_late_it_is_no_later_than_at_most() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        async with consumer_of(broker, "t") as consumer:
            time.sleep(0.3)  # noqa: ASYNC251 -- as an application should not
            metrics = consumer.metrics()
            assert number(metrics, "loop_lag_seconds") > 0.0
            assert number(metrics, "loop_lag_max_seconds") >= number(metrics, "loop_lag_seconds")
