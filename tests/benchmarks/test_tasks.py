"""Every task, with very little work, on the embedded broker."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.errors import TopicAuthorizationFailedError
from benchmarks import slice_loop
from benchmarks.contestants import (
    CONFLUENT_CONSUMER,
    IMPORT_AIOKAFKA,
    IMPORT_CONFLUENT,
    IMPORT_LITE,
    PRODUCE_AIOKAFKA,
    PRODUCE_CONFLUENT,
    PRODUCE_LITE,
    START_LITE,
    Contestant,
    floor,
    producers,
)
from benchmarks.contestants.moves import AsyncioMover, ForgetfulMover, Handed, Record
from benchmarks.loading import TopicError, drop_topics, ensure_topics
from benchmarks.measure import Measurement, Move, RunError, StarvedError, Workload
from benchmarks.pacing import producing
from benchmarks.runner import execute_in_process
from benchmarks.tasks import (
    bulk,
    confluent_produce,
    drain,
    footprint,
    hold,
    idle,
    imports,
    java_tools,
    memory,
    moves,
    paced,
    produce,
    served_bulk,
    start,
)
from benchmarks.topics import Topic
from tests.support.ports import free_port
from tests.support.rounds import LONG

READ = Topic("zstd", 100, 400)
PLAIN = Topic("none", 100, 90, partition_count=3)
PACED = Topic(use="paced", partition_count=3)
QUIET = Topic(use="quiet", partition_count=3)
READERS = ("ours:poll", "ours:getmany", "ours:async_for", "aiokafka_peer:getmany",
           "aiokafka_peer:async_for", "confluent:consume_least_cpu", "confluent:aio")  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(BrokerConfig()) as thread:
        ensure_topics(thread.bootstrap_servers, [READ, PLAIN, PACED, QUIET])
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


async def test_floor_counts_records_and_looks_at_no_key_or_value(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floor, "LONG_POLL_MS", 1)
    measurement = await bulk.measure("floor:floor", replace(read_workload(broker), passes=2))
    assert (measurement.records, measurement.touched_bytes) == (800, None)
    with pytest.raises(StarvedError, match="no records after 400"):
        await bulk.measure("floor:floor", replace(read_workload(broker), records=401))


async def test_floor_decodes_every_value_of_a_trickle(broker: BrokerThread) -> None:
    workload = Workload(broker.bootstrap_servers, [PLAIN.name], PLAIN.partition_count)
    values: list[bytes | None] = []

    def take(arrived: Sequence[bytes | None]) -> bool:
        values.extend(arrived)
        return len(values) < PLAIN.records

    async with floor.floor(workload) as reader:
        await reader.assign()
        await asyncio.wait_for(reader.read(take), 10.0)
    assert Counter(values) == Counter(value for _, value, _ in PLAIN.rows())


@pytest.mark.parametrize("reader", ["ours:async_for", "confluent:poll", "floor:floor"])
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
    if sys.platform == "linux":
        assert measurement.figures["broker_cpu_percent"] >= 0


def test_broker_is_measured_in_the_same_window_as_the_client(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted_s: list[float] = []
    began_s: list[float] = []

    class Server:
        def __init__(self, bootstrap_servers: str) -> None:
            assert bootstrap_servers == broker.bootstrap_servers

        def restart(self) -> None:
            restarted_s.append(time.perf_counter())

        def share(self, wall_s: float) -> dict[str, float]:
            began_s.append(time.perf_counter() - wall_s)
            return {"broker_cpu_percent": 12.0}

    monkeypatch.setattr(paced, "ServerMeter", Server)
    workload = Workload(
        broker.bootstrap_servers, [PACED.name], 3, start="latest", settle_s=0.2, seconds=0.2
    )
    with producing(workload, rate=200):
        opened_s = time.perf_counter()
        measurement = asyncio.run(paced.measure("ours:async_for", workload))
    assert measurement.figures["broker_cpu_percent"] == 12.0
    assert restarted_s == pytest.approx(began_s, abs=0.1)
    assert restarted_s[0] > opened_s + 0.2


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


@pytest.mark.parametrize("client", ["lite", "aiokafka", "confluent"])
@pytest.mark.parametrize("is_group", [False, True])
async def test_start_is_measured_up_to_the_first_record(
    broker: BrokerThread, client: str, is_group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "SETTLE_S", 0.0)
    workload = replace(read_workload(broker), passes=2, is_group=is_group)
    measurement = await start.measure(client, workload)
    assert measurement.figures.keys() == {"first_ms", "start_cpu_ms", "cold_ms"}
    assert min(measurement.figures.values()) > 0


def test_crowd_of_consumers_is_weighed(broker: BrokerThread) -> None:
    # In a process of its own: this one has free memory in which a small crowd would vanish.
    workload = replace(read_workload(broker), passes=20, is_crowd=True)
    measurement = execute_in_process("start", START_LITE, workload)
    assert 0 < measurement.figures["kib_each"] < 1024


@pytest.fixture
def brief_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "LONG_POLL_S", 0.05)
    monkeypatch.setattr(moves, "WARM_UP", 0)


@pytest.mark.usefixtures("brief_waits")
@pytest.mark.parametrize("client", ["lite", "aiokafka", "confluent"])
@pytest.mark.parametrize("move", ["seek", "resume", "assign"])
async def test_move_is_measured_up_to_its_first_record(
    broker: BrokerThread, client: str, move: Move
) -> None:
    workload = replace(read_workload(broker), passes=2, settle_s=0.3, move=move)
    measurement = await moves.measure(client, workload)
    assert measurement.records == 2
    assert 0 < measurement.figures["first_p50_ms"] <= measurement.figures["first_max_ms"]
    assert measurement.version


@pytest.mark.usefixtures("brief_waits")
@pytest.mark.parametrize(
    ("client", "records", "reason"),
    [
        ("lite", 396, "after a move came offset 98 of 3, offset 99 of 3, expected offset 98 of 3"),
        ("confluent", 396, "before a move came offset 99 of 3, expected nothing"),
        ("lite", 404, "after a move came nothing, expected offset 100 of 3"),
    ],
)
async def test_move_to_anything_but_one_last_record_does_not_count(
    broker: BrokerThread, client: str, records: int, reason: str
) -> None:
    workload = replace(
        read_workload(broker), records=records, passes=2, settle_s=0.3, wait_s=1.0, move="seek"
    )
    with pytest.raises(RunError, match=reason):
        await moves.measure(client, workload)


class CallsOf:
    """A consumer of two partitions that does nothing but take note."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def assign(self, partitions: Iterable[str], /) -> None:
        self.calls.append(("assign", *partitions))

    def seek(self, partition: str, offset: int, /) -> None:
        self.calls.append(("seek", partition, offset))

    def pause(self, *partitions: str) -> None:
        self.calls.append(("pause", *partitions))

    def resume(self, *partitions: str) -> None:
        self.calls.append(("resume", *partitions))

    async def getmany(self, *, timeout_ms: int) -> Mapping[str, Sequence[Record]]:
        return {}


