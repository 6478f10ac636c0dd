"""Stopping: at any moment, whatever brokers do, twice, at once, from a callback, cancelled."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.broker.faults import Rule
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.errors import CommitFailedError, ConsumerStoppedError, IllegalStateError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.interruptions import How, Interrupted, Stepped, interrupted
from tests.support.leftovers import nothing_left
from tests.support.listeners import Calls
from tests.support.protocols import JOIN, goodbyes, in_both_protocols
from tests.support.reading import reading
from tests.support.rounds import LONG
from tests.support.rows import rows

TP = TopicPartition("t", 0)
FIVE = {TP: OffsetAndMetadata(5, "")}
TEN = [NewRecord(b"%d" % number) for number in range(10)]
# How long a stop may take beyond its timeout: several steps get a moment each, on a busy machine.
GRACE_S = 5.0


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with ten records in "t"."""
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce_all("t", TEN)
        yield broker


def consumer_of(servers: str, *topics: str, **arguments: object) -> AIOKafkaConsumer:
    settings: dict[str, object] = {
        "bootstrap_servers": servers,
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 50,
        "auto_commit_interval_ms": 60_000,
        "retry_backoff_ms": 10,
        **arguments,
    }
    return AIOKafkaConsumer(*topics, **settings)  # type: ignore[arg-type]


async def started(servers: str, **arguments: object) -> AIOKafkaConsumer:
    """A consumer that was handed five records, none of which is committed."""
    consumer = consumer_of(servers, "t", **arguments)
    await consumer.start()
    for _ in range(5):
        await consumer.getone()
    return consumer


async def timed(stopping: Awaitable[object]) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await stopping
    return loop.time() - began


# --- Cancelled -----------------------------------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.parametrize("how", How)
async def test_a_stop_cancelled_at_any_await_leaves_nothing_and_the_next_tells_the_rest(
    kafka: KafkaHandle, how: How
) -> None:
    topic, tp = await kafka.create_topic(), TopicPartition("", 0)
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    step = 1
    while True:
        group = unique("group")
        consumer = consumer_of(kafka.bootstrap_servers, group_id=group)
        consumer.assign([tp])
        async with nothing_left(is_collected=False):
            await consumer.start()
            for _ in range(5):
                await consumer.getone()
            was_cut_off = await interrupted(consumer.stop(), step, how)
            with pytest.raises(ConsumerStoppedError):
                await consumer.getone()
            left = await consumer.stop()
        async with reading(kafka, group_id=group) as successor:
            committed = await successor.committed(tp)
        assert left in ({}, {tp: OffsetAndMetadata(5, "")})
        assert committed == 5 if not left else committed in (None, 5)
        if not was_cut_off:
            assert left == {}
            break
        step += 1 if LONG or kafka.kind == "embedded" else 3
    assert step > 3


@pytest.mark.few_rows(5)
@pytest.mark.every_loop
@pytest.mark.parametrize("how", How)
@in_both_protocols
async def test_a_stop_of_a_member_cancelled_at_any_await_leaves_nothing(
    broker: Broker, protocol: str, how: How
) -> None:
    step = 1
    while True:
        async with nothing_left(is_collected=False):
            consumer = await started(
                broker.bootstrap_servers, group_id=f"g{step}", group_protocol=protocol
            )
            was_cut_off = await interrupted(consumer.stop(), step, how)
            left = await consumer.stop()
        committed = broker.committed(f"g{step}")
        assert committed == {TP: 5} if not left else left == FIVE
        if not was_cut_off:
            assert left == {}
            assert goodbyes(broker)
            return
        step += 1


@pytest.mark.every_loop
@in_both_protocols
async def test_a_stop_cancelled_again_and_again_leaves_nothing(
    broker: Broker, protocol: str
) -> None:
    for first in range(1, 30, 1 if LONG else 3):
        async with nothing_left(is_collected=False):
            consumer = await started(
                broker.bootstrap_servers, group_id=f"g{first}", group_protocol=protocol
            )
            stopping = Stepped(consumer.stop(), lambda k, n=first: k >= n, How.AT_ONCE)  # type: ignore[misc]
            try:
                await stopping.run()
            except Interrupted:
                continue
        return
    pytest.fail("the stop has no end")


