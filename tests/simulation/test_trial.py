"""Runs of simulated tests: faults, the end, escapes, clocks, and the shrinking of schedules."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import dataclasses
import gc
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import uuid
import weakref
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.processing.draining import Draining
from aiokafka_lite.errors import KafkaConnectionError
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.simulation.kafka import Kafka
    from aiokafka_lite.simulation.trial import Draw, Test, TrialOutcome

pytest.importorskip("simloop", reason="simloop is not installed")

GROUP = "g"


def outcome_of(test: Test, *faults: Any, **options: Any) -> TrialOutcome:
    """Run a test once, with the faults that are passed."""
    from aiokafka_lite.simulation import trial

    with trial.quiet(is_logged=False):
        return trial.run(test, trial.Options(**options), drawn(*faults))


def drawn(*faults: Any) -> Draw:
    from aiokafka_lite.simulation.schedule import Order
    from aiokafka_lite.simulation.trial import Draw

    return Draw(1, Order.FIFO, faults)


def fault(name: str, at_s: float = 5.0, lasts_s: float = 2.0, target: int = 0) -> Any:
    from aiokafka_lite.simulation.schedule import Fault

    return Fault(at_s, lasts_s, name, target, 0.5)


def reader(kafka: Kafka, *, commits_first: bool = False) -> Callable[[], Any]:
    async def read() -> None:
        consumer = AIOKafkaConsumer[Any, Any](
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        consumer.subscribe(["t"], listener=kafka.listener())
        async with consumer:
            async for record in consumer:
                if commits_first:
                    await consumer.commit()
                with kafka.handling(record):
                    await asyncio.sleep(0.2)
                if not commits_first:
                    await consumer.commit()

    return read


async def write_and_check(kafka: Kafka) -> None:
    from aiokafka_lite.simulation.kafka import IDEMPOTENT_RULES, POLL_RULES, RULES

    for number in range(30):
        await kafka.write("t", f"record {number}")
        await asyncio.sleep(0.5)
    await kafka.settle("t", group=GROUP)
    kafka.check("t", group=GROUP, rules=(*RULES, *POLL_RULES, *IDEMPOTENT_RULES))


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("name", ["crash", "member killed", "member joins", "leader moves"])
def test_sound_consumer_passes(nodes: int, name: str) -> None:
    async def test(kafka: Kafka) -> None:
        kafka.create_topic("t", 2)
        kafka.start(reader(kafka), processes=2)
        await write_and_check(kafka)

    outcome = outcome_of(test, fault(name), nodes=nodes, faults_s=15.0)
    assert outcome.error is None


def test_commit_before_processing_loses_a_record_of_a_killed_process() -> None:
    from aiokafka_lite.simulation import rules, trial

    async def test(kafka: Kafka) -> None:
        kafka.start(reader(kafka, commits_first=True))
        for number in range(90):
            await kafka.write("t", f"record {number}")
            await asyncio.sleep(0.1)
        await kafka.settle("t", group=GROUP)
        kafka.check("t", group=GROUP, rules=(rules.no_record_is_lost,))

    needed = fault("member killed", at_s=8.0)
    others = fault("slow link", at_s=1.0), fault("leader moves"), fault("pieces", at_s=6.0)
    failed = outcome_of(test, *others, needed)
    assert failed.kind() == "lost"
    with trial.quiet(is_logged=False):
        assert trial.shrink(test, trial.Options(), failed).draw.faults == (needed,)


def digest_of(seed: int) -> str:
    """Return a digest of all that happens in a run with any faults."""
    from aiokafka_lite.simulation import trial

    async def test(kafka: Kafka) -> None:
        kafka.create_topic("t", 2)
        kafka.start(reader(kafka), processes=2)
        await write_and_check(kafka)

    options = trial.Options(faults=trial.fault_names("all"))
    with trial.quiet(is_logged=False):
        return trial.run(test, options, trial.draw(seed, options)).digest


def test_seed_decides_the_run_whatever_the_hashes() -> None:
    def elsewhere(hash_seed: int) -> str:
        """Return the digest of a run in another process, in which sets have another order."""
        program = "from tests.simulation.test_trial import digest_of; print(digest_of(3))"
        environment = {
            **os.environ,
            "PYTHONHASHSEED": str(hash_seed),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert digest_of(3) == digest_of(3) == elsewhere(0) == elsewhere(7) != digest_of(4)


# --- The end --------------------------------------------------------------------------------
def test_test_that_does_not_end_is_told_where_it_waits() -> None:
    async def test(kafka: Kafka) -> None:
        await asyncio.get_running_loop().create_future()

    outcome = outcome_of(test, faults_s=3.0, settle_s=5.0)
    assert "has not ended 5 virtual seconds after the end of the faults" in str(outcome.error)
    assert "test_trial.py:" in str(outcome.error)
    assert outcome.virtual_s == pytest.approx(8.0, abs=0.1)


def test_names_that_do_not_exist_are_told() -> None:
    """Nothing would be checked otherwise, and the test would pass."""

    async def test(kafka: Kafka) -> None:
        await kafka.write("t", b"v")
        for topic, group, text in (
            ("typo", None, "there is no topic 'typo'"),
            ("t", "typo", "the group 'typo' has committed no offset of 't'"),
        ):
            with pytest.raises(ValueError, match=text):
                kafka.check(topic, group=group, rules=())
        kafka.check("t", rules=())
        await kafka.settle("typo", group="g")

    outcome = outcome_of(test, settle_s=5.0)
    assert "it waits for the topic 'typo', which nobody has created" in str(outcome.error)


def test_group_that_does_not_settle_is_told() -> None:
    async def test(kafka: Kafka) -> None:
        await kafka.write("t", "1")
        await kafka.settle("t", group=GROUP)

    outcome = outcome_of(test, faults_s=3.0, settle_s=5.0)
    assert "it waits for 'g', which has committed None of 1 of t/0" in str(outcome.error)


def test_process_that_does_not_stop_is_told() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                pass

    async def test(kafka: Kafka) -> None:
        kafka.start(stubborn)
        await asyncio.sleep(1)

    outcome = outcome_of(test, settle_s=5.0)
    assert str(outcome.error) == "processes do not stop: p0.0"


def test_signal_ends_a_process_by_its_handler_or_kills_it() -> None:
    ends: list[str] = []

    def end(must_end: asyncio.Event, name: str) -> None:
        ends.append(name)
        must_end.set()

    async def serve(name: str, sig: signal.Signals | None) -> None:
        loop, must_end = asyncio.get_running_loop(), asyncio.Event()
        with pytest.raises(RuntimeError, match="cannot be caught"):
            loop.add_signal_handler(signal.SIGKILL, must_end.set)
        if sig is not None:
            loop.add_signal_handler(sig, end, must_end, name)
        try:
            await must_end.wait()
        except asyncio.CancelledError:
            ends.append(f"{name} is cancelled")
            raise
        assert sig is not None
        assert loop.remove_signal_handler(sig)
        assert not loop.remove_signal_handler(sig)

    async def test(kafka: Kafka) -> None:
        kafka.start(lambda: serve("first", signal.SIGTERM))
        kafka.start(lambda: serve("second", None))
        kafka.start(lambda: serve("stopped", signal.SIGTERM))
        kafka.start(lambda: serve("third", None))
        await asyncio.sleep(5.0)  # meanwhile a fault stops one
        kafka.send_signal(signal.SIGCHLD)
        kafka.send_signal(signal.SIGTERM, process=0)
        kafka.send_signal(signal.SIGTERM, process=1)
        kafka.send_signal(signal.SIGINT, process=3)
        await asyncio.sleep(1.0)
        assert not asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)  # the test's

    outcome = outcome_of(test, fault("member stops", at_s=2.0, lasts_s=30.0, target=2), faults_s=20)
    assert outcome.error is None
    # The fault starts another one, which is stopped at the end of the test.
    assert ends == ["stopped", "first", "third is cancelled", "stopped"]


def test_signals_stop_a_run_of_handlers_in_order() -> None:
    ends: list[str] = []

    async def test(kafka: Kafka) -> None:
        async def serve() -> None:
            name = f"m{len(began)}"
            began.append(name)

            async def handle(record: object) -> None:
                began.append("handler")
                if began.count("handler") == 2:
                    are_running.set()
                await asyncio.sleep(2.0)
                ends.append(f"{name} handled")

            async with AIOKafkaConsumer(
                "orders", bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
            ) as consumer:
                try:
                    await consumer.run(handle, stop_on=(signal.SIGTERM, signal.SIGINT))
                except KeyboardInterrupt:
                    ends.append(f"{name} is interrupted")
                    raise
                ends.append(f"{name} returned")

        began: list[str] = []
        are_running = asyncio.Event()
        kafka.create_topic("orders", 1)
        await kafka.write("orders", b"1")
        kafka.start(serve, processes=2)
        await are_running.wait()
        kafka.send_signal(signal.SIGTERM, process=0)
        await asyncio.sleep(0.01)
        kafka.send_signal(signal.SIGINT, process=1)
        await asyncio.sleep(5.0)

    assert outcome_of(test).error is None
    assert sorted(ends) == ["m0 handled", "m0 returned", "m1 handled", "m1 is interrupted"]
    assert not Draining.ended_by, "the signal did not end a run of this process"


def test_signals_stop_a_process_until_it_continues() -> None:
    ends: list[str] = []
    ticks = {"a": 0, "b": 0, "c": 0}

    async def serve(name: str) -> None:
        loop = asyncio.get_running_loop()
        if name == "c":
            loop.add_signal_handler(signal.SIGTSTP, ends.append, "c keeps on")
        try:
            while True:
                await asyncio.sleep(0.1)
                ticks[name] += 1
        except asyncio.CancelledError:
            ends.append(name)
            raise

    async def test(kafka: Kafka) -> None:
        for name in ticks:
            kafka.start(partial(serve, name))
        await asyncio.sleep(1.05)
        kafka.send_signal(signal.SIGTSTP)
        kafka.send_signal(signal.SIGTERM, process=0)
        stopped = dict(ticks)
        await asyncio.sleep(3.0)  # meanwhile a fault blocks "b"
        assert (ticks["a"], ticks["b"]) == (stopped["a"], stopped["b"])
        assert ticks["c"] > stopped["c"]
        kafka.send_signal(signal.SIGSTOP, process=2)
        kafka.send_signal(signal.SIGCONT)
        await asyncio.sleep(1.0)
        assert ticks["a"] == stopped["a"]  # it has ended
        assert ticks["b"] > stopped["b"]
        kafka.send_signal(signal.SIGSTOP, process=1)
        kafka.send_signal(signal.SIGSTOP, process=2)
        kafka.send_signal(signal.SIGKILL, process=2)
        kafka.send_signal(signal.SIGCONT, process=2)
        with pytest.raises(ValueError, match="no process 3"):
            kafka.send_signal(signal.SIGTERM, process=3)

    blocking = fault("loop blocked", at_s=2.0, lasts_s=0.5, target=1)
    outcome = outcome_of(test, blocking, faults_s=3)
    assert outcome.error is None
    assert ends == ["c keeps on", "b"]  # which the end of the test continues


def test_an_interrupt_ends_the_other_tasks_of_a_process_as_well() -> None:
    ends: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            ends.append(name)

    async def serve(kept: list[object]) -> None:
        kept.append(asyncio.create_task(wait("task")))
        await wait("main")

    async def test(kafka: Kafka) -> None:
        kafka.start(partial(serve, []))
        await asyncio.sleep(1.0)
        kafka.send_signal(signal.SIGINT)
        await asyncio.sleep(1.0)
        assert ends == ["main", "task"]

    assert outcome_of(test).error is None


def test_signal_handlers_of_a_process_are_its_own() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    seen: list[Any] = []

    def leave(*args: Any) -> None:
        seen.append(args)
        sys.exit(0)

    async def serve(handler: Any) -> None:
        seen.append([signal.signal(signalnum=each, handler=handler) for each in signals])
        seen.append(signal.getsignal(signalnum=signal.SIGUSR1))
        try:
            await asyncio.sleep(1_000)
        finally:
            seen.append("ends")

    async def test(kafka: Kafka) -> None:
        with pytest.raises(OSError, match="SIGKILL cannot be caught"):
            signal.signal(signal.SIGKILL, leave)
        with pytest.raises(TypeError, match="signal handler must be"):
            signal.signal(signal.SIGTERM, None)
        for handler, sig, results in (
            (leave, signal.SIGTERM, [leave, (signal.SIGTERM, None), "ends"]),
            (signal.SIG_IGN, signal.SIGUSR1, [signal.SIG_IGN]),
            (signal.SIG_DFL, signal.SIGINT, [signal.SIG_DFL, "ends"]),
        ):
            seen.clear()
            kafka.start(partial(serve, handler))
            await asyncio.sleep(1.0)
            kafka.send_signal(sig)
            await asyncio.sleep(1.0)
            assert seen == [[signal.SIG_DFL] * 2 + [signal.default_int_handler], *results]
            kafka.send_signal(signal.SIGKILL)  # one ignores the others
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    outcome = outcome_of(test)
    assert outcome.error is None
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("is_explicit", [False, True])
def test_process_ends_as_with_asyncio_run(*, is_explicit: bool) -> None:
    seen: list[object] = []

    async def numbers(name: str) -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.1)
            seen.append(name)

    async def serve(kept: list[object]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor())
        async for _ in numbers("left"):
            break
        await asyncio.sleep(0.2)
        assert seen == ["left"]
        for name in ("first", "second"):
            kept.append(numbers(name))
            await anext(kept[-1])  # type: ignore[call-overload]
        loop.run_in_executor(None, seen.append, "in a thread")
        if is_explicit:
            await loop.shutdown_asyncgens()
            await loop.shutdown_default_executor()
            with pytest.raises(RuntimeError, match="Executor shutdown has been called"):
                await asyncio.to_thread(print)

    async def test(kafka: Kafka) -> None:
        kept: list[object] = []
        kafka.start(partial(serve, kept))
        await asyncio.sleep(1.0)
        assert seen == ["left", "in a thread", "first", "second"]
        await asyncio.to_thread(print, end="")  # another process has its own threads

        async def killed() -> None:
            async for _ in numbers("killed"):
                await asyncio.sleep(1_000)

        kafka.start(killed)
        await asyncio.sleep(1.0)
        kafka.send_signal(signal.SIGKILL)
        await asyncio.sleep(1.0)

    assert outcome_of(test).error is None
    assert seen == ["left", "in a thread", "first", "second"]


def test_error_of_a_process_fails_the_test_unless_it_is_kafkas() -> None:
    starts: list[float] = []

    async def failing() -> None:
        starts.append(time.monotonic())
        if len(starts) == 1:
            raise KafkaConnectionError("no")
        raise ZeroDivisionError("mine")

    async def test(kafka: Kafka) -> None:
        kafka.start(failing)
        await asyncio.sleep(10)

    outcome = outcome_of(test)
    assert isinstance(outcome.error, ZeroDivisionError)
    assert len(starts) == 2
    assert outcome.virtual_s < 5


def test_process_may_raise_kafkas_errors_from_task_groups_and_exit_without_an_error() -> None:
    group: Any = vars(builtins)["ExceptionGroup"]  # Python 3.10 has none
    errors: list[BaseException] = [
        group("tasks", [KafkaConnectionError("1"), KafkaConnectionError("2")]),
        group("tasks", [group("inner", [KafkaConnectionError("3")])]),
        SystemExit(0),
    ]
    wrong = group("tasks", [KafkaConnectionError("4"), ValueError("mine")])

    async def failing(errors: list[BaseException]) -> None:
        raise errors.pop(0)

    async def test(kafka: Kafka) -> None:
        kafka.start(partial(failing, errors))
        await asyncio.sleep(10)
        assert not errors

    async def test_wrong(kafka: Kafka, error: BaseException) -> None:
        kafka.start(partial(failing, [error]))
        await asyncio.sleep(10)

    assert outcome_of(test).error is None
    for error in (wrong, SystemExit("no settings")):
        assert outcome_of(partial(test_wrong, error=error)).error is error


def test_nothing_of_a_run_is_left_when_it_is_collected_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def serve(kafka: Kafka) -> None:
        try:
            await reader(kafka)()
        finally:
            for _ in range(3):
                with contextlib.suppress(RuntimeError, GeneratorExit):
                    await asyncio.sleep(1)

    async def test(kafka: Kafka) -> None:
        kafka.start(partial(serve, kafka), processes=2)
        await kafka.settle("other", group=GROUP)

    outcome = outcome_of(test, fault("member killed"), faults_s=10.0, settle_s=5.0)
    assert outcome.kind() == "NotSettledError"
    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    outcome.error = None
    for _ in range(2):
        gc.collect()
    assert not reports


def test_interrupt_while_the_coroutines_of_a_run_are_closed_is_raised() -> None:
    def interrupt(*_: object) -> None:
        raise TimeoutError("too late")

    async def serve() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            signal.raise_signal(signal.SIGALRM)

    async def test(kafka: Kafka) -> None:
        kafka.start(serve)
        await asyncio.sleep(1)
        raise ZeroDivisionError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(TimeoutError, match="too late"):
            outcome_of(test)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_processes_listen_on_their_own_host() -> None:
    hosts = (None, "", "0.0.0.0", "127.0.0.1", "localhost", "::")  # noqa: S104

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"alive")
        writer.close()

    async def serve() -> None:
        for host in hosts:
            async with await asyncio.start_server(answer, host, 8080):
                there, writer = await asyncio.open_connection("localhost", 8080)
                answers.append(await there.read())
                writer.close()

    async def test(kafka: Kafka) -> None:
        kafka.start(serve, processes=2)
        await asyncio.sleep(1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", 8080)
        with pytest.raises(OSError, match=r"no host 'kafka'\. Kafka is at kafka\.boot"):
            await asyncio.open_connection("kafka", 9092)

    answers: list[bytes] = []
    outcome = outcome_of(test, faults_s=5.0)
    assert outcome.error is None
    assert answers == [b"alive"] * 2 * len(hosts)


def test_lost_error_of_a_task_fails_the_test() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def test(kafka: Kafka) -> None:
        kafka.lost = asyncio.create_task(fail())  # type: ignore[attr-defined]
        await asyncio.sleep(1)

    assert isinstance(outcome_of(test).error, ZeroDivisionError)


# --- Producers ------------------------------------------------------------------------------
def test_aborted_records_are_not_read() -> None:
    from aiokafka_lite.simulation.kafka import IDEMPOTENT_RULES, RULES

    async def test(kafka: Kafka) -> None:
        kafka.create_topic("t", 1)
        kafka.start(reader(kafka))
        async with AIOKafkaProducer[Any, Any](
            bootstrap_servers=kafka.bootstrap_servers, transactional_id="x"
        ) as producer:
            async with kafka.transaction(producer) as send:
                await send("t", b"1")
            with contextlib.suppress(ZeroDivisionError):
                async with kafka.transaction(producer) as send:
                    await send("t", b"2")
                    raise ZeroDivisionError
        async with AIOKafkaProducer[Any, Any](
            bootstrap_servers=kafka.bootstrap_servers, enable_idempotence=True
        ) as producer:
            await kafka.send(producer, "t", b"3")
        await kafka.settle("t", group=GROUP)
        kafka.check("t", group=GROUP, rules=(*RULES, *IDEMPOTENT_RULES))

    # The consumer reads uncommitted records.
    outcome = outcome_of(test, faults_s=3.0)
    assert outcome.kind() == "aborted read"


def test_commits_are_those_of_transactions_that_are_not_aborted() -> None:
    from aiokafka_lite.simulation.history import Kind

    async def test(kafka: Kafka) -> None:
        kafka.create_topic("t", 1)
        tp = TopicPartition("t", 0)
        for number in range(4):
            await kafka.write("t", f"{number}")
        async with AIOKafkaProducer[Any, Any](
            bootstrap_servers=kafka.bootstrap_servers, transactional_id="x"
        ) as producer:
            for offset, ends in ((3, producer.abort_transaction), (2, producer.commit_transaction)):
                await producer.begin_transaction()
                await producer.send_offsets_to_transaction({tp: offset}, GROUP)
                found = kafka.evidence("t").history.of(Kind.COMMITTED)
                assert not [*found]  # not before its end
                await ends()
        assert kafka.broker.committed(GROUP) == {tp: 2}
        found = kafka.evidence("t", group=GROUP).history.of(Kind.COMMITTED)
        assert [(event.tp, event.offset) for event in found] == [(tp, 2)]

    assert outcome_of(test, faults_s=3.0).error is None


def test_transactions_that_copy_values_are_judged_by_topic() -> None:
    """Also if one is aborted, and its value is sent again."""
    from aiokafka_lite.simulation.kafka import IDEMPOTENT_RULES, RULES

    attempts: list[bytes] = []

    async def copy(kafka: Kafka) -> None:
        producer = AIOKafkaProducer[Any, Any](
            bootstrap_servers=kafka.bootstrap_servers, transactional_id="x"
        )
        consumer = AIOKafkaConsumer[Any, Any](
            "t",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with consumer, producer:
            async for record in consumer:
                async with kafka.transaction(producer) as send:
                    with kafka.handling(record):
                        await send("out", record.value)
                    attempts.append(record.value)
                    if len(attempts) == 3:
                        raise KafkaConnectionError("no")
                    tp = TopicPartition(record.topic, record.partition)
                    await producer.send_offsets_to_transaction({tp: record.offset + 1}, GROUP)

    async def read(kafka: Kafka) -> None:
        async with AIOKafkaConsumer[Any, Any](
            "out",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="reader",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            async for record in consumer:
                with kafka.handling(record):
                    pass

    async def test(kafka: Kafka) -> None:
        for topic in ("t", "out"):
            kafka.create_topic(topic, 2)
        kafka.start(partial(copy, kafka))
        kafka.start(partial(read, kafka))
        for number in range(12):
            await kafka.write("t", f"{number // 2 + number % 2 * 6}", partition=number % 2)
        await kafka.settle("t", group=GROUP)
        await kafka.settle("out", group="reader")
        kafka.check("t", group=GROUP, rules=(*RULES, *IDEMPOTENT_RULES))
        kafka.check("out", group="reader", rules=(*RULES, *IDEMPOTENT_RULES))

    assert outcome_of(test, faults_s=5.0).error is None
    assert len(attempts) == 13


def test_transaction_that_cannot_be_aborted_raises_why_it_should_be() -> None:
    class Fenced:
        async def begin_transaction(self) -> None: ...

        async def abort_transaction(self) -> None:
            raise AssertionError("FATAL_ERROR -> ABORTING_TRANSACTION")

    async def test(kafka: Kafka) -> None:
        async with kafka.transaction(Fenced()):
            raise KafkaConnectionError("why")

    error = outcome_of(test).error
    assert "why" in str(error)
    assert "not aborted: AssertionError" in error.__notes__[0]  # type: ignore[union-attr]


def test_order_is_that_in_which_each_producer_has_the_records() -> None:
    from aiokafka_lite.simulation import trial
    from aiokafka_lite.simulation.kafka import IDEMPOTENT_RULES
    from aiokafka_lite.simulation.schedule import Order

    async def test(kafka: Kafka) -> None:
        kafka.create_topic("t", 1)
        settings = {"bootstrap_servers": kafka.bootstrap_servers, "enable_idempotence": True}
        async with (
            AIOKafkaProducer[Any, Any](**settings, linger_ms=50) as slow,  # type: ignore[arg-type]
            AIOKafkaProducer[Any, Any](**settings) as fast,  # type: ignore[arg-type]
        ):
            sends = (
                kafka.send(producer, "t", b"%d" % number)
                for number, producer in enumerate([slow, fast] * 5)
            )
            await asyncio.gather(*sends)
        kafka.check("t", rules=IDEMPOTENT_RULES)

    for order in Order:
        with trial.quiet(is_logged=False):
            assert trial.run(test, trial.Options(), trial.Draw(1, order, ())).error is None


def test_values_that_the_history_cannot_tell_apart_are_refused() -> None:
    async def test(kafka: Kafka) -> None:
        await kafka.send(None, "t", {"order": 1})

    async def test_twice(kafka: Kafka) -> None:
        for topic in ("t", "other", "t"):
            await kafka.write(topic, "same")
        kafka.evidence("other")
        kafka.check("t")

    assert "pass bytes or a string" in str(outcome_of(test).error)
    assert "b'same' more than once to 't'" in str(outcome_of(test_twice).error)


# --- Escapes --------------------------------------------------------------------------------
async def sleeping() -> None:
    time.sleep(1)  # noqa: ASYNC251


async def in_a_thread() -> None:
    def block() -> None:
        time.sleep(1)

    await asyncio.to_thread(block)


async def starting_a_thread() -> None:
    threading.Thread(target=print).start()


async def connecting() -> None:
    with socket.socket() as sock:
        sock.connect(("127.0.0.1", 1))


async def resolving() -> None:
    socket.getaddrinfo("kafka.example", 9092)


async def starting_a_process() -> None:
    subprocess.run(["true"], check=True)  # noqa: ASYNC221


async def awaiting_a_process() -> None:
    await asyncio.create_subprocess_exec("true")


async def awaiting_a_shell() -> None:
    await asyncio.create_subprocess_shell("true")


async def listening_on_a_path() -> None:
    await asyncio.start_unix_server(lambda reader, writer: None, "unused")


async def connecting_to_a_path() -> None:
    await asyncio.open_unix_connection("unused")


@pytest.mark.parametrize(
    ("escape", "name", "is_swallowed"),
    [
        (sleeping, "time.sleep", True),
        (in_a_thread, "time.sleep", False),
        (starting_a_thread, "a thread", False),
        (starting_a_thread, "a thread", True),
        (connecting, "a real socket", False),
        (resolving, "a real name lookup", False),
        (starting_a_process, "another process", False),
        (awaiting_a_process, "another process", False),
        (awaiting_a_shell, "another process", True),
        (listening_on_a_path, "a real socket", False),
        (connecting_to_a_path, "a real socket", False),
    ],
)
def test_escape_is_named(escape: Callable[[], Any], name: str, *, is_swallowed: bool) -> None:
    async def test(kafka: Kafka) -> None:
        try:
            await escape()
        except RuntimeError:
            if not is_swallowed:
                raise

    outcome = outcome_of(test)
    assert f"leaves the simulation with {name}, at {__file__}:" in str(outcome.error)
    time.sleep(0.001)
    threading.Thread(target=time.monotonic).start()


class LikeAModule:
    """As a library of cffi."""

    __slots__ = ()
    __class__: Any = types.ModuleType


@dataclasses.dataclass
class Order:
    at: float = dataclasses.field(default_factory=time.time)


class Clock:
    now = time.time


def test_clocks_and_random_numbers_are_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiokafka_lite.simulation import START_MS

    seen: list[tuple[Any, ...]] = []
    kept: list[Callable[[], float]] = []
    # A module of an application, which has imported functions by their names.
    module: Any = types.ModuleType("application")
    module.__file__ = __file__
    vars(module).update(clock=time.monotonic, gmtime=time.gmtime, time=time.time)
    vars(module).update(Order=Order, Clock=Clock)
    monkeypatch.setattr(Order, "__module__", module.__name__)
    monkeypatch.setattr(Clock, "__module__", module.__name__)
    before = dict(vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, other in (("forbidden", None), ("object", object()), ("cffi", LikeAModule())):
        monkeypatch.setitem(sys.modules, name, other)

    async def test(kafka: Kafka) -> None:
        await asyncio.sleep(1_000)
        kept.append(time.time)  # as "from time import time" in a module that is imported now
        seen.append(
            (
                time.time(),
                time.monotonic(),
                time.perf_counter(),
                random.random(),
                uuid.uuid4(),
                secrets.token_hex(),
                random.SystemRandom().random(),
                random.Random().random(),
                module.clock(),
                module.time(),
                module.gmtime(),
                Order(),
                Clock.now(),
                time.localtime(),
                time.ctime(),
                time.asctime(),
                time.strftime("%c"),
            )
        )
        assert module.gmtime() == module.gmtime(None) != module.gmtime(0)
        assert time.strftime("%Y", time.gmtime(0)) == "1970"
        functions: tuple[tuple[Any, str], ...] = ((os.urandom, "size"), (time.sleep, "seconds"))
        for positional, name in functions:
            with pytest.raises(TypeError, match="argument"):
                positional(**{name: 1})

    for _ in range(2):
        assert outcome_of(test, settle_s=2_000.0).error is None
    assert seen[0] == seen[1]
    assert seen[0][0] == pytest.approx(START_MS / 1_000 + 1_000, abs=0.1)
    assert seen[0][1] == seen[0][2] == pytest.approx(1_000, abs=0.1)
    assert module.clock is before["clock"] is time.monotonic
    assert vars(module) == before
    assert Clock.now is time.time
    assert Order().at > START_MS / 1_000 + 1_000_000
    assert time.time() == pytest.approx(kept[0](), abs=5.0)
    assert time.time() > START_MS / 1_000 + 1_000_000


# --- Options --------------------------------------------------------------------------------
def test_schedules_are_short_and_have_the_faults_of_the_option() -> None:
    from aiokafka_lite.simulation import trial

    options = trial.Options(faults=trial.fault_names(("crash", "truncation")), faults_s=600.0)
    draws = [trial.draw(seed, options) for seed in range(50)]
    assert {each.name for draw in draws for each in draw.faults} == {"crash", "truncation"}
    assert max(len(draw.faults) for draw in draws) == trial.MOST_FAULTS
    assert not trial.draw(1, trial.Options(faults=trial.fault_names("none"))).faults


def test_all_faults_leave_logs_as_they_are() -> None:
    from aiokafka_lite.simulation import trial
    from aiokafka_lite.simulation.schedule import RARE, WEIGHTS

    assert set(trial.fault_names("all")) == WEIGHTS.keys() - set(RARE)
    assert set(trial.fault_names(("all", *RARE))) == WEIGHTS.keys()
    with pytest.raises(ValueError, match="there is no fault 'earthquake': use 'all', 'none', cr"):
        trial.fault_names("earthquake")


def test_failed_run_is_collected() -> None:
    async def test(kafka: Kafka) -> None:
        kafka.start(reader(kafka))
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.sleep(5)
        raise ZeroDivisionError

    loops: list[weakref.ref[Any]] = []
    outcome = outcome_of(test, fault("member killed", at_s=4.0))
    assert isinstance(outcome.error, ZeroDivisionError)
    assert loops[0]() is None


@pytest.mark.parametrize("decode", [json.loads, lambda value: json.loads(value)["text"].encode()])
def test_deserialized_records_and_other_listeners(decode: Callable[[bytes], Any]) -> None:
    calls: list[str] = []

    class Inner(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            calls.append("revoked")

        def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            calls.append("assigned")

    async def test(kafka: Kafka) -> None:
        async def read() -> None:
            consumer = AIOKafkaConsumer[Any, Any](
                bootstrap_servers=kafka.bootstrap_servers,
                group_id=GROUP,
                auto_offset_reset="earliest",
                value_deserializer=decode,
                auto_commit_interval_ms=100,
            )
            consumer.subscribe(["t"], listener=kafka.listener(Inner()))
            async with consumer:
                async for record in consumer:
                    with kafka.handling(record):
                        assert record.value

        kafka.start(read)
        for number in range(5):
            await kafka.write("t", json.dumps({"text": f"order {number}"}))
        await kafka.settle("t", group=GROUP)
        kafka.check("t", group=GROUP)

    assert outcome_of(test, faults_s=5.0).error is None
    assert calls == ["assigned"]
