"""A consumer used where it does not belong: another loop, another thread, a child, a copy."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import WrongLoopError
from aiokafka_lite.structs import TopicPartition
from tests.conftest import EVERY_LOOP
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.programs import started
from tests.support.reading import reading
from tests.support.rows import rows

TP = TopicPartition("t", 0)
PROGRAMS = "tests.consumer.programs"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

Call = Callable[[AIOKafkaConsumer], Awaitable[object]]


async def handle(record: object) -> None:
    """Handle a record."""


COROUTINES: dict[str, Call] = {
    "start": lambda c: c.start(),
    "stop": lambda c: c.stop(),
    "poll": lambda c: c.poll(),
    "getone": lambda c: c.getone(),
    "getmany": lambda c: c.getmany(),
    "async for": lambda c: c.__anext__(),
    "poll_arrow": lambda c: c.poll_arrow(),
    "commit": lambda c: c.commit(),
    "committed": lambda c: c.committed(TP),
    "position": lambda c: c.position(TP),
    "seek_to_beginning": lambda c: c.seek_to_beginning(),
    "seek_to_end": lambda c: c.seek_to_end(),
    "seek_to_committed": lambda c: c.seek_to_committed(),
    "beginning_offsets": lambda c: c.beginning_offsets([TP]),
    "end_offsets": lambda c: c.end_offsets([TP]),
    "offsets_for_times": lambda c: c.offsets_for_times({TP: 1}),
    "topics": lambda c: c.topics(),
    "run": lambda c: c.run(handle),
}
CHANGES: dict[str, Callable[[AIOKafkaConsumer], object]] = {
    "subscribe": lambda c: c.subscribe(["other"]),
    "unsubscribe": lambda c: c.unsubscribe(),
    "assign": lambda c: c.assign([TP]),
    "seek": lambda c: c.seek(TP, 3),
    "incremental_assign": lambda c: c.incremental_assign([TP]),
    "incremental_unassign": lambda c: c.incremental_unassign([TP]),
    "pause": lambda c: c.pause(TP),
    "resume": lambda c: c.resume(TP),
    "events": lambda c: c.events(),
    "health": lambda c: c.health(),
    "explain": lambda c: c.explain(TP),
    "metrics": lambda c: c.metrics(),
}

QUESTIONS: tuple[Callable[[AIOKafkaConsumer], object], ...] = (
    lambda c: c.batch(),
    lambda c: c.batches(),
    lambda c: c.positions(),
    lambda c: c.group_metadata(),
    lambda c: c.delivery(),
    lambda c: aiter(c),
)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """A broker on a thread of its own, with ten records in "t"."""
    with BrokerThread() as broker:
        broker.create_topic("t")
        broker.produce_all("t", [NewRecord(b"%d" % number) for number in range(10)])
        yield broker


def consumer_of(broker: BrokerThread, **arguments: object) -> AIOKafkaConsumer:
    settings: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": unique("g"),
        "auto_offset_reset": "earliest",
        **arguments,
    }
    return AIOKafkaConsumer("t", **settings)  # type: ignore[arg-type]


def in_a_thread(work: Callable[[], object]) -> BaseException | None:
    """Run something in another thread; return what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- it is what is asked for
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return raised[0] if raised else None