@pytest.mark.few_rows(7)
@pytest.mark.every_loop
@pytest.mark.parametrize(
    ("how", "times"),
    [
        *((how, "once") for how in How),
        (How.AT_ONCE, "again and again"),
        (How.ON_WAKING, "again and again"),
    ],
)
@in_both_protocols
async def test_a_start_cancelled_at_any_await_leaves_nothing_and_may_be_tried_again(
    broker: Broker, protocol: str, how: How, times: str
) -> None:
    step = 0
    is_started = False
    while not is_started:
        step += 1

        def is_at(count: int, step: int = step) -> bool:
            return count == step or (count > step and times != "once")

        # A member that could not leave is waited for: each has a group of its own.
        consumer = consumer_of(
            broker.bootstrap_servers, "t", group_id=f"g{step}", group_protocol=protocol
        )
        async with nothing_left(is_collected=False):
            try:
                await Stepped(consumer.start(), is_at, how).run()
                is_started = True
                await consumer.stop()
            except Interrupted:
                with pytest.raises(IllegalStateError, match="not started"):
                    await consumer.getone()
        if not is_started and times == "once" and step % 3 == 0:
            await consumer.start()
            assert (await consumer.getone()).offset == 0
        await consumer.stop()
    assert step > {"classic": 5, "consumer": 4}[protocol]


@pytest.mark.every_loop
@in_both_protocols
async def test_a_start_right_after_a_cancelled_one_waits_until_that_is_undone(
    broker: Broker, protocol: str
) -> None:
    consumer = consumer_of(broker.bootstrap_servers, "t", group_protocol=protocol)
    with broker.on(JOIN[protocol]).hold() as rule:
        first = asyncio.ensure_future(consumer.start())
        await rule.reached()
        first.cancel()
        second = asyncio.ensure_future(consumer.start())
        await asyncio.wait([first])
        assert first.cancelled()
    await second
    assert consumer.assignment() == {TP}
    assert (await consumer.getone()).offset == 0
    await consumer.stop()


