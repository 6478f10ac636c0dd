"""A membership is a lease: a member that is cut off hands out nothing once its session is over."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any, Final, cast

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.heartbeat import Lease
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.errors import (
    FencedMemberEpochError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.iterations import plain_consumer
from tests.support.listeners import Acting, Losing
from tests.support.states import State
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import until

TP: Final = TopicPartition("t", 0)
SESSION_S: Final = 0.5
BEAT_S: Final = 0.05
EAGER: Final[dict[str, object]] = {"group_protocol": "classic"}
COOPERATIVE: Final[dict[str, object]] = {
    "partition_assignment_strategy": (CooperativeStickyPartitionAssignor,)
}
CONSUMER: Final[dict[str, object]] = {"group_protocol": "consumer"}
BEATS: Final = ("Heartbeat", "ConsumerGroupHeartbeat")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with short sessions, and the topics "t" and "u"."""
    async with Broker(
        group_min_session_timeout_ms=100,
        group_consumer_session_timeout_ms=int(SESSION_S * 1000),
        group_consumer_heartbeat_interval_ms=int(BEAT_S * 1000),
    ) as broker:
        broker.create_topic("t")
        broker.create_topic("u")
        yield broker


@asynccontextmanager
async def member(
    broker: Broker,
    settings: dict[str, object],
    made_of: type[AIOKafkaConsumer] = AIOKafkaConsumer,
) -> AsyncIterator[tuple[AIOKafkaConsumer, Losing]]:
    """A member that has been handed a record."""
    listener = Losing()
    arguments: dict[str, object] = {
        "session_timeout_ms": int(SESSION_S * 1000),
        "heartbeat_interval_ms": int(BEAT_S * 1000),
        "retry_backoff_ms": 20,
        "fetch_max_wait_ms": 50,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        **settings,
    }
    async with made_of(
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        **arguments,  # type: ignore[arg-type]
    ) as consumer:
        consumer.subscribe(["t"], listener=listener)
        await next_of(broker, consumer)
        yield consumer, listener


async def next_of(broker: Broker, consumer: AIOKafkaConsumer) -> None:
    """Write a record, and be handed it."""
    broker.produce("t", b"x")
    await asyncio.wait_for(consumer.getone(), 5)


def holds(consumer: AIOKafkaConsumer) -> frozenset[Hold]:
    return inside.gate(consumer).holds


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "settings", [EAGER, COOPERATIVE, CONSUMER], ids=["eager", "cooperative", "consumer"]
)
async def test_a_member_that_is_cut_off_hands_out_nothing_until_it_is_answered(
    broker: Broker, settings: dict[str, object]
) -> None:
    async with member(broker, settings) as (consumer, _):
        with ExitStack() as cut_off:
            for api in BEATS:
                cut_off.enter_context(broker.on(api).silence(None, handled=True))
            await until(lambda: Hold.CUT_OFF in holds(consumer))
            assert consumer.assignment() == {TP}
            broker.produce("t", b"x")
            assert await consumer.getmany(timeout_ms=200) == {}
            assert "no heartbeat was answered within" in consumer.explain(TP)
        await asyncio.wait_for(consumer.getone(), 5)
        assert holds(consumer) == frozenset()


async def by_async_for(consumer: AIOKafkaConsumer, got: Callable[[object], None]) -> None:
    async for record in consumer:
        got(record)
        return


async def by_getone(consumer: AIOKafkaConsumer, got: Callable[[object], None]) -> None:
    got(await consumer.getone())


async def by_getmany(consumer: AIOKafkaConsumer, got: Callable[[object], None]) -> None:
    got(await consumer.getmany(timeout_ms=60_000))


async def by_poll(consumer: AIOKafkaConsumer, got: Callable[[object], None]) -> None:
    got(await consumer.poll(60_000))


async def by_batch(consumer: AIOKafkaConsumer, got: Callable[[object], None]) -> None:
    async with consumer.batch(timeout_ms=60_000) as batch:
        got(batch)


async def by_run(consumer: AIOKafkaConsumer, got: Callable[[object], None]) -> None:
    is_called = asyncio.Event()

    async def handle(record: object) -> None:
        got(record)
        is_called.set()

    running = asyncio.ensure_future(consumer.run(handle))
    await is_called.wait()
    running.cancel()
    await asyncio.wait([running])