# --- Loops and threads -------------------------------------------------------------------------
@pytest.mark.parametrize("new_loop", EVERY_LOOP.values(), ids=EVERY_LOOP)
def test_on_another_loop_every_call_is_refused_and_nothing_is_lost(
    broker: BrokerThread, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    first, second = new_loop(), new_loop()

    async def begin() -> AIOKafkaConsumer:
        consumer = consumer_of(broker)
        await consumer.start()
        assert (await consumer.getone()).offset == 0
        await consumer.poll(max_records=1)
        return consumer

    async def misuse(consumer: AIOKafkaConsumer) -> None:
        for name, call in COROUTINES.items():
            with pytest.raises(WrongLoopError, match="loop"):
                pytest.fail(f"{name} returned {await call(consumer)}")
        for change in CHANGES.values():
            with pytest.raises(WrongLoopError):
                change(consumer)
        with pytest.raises(WrongLoopError):
            aiter(consumer)

    consumer = first.run_until_complete(begin())
    second.run_until_complete(misuse(consumer))
    second.close()
    # While its loop stands still, what needs no loop may be done.
    consumer.pause(TP)
    consumer.resume(TP)
    assert consumer.assignment() == {TP}
    assert first.run_until_complete(consumer.getone()).offset == 2
    assert first.run_until_complete(consumer.stop()) == {}
    first.close()


def test_on_another_loop_every_call_is_refused_before_the_start_as_well() -> None:
    loop = asyncio.new_event_loop()

    async def make() -> AIOKafkaConsumer:
        return AIOKafkaConsumer("t", group_id="g")

    async def misuse(consumer: AIOKafkaConsumer) -> None:
        for name, call in COROUTINES.items():
            with pytest.raises(WrongLoopError):
                pytest.fail(f"{name} returned {await call(consumer)}")
        for change in (*CHANGES.values(), *QUESTIONS):
            with pytest.raises(WrongLoopError):
                change(consumer)

    consumer = loop.run_until_complete(make())
    asyncio.run(misuse(consumer))
    loop.run_until_complete(consumer.stop())
    loop.close()


@pytest.mark.parametrize("group_id", [None, "g"])
def test_while_its_loop_stands_still_a_subscription_may_change_and_be_looked_at(
    broker: BrokerThread, group_id: str | None
) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> AIOKafkaConsumer:
        consumer = consumer_of(broker, group_id=group_id and unique(group_id))
        await consumer.start()
        return consumer

    consumer = loop.run_until_complete(begin())
    consumer.unsubscribe()
    consumer.subscribe(["t"])
    assert loop.run_until_complete(consumer.getone()).offset == 0
    assert consumer.metrics()["records_total"] == 1
    assert consumer.health().verdict != "dead"
    loop.run_until_complete(consumer.stop())
    loop.close()


async def test_from_another_thread_every_call_is_refused(broker: BrokerThread) -> None:
    consumer = consumer_of(broker)
    await consumer.start()
    assert (await consumer.getone()).offset == 0
    loop = asyncio.get_running_loop()
    for name, change in CHANGES.items():
        error = await asyncio.to_thread(in_a_thread, lambda change=change: change(consumer))  # type: ignore[misc]
        assert isinstance(error, WrongLoopError), name
        assert "run_coroutine_threadsafe" in str(error)

    async def position() -> int:
        return await consumer.position(TP)

    def ask() -> None:
        with pytest.raises(WrongLoopError):
            asyncio.run(position())
        assert asyncio.run_coroutine_threadsafe(position(), loop).result(20) == 1

    assert await asyncio.to_thread(in_a_thread, ask) is None
    assert await consumer.stop() == {}


def test_a_consumer_whose_loop_was_closed_says_so(broker: BrokerThread) -> None:
    async def begin() -> AIOKafkaConsumer:
        consumer = consumer_of(broker)
        await consumer.start()
        return consumer

    async def stop(consumer: AIOKafkaConsumer) -> None:
        await consumer.stop()

    consumer = asyncio.run(begin())
    with pytest.raises(WrongLoopError, match="is closed"):
        asyncio.run(stop(consumer))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del consumer
        gc.collect()
    assert any("Unclosed AIOKafkaConsumer" in str(warning.message) for warning in told)


# --- Copies ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, pickle.dumps, lambda consumer: pickle.dumps(consumer, 0)],
    ids=["copy", "deepcopy", "pickle", "old pickle"],
)
async def test_a_consumer_is_not_copied(duplicate: Callable[[object], object]) -> None:
    consumer = AIOKafkaConsumer("t")
    with pytest.raises(TypeError, match="AIOKafkaConsumer cannot be copied or pickled"):
        duplicate(consumer)
    await consumer.stop()