class HangingOnce(Calls):
    """Does not return from its first `on_partitions_assigned`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_called = asyncio.Event()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await super().on_partitions_assigned(assigned)
        if not self.is_called.is_set():
            self.is_called.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize(
    "settings",
    [
        {"group_protocol": "classic"},
        {"partition_assignment_strategy": (CooperativeStickyPartitionAssignor,)},
        {"group_protocol": "consumer"},
    ],
    ids=["eager", "cooperative", "consumer"],
)
async def test_a_start_after_one_cancelled_in_the_listener_begins_with_nothing_assigned(
    broker: Broker, settings: dict[str, object]
) -> None:
    listener = HangingOnce()
    consumer = consumer_of(broker.bootstrap_servers, group_id=unique("g"), **settings)
    consumer.subscribe(["t"], listener=listener)
    first = asyncio.ensure_future(consumer.start())
    await listener.is_called.wait()
    assert consumer.assignment() == {TP}
    first.cancel()
    await asyncio.wait([first])
    assert consumer.assignment() == set()
    async with timeout(GRACE_S):
        await consumer.start()
        assert (await consumer.getone()).offset == 0
    assert [call for call in listener.calls if call[1]] == [("assigned", {TP}), ("assigned", {TP})]
    await consumer.stop()


# --- While something else is going on --------------------------------------------------------
@pytest.mark.every_loop
@pytest.mark.parametrize(
    ("group_id", "protocol"), [("g", "classic"), ("g", "consumer"), (None, "auto")]
)
async def test_a_stop_during_the_start_ends_it(
    broker: Broker, group_id: str | None, protocol: str
) -> None:
    turns, is_started = 1, False  # after no turn it has not begun
    while not is_started:
        async with nothing_left(is_collected=False):
            consumer = consumer_of(
                broker.bootstrap_servers, "t", group_id=group_id, group_protocol=protocol
            )
            starting = asyncio.ensure_future(consumer.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            is_started = starting.done()
            async with timeout(GRACE_S):
                assert await consumer.stop() == {}
                if not is_started:
                    with pytest.raises(ConsumerStoppedError):
                        await starting
        turns += 1 if LONG or turns < 10 else 5


@pytest.mark.every_loop
@in_both_protocols
@pytest.mark.parametrize("api", ["ApiVersions", "Metadata", "FindCoordinator", "to join"])
async def test_a_stop_during_a_start_that_gets_no_answer_ends_it(
    broker: Broker, protocol: str, api: str
) -> None:
    async with nothing_left(is_collected=False):
        with broker.on(JOIN[protocol] if api == "to join" else api).hold() as rule:
            consumer = consumer_of(broker.bootstrap_servers, "t", group_protocol=protocol)
            starting = asyncio.ensure_future(consumer.start())
            await rule.reached()
            async with timeout(GRACE_S):
                assert await consumer.stop(timeout=0.1) == {}
                with pytest.raises(ConsumerStoppedError):
                    await starting


Call = Callable[[AIOKafkaConsumer], Coroutine[Any, Any, object]]
# What waits for an answer to a request.
WAITING: dict[str, tuple[str, Call]] = {
    "commit": ("OffsetCommit", lambda c: c.commit()),
    "committed": ("OffsetFetch", lambda c: c.committed(TP)),
    "seek_to_committed": ("OffsetFetch", lambda c: c.seek_to_committed(TP)),
    "seek_to_end": ("ListOffsets", lambda c: c.seek_to_end(TP)),
    "seek_to_beginning": ("ListOffsets", lambda c: c.seek_to_beginning(TP)),
    "end_offsets": ("ListOffsets", lambda c: c.end_offsets([TP])),
    "beginning_offsets": ("ListOffsets", lambda c: c.beginning_offsets([TP])),
    "offsets_for_times": ("ListOffsets", lambda c: c.offsets_for_times({TP: 0})),
    "topics": ("Metadata", lambda c: c.topics()),
}


@pytest.mark.every_loop
@pytest.mark.parametrize("name", WAITING)
async def test_what_waits_for_a_broker_ends_with_the_stop(broker: Broker, name: str) -> None:
    api, call = WAITING[name]
    async with nothing_left(is_collected=False):
        consumer = await started(broker.bootstrap_servers)
        with broker.on(api).hold() as rule:
            calling = asyncio.ensure_future(call(consumer))
            await rule.reached()
            async with timeout(GRACE_S):
                await consumer.stop(timeout=0.1)
                kind = CommitFailedError if name == "commit" else ConsumerStoppedError
                with pytest.raises(kind):
                    await calling


@pytest.mark.every_loop
async def test_a_position_that_is_being_looked_up_ends_with_the_stop(broker: Broker) -> None:
    with broker.on("ListOffsets").hold() as rule:
        consumer = consumer_of(broker.bootstrap_servers, "t")
        await consumer.start()
        asking = asyncio.ensure_future(consumer.position(TP))
        await rule.reached()
        async with timeout(GRACE_S):
            await consumer.stop(timeout=0.1)
            with pytest.raises(ConsumerStoppedError):
                await asking


@pytest.mark.every_loop
async def test_what_waits_for_a_rebalance_ends_with_the_stop(broker: Broker) -> None:
    async with nothing_left(is_collected=False):
        settings = {"group_protocol": "classic", "rebalance_hold_ms": 0}
        consumer = await started(broker.bootstrap_servers, **settings)
        with broker.on("JoinGroup").hold() as rule:
            consumer.subscribe(["t", "u"])
            await rule.reached()
            calls = [
                asyncio.ensure_future(call)
                for call in (consumer.commit(), consumer.getone(), consumer.poll(), anext(consumer))
            ]
            await asyncio.sleep(0.01)
            assert not any(call.done() for call in calls)
            async with timeout(GRACE_S):
                await consumer.stop(timeout=0.1)
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
        # The generation is still good for a commit, which may have succeeded.
        assert outcomes[0] is None or isinstance(outcomes[0], CommitFailedError)
        kinds = [type(outcome) for outcome in outcomes[1:]]
        assert kinds == [ConsumerStoppedError, ConsumerStoppedError, StopAsyncIteration]


async def test_commits_that_wait_for_an_assignment_end_with_the_stop(broker: Broker) -> None:
    settings = {"group_protocol": "classic", "enable_auto_commit": False, "rebalance_hold_ms": 0}
    consumer = await started(broker.bootstrap_servers, **settings)
    with broker.on("SyncGroup").hold() as rule:
        consumer.subscribe(["t", "u"])
        await rule.reached()
        committing = asyncio.ensure_future(consumer.commit({TP: 5}))
        await asyncio.sleep(0)
        reading_back = asyncio.ensure_future(consumer.committed(TP))
        await asyncio.sleep(0.01)
        assert not committing.done()
        assert not reading_back.done()
        async with timeout(GRACE_S):
            await consumer.stop(timeout=0.1)
            with pytest.raises(CommitFailedError):
                await committing
            (found,) = await asyncio.gather(reading_back, return_exceptions=True)
    assert found is None or isinstance(found, ConsumerStoppedError)
    assert broker.committed("g") == {}


# --- Whatever the broker does ------------------------------------------------------------------
FAULTS: dict[str, Callable[[Broker], Rule]] = {
    "silent": lambda b: b.on(None).silence(times=None),
    "silent to commits": lambda b: b.on("OffsetCommit").silence(times=None),
    "hangs up": lambda b: b.on(None).disconnect(times=None),
    "trickles": lambda b: b.on(None).trickle(2, times=None),
    "loads for ever": lambda b: b.on("OffsetCommit").fail(14, times=None),
    "refuses for good": lambda b: b.on("OffsetCommit").fail(30, times=None),
}


@pytest.mark.few_rows(7)
@pytest.mark.every_loop
@pytest.mark.parametrize("fault", FAULTS)
@in_both_protocols
async def test_a_stop_returns_in_time_and_says_what_was_not_committed(
    broker: Broker, protocol: str, fault: str
) -> None:
    async with nothing_left(is_collected=False):
        consumer = await started(broker.bootstrap_servers, group_protocol=protocol)
        with FAULTS[fault](broker):
            assert await timed(consumer.stop(timeout=0.3)) < 0.3 + GRACE_S
            assert await consumer.stop() == FIVE
    # An answer that trickles is one to a commit that was carried out.
    assert broker.committed("g") in ({}, {TP: 5} if fault == "trickles" else {})


@pytest.mark.every_loop
async def test_a_stop_returns_in_time_when_the_broker_died(broker: Broker) -> None:
    consumer = await started(broker.bootstrap_servers)
    await broker.stop()
    async with nothing_left(is_collected=False):
        assert await consumer.getmany(timeout_ms=60_000, max_records=1)  # buffered
        committing = asyncio.ensure_future(consumer.commit())
        await asyncio.sleep(0.01)
        assert await timed(consumer.stop(timeout=0.3)) < 0.3 + GRACE_S
        with pytest.raises(CommitFailedError):
            await committing
    assert await consumer.stop() == {TP: OffsetAndMetadata(6, "")}


@pytest.mark.every_loop
@in_both_protocols
async def test_a_reachable_group_is_left_though_a_get_waits(broker: Broker, protocol: str) -> None:
    consumer = await started(
        broker.bootstrap_servers, fetch_max_wait_ms=30_000, group_protocol=protocol
    )
    await consumer.getmany(timeout_ms=1_000)
    waiting = [
        asyncio.ensure_future(get)
        for get in (consumer.getone(), consumer.poll(), consumer.getmany(timeout_ms=60_000))
    ]
    await asyncio.sleep(0.01)
    assert await consumer.stop() == {}
    one, poll, many = waiting
    for get in (one, poll):
        with pytest.raises(ConsumerStoppedError):
            await get
    assert await many == {}  # as aiokafka's
    assert len(goodbyes(broker)) == 1
    assert broker.committed("g") == {TP: 10}


@in_both_protocols
async def test_a_static_member_that_has_nothing_to_say_at_its_stop_leaves_nothing(
    broker: Broker, protocol: str
) -> None:
    async with nothing_left():
        consumer = consumer_of(
            broker.bootstrap_servers, "t", group_instance_id="i", group_protocol=protocol
        )
        await consumer.start()
        await consumer.stop()


# --- What comes too late -----------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        lambda consumer: consumer.seek(TP, 3),
        lambda consumer: consumer.pause(TP),
        lambda consumer: consumer.resume(TP),
        lambda consumer: consumer.incremental_assign([TP]),
        lambda consumer: consumer.incremental_unassign([TP]),
    ],
    ids=["seek", "pause", "resume", "incremental_assign", "incremental_unassign"],
)
async def test_a_change_that_would_have_no_effect_any_more_is_refused(
    broker: Broker, change: Callable[[AIOKafkaConsumer], None]
) -> None:
    consumer = await started(broker.bootstrap_servers)
    with broker.on("OffsetCommit").silence(times=None):
        stopping = asyncio.ensure_future(consumer.stop(timeout=0.2))
        await asyncio.sleep(0)
        with pytest.raises(ConsumerStoppedError):
            change(consumer)
        assert await stopping == FIVE
    with pytest.raises(ConsumerStoppedError):
        change(consumer)


# --- Twice, and at once ------------------------------------------------------------------------
@pytest.mark.every_loop
@in_both_protocols
async def test_stops_at_once_and_afterwards_say_the_same(broker: Broker, protocol: str) -> None:
    consumer = await started(broker.bootstrap_servers, group_protocol=protocol)
    with broker.on("OffsetCommit").silence(times=None):
        answers = await asyncio.gather(*(consumer.stop(timeout=0.2) for _ in range(3)))
    assert answers == [FIVE, FIVE, FIVE]
    assert await consumer.stop() == FIVE
    assert len(goodbyes(broker)) <= 1


@pytest.mark.virtual_time
async def test_a_stop_without_time_takes_the_steps_that_need_no_network(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = consumer_of(broker.bootstrap_servers, "t", group_id=None)
    await consumer.start()
    await consumer.stop(timeout=0)
    assert "could not" not in caplog.text


@pytest.mark.every_loop
async def test_a_second_stop_keeps_to_its_own_timeout(broker: Broker) -> None:
    consumer = await started(broker.bootstrap_servers)
    with broker.on("OffsetCommit").hold() as rule:
        first = asyncio.ensure_future(consumer.stop(timeout=60))
        await rule.reached()
        async with timeout(GRACE_S):
            assert await consumer.stop(timeout=0.01) == FIVE  # as far as known
        assert not first.done()
    assert await first == {}
    assert await consumer.stop() == {}


@pytest.mark.every_loop
async def test_a_cancelled_second_stop_leaves_the_first_alone(broker: Broker) -> None:
    consumer = await started(broker.bootstrap_servers)
    with broker.on("OffsetCommit").hold() as rule:
        first = asyncio.ensure_future(consumer.stop())
        await rule.reached()
        assert await interrupted(consumer.stop(), 1, How.AT_ONCE)
    assert await first == {}
    assert broker.committed("g") == {TP: 5}


# --- From a callback ---------------------------------------------------------------------------
async def _directly(consumer: AIOKafkaConsumer) -> None:
    await consumer.stop()


async def _in_a_task(consumer: AIOKafkaConsumer) -> None:
    await asyncio.create_task(consumer.stop())


async def _under_a_timeout(consumer: AIOKafkaConsumer) -> None:
    await asyncio.wait_for(consumer.stop(), 60)


@pytest.mark.few_rows(7)
@pytest.mark.every_loop
@pytest.mark.parametrize("moment", ["assigned", "revoked"])
@pytest.mark.parametrize("way", [_directly, _in_a_task, _under_a_timeout])
@in_both_protocols
async def test_a_callback_may_stop_the_consumer(
    broker: Broker,
    protocol: str,
    moment: str,
    way: Callable[[AIOKafkaConsumer], Awaitable[None]],
) -> None:
    entered = asyncio.Event()

    class Stopping(Calls):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            if moment == "revoked" and revoked:
                await self.stop()

        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            if moment == "assigned":
                await self.stop()

        async def stop(self) -> None:
            entered.set()
            await way(consumer)

    async with nothing_left(is_collected=False):
        consumer = consumer_of(
            broker.bootstrap_servers, group_protocol=protocol, rebalance_hold_ms=0
        )
        listener = Stopping()
        consumer.subscribe(["t"], listener=listener)
        starting = asyncio.ensure_future(consumer.start())
        async with timeout(GRACE_S):
            if moment == "revoked":
                await starting
                await consumer.getone()
                consumer.subscribe(["u"], listener=listener)
            await entered.wait()
            assert await consumer.stop() == {}
            if moment == "assigned":
                with pytest.raises(ConsumerStoppedError):
                    await starting
        assert len(goodbyes(broker)) == 1
        assert broker.committed("g") == ({} if moment == "assigned" else {TP: 1})


@pytest.mark.every_loop
@in_both_protocols
async def test_a_callback_that_stops_what_is_being_stopped_holds_nobody_up(
    broker: Broker, protocol: str
) -> None:
    entered, is_stopping, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Stopping(Calls):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            if revoked:
                entered.set()
                await is_stopping.wait()
                await consumer.stop()
                done.set()

    consumer = consumer_of(broker.bootstrap_servers, group_protocol=protocol, rebalance_hold_ms=0)
    listener = Stopping()
    consumer.subscribe(["t"], listener=listener)
    await consumer.start()
    await consumer.getone()
    consumer.subscribe(["u"], listener=listener)
    await entered.wait()
    stopping = asyncio.ensure_future(consumer.stop(timeout=60))
    # It waits for the callback, and the group task has been stopped.
    await broker.wait_until(lambda: "group:group" not in _task_names())
    is_stopping.set()
    async with timeout(GRACE_S):
        assert await stopping == {}
    assert done.is_set()
    assert broker.committed("g") == {TP: 1}


def _task_names() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.every_loop
@in_both_protocols
async def test_a_callback_that_never_ends_is_cut_off_by_the_stop(
    broker: Broker, protocol: str
) -> None:
    class Hanging(Calls):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            entered.set()
            await asyncio.Event().wait()

    entered = asyncio.Event()
    async with nothing_left(is_collected=False):
        consumer = consumer_of(broker.bootstrap_servers, group_protocol=protocol)
        consumer.subscribe(["t"], listener=Hanging())
        starting = asyncio.ensure_future(consumer.start())
        await entered.wait()
        assert await timed(consumer.stop(timeout=0.2)) < 0.2 + GRACE_S
        with pytest.raises(ConsumerStoppedError):
            await starting
    assert len(goodbyes(broker)) == 1


# --- async with, and the end of the loop ---------------------------------------------------------
@pytest.mark.parametrize("kind", [ZeroDivisionError, asyncio.CancelledError])
@in_both_protocols
async def test_left_by_an_exception_the_group_is_left_and_what_was_processed_committed(
    kafka: KafkaHandle, protocol: str, kind: type[BaseException]
) -> None:
    topic, group = await kafka.create_topic(), unique("group")
    await kafka.produce(topic, 0, rows(0, 10))
    with pytest.raises(kind):  # noqa: PT012 -- it is the block that raises
        async with reading(kafka, topic, group_id=group, group_protocol=protocol) as consumer:
            async for record in consumer:
                if record.offset == 4:
                    raise kind
    # Not after the session timeout: the member has left.
    settings = {"group_id": group, "group_protocol": protocol}
    async with timeout(8), reading(kafka, topic, **settings) as successor:  # type: ignore[arg-type]
        assert (await successor.getone()).offset == 4


def _run(main: Coroutine[Any, Any, None], loop: str) -> None:
    if loop == "uvloop":
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


@pytest.mark.parametrize(
    "loop",
    [
        "asyncio",
        pytest.param(
            "uvloop",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed"
            ),
        ),
    ],
)
def test_the_end_of_the_loop_stops_what_an_async_with_holds(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`asyncio.run` cancels every task at once: the application's, and the consumer's own."""
    seen: list[int] = []

    async def consume(servers: str, full: asyncio.Future[None]) -> None:
        async with consumer_of(servers, "t") as consumer:
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 4:
                    full.set_result(None)
                    await asyncio.sleep(3600)

    async def main(servers: str) -> None:
        full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        consuming = asyncio.create_task(consume(servers, full))
        await full
        assert not consuming.done()

    with BrokerThread() as broker:
        broker.create_topic("t")
        broker.produce_all("t", TEN)
        _run(main(broker.bootstrap_servers), loop)
        assert seen == [0, 1, 2, 3, 4]
        assert broker.committed("g") == {TP: 4}
        assert len(goodbyes(broker)) == 1
    if sys.version_info >= (3, 11):  # before, nobody can tell it from a task that was cancelled
        assert [r.message for r in caplog.records if r.levelno > logging.INFO] == []
