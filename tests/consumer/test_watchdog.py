"""The watchdog: how long there is no position, and brokers that nobody needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.offsets import LATEST
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.positions import resolver
from aiokafka_lite.consumer.positions.resolver import LONG_S, STALE_S, LogEnds, Watchdog
from aiokafka_lite.errors import NotLeaderForPartitionError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside, tuning
from tests.support.cluster import KafkaHandle
from tests.support.events import next_event
from tests.support.reading import reading
from tests.support.states import State

TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def fast_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.watch_often(monkeypatch)


async def test_how_long_there_is_no_position_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 1)
        broker.produce("t", b"first")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        refusal = broker.on("ListOffsets").fail(NotLeaderForPartitionError, times=None)
        async with reading(kafka, "t", retry_backoff_ms=10) as consumer:
            looker = inside.watchdog(consumer)
            async with _compat.timeout(TIMEOUT_S):
                while looker.assigned_without_position_s < 0.05:
                    await consumer.poll(timeout_ms=10)
            waited_s = consumer.metrics()["assigned_without_position_seconds"]
            assert isinstance(waited_s, float)
            assert waited_s >= 0.05
            tuning.miss_positions_soon(monkeypatch)
            assert "no position for" in " ".join(consumer.health().reasons)
            refusal.remove()
            assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value == b"first"
            async with _compat.timeout(TIMEOUT_S):
                while looker.assigned_without_position_s:
                    await consumer.poll(timeout_ms=10)


async def test_a_broker_that_nobody_needs_is_known_to_be_back() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", replication_factor=1)
        leader = broker.partition("t", 0).leader_id
        addresses = broker.bootstrap_servers.split(",")
        (unneeded,) = {1, 2} - {leader}
        handle = KafkaHandle("embedded", addresses[unneeded - 1])
        async with reading(handle, retry_backoff_ms=10) as consumer, _compat.timeout(TIMEOUT_S):
            consumer.assign([TopicPartition("t", 0)])
            await inside.until_in_flight(consumer)
            with consumer.events() as events:
                await broker.stop_node(unneeded, clean=False)
                assert (await next_event(events)).name == "broker_down"
                await broker.start_node(unneeded)
                assert (await next_event(events)).name == "broker_up"
            assert consumer.health().is_ok


# --- What each look finds ------------------------------------------------------------------------
class Looked:
    """A watchdog that looks every second at five partitions, and what it asks of others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resolver, "TICK_S", 1.0)
        self.state = State()
        self.state.assign_from_user(TopicPartition("t", number) for number in range(5))
        self.cursors = list(self.state.assignment.values())
        self.stale = set(self.cursors)
        self.asked: list[list[Cursor]] = []
        self.woken: list[float] = []
        self.on_look: Callable[[], object] = list
        loop = asyncio.get_running_loop()
        self.watchdog = Watchdog(
            self.state.core(),
            cast("Any", SimpleNamespace(pool=self)),
            cast("Any", self),
            cast("Any", SimpleNamespace(wake=lambda: self.woken.append(loop.time()))),
        )
        self._task = asyncio.create_task(self.watchdog.run())

    def try_lost(self) -> None:
        self.on_look()

    def is_stale(self, cursor: Cursor, now: float) -> bool:
        return cursor in self.stale

    def ask(self, stale: list[Cursor]) -> None:
        self.asked.append(stale)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.mark.virtual_time
async def test_the_resolver_is_woken_when_a_position_is_missing_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = Looked(monkeypatch)
    state, (paused, moved, revoked, lost, other) = looked.state, looked.cursors
    state.pause(paused)
    state.start_at(revoked, 5)
    state.request_validation(revoked)
    state.withhold([revoked.tp, lost.tp])
    for cursor in (moved, other):
        state.start_at(cursor, 0)
    await asyncio.sleep(2.5)
    assert looked.watchdog.assigned_without_position_s == 1.5
    state.change([lost.tp], ())
    await asyncio.sleep(1)
    assert looked.watchdog.assigned_without_position_s == 0.0
    state.request_reset(moved, LATEST)
    await asyncio.sleep(1 + LONG_S)
    assert looked.watchdog.assigned_without_position_s == 0.5 + LONG_S
    assert not looked.woken
    await asyncio.sleep(1)
    assert looked.woken == [4 + LONG_S + 1]
    state.start_at(moved, 0)
    await asyncio.sleep(1)
    assert len(looked.woken) == 1
    await looked.end()


class Settled:
    """A transaction that has decided on its records."""

    is_over = is_settled = True

    def hold(self, block: object) -> None:
        """Do nothing."""


@pytest.mark.virtual_time
async def test_a_partition_stands_still_while_its_first_unfinished_offset_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = Looked(monkeypatch)
    state, (paused, standing, at_end, decided, ahead) = looked.state, looked.cursors
    for cursor in looked.cursors:
        state.start_at(cursor, 0)
        cursor.answered(0.0, 10, 10, 0)
    for cursor in (paused, standing):
        state.reads.hand_out(cursor, 0, 5, ())
    state.start_at(at_end, 10)
    state.start_at(decided, 10)
    decided.await_outcome(Settled(), 3)
    state.start_at(ahead, 12)
    state.pause(paused)
    settled: list[float] = []
    state.reads.set_settler(lambda: settled.append(asyncio.get_running_loop().time()))
    await asyncio.sleep(3.5)
    assert settled == [1, 2, 3]

    def still_s() -> list[float]:
        return [looked.watchdog.standstill_s(cursor, 3.5) for cursor in looked.cursors]

    assert still_s() == [0, 2.5, 0, 0, 0]
    state.reads.begin_get()
    assert still_s() == [0, 0, 0, 0, 0]
    await asyncio.sleep(2)
    assert looked.watchdog.standstill_s(standing, 5.5) == 1.5
    await looked.end()


@pytest.mark.virtual_time
async def test_very_many_partitions_are_looked_at_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver, "MOST_AT_ONCE", 2)
    looked = Looked(monkeypatch)
    first, fresh, gone, second, third = looked.cursors
    looked.state.pause(first)
    looked.stale.remove(fresh)
    loop = asyncio.get_running_loop()
    looked.on_look = lambda: loop.call_soon(looked.state.remove_from_user, [gone.tp])
    await asyncio.sleep(1.5)
    assert looked.asked == [[first, second, third]]
    await looked.end()


async def test_the_end_of_a_log_is_stale_unless_a_broker_has_named_it_lately_or_is_about_to() -> (
    None
):
    asked: set[Cursor] = set()
    nothing = cast("Any", None)
    fetches = cast("Any", SimpleNamespace(is_asking_for=asked.__contains__))
    lookup = cast("Any", SimpleNamespace(ask=None))
    ends = LogEnds(State().core(ConsumerConfig(), rng=nothing), nothing, lookup, fetches, nothing)
    cursor = Cursor(TopicPartition("t", 0))
    assert not ends.is_stale(cursor, 100.0)  # its position is looked up
    cursor.start_at(5, -1, -1, is_in_work=False)
    assert ends.is_stale(cursor, 100.0)
    cursor.answered(100.0, 9, 9, 0)
    assert [ends.is_stale(cursor, 100.0 + STALE_S + more_s) for more_s in (0, 1)] == [False, True]
    asked.add(cursor)
    assert not ends.is_stale(cursor, 200.0)
