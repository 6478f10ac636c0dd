"""Every task, with very little work, on the embedded broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import aiokafka_lite
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from benchmarks import slice_loop
from benchmarks.loading import TopicError, drop_topics, ensure_topics
from benchmarks.measure import Measurement, RunError, StarvedError, Workload
from benchmarks.pacing import producing
from benchmarks.tasks import bulk, hold, idle, imports, memory, paced
from benchmarks.topics import Topic
from tests.support.real_kafka import free_port

READ = Topic("zstd", 100, 400)
PACED = Topic(use="paced", partition_count=3)
QUIET = Topic(use="quiet", partition_count=3)
READERS = ("ours:poll", "ours:getmany", "ours:async_for", "aiokafka_peer:getmany",
           "aiokafka_peer:async_for", "confluent:consume_least_cpu", "confluent:aio")  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(BrokerConfig()) as thread:
        ensure_topics(thread.bootstrap_servers, [READ, PACED, QUIET])
        yield thread
        thread.raise_if_failed()


def read_workload(broker: BrokerThread) -> Workload:
    return Workload(broker.bootstrap_servers, [READ.name], READ.partition_count, records=400)


@pytest.mark.parametrize("reader", READERS)
async def test_bulk_reads_the_topic_once_per_pass(broker: BrokerThread, reader: str) -> None:
    measurement = await bulk.measure(reader, replace(read_workload(broker), passes=2))
    assert (measurement.records, measurement.touched_bytes) == (800, 2 * READ.touched_bytes)
    assert measurement.figures["cpu_ns"] > 0
    assert measurement.figures["wall_ns"] > 0


def test_hold_tells_the_longest_slice_on_a_loop_that_measures_it(broker: BrokerThread) -> None:
    loop = slice_loop.new_event_loop()
    measurement = loop.run_until_complete(hold.measure("ours:async_for", read_workload(broker)))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    figures = measurement.figures
    assert measurement.records == 400
    assert figures["late_p50_ms"] <= figures["late_p99_ms"] <= figures["late_max_ms"]
    assert figures["slice_ms"] > 0


async def test_slice_is_the_cpu_time_of_the_longest_round() -> None:
    def busy() -> None:
        began_ns = time.thread_time_ns()
        while time.thread_time_ns() < began_ns + 5_000_000:
            pass

    async def work() -> None:
        busy()
        await asyncio.sleep(0.02)

    loop = slice_loop.new_event_loop()
    await asyncio.to_thread(loop.run_until_complete, work())
    loop.close()
    assert loop.longest_slice_ns >= 5_000_000


@pytest.mark.parametrize("reader", ["ours:async_for", "confluent:poll"])
async def test_paced_records_are_as_old_as_their_way_is_long(
    broker: BrokerThread, reader: str
) -> None:
    workload = Workload(
        broker.bootstrap_servers, [PACED.name], 3, start="latest", settle_s=0.1, seconds=0.3
    )

    def measure() -> Measurement:
        with producing(workload, rate=200):
            return asyncio.run(paced.measure(reader, workload))

    measurement = await asyncio.to_thread(measure)
    assert measurement.records > 10
    assert 0 < measurement.figures["p50_ms"] <= measurement.figures["p99_ms"]
    assert measurement.figures["cpu_us"] > 0


def test_topic_with_other_content_is_loaded_anew(broker: BrokerThread) -> None:
    topic = Topic("none", 100, 10, use="short")
    broker.create_topic(topic.name, partitions=2)
    ensure_topics(broker.bootstrap_servers, [topic])
    assert sum(broker.end_offsets(topic.name)) == 10
    assert len(broker.end_offsets(topic.name)) == topic.partition_count
    drop_topics(broker.bootstrap_servers, [topic.name, "no-such-topic"])
    assert topic.name not in broker.topics


async def test_idle_client_is_measured_while_nothing_comes(broker: BrokerThread) -> None:
    workload = Workload(
        broker.bootstrap_servers, [QUIET.name], 3, start="latest", settle_s=0.1, seconds=0.3
    )
    measurement = await idle.measure("ours:async_for", workload)
    assert 0 <= measurement.figures["cpu_percent"] < 100


async def test_idle_run_does_not_count_when_records_come(broker: BrokerThread) -> None:
    workload = replace(read_workload(broker), settle_s=0.3, seconds=0.3)
    with pytest.raises(RunError, match="records came"):
        await idle.measure("confluent:poll", workload)


async def test_memory_is_sampled_while_the_application_is_slow(broker: BrokerThread) -> None:
    workload = replace(read_workload(broker), seconds=0.8, pause_s=0.01)
    measurement = await memory.measure("ours:async_for", workload)
    assert 0 < measurement.records < 400
    assert len(measurement.series["rss_mib"]) == 8
    assert measurement.figures["rss_mib"] == pytest.approx(
        max(measurement.series["rss_mib"]), abs=0.1
    )
    assert "growth_percent" in measurement.figures


async def test_import_is_measured_beyond_a_bare_interpreter() -> None:
    measurement = await imports.measure("aiokafka_lite", Workload("", passes=1))
    assert measurement.figures["cpu_ms"] > 0
    assert measurement.version == aiokafka_lite.__version__


def test_cluster_that_is_not_there_is_named() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(TopicError, match=nobody):
        ensure_topics(nobody, [READ], connect_timeout_s=0.3)


def test_producer_that_cannot_write_is_an_error(broker: BrokerThread) -> None:
    workload = Workload(broker.bootstrap_servers, ["no-such-topic"], 1)
    with pytest.raises(RunError, match="could not write"), producing(workload, rate=10):
        pytest.fail("the producer cannot be ready")


async def test_paced_run_without_records_starves(broker: BrokerThread) -> None:
    workload = Workload(broker.bootstrap_servers, [QUIET.name], 3, start="latest", wait_s=0.2)
    with pytest.raises(StarvedError, match="only 0 records"):
        await paced.measure("ours:async_for", workload)