def test_who_forgets_positions_at_an_assign_seeks_those_that_go_on_too() -> None:
    consumer = CallsOf()
    mover = AsyncioMover(consumer, ["other", "moved"], "1.0", Handed(1, 9))
    mover.unassign()
    mover.assign()
    assign = [("assign", "other"), ("assign", "other", "moved"), ("seek", "moved", 9)]
    assert consumer.calls == [("assign", "other", "moved"), *assign]
    consumer = CallsOf()
    forgetful = ForgetfulMover(consumer, ["other", "moved"], "1.0", Handed(1, 9))
    forgetful.unassign()
    forgetful.assign()
    there = ("seek", "other", 10)
    assert consumer.calls == [("assign", "other", "moved"), assign[0], there, *assign[1:], there]


def test_moves_begin_at_any_moment_of_a_long_poll_and_at_the_same_for_all() -> None:
    waits = sorted(moves.waits(100))
    assert waits == sorted(moves.waits(100))
    assert moves.LONG_POLL_S <= waits[0] < 1.1 * moves.LONG_POLL_S
    assert 1.9 * moves.LONG_POLL_S < waits[-1] < 2 * moves.LONG_POLL_S


async def test_import_is_measured_beyond_a_bare_interpreter() -> None:
    # It takes so long that the bare interpreter is faster whatever runs beside.
    measurement = await imports.measure("aiohttp", Workload("", passes=2 if LONG else 1))
    assert measurement.figures["cpu_ms"] > 20
    assert measurement.version == aiohttp.__version__


async def test_each_import_that_is_compared_can_be_measured() -> None:
    compared = (IMPORT_LITE, IMPORT_AIOKAFKA, IMPORT_CONFLUENT) if LONG else (IMPORT_LITE,)
    for contestant in compared:
        measurement = await imports.measure(contestant.subject, Workload("", passes=1))
        assert measurement.version


def test_cluster_that_is_not_there_is_named() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(TopicError, match=nobody):
        ensure_topics(nobody, [READ], connect_timeout_s=0.3)


def test_producer_that_cannot_write_is_an_error(broker: BrokerThread) -> None:
    workload = Workload(broker.bootstrap_servers, [QUIET.name], 1)
    with (
        broker.on("Produce").fail(TopicAuthorizationFailedError),
        pytest.raises(RunError, match="could not write"),
        producing(workload, rate=10),
    ):
        pytest.fail("the producer cannot be ready")


async def test_paced_run_without_records_starves(broker: BrokerThread) -> None:
    workload = Workload(broker.bootstrap_servers, [QUIET.name], 3, start="latest", wait_s=0.2)
    with pytest.raises(StarvedError, match="only 0 records"):
        await paced.measure("ours:async_for", workload)