WAYS: Final = (by_async_for, by_getone, by_getmany, by_poll, by_batch, by_run)


@pytest.mark.virtual_time
@pytest.mark.parametrize("made_of", [AIOKafkaConsumer, plain_consumer()], ids=["as built", "plain"])
async def test_a_waiting_read_returns_nothing_after_a_block_of_a_session(
    broker: Broker, made_of: type[AIOKafkaConsumer]
) -> None:
    """The loop is blocked before a timer, and before the record arrives or is returned."""
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
    for read in WAYS:
        returned: list[object] = []
        async with member(broker, EAGER, made_of) as (consumer, _):
            for turn_count in range(100):
                await consumer.commit()  # it is assigned anew after a block
                reading = asyncio.ensure_future(read(consumer, returned.append))
                await asyncio.sleep(0.01)
                broker.produce("t", b"x")
                for _ in range(turn_count):
                    await asyncio.sleep(0)
                if len(returned) > turn_count:
                    break
                with broker.on("Heartbeat").silence(None):
                    loop.pass_time(SESSION_S)
                    await asyncio.sleep(0.05)
                    assert len(returned) == turn_count, (read, turn_count)
                    assert Hold.CUT_OFF in holds(consumer)
                await asyncio.wait_for(reading, 5)
            await asyncio.wait_for(reading, 5)
            await consumer.commit()
        assert len(returned) > 1, read


@asynccontextmanager
async def slow_to_revoke(
    broker: Broker, settings: dict[str, object]
) -> AsyncIterator[AIOKafkaConsumer]:
    """A member whose listener returns only at the end when partitions are revoked."""
    may_end = asyncio.Event()

    async def take_long(_: AIOKafkaConsumer, revoked: set[TopicPartition]) -> None:
        await may_end.wait()

    async with member(broker, settings) as (consumer, _):
        listener = Acting(revoked=take_long)
        listener.consumer = consumer
        consumer.subscribe(["t"], listener=listener)
        await next_of(broker, consumer)
        try:
            yield consumer
        finally:
            may_end.set()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "settings", [EAGER, COOPERATIVE, CONSUMER], ids=["eager", "cooperative", "consumer"]
)
async def test_a_member_that_is_cut_off_reads_partitions_that_it_assigns_itself(
    broker: Broker, settings: dict[str, object]
) -> None:
    async with slow_to_revoke(broker, settings) as consumer:
        with ExitStack() as cut_off:
            for api in BEATS:
                cut_off.enter_context(broker.on(api).silence(None, handled=True))
            await until(lambda: Hold.CUT_OFF in holds(consumer))
            reading = asyncio.ensure_future(consumer.getone())
            await asyncio.sleep(0)
            consumer.unsubscribe()
            consumer.assign([TP])
            assert holds(consumer) == frozenset()
            assert (await asyncio.wait_for(reading, 5)).offset == 0


@pytest.mark.virtual_time
async def test_a_member_that_the_group_removes_reads_partitions_that_it_assigned_itself(
    broker: Broker,
) -> None:
    async with slow_to_revoke(broker, COOPERATIVE) as consumer:
        consumer.unsubscribe()
        consumer.assign([TP])
        broker.on("Heartbeat").fail(UnknownMemberIdError)
        await until(lambda: consumer.metrics()["heartbeat_failures_total"])
        assert (await asyncio.wait_for(consumer.getone(), 5)).offset == 0


