"""Signals that stop a program whose main task awaits `run`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.processing.calls import HANDLING
from aiokafka_lite.consumer.processing.draining import (
    BLOCKED_S,
    DRAIN_S,
    FORCED_S,
    Draining,
    signals_of,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.consumer.processing.running import PATIENCE_S, member
from tests.support.cluster import KafkaHandle, unique
from tests.support.for_each import for_each
from tests.support.programs import started

FORK = """
import os, signal
from aiokafka_lite._signals import StopSignals

signals, received = StopSignals(), []
signals.take(received.append)
pid = os.fork()
if not pid:
    signal.raise_signal(signal.SIGTERM)
    os._exit(0)
print(os.waitpid(pid, 0)[1], received)
"""
PROGRAM = Path(__file__).parents[1] / "programs/draining.py"


class Program(NamedTuple):
    process: asyncio.subprocess.Process
    kafka: KafkaHandle
    topic: str

    async def says(self, *expected: str) -> None:
        """Wait until it has said these lines, in this order, with others in between."""
        assert self.process.stdout is not None
        said: list[str] = []
        for each in expected:
            while not said or each not in said[-1]:
                line = await self.process.stdout.readline()
                said.append(line.decode().strip())
                assert line, f"no line with {each!r} in {said}"

    async def rest(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.read()).decode()

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    async def committed(self) -> int | None:
        tp = TopicPartition(self.topic, 0)
        async with member(self.kafka, self.topic, self.topic) as consumer:
            return await consumer.committed(tp)


@asynccontextmanager
async def program(
    kafka: KafkaHandle, *, loop: str = "asyncio", way: str = "default"
) -> AsyncIterator[Program]:
    """A program whose handlers have the records one and stuck of three of a key."""
    topic = await kafka.create_topic(unique("draining"))
    await kafka.produce(topic, 0, [(b"k", each) for each in (b"one", b"stuck", b"three")])
    command = sys.executable, str(PROGRAM), kafka.bootstrap_servers, topic, topic, loop, way
    async with timeout(PATIENCE_S), started(*command, stdin=PIPE, stdout=PIPE) as process:
        running = Program(process, kafka, topic)
        await running.says("began one", "ended one", "began stuck")
        yield running


@pytest.mark.real_if_long
async def test_sigterm_drains_and_the_program_goes_on_after_run(kafka: KafkaHandle) -> None:
    for loop in ("asyncio", "uvloop"):
        async with program(kafka, loop=loop) as running:
            running.process.send_signal(signal.SIGTERM)
            await running.says("SIGTERM: run() is stopping", "1 handlers are running")
            running.release()
            await running.says(
                "ended stuck",
                "no handlers are running",
                "the consumer is stopped",
                "returned",
            )
            assert await running.rest() == ""
            assert await running.process.wait() == 0
            assert await running.committed() == 2


async def test_sigterm_ends_a_program_that_calls_run_again(kafka: KafkaHandle) -> None:
    async with program(kafka, way="again") as running:
        running.process.send_signal(signal.SIGTERM)
        await running.says("SIGTERM: run() is stopping")
        running.release()
        await running.says("ended stuck", "the consumer is stopped", "returned")
        assert "returned" not in await running.rest()
        assert await running.process.wait() == 128 + signal.SIGTERM
        assert await running.committed() == 2


async def test_sigint_drains_and_run_raises_as_asyncio_does(kafka: KafkaHandle) -> None:
    async with program(kafka) as running:
        running.process.send_signal(signal.SIGINT)
        await running.says("SIGINT: run() is stopping")
        running.release()
        await running.says("ended stuck", "no handlers are running", "the consumer is stopped")
        assert "returned" not in await running.rest()
        assert await running.process.wait() == -signal.SIGINT
        assert await running.committed() == 2


async def test_a_second_signal_cancels_the_handlers_and_commits_what_is_finished(
    kafka: KafkaHandle,
) -> None:
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)):
        async with program(kafka) as running:
            running.process.send_signal(number)
            await running.says("run() is stopping")
            running.process.send_signal(number)
            await running.says("again: running handlers are cancelled", "cancelled", "is stopped")
            running.release()  # the thread that waits for it
            assert "returned" not in await running.rest()
            assert await running.process.wait() == code
            assert await running.committed() == 1


async def test_a_thread_that_is_stuck_ends_with_the_program(kafka: KafkaHandle) -> None:
    async with program(kafka, way="thread") as running:
        running.process.send_signal(signal.SIGTERM)
        await running.says("run() is stopping")
        running.process.send_signal(signal.SIGTERM)
        await running.says("1 threads are still running handlers", "is stopped")
        assert await running.process.wait() == 128 + signal.SIGTERM
        assert await running.committed() == 1


async def test_signals_of_a_program_that_handles_them_or_wants_none_are_its_own(
    kafka: KafkaHandle,
) -> None:
    async with program(kafka, way="off") as running:
        running.process.send_signal(signal.SIGTERM)
        assert await running.process.wait() == -signal.SIGTERM
    async with program(kafka, way="own") as running:
        running.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        running.release()
        await running.says("ended stuck", "returned")
        assert await running.process.wait() == 0
        assert await running.committed() == 2


async def test_signals_end_a_program_whose_event_loop_is_blocked(kafka: KafkaHandle) -> None:
    # The second SIGINT calls the handler of asyncio.run, whose third raises KeyboardInterrupt.
    for number, count in ((signal.SIGTERM, 1), (signal.SIGINT, 2)):
        async with program(kafka, way="blocked") as running:
            running.process.send_signal(number)
            await asyncio.sleep(BLOCKED_S + 0.1)
            for _ in range(count):
                running.process.send_signal(number)
                await asyncio.sleep(0.1)
            assert await running.process.wait() == -number


def test_signals_end_a_forked_process() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, check=True)
    assert done.stdout.split() == [b"%d" % signal.SIGTERM, b"[]"]


async def test_handlers_are_installed_while_run_is_active_and_restored_after_it(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, b"one")])
    heard: list[int] = []
    before = [signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))]
    try:
        before.append(signal.getsignal(signal.SIGUSR1))
        async with timeout(PATIENCE_S), member(kafka, topic, unique("own")) as consumer:

            async def handle(record: object) -> None:
                assert signal.getsignal(signal.SIGUSR1) is not before[1]
                signal.raise_signal(signal.SIGUSR1)

            await consumer.run(handle, stop_on=[signal.SIGUSR1])
        assert heard == [signal.SIGUSR1], "the earlier handler is called after the stop"
        assert signal.getsignal(signal.SIGUSR1) is before[1]
    finally:
        signal.signal(signal.SIGUSR1, before[0])


async def test_a_signal_of_the_step_in_which_run_ends_stops_the_consumer() -> None:
    stopped: list[float] = []

    async def stop(timeout_s: float) -> dict[TopicPartition, OffsetAndMetadata]:
        stopped.append(timeout_s)
        return {}

    ended: Any = SimpleNamespace(counts=lambda: {"at_work": 0})
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        async with Draining((signal.SIGUSR1,), stop, ended):
            signal.raise_signal(signal.SIGUSR1)
        assert (stopped, heard) == ([DRAIN_S], [signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before)


async def test_a_signal_that_interrupts_a_handler_stops_for_others() -> None:
    """The stop waits for this handler, too."""
    stopped_by: list[object] = []

    async def stop(timeout_s: float) -> dict[TopicPartition, OffsetAndMetadata]:
        stopped_by.append(HANDLING.get(None))
        return {}

    async def handle() -> None:
        HANDLING.set((Cursor(TopicPartition("t", 0)), 0))
        signal.raise_signal(signal.SIGUSR1)

    run: Any = SimpleNamespace(counts=lambda: {"at_work": 1})
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        async with Draining((signal.SIGUSR1,), stop, run):
            await asyncio.create_task(handle())
        assert stopped_by == [None]
    finally:
        signal.signal(signal.SIGUSR1, before)


async def test_only_a_default_signal_ends_later_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draining, "ended_by", 0)

    async def stop(timeout_s: float) -> dict[TopicPartition, OffsetAndMetadata]:
        return {}

    ended: Any = SimpleNamespace(counts=lambda: {"at_work": 0})
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        for is_default in (False, True):
            async with Draining((signal.SIGUSR1,), stop, ended, is_default=is_default):
                signal.raise_signal(signal.SIGUSR1)
            assert Draining.ended_by == (signal.SIGUSR1 if is_default else 0)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.virtual_time
@pytest.mark.parametrize("hangs_in", ["start", "stop"])
async def test_a_second_signal_soon_ends_a_run_that_waits_for_brokers(hangs_in: str) -> None:
    loop, heard = asyncio.get_running_loop(), list[int]()

    async def stop(timeout_s: float) -> dict[TopicPartition, OffsetAndMetadata]:
        await asyncio.sleep(timeout_s if hangs_in == "stop" else 0)
        return {}

    async def end(until: float) -> None: ...

    run: Any = SimpleNamespace(counts=lambda: {"at_work": 0}, end=end)
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    began_at = loop.time()
    try:
        async with Draining((signal.SIGUSR1,), stop, run):
            loop.call_later(1, signal.raise_signal, signal.SIGUSR1)
            loop.call_later(2, signal.raise_signal, signal.SIGUSR1)
            await asyncio.sleep(100 if hangs_in == "start" else 1.5)
        assert heard == [signal.SIGUSR1], "the cancellation of the caller is forgotten"
        assert loop.time() - began_at == pytest.approx(2 + FORCED_S)
        await asyncio.sleep(0)
    finally:
        signal.signal(signal.SIGUSR1, before)


@for_each(
    [
        ("SIGTERM", TypeError, "must be signals"),
        ("", TypeError, "must be signals"),
        (15, TypeError, "must be signals"),
        ([True], TypeError, "must be signals"),
        (["SIGTERM"], TypeError, "must be signals"),
        ([signal.SIGKILL], ValueError, "no signal that can be handled"),
        ([12345], ValueError, "no signal that can be handled"),
    ]
)
def test_wrong_signals_are_refused(given: object, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        signals_of(given)


async def test_other_threads_can_handle_no_signals(kafka: KafkaHandle, topic: str) -> None:
    async def handle(record: object) -> None: ...

    async def main() -> None:
        async with AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers) as consumer:
            await consumer.run(handle, stop_on=[signal.SIGTERM])

    with pytest.raises(ValueError, match="only in the main thread"):
        await asyncio.to_thread(asyncio.run, main())
