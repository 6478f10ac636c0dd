"""The stages of a consumer: the table of moves, who moves, and what is told of it."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._chance import Chance
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.client.life import OVER, WITH_PARTS, Stage
from aiokafka_lite.consumer.buffer.decode import make_delivery
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.life import Engine
from aiokafka_lite.consumer.monitoring.loop_probe import LoopProbe
from aiokafka_lite.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    FencedInstanceIdError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
)
from aiokafka_lite.events import ConsumerEvent, LoopBlocked, TaskRestarted
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle
from tests.support.listeners import Acting
from tests.support.reading import consumer_of
from tests.support.stages import path_to
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import until

STOPPING = [Stage.STARTING, Stage.FINISHING, Stage.STOPPING]
TP, OTHER = TopicPartition("t", 0), TopicPartition("other", 0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with ten records in each of two topics."""
    async with Broker() as broker:
        for tp in (TP, OTHER):
            broker.create_topic(tp.topic)
            broker.produce_all(tp.topic, [NewRecord(b"%d" % number) for number in range(10)])
        yield broker


@pytest.mark.parametrize("stage", Stage)
async def test_gets_raise_what_fits_the_stage(stage: Stage) -> None:
    engine = engine_with(Parts(), *path_to(stage))
    if stage in WITH_PARTS:
        engine.core.gate.check()
        return
    with pytest.raises(ConsumerStoppedError if stage in OVER else IllegalStateError):
        engine.core.gate.check()
    assert engine.is_over == (stage in OVER)


@pytest.mark.real_if_long
async def test_the_repr_says_the_stage(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    made = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers, client_id="me")
    assert repr(made) == "<AIOKafkaConsumer of 'me' in group None, not started>"
    starting = asyncio.ensure_future(made.start())
    await asyncio.sleep(0)
    assert repr(made).endswith(", starting>")
    await starting
    assert repr(made).endswith(", running>")
    stopping = asyncio.ensure_future(made.stop())
    await asyncio.sleep(0)
    assert repr(made).endswith(", stopping>")
    await stopping
    assert repr(made).endswith(", stopped>")


async def test_a_start_that_failed_leaves_it_new() -> None:
    made = AIOKafkaConsumer("t", bootstrap_servers="localhost:1", request_timeout_ms=500)
    for _ in range(2):
        with pytest.raises(KafkaConnectionError):
            await made.start()
        assert "not started" in repr(made)
    assert "start() failed" in made.health().reasons[0]
    async with timeout(5):
        await made.stop()
    assert "start() had failed" in made.health().reasons[0]


async def test_what_an_async_with_was_left_by_is_told_unless_it_was_stopped_before() -> None:
    for is_stopped in (False, True):
        made = AIOKafkaConsumer("t")
        events = made.events()
        if is_stopped:
            await made.stop()
        await made.__aexit__(ValueError, ValueError("a bug"), None)
        assert ("ended with ValueError('a bug')" in made.health().reasons[0]) is not is_stopped
        assert [event async for event in events] == []  # they end with the stop


# --- What the engine passes on ----------------------------------------------------------------
class Parts:
    """Stands in for the parts of a started consumer."""

    def __init__(self, refusal: KafkaError | None = None) -> None:
        self.sources = self.commits = self
        self.told: list[str] = []
        self._refusal = refusal

    def budget_released(self) -> None:
        self.told.append("bytes")

    def choose_anew(self) -> None:
        self.told.append("choice")

    def watch_topics(self) -> None:
        """Do nothing."""

    async def commit(self, offsets: object) -> None:
        if self._refusal is not None:
            raise self._refusal


def engine_with(parts: Parts, *stages: Stage) -> Engine:
    config, events = ConsumerConfig(max_buffered_bytes=1_000), Events()
    engine = Engine(config, events, make_delivery(config, events), LoopProbe, Chance("1"))
    engine.parts = cast("Any", parts)
    for stage in stages:
        engine.enter(stage)
    return engine


