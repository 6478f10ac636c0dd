"""Tests of `simulate`: clocks, random numbers and threads on a loop with virtual time."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, confluent_settings
from aiokafka_lite._chance import UNSEEDED
from aiokafka_lite._tasks import LoopEndedError, TaskScope
from aiokafka_lite._threads import aside, compute, resolve
from aiokafka_lite._virtual import (
    START_MS,
    chance_for,
    chance_here,
    monotonic,
    simulate,
    simulation_of,
    wall_clock,
    wall_ms,
)
from aiokafka_lite.broker import Broker

HOUR_S = 3_600.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that skips waits, and whose threads are errors."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        real = self._selector.select  # type: ignore[attr-defined]

        def select(timeout_s: float | None) -> Any:
            if events := real(0):
                return events
            if timeout_s is None:
                return real(0.1)
            # Sockets are real here: give the bytes in flight the time to arrive.
            events = real(min(timeout_s, 0.001))
            if not events:
                self._now += timeout_s
            return events

        self._selector.select = select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override]
        raise AssertionError("a simulated loop has no threads")


def run(main: Callable[[], Awaitable[None]], seed: int = 1) -> None:
    loop = VirtualLoop()
    simulate(loop, seed)

    async def until_over() -> None:
        await main()

    try:
        loop.run_until_complete(until_over())
    finally:
        loop.close()


def free_port() -> int:
    """The loop's sockets are real, so the first simulated port may be in use."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread} begins")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_the_time_of_day_is_the_loops() -> None:
    async def main() -> None:
        clock = wall_clock(asyncio.get_running_loop())
        assert wall_ms() == START_MS + round(monotonic() * 1000)
        await asyncio.sleep(HOUR_S)
        assert clock() // 1_000_000 >= START_MS + HOUR_S * 1000

    run(main)
    loop = asyncio.new_event_loop()
    assert wall_clock(loop) is time.time_ns
    loop.close()
    assert abs(wall_ms() - time.time() * 1000) < 10_000
    assert abs(monotonic() - time.monotonic()) < 10


def test_a_start_may_be_given() -> None:
    async def main() -> None:
        assert wall_ms() == 5_000

    loop = VirtualLoop()
    simulate(loop, 1, start_ms=5_000)
    with pytest.raises(ValueError, match="simulated already"):
        simulate(loop, 2)
    loop.run_until_complete(main())
    loop.close()


def test_the_seed_of_the_loop_is_the_default() -> None:
    drawn: list[tuple[int, ...]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert chance_here("x") is chance_here("x") is not UNSEEDED
        sources = (chance_for(None, "a", loop), chance_for(5, "a", loop), chance_here("x"))
        drawn.append(tuple(each.getrandbits(64) for each in sources))

    for seed in (1, 1, 2):
        run(main, seed)
    assert drawn[0] == drawn[1]
    assert drawn[0][1] == drawn[2][1]  # its own seed
    assert len({*drawn[0], *drawn[2]}) == 5
    assert chance_here("x") is UNSEEDED
    assert simulation_of(None) is None


def test_default_client_ids_repeat() -> None:
    names: list[str] = []

    async def main() -> None:
        names.extend(repr(AIOKafkaProducer()) for _ in "12")

    run(main)
    run(main)
    assert names[:2] == names[2:]
    assert len(set(names)) == 2


def test_work_of_threads_is_done_on_the_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        order: list[str] = []
        done = compute(lambda: order.append("done"))
        order.append("asked")
        await done
        assert order == ["asked", "done"]
        with pytest.raises(ZeroDivisionError):
            await aside(loop, lambda: 1 // 0)
        cancelled = aside(loop, lambda: order.append("never"))
        cancelled.cancel()
        await asyncio.sleep(1)
        assert order == ["asked", "done"]

    run(main)


def test_a_broker_replaces_one_whose_power_was_cut(tmp_path: Path) -> None:
    """The files of the earlier one stay open, because nothing of it runs any more."""

    async def main() -> None:
        before = Broker(data_dir=tmp_path, port=free_port())
        await before.start()
        topic_id = before.create_topic("t").topic_id
        async with Broker(data_dir=tmp_path, port=free_port()) as after:
            assert after.topics["t"].topic_id == topic_id
            assert after.create_topic("u").topic_id != topic_id
        await before.stop()

    run(main)


def test_a_crash_of_a_host_is_no_bug() -> None:
    """A simulated crash cancels the tasks of a host at once, and the rest of the loop goes on."""

    async def main() -> None:
        failures: list[BaseException] = []
        crashed, other = (TaskScope(name, on_failure=failures.append) for name in ("b", "o"))
        tasks = [crashed.spawn(asyncio.sleep(9), name=name) for name in "12"]
        other.spawn(asyncio.sleep(9), name="1")
        for task in tasks:
            task.cancel()
        await asyncio.sleep(1)
        assert [type(each) for each in failures] == [LoopEndedError]
        # One task alone is cancelled by mistake.
        again = TaskScope("again", on_failure=failures.append)
        again.spawn(asyncio.sleep(9), name="2")
        again.spawn(asyncio.sleep(9), name="1").cancel()
        await asyncio.sleep(1)
        assert type(failures[-1]) is RuntimeError
        assert other.failure is None
        for scope in (crashed, other, again):
            await scope.close()

    run(main)


def test_the_loop_resolves_names() -> None:
    class Names(VirtualLoop):
        async def getaddrinfo(self, host: Any, port: Any, **rest: Any) -> Any:
            return [(socket.AF_INET, rest["type"], 0, "", ("10.0.0.1", port))]

    async def main() -> None:
        assert (await resolve("b0", 9092))[0][4] == ("10.0.0.1", 9092)

    loop = Names()
    simulate(loop, 1)
    loop.run_until_complete(main())
    loop.close()


def test_clients_and_a_broker_with_a_disk_begin_no_thread(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker(
            port=free_port(),
            data_dir=tmp_path,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanisms=["SCRAM-SHA-256"],
            users={"u": "p"},
        ) as broker:
            broker.create_topic("t", 2)
            common: dict[str, Any] = {
                "bootstrap_servers": broker.bootstrap_servers,
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_plain_username": "u",
                "sasl_plain_password": "p",
            }
            partitioner = confluent_settings({"partitioner": "fnv1a_random"}, kind="producer")
            async with (
                AIOKafkaProducer(compression_type="gzip", **partitioner, **common) as producer,
                AIOKafkaConsumer(
                    "t",
                    group_id="g",
                    heartbeat_thread=True,
                    auto_offset_reset="by_duration:P1D",
                    **common,
                ) as consumer,
            ):
                await asyncio.sleep(20)
                placed = await producer.send_and_wait("t", bytes(1_000_000))
                assert placed.timestamp is not None
                assert START_MS + 20_000 <= placed.timestamp < START_MS + 80_000
                record = await consumer.getone()
                assert record.timestamp == placed.timestamp
                tp = TopicPartition("t", record.partition)
                assert (consumer.last_poll_timestamp(tp) or 0) >= START_MS + 20_000

    run(main)
    assert list(tmp_path.iterdir())
