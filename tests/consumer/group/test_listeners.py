"""Whatever a rebalance listener does, the rebalance goes on, and it does not go unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    FencedMemberEpochError,
    IllegalStateError,
    KafkaTimeoutError,
)
from aiokafka_lite.events import (
    Assigned,
    ConsumerEvent,
    EventSubscription,
    ListenerFailed,
    Lost,
    Revoked,
)
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle
from tests.support.events import events_so_far, next_event
from tests.support.listeners import Acting, Losing, beat_count, listening
from tests.support.other_member import throw_out
from tests.support.protocols import WAYS, goodbyes, in_both_protocols
from tests.support.reading import consumer_of, values
from tests.support.rows import rows, tps
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """An embedded broker, with five records in "t"."""
    async with Broker() as broker:
        broker.create_topic("t")
        for number in range(5):
            broker.produce("t", b"%d" % number)
        yield broker
    assert broker.failure is None


async def rebalance(consumer: AIOKafkaConsumer) -> None:
    """Have the member give back what it has and join again."""
    consumer.subscribe(consumer.subscription(), listener=inside.listener(consumer))
    await asyncio.wait_for(inside.until_assigned(consumer), PATIENCE_S)


async def drained(events: EventSubscription) -> list[ConsumerEvent]:
    """The events so far, of which there is at least one."""
    return [await next_event(events), *events_so_far(events)]


class Raising(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if revoked:
            raise LookupError("from a plain method")

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        raise ValueError("from a coroutine")


# --- It raises -----------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_what_a_listener_raises_is_raised_by_one_poll_and_goes_to_log_and_events(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    async with listening(kafka, topic, Raising()) as consumer:
        with pytest.raises(ValueError, match="from a coroutine"):
            await consumer.poll()
        assert [len(batch) for batch in (await consumer.poll()).values()] == [3]

        with consumer.events() as events:
            await rebalance(consumer)
            failed = [event for event in await drained(events) if isinstance(event, ListenerFailed)]
        assert [(event.callback, type(event.error)) for event in failed] == [
            ("on_partitions_revoked", LookupError),
            ("on_partitions_assigned", ValueError),
        ]
        with pytest.raises(LookupError, match="from a plain method"):  # the first of the two
            await consumer.poll()
        assert await consumer.poll(timeout_ms=0) is not None
    assert "from a plain method" in caplog.text
    assert "from a coroutine" in caplog.text


@pytest.mark.real_if_long
async def test_the_other_gets_go_on_after_a_listener_that_raised(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with listening(kafka, topic, Raising()) as consumer:
        await kafka.produce(topic, 0, rows(0, 1))
        assert (await consumer.getone()).offset == 0
        await kafka.produce(topic, 0, rows(1, 1))
        async for record in consumer:
            assert record.offset == 1
            break
        await kafka.produce(topic, 0, rows(2, 1))
        (batch,) = (await consumer.getmany(timeout_ms=10_000)).values()
        assert [record.offset for record in batch] == [2]
        with pytest.raises(ValueError, match="from a coroutine"):
            await consumer.poll()


@pytest.mark.real_if_long
async def test_a_poll_that_waits_hears_of_a_listener_that_raised(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()

    async def refuse(_: AIOKafkaConsumer, revoked: set[TopicPartition]) -> None:
        raise LookupError(len(revoked))

    async with listening(kafka, topic, Acting(revoked=refuse)) as consumer:
        polling = asyncio.ensure_future(consumer.poll())
        await asyncio.sleep(0)
        await rebalance(consumer)
        with pytest.raises(LookupError, match="1"):
            await asyncio.wait_for(polling, PATIENCE_S)


# --- It takes too long ---------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_a_listener_that_hangs_is_cut_off_and_is_an_event(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 1))

    async def hang(_: AIOKafkaConsumer, __: set[TopicPartition]) -> None:
        await asyncio.get_running_loop().create_future()

    listener = Acting(revoked=hang)
    async with listening(kafka, topic, listener, rebalance_timeout_ms=300) as consumer:
        with consumer.events() as events:
            await rebalance(consumer)
            assert ListenerFailed("on_partitions_revoked", None) in await drained(events)
        assert (await consumer.getone()).offset == 0


@pytest.mark.real_if_long
async def test_a_lock_around_gets_with_a_timeout_is_had_by_the_listener(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    lock = asyncio.Lock()

    async def with_lock(_: AIOKafkaConsumer, __: set[TopicPartition]) -> str:
        async with lock:
            return "had it"

    async with listening(kafka, topic, listener := Acting(revoked=with_lock)) as consumer:
        is_over = False

        async def work() -> None:
            while not is_over:
                async with lock:
                    await consumer.getmany(timeout_ms=50)

        working = asyncio.ensure_future(work())
        await rebalance(consumer)
        is_over = True
        await working
    assert listener.results == ["had it"]


async def test_a_lock_around_a_get_without_timeout_costs_the_rebalance_timeout(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await kafka.create_topic()
    lock = asyncio.Lock()

    async def with_lock(_: AIOKafkaConsumer, __: set[TopicPartition]) -> None:
        async with lock:
            raise AssertionError("the get holds it")

    listener = Acting(revoked=with_lock)
    async with listening(kafka, topic, listener, rebalance_timeout_ms=300) as consumer:

        async def work() -> int:
            async with lock:
                return (await consumer.getone()).offset

        working = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        await rebalance(consumer)
        await kafka.produce(topic, 0, rows(0, 1))
        assert await asyncio.wait_for(working, PATIENCE_S) == 0
    assert "did not return from on_partitions_revoked within" in caplog.text


async def load_for_long(_: AIOKafkaConsumer, partitions: set[TopicPartition]) -> str:
    if partitions:
        await asyncio.sleep(0.4)
    return "loaded"


@in_both_protocols
async def test_no_record_comes_before_a_slow_listener_has_taken_the_partitions(
    kafka: KafkaHandle, protocol: str
) -> None:
    """State of the partitions takes longer to load than a rebalance may take."""
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 1))
    listener = Acting(assigned=load_for_long)
    settings = {"group_protocol": protocol, "rebalance_timeout_ms": 200}
    async with listening(kafka, topic, listener, **settings) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).offset == 0
        assert "loaded" in listener.results


@pytest.mark.real_if_long
@in_both_protocols
@pytest.mark.parametrize("get", ["getone", "getmany", "poll", "async for"])
async def test_gets_raise_as_long_as_a_listener_has_not_taken_the_partitions(
    kafka: KafkaHandle, protocol: str, get: str
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 1))
    is_patient = False

    async def hang(_: AIOKafkaConsumer, partitions: set[TopicPartition]) -> None:
        if partitions and not is_patient:
            await asyncio.get_running_loop().create_future()

    settings = {
        "group_protocol": protocol,
        "max_poll_interval_ms": 200,
        "enable_auto_commit": False,
    }
    listener = Acting(assigned=hang)
    async with listening(kafka, topic, listener, **settings) as consumer:
        gets: dict[str, Callable[[], Awaitable[object]]] = {
            "getone": consumer.getone,
            "getmany": lambda: consumer.getmany(timeout_ms=5_000),
            "poll": consumer.poll,
            "async for": lambda: anext(aiter(consumer)),
        }
        for _ in range(3):
            with pytest.raises(KafkaTimeoutError, match="on_partitions_assigned"):
                await asyncio.wait_for(gets[get](), PATIENCE_S)
        assert consumer.health().verdict == "degraded"
        is_patient = True
        consumer.unsubscribe()
        consumer.subscribe([topic], listener=listener)
        assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).offset == 0


# --- It uses the consumer ------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_a_callback_seeks_commits_and_reads_positions(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 9))
    tp = TopicPartition(topic, 0)

    async def start_at_4(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> object:
        before = await consumer.position(tp), await consumer.committed(tp)
        consumer.seek(tp, 4)
        return before, await consumer.position(tp)

    async def commit(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> object:
        await consumer.commit()
        return await consumer.position(tp), await consumer.committed(tp)

    listener = Acting(assigned=start_at_4, revoked=commit)
    async with listening(kafka, topic, listener, enable_auto_commit=False) as consumer:
        assert (await consumer.getone()).offset == 4
        await rebalance(consumer)
        assert (await consumer.getone()).offset == 4
    assert listener.results == [((0, None), 4), (5, 5), ((5, 5), 4)]


@pytest.mark.real_if_long
async def test_a_position_that_is_not_known_yet_is_found_while_partitions_are_given_back(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    tp = TopicPartition(topic, 0)

    async def position(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> int:
        return await consumer.position(tp)

    listener = Acting(revoked=position)
    async with listening(kafka, topic, listener) as consumer:
        await rebalance(consumer)  # right after the start: the position was hardly asked for
    assert listener.results == [0]


@pytest.mark.real_if_long
async def test_a_get_in_a_callback_is_refused_if_it_would_wait_for_ever(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 2))

    async def get(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> object:
        with pytest.raises(IllegalStateError, match="cannot wait for records"):
            await consumer.poll()
        with pytest.raises(IllegalStateError, match="cannot wait for records"):
            await anext(aiter(consumer))
        assert await consumer.getmany(timeout_ms=20) == {}
        return await consumer.getone()

    async with listening(kafka, topic, Acting(revoked=get)) as consumer:
        assert (await consumer.getone()).offset == 0
        with consumer.events() as events:
            await rebalance(consumer)
            failed = [event for event in await drained(events) if isinstance(event, ListenerFailed)]
        assert (await consumer.getone()).offset == 0
    assert [type(event.error) for event in failed] == [IllegalStateError]


@pytest.mark.real_if_long
async def test_a_task_that_a_callback_starts_may_wait_for_records(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 1))

    async def start(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> object:
        reading = asyncio.ensure_future(consumer.getone())
        await asyncio.sleep(0.01)
        return reading

    async with listening(kafka, topic, listener := Acting(assigned=start)):
        (reading,) = listener.results
        assert isinstance(reading, asyncio.Task)
        assert (await asyncio.wait_for(reading, PATIENCE_S)).offset == 0


@pytest.mark.real_if_long
@pytest.mark.parametrize("by_a_task", [False, True])
async def test_a_get_in_a_callback_has_nothing_committed_that_is_worked_on(
    kafka: KafkaHandle, by_a_task: bool
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 20))
    tp = TopicPartition(topic, 0)

    async def get(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> object:
        getting = consumer.getmany(timeout_ms=20)
        found = await (asyncio.ensure_future(getting) if by_a_task else getting)
        await asyncio.sleep(0.1)  # for several auto-commits
        return found, await consumer.committed(tp)

    listener = Acting(revoked=get)
    async with listening(kafka, topic, listener, auto_commit_interval_ms=10) as consumer:
        assert await consumer.getmany(timeout_ms=int(PATIENCE_S * 1000), max_records=10)
        await rebalance(consumer)
        assert listener.results == [({}, 0)]  # the ten were being worked on
        assert (await consumer.getone()).offset == 0


@pytest.mark.real_if_long
async def test_gets_in_a_callback_do_not_count_for_max_poll_interval(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    loop = asyncio.get_running_loop()
    beats: list[int] = []

    async def get_for_long(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> None:
        began = loop.time()
        while loop.time() - began < 0.3:
            assert await consumer.getmany(timeout_ms=50) == {}
        beats.append(beat_count(consumer))

    settings = {"max_poll_interval_ms": 400, "heartbeat_interval_ms": 20}
    listener = Acting(assigned=get_for_long)
    async with listening(kafka, topic, listener, **settings) as consumer:
        with consumer.events() as events:
            revoked = await next_event(events)
        assert isinstance(revoked, Revoked)
        assert "max_poll_interval_ms" in revoked.reason
        assert beat_count(consumer) - beats[0] <= 10  # in another such interval there are 20


@pytest.mark.real_if_long
async def test_a_get_that_a_callback_began_counts_once_the_callback_is_over(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()

    async def start(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> object:
        getting = asyncio.ensure_future(consumer.getone())
        await asyncio.sleep(0)
        return getting

    settings = {"max_poll_interval_ms": 200, "heartbeat_interval_ms": 20}
    async with listening(kafka, topic, listener := Acting(assigned=start), **settings) as consumer:
        (getting,) = listener.results
        assert isinstance(getting, asyncio.Task)
        began = beat_count(consumer)
        await until(lambda: beat_count(consumer) >= began + 20)
        await kafka.produce(topic, 0, rows(0, 1))
        assert (await asyncio.wait_for(getting, PATIENCE_S)).offset == 0
        assert len(listener.results) == 1  # it has not left


@pytest.mark.real_if_long
@pytest.mark.parametrize("when", ["assigned", "revoked"])
async def test_a_callback_may_stop_the_consumer(kafka: KafkaHandle, when: str) -> None:
    topic = await kafka.create_topic()
    stopped = asyncio.Event()

    async def stop(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> None:
        assert await consumer.stop() == {}
        stopped.set()

    listener = Acting(**{when: None})
    async with listening(kafka, topic, listener) as consumer:
        setattr(listener, f"_{when}", stop)
        getting = asyncio.ensure_future(consumer.getone())
        consumer.subscribe([topic], listener=listener)
        await asyncio.wait_for(stopped.wait(), PATIENCE_S)
        with pytest.raises(ConsumerStoppedError):
            await asyncio.wait_for(getting, PATIENCE_S)


@pytest.mark.parametrize("way", WAYS)
async def test_a_listener_that_takes_long_does_not_keep_reading_from_the_committed_offset(
    broker: Broker, way: str
) -> None:
    async with consumer_of(broker, "t", group_id="g", **WAYS[way]) as consumer:
        await values(consumer, 3)
        await consumer.commit()

    async def take_long(consumer: AIOKafkaConsumer, taken: set[TopicPartition]) -> None:
        await asyncio.sleep(0.05)  # time for positions to be looked up

    listener = Acting(assigned=take_long)
    consumer = listener.consumer = consumer_of(broker, group_id="g", **WAYS[way])
    consumer.subscribe(["t"], listener=listener)
    broker.requests.clear()
    async with consumer:
        assert await values(consumer, 2) == [b"3", b"4"]
    assert not broker.requests.of("ListOffsets")  # the policy, "earliest", was not asked for


@in_both_protocols
async def test_a_listener_that_raises_at_the_stop_does_not_keep_the_member_in_the_group(
    broker: Broker, protocol: str
) -> None:
    async def fail(consumer: AIOKafkaConsumer, gone: set[TopicPartition]) -> None:
        raise LookupError("from the listener")

    listener = Acting(revoked=fail)
    consumer = listener.consumer = consumer_of(broker, group_id="g", group_protocol=protocol)
    consumer.subscribe(["t"], listener=listener)
    async with consumer:
        pass
    assert len(goodbyes(broker)) == 1


# --- Partitions are lost -------------------------------------------------------------------


def test_by_default_lost_partitions_are_told_as_revoked_ones() -> None:
    class Plain(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            told.append(revoked)

        def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            pass

    told: list[set[TopicPartition]] = []
    assert Plain().on_partitions_lost(tps("t", 1)) is None
    assert told == [tps("t", 1)]


async def test_a_member_that_was_thrown_out_has_lost_its_partitions(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    async with listening(kafka, topic, listener := Losing()) as consumer:
        assert (await consumer.getone()).offset == 0
        with consumer.events() as events:
            await throw_out(kafka, consumer._group_id or "", inside.member_id(consumer))
            seen: list[ConsumerEvent] = []
            while not any(isinstance(event, Assigned) for event in seen):
                seen += await drained(events)
        assert (await consumer.getone()).offset == 0  # nothing had been committed

    own = tps(topic, 0)
    assert listener.calls == [
        ("revoked", set()),
        ("assigned", own),
        ("lost", own),
        ("assigned", own),
    ]
    assert [type(event) for event in seen] == [Lost, Assigned]


async def test_a_fenced_member_sends_no_heartbeat_while_its_listener_is_told(
    broker: Broker,
) -> None:
    told, may_return = asyncio.Event(), asyncio.Event()

    class Slow(Losing):
        async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
            told.set()
            await may_return.wait()

    consumer = consumer_of(broker, group_id="g", group_protocol="consumer")
    consumer.subscribe(["t"], listener=Slow())
    async with consumer:
        await values(consumer, 5)
        broker.on("ConsumerGroupHeartbeat").fail(FencedMemberEpochError)
        getting = asyncio.ensure_future(values(consumer, 1))
        await asyncio.wait_for(told.wait(), PATIENCE_S)
        broker.requests.clear()
        await asyncio.sleep(0.1)
        assert not broker.requests.of("ConsumerGroupHeartbeat")
        may_return.set()
        await getting
        first, *_ = broker.requests.of("ConsumerGroupHeartbeat")
        assert first.request.member_epoch == 0  # type: ignore[attr-defined]