@pytest.mark.virtual_time
async def test_a_member_that_the_group_removed_reads_partitions_that_it_then_assigns_itself(
    broker: Broker,
) -> None:
    async def assign_once_removed(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> None:
        broker.on("Heartbeat").fail(UnknownMemberIdError)
        await until(lambda: holds(consumer) == {Hold.LOST})
        consumer.unsubscribe()
        consumer.assign([TP])

    async with member(broker, COOPERATIVE) as (consumer, _):
        listener = Acting(revoked=assign_once_removed)
        listener.consumer = consumer
        consumer.subscribe(["t"], listener=listener)
        await until(lambda: inside.is_settled(consumer))
        consumer.subscribe(["u"], listener=listener)
        await until(lambda: listener.results)
        assert (await asyncio.wait_for(consumer.getone(), 5)).offset == 0


async def test_what_is_kept_is_handed_out_while_a_join_takes_longer_than_a_session(
    broker: Broker,
) -> None:
    async with member(broker, COOPERATIVE) as (consumer, listener):
        with broker.on("JoinGroup").hold() as rule:
            consumer.subscribe(["t", "u"], listener=listener)
            await rule.reached()
            loop = asyncio.get_running_loop()
            ends_at = loop.time() + 2 * SESSION_S
            while loop.time() < ends_at:
                await next_of(broker, consumer)
                assert holds(consumer) == frozenset()
            with broker.on("Heartbeat").silence(None):
                await until(lambda: holds(consumer) == {Hold.CUT_OFF})
                broker.produce("t", b"x")
                assert await consumer.getmany(timeout_ms=100) == {}


@pytest.mark.virtual_time
async def test_a_group_that_rebalances_keeps_the_lease_and_the_pace_while_a_listener_is_busy(
    broker: Broker,
) -> None:
    loop = asyncio.get_running_loop()
    count = round(3 * SESSION_S / BEAT_S)
    settings = {**COOPERATIVE, "rebalance_timeout_ms": 60_000, "rebalance_hold_ms": 0}
    async with AsyncExitStack() as others:

        async def take_three_sessions(
            consumer: AIOKafkaConsumer, _: set[TopicPartition]
        ) -> tuple[float, frozenset[Hold]]:
            joining = asyncio.create_task(others.enter_async_context(member(broker, settings)))
            began_at, since = loop.time(), broker.requests.total
            await broker.requests.wait_for(
                "Heartbeat", count=count, since=since, error=RebalanceInProgressError
            )
            others.push_async_callback(asyncio.wait, {joining})
            return loop.time() - began_at, holds(consumer)

        async with member(broker, settings) as (consumer, first):
            consumer.subscribe(["t", "u"], listener=first)
            await until(lambda: len(consumer.assignment()) == 2)
            listener = Acting(revoked=take_three_sessions)
            listener.consumer = consumer
            consumer.subscribe(["u"], listener=listener)
            await until(lambda: listener.results)
            assert listener.results == [(pytest.approx(3 * SESSION_S, abs=2 * BEAT_S), frozenset())]


async def test_a_heartbeat_of_the_generation_before_holds_what_is_kept_until_the_join_is_answered(
    broker: Broker,
) -> None:
    async with member(broker, COOPERATIVE) as (consumer, listener):
        with broker.on("JoinGroup").hold() as joining:
            broker.on("Heartbeat").fail(IllegalGenerationError)
            consumer.subscribe(["t", "u"], listener=listener)
            await joining.reached()
            await until(lambda: holds(consumer) == {Hold.LOST})
            broker.produce("t", b"x")
            assert await consumer.getmany(timeout_ms=100) == {}
        await asyncio.wait_for(consumer.getone(), 5)
        await until(lambda: len(consumer.assignment()) == 2)
    assert [name for name, tps in listener.calls if tps] == ["assigned", "assigned"]


@pytest.mark.virtual_time
async def test_a_member_that_a_heartbeat_drops_returns_nothing_while_its_listener_is_busy(
    broker: Broker,
) -> None:
    may_end = asyncio.Event()

    async def take_long(_: AIOKafkaConsumer, assigned: set[TopicPartition]) -> None:
        await may_end.wait()

    async with member(broker, CONSUMER) as (consumer, _):
        listener = Acting(assigned=take_long)
        listener.consumer = consumer
        consumer.subscribe(["t", "u"], listener=listener)
        await until(lambda: len(consumer.assignment()) == 2)
        await next_of(broker, consumer)
        broker.on("ConsumerGroupHeartbeat").fail(FencedMemberEpochError)
        await until(lambda: consumer.metrics()["heartbeat_failures_total"])
        broker.produce("t", b"x")
        assert await consumer.getmany(timeout_ms=200) == {}
        assert not listener.results
        may_end.set()
        await asyncio.wait_for(consumer.getone(), 5)


async def test_what_is_kept_is_lost_before_the_pause_after_a_join_that_was_refused(
    broker: Broker,
) -> None:
    settings = {**COOPERATIVE, "retry_backoff_ms": 3000}
    async with member(broker, settings) as (consumer, listener):
        broker.on("JoinGroup").fail(UnknownMemberIdError)
        joins = len(broker.requests.of("JoinGroup"))
        consumer.subscribe(["t", "u"], listener=listener)
        await until(lambda: ("lost", {TP}) in listener.calls and not consumer.assignment())
        assert len(broker.requests.of("JoinGroup")) == joins + 1


# --- Without a group --------------------------------------------------------------------------
class Looks:
    """What a lease is made with, and how often it looks."""

    def __init__(self) -> None:
        self.state = State()
        self.state.subscribe(["t"])
        self.gate = self.state.gate
        self.count = 0
        self.is_handing_out = True
        self.identity = Identity("m", 1)
        self.member = self.thread = cast("Any", self)
        self.elsewhere = (-math.inf, False)
        self.is_there = False

    @property
    def delivers(self) -> bool:
        self.count += 1
        return self.is_handing_out

    def heard(self, identity: Identity) -> tuple[float, bool]:
        assert identity is self.identity
        return self.elsewhere

    @property
    def is_held(self) -> bool:
        return Hold.CUT_OFF in self.gate.holds


@pytest.mark.virtual_time
async def test_a_lease_is_over_a_session_after_it_was_last_renewed() -> None:
    looks = Looks()
    lease = Lease(10.0, looks.gate, looks.state, looks.member, looks.thread)
    lease.look()
    await asyncio.sleep(20)
    assert (looks.count, looks.is_held) == (1, False)  # nothing was answered yet
    lease.renew(20.0)
    await asyncio.sleep(6)
    lease.renew(24.0)
    await asyncio.sleep(7.89)
    assert not looks.is_held
    await asyncio.sleep(0.02)
    assert looks.is_held
    lease.renew(33.91)
    assert not looks.is_held


@pytest.mark.virtual_time
async def test_the_gate_looks_by_the_lease_that_was_renewed_last() -> None:
    loop, looks = asyncio.get_running_loop(), Looks()
    assert isinstance(loop, VirtualTimeLoop)
    former, lease = (
        Lease(10.0, looks.gate, looks.state, looks.member, looks.thread) for _ in range(2)
    )
    former.renew(loop.time())
    lease.renew(loop.time())
    former.end()  # its task ends when the other member has joined already
    looks.gate.look_if_due(loop.time())
    assert not looks.is_held
    loop.pass_time(20)  # a blocked loop runs no timer
    looks.gate.look_if_due(loop.time())
    assert looks.is_held
    lease.end()
    assert not looks.is_held
    lease.renew(loop.time())  # by a task that was started again
    loop.pass_time(20)
    looks.gate.look()
    assert looks.is_held


@pytest.mark.virtual_time
async def test_a_lease_that_ended_holds_nothing_and_looks_no_more() -> None:
    looks = Looks()
    lease = Lease(10.0, looks.gate, looks.state, looks.member, looks.thread)
    lease.renew(0.0)
    await asyncio.sleep(20)
    assert looks.is_held
    looks.elsewhere = (0.0, True)
    lease.end()
    assert not looks.is_held
    looks.elsewhere = (0.0, False)
    lease.renew(20.0)
    lease.end()
    count = looks.count
    await asyncio.sleep(20)
    assert looks.count == count


@pytest.mark.virtual_time
async def test_a_lease_counts_what_was_heard_elsewhere() -> None:
    looks = Looks()
    lease = Lease(10.0, looks.gate, looks.state, looks.member, looks.thread)
    lease.renew(0.0)
    looks.elsewhere = (8.0, False)
    await asyncio.sleep(17.89)
    assert not looks.is_held
    looks.elsewhere = (8.0, True)
    lease.look()
    assert looks.is_held
    looks.elsewhere = (8.0, False)
    lease.look()
    assert not looks.is_held
    await asyncio.sleep(0.02)
    assert looks.is_held
    looks.is_there = True
    lease.renew(18.0)
    looks.elsewhere = (18.0, True)
    looks.gate.look_if_due(18.0)
    assert looks.is_held


@pytest.mark.virtual_time
async def test_a_lease_of_a_member_that_hands_out_nothing_needs_no_alarm() -> None:
    looks = Looks()
    looks.is_handing_out = False
    lease = Lease(10.0, looks.gate, looks.state, looks.member, looks.thread)
    lease.renew(0.0)
    await asyncio.sleep(20)
    assert (looks.count, looks.is_held) == (1, False)
    looks.is_handing_out = True
    lease.look()
    assert looks.is_held