@pytest.mark.parametrize("batch_bytes", [0, 4096])
async def test_written_records_are_counted_and_their_topic_is_dropped(
    broker: BrokerThread, batch_bytes: int
) -> None:
    topic = Topic("lz4", 100, 500, partition_count=2)
    workload = Workload(broker.bootstrap_servers, written=topic, batch_bytes=batch_bytes)
    before = set(broker.topics)
    measurement = await confluent_produce.measure("produce", workload)
    assert measurement.records == 500
    assert measurement.figures["wall_ns"] > 0
    assert set(broker.topics) == before


@pytest.mark.parametrize("contestant", [PRODUCE_LITE, PRODUCE_AIOKAFKA, PRODUCE_CONFLUENT])
async def test_writing_is_measured_up_to_the_last_acknowledgement(
    broker: BrokerThread, contestant: Contestant, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := contestant.missing():
        pytest.skip(reason)
    monkeypatch.setattr(producers, "OUTSTANDING", 150)
    workload = Workload(broker.bootstrap_servers, written=Topic("none", 100, 500))
    before = set(broker.topics)
    measurement = await produce.measure(contestant.subject, workload)
    assert measurement.records == 500
    assert measurement.figures["cpu_ns"] > 0
    assert measurement.figures["wall_ns"] > 0
    assert measurement.version
    assert set(broker.topics) == before


@pytest.mark.parametrize("difference", [-1, 1])
async def test_writing_does_not_count_when_records_are_missing_or_there_twice(
    broker: BrokerThread, difference: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def inexact(workload: Workload, topic: str) -> AsyncIterator[producers.Writer]:
        async with producers.aiokafka(workload, topic) as writer:
            write = writer.write
            monkeypatch.setattr(writer, "write", lambda values, n: write(values, n + difference))
            yield writer

    monkeypatch.setattr(producers, "inexact", inexact, raising=False)
    workload = Workload(broker.bootstrap_servers, written=Topic("none", 100, 50))
    with pytest.raises(RunError, match=f"there are {100 + 2 * difference} records, expected 100"):
        await produce.measure("inexact", workload)


async def test_writing_to_who_does_not_acknowledge_is_given_up(broker: BrokerThread) -> None:
    class Silent:
        async def send(self, topic: str, value: bytes, /) -> asyncio.Future[None]:
            return asyncio.get_running_loop().create_future()

        async def start(self) -> None: ...
        async def stop(self) -> None: ...

    with pytest.raises(StarvedError, match="no acknowledgement"):
        await producers.AsyncioWriter(Silent(), "topic", "1.0", 0.01).write([b"v"], 3)


async def test_broker_is_measured_beside_who_reads(broker: BrokerThread) -> None:
    measurement = await served_bulk.measure(CONFLUENT_CONSUMER.subject, read_workload(broker))
    assert (measurement.records, measurement.touched_bytes) == (400, READ.touched_bytes)
    assert measurement.figures["wall_ns"] > 0
    if sys.platform == "linux":
        assert measurement.figures["broker_cpu_ns"] >= 0


async def test_drained_topic_is_read_whole(broker: BrokerThread) -> None:
    workload = replace(read_workload(broker), passes=3)
    with drain.RawClient(broker.bootstrap_servers, 10.0) as client:
        requests, records = drain.rehearse(client, workload)
        drained = client.drain(requests)
        answers = [client.exchange(request) for request in requests]
    assert records == 400
    assert drained == sum(map(len, answers))
    assert (await drain.measure("drain", workload)).records == 1200


async def test_drain_does_not_count_when_records_are_missing(broker: BrokerThread) -> None:
    with pytest.raises(RunError, match="there are 400 records, expected 401"):
        await drain.measure("drain", replace(read_workload(broker), records=401))


@pytest.mark.java
@pytest.mark.parametrize("codec", [pytest.param("none", marks=pytest.mark.slow), "zstd"])
async def test_java_tells_its_own_rate(broker: BrokerThread, codec: str) -> None:
    topic = Topic(codec, 100, 300, partition_count=2)
    workload = Workload(broker.bootstrap_servers, written=topic, batch_bytes=8192)
    if LONG or codec != READ.codec:
        written = await java_tools.measure("ProducerPerformance", workload)
        assert written.records == 300
        assert written.figures["wall_ns"] > 0
    if codec == READ.codec:
        read = await java_tools.measure("ConsumerPerformance", read_workload(broker))
        assert read.records == 400
        assert read.figures["wall_ns"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("server", ["memory", "directory"])
async def test_footprint_is_that_of_a_broker_of_its_own(server: str) -> None:
    measurement = await footprint.measure(server, Workload(""))
    assert 20 < measurement.figures["rss_mib"] < 190