async def test_sources_are_told_of_bytes_that_they_lack_and_of_partitions_that_reads_wait_for() -> (
    None
):
    parts = Parts()
    engine = engine_with(parts, Stage.STARTING)
    held = engine.core.buffer.budget.reserve(1_000, 1_000)
    assert held is not None
    assert engine.core.buffer.budget.reserve(1, 1) is None
    held.release()
    assert parts.told == ["bytes"]
    engine.core.state.assign_from_user([TP, OTHER])
    reading = asyncio.ensure_future(engine.gets.one({TP}))
    await asyncio.sleep(0)
    engine.core.buffer.make_room(is_behind=True)
    assert parts.told == ["bytes", "choice"]
    reading.cancel()
    await asyncio.wait([reading])
    await asyncio.sleep(0)
    engine.current = None
    engine.core.buffer.make_room(is_behind=True)


@pytest.mark.parametrize(
    ("stages", "refusal", "raised"),
    [
        ([Stage.STARTING], KafkaError("refused"), KafkaError),
        (STOPPING, KafkaError("refused"), CommitFailedError),
        ([Stage.STARTING], FencedInstanceIdError("fenced"), FencedInstanceIdError),
        (STOPPING, FencedInstanceIdError("fenced"), FencedInstanceIdError),
    ],
)
async def test_a_commit_that_a_stop_cuts_off_says_so_unless_another_member_has_the_place(
    stages: list[Stage], refusal: KafkaError, raised: type[KafkaError]
) -> None:
    engine = engine_with(Parts(refusal), *stages)
    with pytest.raises(KafkaError) as caught:
        await engine.commit(None)
    assert type(caught.value) is raised