# --- Processes ---------------------------------------------------------------------------------
def run_program(name: str, *arguments: str, timeout_s: float = 60) -> str:
    """Run a program beside this file; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", f"{PROGRAMS}.{name}", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.few_rows(3)
@pytest.mark.real_if_long
@needs_fork
@pytest.mark.parametrize("loop", EVERY_LOOP)
@pytest.mark.parametrize("way", ["os.fork", "multiprocessing"])
async def test_a_forked_child_is_refused_and_the_parent_goes_on(
    kafka: KafkaHandle, way: str, loop: str
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 20))
    said = await asyncio.to_thread(
        run_program, "forking", kafka.bootstrap_servers, topic, way, loop
    )
    assert "child: every call is refused" in said
    assert "parent: read all, in one generation" in said


@pytest.mark.few_rows(1)
@needs_fork
@pytest.mark.parametrize("loop", EVERY_LOOP)
def test_a_child_that_goes_on_with_its_parents_loop_is_refused(loop: str) -> None:
    with BrokerThread() as broker:
        said = run_program("forking_between_runs", broker.bootstrap_servers, loop)
        lines = [line for line in said.splitlines() if not line.startswith("records are decoded")]
        assert lines == ["child: over", "parent: over"]
        # Nothing was written, committed, taken over or left in the name of the parent.
        values = [record.value for record in broker.records("t")]
        assert values == [b"parent 0", b"parent 1", b"parent 2"]
        assert broker.committed("g") == {TP: 3}
        heartbeats = broker.requests.of("ConsumerGroupHeartbeat")
        epochs = [seen.request.member_epoch for seen in heartbeats]  # type: ignore[attr-defined]
        assert (epochs.count(0), epochs.count(-1)) == (1, 1)


@pytest.mark.few_rows(4)
@pytest.mark.parametrize("loop", EVERY_LOOP)
@pytest.mark.parametrize("way", ["left open", "loop closed", "loop stopped"])
async def test_a_consumer_left_open_does_not_keep_the_interpreter_from_ending(
    broker: BrokerThread, way: str, loop: str
) -> None:
    said = await asyncio.to_thread(
        run_program, "leaving_open", broker.bootstrap_servers, "t", way, loop
    )
    assert "Unclosed AIOKafkaConsumer" in said


# --- Clocks ------------------------------------------------------------------------------------
async def test_a_wall_clock_that_jumps_changes_nothing(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = await kafka.create_topic(), unique("group")
    wall_clock, ahead_s = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: wall_clock() + ahead_s)
    monkeypatch.setattr(time, "time_ns", lambda: round((wall_clock() + ahead_s) * 1e9))
    async with (
        timeout(30),
        reading(
            kafka,
            topic,
            group_id=group,
            max_poll_interval_ms=20_000,
            heartbeat_interval_ms=50,
            auto_commit_interval_ms=20,
            fetch_max_wait_ms=20,
        ) as consumer,
    ):
        generation = inside.generation(consumer)
        tp = TopicPartition(topic, 0)
        for turn, jump_s in enumerate((0.0, 3_600.0, -3_600.0, 86_400.0, 0.0)):
            ahead_s = jump_s
            await kafka.produce(topic, 0, rows(turn, 1), timestamp_ms=1_000)
            assert (await consumer.getone()).offset == turn
            assert await consumer.getmany(timeout_ms=60) == {}
            assert consumer.last_poll_timestamp(tp) is not None
            while await consumer.committed(tp) != turn + 1:
                await consumer.getmany(timeout_ms=10)
        assert inside.generation(consumer) == generation


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
async def test_a_process_that_was_stopped_for_two_sessions_has_lost_its_partitions(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(), unique("group")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    command = (sys.executable, "-m", f"{PROGRAMS}.sleeping", kafka.bootstrap_servers, topic, group)
    async with started(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        async with timeout(90):
            while await process.stdout.readline() != b"ready\n":
                pass
            process.send_signal(signal.SIGSTOP)
            settings = {"group_id": group, "group_protocol": "classic", "enable_auto_commit": False}
            async with reading(kafka, topic, **settings) as successor:  # type: ignore[arg-type]
                for _ in range(5):
                    await successor.getone()
                await successor.commit({tp: 5})
            await asyncio.sleep(6)
            process.send_signal(signal.SIGCONT)
            process.stdin.write(b"\n")
            said = (await process.communicate())[0].decode().splitlines()
    assert process.returncode == 0
    assert "committed" not in said
    assert "refused" in said
    assert "lost 1" in said
    assert said[-1] == "offset 5"


async def test_topics_in_a_list_are_refused_with_the_way_to_give_them() -> None:
    for topics in (["t"], ("a", "b"), {"t"}):
        with pytest.raises(TypeError, match=r"AIOKafkaConsumer\(\*topics\)"):
            AIOKafkaConsumer(topics)  # type: ignore[arg-type]
