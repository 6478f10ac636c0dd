"""Partitions that are to be given back wait for the application to finish what it was handed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import CommitFailedError
from aiokafka_lite.events import Revoked, WorkAwaited
from aiokafka_lite.structs import TopicPartition
from tests.consumer.group.one_record_each import WAYS
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import next_event
from tests.support.listeners import Acting
from tests.support.protocols import in_both_protocols
from tests.support.rows import rows
from tests.support.waiting import until

pytestmark = [pytest.mark.real_if_long, pytest.mark.virtual_time_if_embedded]

PARTITIONS = 4
RECORDS_EACH = 150
WORK_S = 0.004
PATIENCE_S = 30.0


def grouped(kafka: KafkaHandle, topic: str, group: str, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group,
        "group_protocol": "classic",  # whose joiner waits for all others
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 6000,
        **settings,
    }
    return AIOKafkaConsumer(topic, **arguments)  # type: ignore[arg-type]


async def filled_topic(kafka: KafkaHandle, records_each: int = RECORDS_EACH) -> str:
    topic = await kafka.create_topic(partitions=PARTITIONS)
    for number in range(PARTITIONS):
        await kafka.produce(topic, number, rows(0, records_each))
    return topic


class Reader:
    """An application with one reader, which takes its time for each record."""

    def __init__(self, consumer: AIOKafkaConsumer, way: str, handled: Counter[bytes]) -> None:
        self.consumer = consumer
        self.count = 0
        self._way = way
        self._handled = handled
        self._is_leaving = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        if self._way == "batches":
            async for batch in self.consumer.batches(max_rows=50):
                await self._work(batch.column("value").to_pylist())
                if self._is_leaving:
                    return
        elif self._way == "async-for":
            async for record in self.consumer:
                await self._work([record.value or b""])
                if self._is_leaving:
                    return
        while not self._is_leaving:
            await self._work(await self._get())

    async def _get(self) -> Sequence[bytes]:
        if self._way == "getone":
            return [(await self.consumer.getone()).value or b""]
        if self._way == "poll":
            found = await self.consumer.poll(timeout_ms=100, max_records=50)
        else:
            found = await self.consumer.getmany(timeout_ms=100, max_records=50)
        return [record.value or b"" for records in found.values() for record in records]

    async def _work(self, values: Sequence[bytes]) -> None:
        for value in values:
            await asyncio.sleep(WORK_S)
            self._handled[value] += 1
            self.count += 1
        if not inside.config(self.consumer).enable_auto_commit and values:
            await self.consumer.commit()

    async def leave(self) -> None:
        """Finish what is in hand, and stop."""
        self._is_leaving = True
        if self._way in ("getone", "async-for", "batches"):
            done, _ = await asyncio.wait({self._task}, timeout=0.5)
            if not done:  # it waits for records
                self._task.cancel()
        await asyncio.wait({self._task})
        await self.consumer.stop()


def values(number: int) -> list[tuple[None, bytes]]:
    return [(None, b"%d/%d" % (number, offset)) for offset in range(RECORDS_EACH)]


@pytest.mark.few_rows(7)
@pytest.mark.parametrize("is_auto", [True, False], ids=["auto-commit", "own-commits"])
@pytest.mark.parametrize("way", WAYS)
@in_both_protocols
async def test_a_rebalance_repeats_nothing_that_is_worked_on(
    kafka: KafkaHandle, protocol: str, way: str, is_auto: bool
) -> None:
    if way == "batches":
        pytest.importorskip("pyarrow")
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    for number in range(PARTITIONS):
        await kafka.produce(topic, number, values(number))
    handled: Counter[bytes] = Counter()
    async with AsyncExitStack() as stack:
        settings = {"group_protocol": protocol, "enable_auto_commit": is_auto}
        consumers = [grouped(kafka, topic, group, **settings) for _ in range(2)]
        await consumers[0].start()
        first = Reader(consumers[0], way, handled)
        stack.push_async_callback(first.leave)
        await until(lambda: first.count > 20)
        await consumers[1].start()
        second = Reader(consumers[1], way, handled)
        stack.push_async_callback(consumers[1].stop)
        await until(lambda: second.count > 20)
        await second.leave()
        await until(lambda: len(handled) == PARTITIONS * RECORDS_EACH)
    assert {value: count for value, count in handled.items() if count > 1} == {}


# --- What is waited for ------------------------------------------------------------------------
@asynccontextmanager
async def working(
    kafka: KafkaHandle, **settings: object
) -> AsyncIterator[tuple[AIOKafkaConsumer, AIOKafkaConsumer]]:
    """A consumer whose application works on ten records, and another that is about to join."""
    topic, group = await filled_topic(kafka), unique("g")
    async with AsyncExitStack() as stack:
        first, second = (grouped(kafka, topic, group, **settings) for _ in range(2))
        stack.push_async_callback(second.stop)
        await stack.enter_async_context(first)
        await until(first.assignment)
        assert len(await one_batch(first)) == 1
        yield first, second


async def one_batch(consumer: AIOKafkaConsumer) -> list[int]:
    found = await consumer.getmany(timeout_ms=PATIENCE_S * 1000, max_records=10)
    return [batch[0].offset for batch in found.values()]


async def test_an_application_that_never_comes_back_is_left_when_the_time_is_up(
    kafka: KafkaHandle,
) -> None:
    async with working(kafka, rebalance_hold_ms=1_500) as (first, second):
        with first.events() as events:
            began = asyncio.get_running_loop().time()
            await second.start()
            assert 1.0 < asyncio.get_running_loop().time() - began < 5.0
            told = [await next_event(events), await next_event(events)]
        assert [type(event) for event in told] == [WorkAwaited, Revoked]
        assert len(second.assignment()) == 2


@pytest.mark.parametrize("hold_ms", [0, None])
async def test_nothing_waits_with_a_hold_of_0_nor_for_a_get_that_waits(
    kafka: KafkaHandle, hold_ms: int | None
) -> None:
    async with working(kafka, rebalance_hold_ms=hold_ms, session_timeout_ms=20_000) as (
        first,
        second,
    ):
        get = None
        if hold_ms is None:
            for tp in first.assignment():
                await first.seek_to_end(tp)
            get = asyncio.create_task(first.getone())
            await asyncio.sleep(0.1)
        with first.events() as events:
            async with timeout(5):
                await second.start()
                assert isinstance(await next_event(events), Revoked)
        if get is not None:
            get.cancel()


async def test_explain_and_the_event_say_for_what_it_waits(kafka: KafkaHandle) -> None:
    async with working(kafka) as (first, second):
        (tp,) = [tp for tp in first.assignment() if await first.position(tp) == 10]
        with first.events() as events:
            joining = asyncio.create_task(second.start())
            event = await next_event(events)
        assert isinstance(event, WorkAwaited)
        assert {each: tuple(work) for each, work in event.offsets.items()} == {tp: (0, 10)}
        assert event.as_dict()["offsets"] == [[*tp, 0, 10]]
        assert f"{tp.topic}/{tp.partition} offsets 0 to 9" in str(event)
        assert "for the application to finish offsets 0 to 9" in first.explain(tp)
        other = TopicPartition(tp.topic, (tp.partition + 1) % PARTITIONS)
        assert "to finish its other work" in first.explain(other)
        await first.getmany(timeout_ms=0)
        await joining
        assert await second.committed(tp) == 10


async def test_by_kip_848_what_moves_waits_and_the_joiner_does_not(kafka: KafkaHandle) -> None:
    topic, group = await filled_topic(kafka), unique("g")
    settings = {"group_protocol": "consumer", "session_timeout_ms": 20_000}
    async with grouped(kafka, topic, group, **settings) as first:
        everything = first.assignment()
        await until(lambda: all("buffered" in first.explain(tp) for tp in everything))
        found = await first.getmany(timeout_ms=PATIENCE_S * 1000, max_records_per_partition=10)
        assert {tp: len(batch) for tp, batch in found.items()} == dict.fromkeys(everything, 10)
        second = grouped(kafka, topic, group, **settings)
        with first.events() as events:
            async with second:
                assert second.assignment() == set()
                event = await next_event(events)
                assert isinstance(event, WorkAwaited)
                moving = event.offsets.keys()
                assert len(moving) == 2
                assert {tuple(work) for work in event.offsets.values()} == {(0, 10)}
                for tp in moving:
                    assert "for the application to finish" in first.explain(tp)
                for tp in everything - moving:
                    assert "buffered" in first.explain(tp)
                await first.getmany(timeout_ms=0)
                await until(lambda: second.assignment() == moving)
                assert await second.committed(*moving) == dict.fromkeys(moving, 10)


async def test_a_commit_of_its_own_is_as_good_as_a_get(kafka: KafkaHandle) -> None:
    async with working(kafka, enable_auto_commit=False) as (first, second):
        joining = asyncio.create_task(second.start())
        (tp,) = [tp for tp in first.assignment() if await first.position(tp) == 10]
        await until(lambda: "to finish offsets 0 to 9" in first.explain(tp))
        await first.commit({tp: 5})
        await until(lambda: "to finish offsets 5 to 9" in first.explain(tp))
        await asyncio.sleep(0.3)
        assert not joining.done()
        await first.commit()
        await joining
        assert await second.committed(tp) == 10


async def test_with_several_readers_each_of_them_is_waited_for(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    both = [TopicPartition(topic, number) for number in range(2)]
    async with grouped(kafka, topic, group, enable_auto_commit=False) as first:
        is_done = [asyncio.Event(), asyncio.Event()]
        at_work: set[TopicPartition] = set()

        async def read(tp: TopicPartition, done: asyncio.Event) -> None:
            while not at_work & {tp}:
                if await first.getmany(tp, timeout_ms=500):
                    at_work.add(tp)
            await done.wait()
            await first.getmany(tp, timeout_ms=PATIENCE_S * 1000)

        readers = [asyncio.create_task(read(*each)) for each in zip(both, is_done, strict=True)]
        await asyncio.sleep(0.1)  # both wait at once
        for tp in both:
            await kafka.produce(topic, tp.partition, rows(0, 10))
        await until(lambda: len(at_work) == 2)
        second = grouped(kafka, topic, group)
        joining = asyncio.create_task(second.start())
        await until(lambda: "is being revoked (waiting" in first.explain(both[0]))
        is_done[0].set()
        await asyncio.sleep(0.5)
        assert not joining.done()
        is_done[1].set()
        await joining
        for reader in readers:
            reader.cancel()
        await second.stop()


# --- The application goes ----------------------------------------------------------------------
async def test_a_stop_ends_the_wait_and_commits_all(kafka: KafkaHandle) -> None:
    async with working(kafka, session_timeout_ms=20_000) as (first, second):
        joining = asyncio.create_task(second.start())
        (tp,) = [tp for tp in first.assignment() if await first.position(tp) == 10]
        await until(lambda: "to finish offsets" in first.explain(tp))
        async with timeout(5):
            assert await first.stop() == {}
            await joining
        assert len(second.assignment()) == PARTITIONS
        assert await second.committed(tp) == 10


async def test_so_does_unsubscribing(kafka: KafkaHandle) -> None:
    async with working(kafka, session_timeout_ms=20_000) as (first, second):
        joining = asyncio.create_task(second.start())
        (tp,) = [tp for tp in first.assignment() if await first.position(tp) == 10]
        await until(lambda: "to finish offsets" in first.explain(tp))
        first.unsubscribe()
        async with timeout(5):
            await joining
        await until(lambda: len(second.assignment()) == PARTITIONS)
        assert await second.committed(tp) == 10


async def test_records_that_are_finished_while_the_last_commit_is_on_its_way_are_committed() -> (
    None
):
    """The hold is over before the application asks for more, so the first commit lacks them."""
    async with Broker() as broker:
        topic = await filled_topic(KafkaHandle("embedded", broker.bootstrap_servers), 10)
        kafka, group = KafkaHandle("embedded", broker.bootstrap_servers), unique("g")
        settings = {"rebalance_hold_ms": 1, "auto_commit_interval_ms": 3_600_000}
        async with grouped(kafka, topic, group, **settings) as consumer, AsyncExitStack() as stack:
            await consumer.getone()
            record = await consumer.getone()
            with broker.on("OffsetCommit").hold() as held:
                other = grouped(kafka, topic, group)
                joining = asyncio.create_task(stack.enter_async_context(other))
                await held.reached()
                reading = asyncio.create_task(consumer.getone())
                await asyncio.sleep(0)
            await joining
            tp = TopicPartition(topic, record.partition)
            assert broker.committed(group)[tp] == record.offset + 1
            reading.cancel()


@pytest.mark.parametrize("is_automatic", [False, True], ids=["by hand", "auto-commit"])
async def test_a_commit_of_positions_in_a_rebalance_commits_them_or_fails(
    kafka: KafkaHandle, is_automatic: bool
) -> None:
    topic, group = await kafka.create_topic(partitions=3), unique("group")
    for number in range(3):
        await kafka.produce(topic, number, rows(0, 5))
    released = asyncio.Event()

    async def wait(consumer: AIOKafkaConsumer, _: set[TopicPartition]) -> None:
        if len(consumer.assignment()) == 1:
            await released.wait()

    async with AsyncExitStack() as stack:
        members, listeners = [], []
        for _ in range(2):
            listener = Acting(revoked=wait)
            member = grouped(
                kafka, topic, group, enable_auto_commit=is_automatic, rebalance_hold_ms=0
            )
            listener.consumer = await stack.enter_async_context(member)
            member.subscribe([topic], listener=listener)
            members.append(member)
            listeners.append(listener)
        await until(lambda: sorted(len(each.assignment()) for each in members) == [1, 2])
        member = max(members, key=lambda each: len(each.assignment()))
        listener = listeners[members.index(member)]
        before = member.assignment()
        while sum([await member.position(tp) for tp in before]) < 10:
            await member.getmany(timeout_ms=100)
        count = len(listener.results)
        joiner = stack.enter_async_context(grouped(kafka, topic, group))
        joining = asyncio.ensure_future(joiner)
        await until(lambda: len(listener.results) > count)
        committing = asyncio.ensure_future(member.commit())
        await asyncio.sleep(0.2)
        released.set()
        await joining
        (error,) = await asyncio.gather(committing, return_exceptions=True)
        await until(lambda: inside.is_settled(member))
        assert len(member.assignment()) == 1
        committed = [await member.committed(tp) for tp in before]
        assert isinstance(error, CommitFailedError) or (error, committed) == (None, [5, 5])