# --- While it runs ----------------------------------------------------------------------------
@pytest.mark.virtual_time
async def test_what_waits_for_a_partition_sees_each_change_at_once(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    async with consumer_of(broker) as made:
        made.assign([TP])
        assert await made.seek_to_end(TP) is True
        assert await made.position(TP) == 10
        made.incremental_assign([OTHER])
        assert (await made.getone(OTHER)).offset == 0
        with broker.on("ListOffsets").hold(times=None):
            seeking = asyncio.ensure_future(made.seek_to_beginning(TP))
            asking = asyncio.ensure_future(made.position(TP))
            await asyncio.sleep(0.1)
            made.unsubscribe()
            assert await seeking is True  # there is nothing left to wait for
            with pytest.raises(IllegalStateError):
                await asking
        made.subscribe(["other"])
        assert (await made.getone()).topic == "other"
    assert loop.time() - began_at < 5.0


@pytest.mark.virtual_time
async def test_a_position_that_is_not_found_is_waited_for_as_long_as_a_request(
    broker: Broker,
) -> None:
    loop = asyncio.get_running_loop()
    async with consumer_of(broker, request_timeout_ms=7_000) as made:
        made.assign([TP])
        with broker.on("ListOffsets").silence(times=None):
            began_at = loop.time()
            assert await made.seek_to_beginning(TP) is False
            with pytest.raises(
                KafkaTimeoutError, match=r"position of .* within request_timeout_ms=7000"
            ):
                await made.position(TP)
            assert loop.time() - began_at == pytest.approx(14.0, abs=0.1)


@pytest.mark.virtual_time
async def test_the_loop_and_the_tasks_are_watched(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    failures = [KafkaConnectionError("once")]

    async def fail_once() -> None:
        if failures:
            raise failures.pop()

    made = consumer_of(broker)
    events = made.events()
    async with made:
        loop.pass_time(1.1)
        inside.supervise(made, "positions", fail_once, name="flaky", first_delay_s=0.01)
        await asyncio.sleep(1.0)
    seen = [event async for event in events]
    assert [event.task for event in seen if isinstance(event, TaskRestarted)] == ["flaky"]
    assert [event.blocked_s > 0.8 for event in seen if isinstance(event, LoopBlocked)] == [True]


@pytest.mark.virtual_time
async def test_a_stop_leaves_a_fifth_of_its_time_to_commits(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    made = consumer_of(broker, "t", group_id="g", ack_mode="explicit", rebalance_hold_ms=60_000)
    await made.start()
    await made.getone()  # which nobody acknowledges
    began_at = loop.time()
    await made.stop(timeout=10)
    assert loop.time() - began_at == pytest.approx(8.0, abs=0.5)


@pytest.mark.virtual_time
async def test_a_stop_waits_for_a_block_as_long_as_that_takes(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    made = consumer_of(broker, "t", group_id="g", rebalance_hold_ms=60_000)
    await made.start()
    entered, left_s = asyncio.Event(), list[float]()

    async def work() -> None:
        async with made.batch() as batch:
            entered.set()
            await batch.revoking
            left_s.append(batch.revoking.left_s)
            await asyncio.sleep(1.0)

    working = asyncio.ensure_future(work())
    await entered.wait()
    began_at = loop.time()
    assert await made.stop(timeout=10) == {}
    assert loop.time() - began_at == pytest.approx(1.0, abs=0.5)
    assert left_s == [pytest.approx(8.0, abs=0.1)]
    await working


@pytest.mark.virtual_time
async def test_no_partition_is_revoked_between_the_begin_of_a_stop_and_its_commit(
    broker: Broker,
) -> None:
    async def end_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3.0)

    broker.create_topic("two", 2)
    made, other = (
        consumer_of(broker, "two", group_id="g", heartbeat_interval_ms=100) for _ in range(2)
    )
    await made.start()
    inside.supervise(made, "fetch", end_slowly, name="slow", first_delay_s=0.01)
    await asyncio.sleep(0.1)
    stopping = asyncio.ensure_future(made.stop())
    starting = asyncio.ensure_future(other.start())
    await asyncio.sleep(2.0)
    assert not stopping.done()
    assert len(made.assignment()) == 2
    await asyncio.wait([stopping, starting])
    await other.stop()


@pytest.mark.virtual_time
@pytest.mark.parametrize("turns", [1, 5, 10])
async def test_a_start_that_is_stopped_ends_with_that(broker: Broker, turns: int) -> None:
    made = consumer_of(broker, "t")
    starting = asyncio.ensure_future(made.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not starting.done()
    first, second = await asyncio.gather(made.stop(), made.stop())
    assert first == second == {}
    assert asyncio.get_running_loop().time() < 5.0
    with pytest.raises(ConsumerStoppedError, match=r"stopped before start\(\) returned"):
        await starting
    assert await made.stop() == {}


@pytest.mark.virtual_time
async def test_a_start_may_be_tried_again_while_a_cancelled_one_is_undone(broker: Broker) -> None:
    made = consumer_of(broker, "t")
    first = asyncio.ensure_future(made.start())
    for _ in range(5):
        await asyncio.sleep(0)
    first.cancel()
    second = asyncio.ensure_future(made.start())
    await asyncio.wait([first, second])
    assert first.cancelled()
    await second
    assert (await made.getone()).offset == 0
    with pytest.raises(AssertionError, match="started only once"):
        await made.start()
    await made.stop()


@pytest.mark.virtual_time
async def test_a_start_that_is_cancelled_leaves_no_partition_assigned(broker: Broker) -> None:
    async def never_return(_: AIOKafkaConsumer, __: set[TopicPartition]) -> None:
        await asyncio.get_running_loop().create_future()

    made = consumer_of(broker, group_id="g")
    listener = Acting(assigned=never_return)
    listener.consumer = made
    made.subscribe(["t"], listener=listener)
    starting = asyncio.ensure_future(made.start())
    await until(lambda: made.assignment() == {TP})
    starting.cancel()
    await asyncio.wait([starting])
    assert made.assignment() == set()
    await made.stop()


@pytest.mark.virtual_time
async def test_a_stopped_consumer_holds_no_records(broker: Broker) -> None:
    made = consumer_of(broker, "t")
    await made.start()
    await made.getone()
    await made.stop()
    assert made.metrics()["buffered_bytes"] == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_at_once", [False, True])
async def test_the_holder_of_a_consumer_that_was_given_up_may_stop_it(
    broker: Broker, is_at_once: bool
) -> None:
    """The loop's exception handler is the last who has it."""
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def use() -> AsyncIterator[ConsumerEvent]:
        made = consumer_of(broker, "t")
        await made.start()
        await made.getone()
        return made.events()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        events = await use()
        gc.collect()
    (context,) = told
    held = context.pop("consumer")
    assert isinstance(held, AIOKafkaConsumer)
    if not is_at_once:
        await asyncio.sleep(0.1)
        assert repr(held).endswith(", abandoned>")
        assert held.metrics()["buffered_bytes"] == 0
        assert [event async for event in events] == []
    assert await held.stop() == {}
    await asyncio.sleep(0.1)
    assert len(told) == 1
