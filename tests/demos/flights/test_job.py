"""The job from end to end, on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.errors import InvalidTopicError, KafkaConnectionError
from aiokafka_lite.records.decoders import PLAIN_DECODER_NOTE
from aiokafka_lite.records.partitioner import partition_for_key
from demos.flights import loader as loader_module
from demos.flights.dataset import ROW_COUNT, FlightRecord, read_flights
from demos.flights.job import FlightsJobOptions, run_job
from demos.flights.loader import Loader
from demos.flights.problems import ForeignTopicError, StalledError
from demos.flights.report import Reporter, figures
from demos.flights.scoreboard import LogRange, Scoreboard
from demos.flights.statistics import compute_expectation
from demos.flights.topic import TopicAdmin
from demos.flights.workers import Group
from tests.support.cluster import KafkaHandle, unique
from tests.support.programs import started
from tests.support.rounds import LONG

FLIGHTS = 2500 if LONG else 800
PARTITIONS = 3


class Output(Reporter):
    """A reporter whose text can be read."""

    def __init__(self) -> None:
        self.stream = StringIO()
        super().__init__(Console(file=self.stream, width=120, highlight=False))

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture
async def topic(kafka: KafkaHandle) -> AsyncIterator[str]:
    """A topic name; what was loaded under it is deleted in the end."""
    name = unique("flights")
    yield name
    async with topic_admin(kafka, name) as (_, admin):
        await admin.delete()


@asynccontextmanager
async def topic_admin(kafka: KafkaHandle, name: str) -> AsyncIterator[tuple[Cluster, TopicAdmin]]:
    scope = TaskScope("test")
    config = ClientConfig(bootstrap_servers=kafka.bootstrap_servers)
    cluster = Cluster(config, scope=scope, rng=random.Random(1))
    try:
        await cluster.start()
        yield cluster, TopicAdmin(cluster, name)
    finally:
        await cluster.close()
        await scope.close()


def options(kafka: KafkaHandle, topic: str) -> FlightsJobOptions:
    return FlightsJobOptions(
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic,
        partition_count=PARTITIONS,
        limit=FLIGHTS,
        stall_timeout_s=30.0,
    )


async def test_every_run_prints_the_checked_table_and_only_the_first_one_loads(
    kafka: KafkaHandle, topic: str, tmp_path: Path
) -> None:
    with_plot = replace(options(kafka, topic), plot_directory=tmp_path / "out")
    expectation = await compute_expectation(PARTITIONS, FLIGHTS)
    for is_first in (True, False):
        output = Output()
        assert await run_job(with_plot, output)
        lines = output.text.splitlines()
        for carrier, tally in expectation.carriers.items():
            (line,) = (line for line in lines if line.startswith(f"{carrier} "))
            assert line.split()[-4:] == list(figures(tally))
        assert f"delays of all {FLIGHTS:,} flights match the data set" in output.text
        assert ("already contains the data set" not in output.text) == is_first
        assert (f"Loading '{topic}'" in output.text) == is_first
    assert (tmp_path / "out" / "flights.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.real_if_long
async def test_interrupted_load_is_made_good(
    kafka: KafkaHandle, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    expectation = await compute_expectation(PARTITIONS, FLIGHTS)
    async with topic_admin(kafka, topic) as (cluster, admin):
        # Small batches, so that something is there when the load is cut off.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loader_module, "BATCH_BYTES", 20_000)

            def cut_off(count: int) -> None:
                loading.cancel()

            loading = asyncio.ensure_future(
                Loader(cluster, admin, expectation, FLIGHTS).load(cut_off)
            )
            await asyncio.wait([loading])
        assert not caplog.records  # it was no failure
        found = await admin.inspect()
        assert found is not None
        assert 0 < sum(each.record_count for each in found.ranges.values()) < FLIGHTS
    output = Output()
    assert await run_job(options(kafka, topic), output)
    assert "Checked" in output.text


@pytest.mark.real_if_long
async def test_topic_with_more_partitions_than_asked_for_is_made_anew(
    kafka: KafkaHandle, topic: str
) -> None:
    assert await run_job(replace(options(kafka, topic), partition_count=5), Output())
    output = Output()
    assert await run_job(options(kafka, topic), output)
    assert f"Loading '{topic}'" in output.text


async def test_other_peoples_topic_is_left_alone(kafka: KafkaHandle, topic: str) -> None:
    async with topic_admin(kafka, topic) as (_, admin):
        await admin.create(2)
        await kafka.produce(topic, 1, [(b"UA", b'{"somebody": "else"}')])
        with pytest.raises(ForeignTopicError, match="--topic"):
            await run_job(options(kafka, topic), Output())
        found = await admin.inspect()
        assert found is not None
        assert found.ranges[1] == LogRange(0, 1)


async def test_topic_whose_records_cannot_be_read_is_left_alone(
    kafka: KafkaHandle, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "_SAMPLE_TIMEOUT_MS", 0)
    async with topic_admin(kafka, topic) as (_, admin):
        await admin.create(2)
        await kafka.produce(topic, 1, [(b"UA", b'{"somebody": "else"}')])
        with pytest.raises(ForeignTopicError, match="cannot be read within 0 s"):
            await run_job(options(kafka, topic), Output())
        found = await admin.inspect()
        assert found is not None
        assert found.ranges[1] == LogRange(0, 1)


async def test_topic_name_that_is_not_allowed_is_reported(kafka: KafkaHandle) -> None:
    with pytest.raises(InvalidTopicError, match=r"cannot use topic 'a/b': .*not allowed"):
        await run_job(options(kafka, "a/b"), Output())


@pytest.mark.real_if_long
async def test_wrong_figure_fails_loudly(kafka: KafkaHandle, topic: str) -> None:
    async with topic_admin(kafka, topic) as (_, admin):
        await admin.create(PARTITIONS)
    rows: dict[int, list[FlightRecord]] = {number: [] for number in range(PARTITIONS)}
    tampered = False
    for flight in read_flights(FLIGHTS):
        if flight.carrier == "UA" and flight.dep_delay is not None and not tampered:
            flight = flight._replace(dep_delay=flight.dep_delay + 1)
            tampered = True
        record = flight.to_record()
        rows[partition_for_key(record.key, PARTITIONS)].append(record)
    for number, records in rows.items():
        await kafka.produce(topic, number, [(each.key, each.value) for each in records])
    output = Output()
    assert not await run_job(options(kafka, topic), output)
    assert "THE RESULT DIFFERS FROM THE DATA SET" in output.text
    assert "UA: departure_delay_min" in output.text
    assert "Checked" not in output.text


async def test_worker_that_joins_on_the_way_does_not_change_the_figures(
    kafka: KafkaHandle, topic: str
) -> None:
    expectation = await compute_expectation(PARTITIONS, FLIGHTS)
    async with topic_admin(kafka, topic) as (cluster, admin):
        ranges = await Loader(cluster, admin, expectation, FLIGHTS).load(lambda done: None)
    board = Scoreboard(ranges, clock=asyncio.get_running_loop().time)
    second_may_start, second_has_joined = asyncio.Event(), asyncio.Event()
    group_id = unique("group")

    def new_consumer() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
        )

    async def first(consumer: AIOKafkaConsumer) -> None:
        async for record in consumer:
            board.count(record)
            if board.counted == FLIGHTS // 5:
                # Holds records of every partition that it is about to lose.
                second_may_start.set()
                await second_has_joined.wait()

    async def second(consumer: AIOKafkaConsumer) -> int:
        await second_may_start.wait()
        await consumer.start()
        second_has_joined.set()
        return sum([board.count(record) async for record in consumer])

    one, other = new_consumer(), new_consumer()
    await one.start()
    tasks = [asyncio.ensure_future(first(one)), asyncio.ensure_future(second(other))]
    waiting = asyncio.ensure_future(board.finished.wait())
    done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(one.stop(), other.stop())
    counted_by_second = (await asyncio.gather(*tasks))[1]
    assert done == {waiting}
    assert counted_by_second
    assert board.carriers() == expectation.carriers


async def test_job_gives_up_when_no_record_comes(kafka: KafkaHandle) -> None:
    name = await kafka.create_topic(partitions=1)
    board = Scoreboard({0: LogRange(0, 10)}, clock=asyncio.get_running_loop().time)
    group = Group(kafka.bootstrap_servers, name, board, stall_timeout_s=0.5)
    with pytest.raises(StalledError, match=r"0 \(10 records\).*is running"):
        await group.run(lambda done: None)


async def test_wrong_bootstrap_address_is_named() -> None:
    with pytest.raises(KafkaConnectionError, match=r"127\.0\.0\.1:1\b"):
        await run_job(FlightsJobOptions(bootstrap_servers="127.0.0.1:1", limit=5), Output())


async def test_embedded_broker_is_started_when_no_address_is_given() -> None:
    output = Output()
    assert await run_job(FlightsJobOptions(limit=500), output)
    assert "Embedded broker at 127.0.0.1:" in output.text
    assert "Checked" in output.text


async def test_ctrl_c_is_heeded_while_the_data_set_is_read() -> None:
    async with started(
        *[sys.executable, "-u", "-m", "demos", "flights", "--no-plot"],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        first = await process.stdout.readline()
        if PLAIN_DECODER_NOTE.encode() in first:
            first = await process.stdout.readline()
        assert first.startswith(b"Embedded broker at ")
        process.send_signal(signal.SIGINT)
        out, errors = await process.communicate()
    assert (process.returncode, errors) == (130, b"\nended by SIGINT\n")
    done = re.search(
        rb"Reading the data set: interrupted after ([0-9,]+) of 336,776 flights\n", out
    )
    assert done is not None
    assert int(done[1].replace(b",", b"")) < ROW_COUNT
