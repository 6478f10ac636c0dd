"""The same program with aiokafka's consumer and with ours comes to the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Final

import aiokafka
import pytest

import aiokafka_lite
from aiokafka_lite._compat import timeout
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RoundRobinPartitionAssignor
from aiokafka_lite.errors import ConsumerStoppedError, IllegalStateError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import PROTOCOLS, in_both_protocols
from tests.support.rows import rows
from tests.support.waiting import until

# aiokafka's defaults.
IN_THE_CLASSIC_PROTOCOL: Final[Mapping[str, object]] = {
    "group_protocol": "classic",
    "partition_assignment_strategy": (RoundRobinPartitionAssignor,),
}
BOTH: Final[Mapping[str, ModuleType]] = {"aiokafka": aiokafka, "ours": aiokafka_lite}
either = pytest.mark.parametrize("library", BOTH.values(), ids=BOTH)


def consumer_of(
    library: ModuleType, kafka: KafkaHandle, *topics: str, **arguments: object
) -> AIOKafkaConsumer:
    """A consumer of either library, which passes for ours: what is called of it both have."""
    return library.AIOKafkaConsumer(  # type: ignore[no-any-return]
        *topics,
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        **arguments,
    )


def listener_of(
    library: ModuleType, note: Callable[[str, set[TopicPartition]], None]
) -> ConsumerRebalanceListener:
    """A listener of either library, which passes on what it is told."""

    class Listener(library.ConsumerRebalanceListener):  # type: ignore[misc,name-defined]
        def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            note("revoked", revoked)

        def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            note("assigned", assigned)

    return Listener()


@asynccontextmanager
async def after_a_rebalance(
    library: ModuleType, kafka: KafkaHandle
) -> AsyncIterator[tuple[AIOKafkaConsumer, set[TopicPartition], set[TopicPartition]]]:
    """A member that had both partitions of a topic; those it has, and those that it has lost."""
    topic, group = await kafka.create_topic(partitions=2), unique("group")
    settings = {"group_id": group, "heartbeat_interval_ms": 50, "fetch_max_wait_ms": 50}
    async with consumer_of(library, kafka, topic, **settings) as first:
        before = set(first.assignment())
        assert len(before) == 2
        async with consumer_of(aiokafka_lite, kafka, topic, **settings) as second:
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            lost = before - first.assignment()
            for tp in before:
                await kafka.produce(topic, tp.partition, rows(0, 3))
            yield first, set(first.assignment()), lost


# --- Partitions that a rebalance took away --------------------------------------------------
@pytest.mark.real_if_long
@either
async def test_a_loop_over_an_assignment_outlives_a_rebalance(
    kafka: KafkaHandle, library: ModuleType
) -> None:
    async with after_a_rebalance(library, kafka) as (consumer, kept, lost):
        (tp,), (gone,) = kept, lost
        assert await consumer.getmany(gone) == {}
        # A program that asks for nothing else does not go round and round.
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        assert await consumer.getmany(gone, timeout_ms=120) == {}
        assert loop.time() - began_at >= 0.11
        assert (await consumer.getone(tp, gone)).partition == tp.partition
        found = await consumer.getmany(gone, tp, timeout_ms=10_000)
        assert {each: [r.offset for r in batch] for each, batch in found.items()} == {tp: [1, 2]}


# aiokafka's fetcher may die of a second subscription, so that these are ours alone.
@pytest.mark.real_if_long
@pytest.mark.parametrize("protocol", [*PROTOCOLS, None])
async def test_a_get_waits_for_what_a_new_subscription_brings(
    kafka: KafkaHandle, protocol: str | None
) -> None:
    topics = [await kafka.create_topic() for _ in range(3)]
    first, second, third = (TopicPartition(topic, 0) for topic in topics)
    for topic in topics:
        await kafka.produce(topic, 0, rows(0, 3))
    settings = {} if protocol is None else {"group_id": unique("g"), "group_protocol": protocol}
    async with consumer_of(aiokafka_lite, kafka, first.topic, **settings) as consumer:
        assert (await consumer.getone(first)).topic == first.topic
        consumer.subscribe([second.topic])
        waiting = asyncio.ensure_future(consumer.getone(second))
        await asyncio.sleep(0)
        assert not inside.is_idle(consumer)  # it is not time without a read
        assert (await waiting).topic == second.topic
        assert inside.is_idle(consumer)
        consumer.subscribe([third.topic])
        ((tp, _),) = (await consumer.getmany(third, timeout_ms=10_000)).items()
        assert tp == third


@pytest.mark.real_if_long
@in_both_protocols
async def test_a_get_waits_for_what_a_pattern_brings(kafka: KafkaHandle, protocol: str) -> None:
    tp = TopicPartition(await kafka.create_topic(), 0)
    await kafka.produce(tp.topic, 0, rows(0, 1))
    async with consumer_of(
        aiokafka_lite, kafka, group_id=unique("group"), group_protocol=protocol
    ) as consumer:
        consumer.subscribe(pattern=f"^{tp.topic}$")
        assert await consumer.getmany(tp) == {}
        assert (await asyncio.wait_for(consumer.getone(tp), 10)).offset == 0
        consumer.unsubscribe()
        consumer.subscribe([tp.topic])
        with pytest.raises(IllegalStateError, match="not assigned"):
            await consumer.getone(TopicPartition(tp.topic, 9))
        with pytest.raises(IllegalStateError, match="not assigned"):
            await consumer.getmany(TopicPartition("other", 0))


@pytest.mark.real_if_long
async def test_a_get_that_waits_for_an_assignment_ends_with_the_consumer(
    kafka: KafkaHandle,
) -> None:
    topic, other = await kafka.create_topic(), await kafka.create_topic()
    consumer = consumer_of(aiokafka_lite, kafka, topic, group_id=unique("group"))
    async with consumer:
        consumer.subscribe([other])
        get = asyncio.ensure_future(consumer.getone(TopicPartition(other, 0)))
        await asyncio.sleep(0)
    with pytest.raises(ConsumerStoppedError):
        await asyncio.wait_for(get, 10)


@pytest.mark.real_if_long
async def test_what_is_not_assigned_is_not_committed(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 9)
    async with consumer_of(aiokafka_lite, kafka, topic, group_id=unique("group")) as consumer:
        with pytest.raises(IllegalStateError, match=r"Partition .* is not assigned"):
            await consumer.commit({other: 1})
        consumer.unsubscribe()
        for offsets in (None, {tp: 1}):
            with pytest.raises(IllegalStateError, match="Not subscribed to any topics"):
                await consumer.commit(offsets)
    async with consumer_of(aiokafka_lite, kafka, group_id=unique("group")) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(IllegalStateError, match="No partitions assigned"):
            await consumer.commit({tp: 1})


@pytest.mark.real_if_long
@in_both_protocols
async def test_a_program_may_wait_for_the_assignment(kafka: KafkaHandle, protocol: str) -> None:
    topic, other = await kafka.create_topic(), await kafka.create_topic()
    async with consumer_of(
        aiokafka_lite,
        kafka,
        topic,
        group_id=unique("group"),
        group_protocol=protocol,
    ) as consumer:
        consumer.subscribe([other])
        await asyncio.wait_for(consumer._subscription.wait_for_assignment(), 10)
        assert consumer.assignment() == {TopicPartition(other, 0)}


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
async def test_a_listener_is_told_once_what_a_new_subscription_takes_away(
    kafka: KafkaHandle, is_static: bool
) -> None:
    topic = await kafka.create_topic()
    settings = dict(IN_THE_CLASSIC_PROTOCOL)
    if is_static:
        settings["group_instance_id"] = "me"
    calls: list[tuple[str, int]] = []
    listener = listener_of(aiokafka_lite, lambda name, tps: calls.append((name, len(tps))))
    async with consumer_of(aiokafka_lite, kafka, group_id=unique("group"), **settings) as consumer:
        consumer.subscribe([topic], listener=listener)
        await consumer._subscription.wait_for_assignment()
        await until(lambda: len(calls) == 2)
        consumer.unsubscribe()
        consumer.subscribe([topic], listener=listener)
        await consumer._subscription.wait_for_assignment()
        await until(lambda: len(calls) >= 4)
        assert calls == [("revoked", 0), ("assigned", 1), ("revoked", 1), ("assigned", 1)]


@pytest.mark.real_if_long
@either
async def test_in_the_callbacks_a_program_sees_whether_a_rebalance_is_due(
    kafka: KafkaHandle, library: ModuleType
) -> None:
    topic = await kafka.create_topic()
    settings = dict(IN_THE_CLASSIC_PROTOCOL) if library is aiokafka_lite else {}
    seen: list[tuple[str, bool]] = []
    async with consumer_of(library, kafka, group_id=unique("group"), **settings) as consumer:

        def note(name: str, _: set[TopicPartition]) -> None:
            assert consumer._coordinator is not None
            seen.append((name, consumer._coordinator._rejoin_needed_fut.done()))

        consumer.subscribe([topic], listener=listener_of(library, note))
        await until(lambda: len(seen) == 2)
    assert seen[-1] == ("assigned", False)


@pytest.mark.real_if_long
async def test_what_a_get_cannot_wait_for_is_refused(kafka: KafkaHandle) -> None:
    async with after_a_rebalance(aiokafka_lite, kafka) as (consumer, _, lost):
        (gone,) = lost
        with pytest.raises(IllegalStateError, match="a rebalance revoked it"):
            await consumer.getone(gone)
        never = TopicPartition(gone.topic, 9)
        for get in (consumer.getone, consumer.getmany):
            with pytest.raises(IllegalStateError, match="not assigned"):
                await get(never)
        consumer.unsubscribe()
        with pytest.raises(IllegalStateError, match="not assigned"):
            await consumer.getmany(gone)


async def test_what_a_rebalance_gives_back_is_read_by_the_get_that_waits(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("group")
    settings = {"group_id": group, "heartbeat_interval_ms": 50, "fetch_max_wait_ms": 50}
    async with consumer_of(aiokafka_lite, kafka, topic, **settings) as first:
        both = first.assignment()
        async with consumer_of(aiokafka_lite, kafka, topic, **settings) as second:
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            (gone,) = both - first.assignment()
            waiting = asyncio.ensure_future(first.getmany(gone, timeout_ms=30_000))
        await kafka.produce(topic, gone.partition, rows(0, 3))
        assert [record.offset for record in (await waiting)[gone]] == [0, 1, 2]


# --- The last stable offset -----------------------------------------------------------------
@either
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
async def test_the_last_stable_offset_is_where_the_open_transaction_begins(
    kafka: KafkaHandle, library: ModuleType, isolation_level: str
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 2))
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
    ) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"open", partition=0)
        async with consumer_of(library, kafka, topic, isolation_level=isolation_level) as consumer:
            (tp,) = consumer.assignment()
            await consumer.getone()
            assert (consumer.highwater(tp), consumer.last_stable_offset(tp)) == (3, 2)
            if library is aiokafka_lite:
                shown = consumer.metrics()["partitions"]
                assert isinstance(shown, list)
                assert [each["last_stable_offset"] for each in shown] == [2]
        await producer.abort_transaction()


# --- Gets that are pending at the stop ------------------------------------------------------
@pytest.mark.real_if_long
@either
async def test_a_getmany_that_waits_at_the_stop_returns_nothing(
    kafka: KafkaHandle, library: ModuleType
) -> None:
    topic = await kafka.create_topic()
    consumer = consumer_of(library, kafka, topic)
    await consumer.start()
    (tp,) = consumer.assignment()
    waiting = [
        asyncio.ensure_future(consumer.getmany(timeout_ms=60_000)),
        asyncio.ensure_future(consumer.getmany(tp, timeout_ms=60_000)),
    ]
    one = asyncio.ensure_future(consumer.getone())
    await asyncio.sleep(0)
    async with timeout(20):
        await consumer.stop()
        assert await asyncio.gather(*waiting) == [{}, {}]
        with pytest.raises(library.errors.ConsumerStoppedError):
            await one
        with pytest.raises(library.errors.ConsumerStoppedError):
            await consumer.getmany()


@pytest.mark.real_if_long
async def test_a_poll_that_waits_at_the_stop_says_that_it_is_stopped(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    consumer = consumer_of(aiokafka_lite, kafka, topic)
    await consumer.start()
    waiting = asyncio.ensure_future(consumer.poll())
    await asyncio.sleep(0)
    await consumer.stop()
    with pytest.raises(ConsumerStoppedError):
        await waiting


# --- A loop that does not run yet -----------------------------------------------------------
def program(library: ModuleType, kafka: KafkaHandle, topic: str) -> list[int]:
    """Make a consumer ahead of its loop, and read with it."""
    loop = asyncio.new_event_loop()
    with pytest.warns(DeprecationWarning, match="The loop argument is deprecated"):
        consumer = consumer_of(library, kafka, topic, loop=loop)

    async def read() -> list[int]:
        await consumer.start()
        try:
            return [(await consumer.getone()).offset for _ in range(2)]
        finally:
            await consumer.stop()

    try:
        return loop.run_until_complete(read())
    finally:
        loop.close()


@pytest.mark.real_if_long
@either
async def test_a_loop_that_does_not_run_yet_is_taken(
    kafka: KafkaHandle, library: ModuleType
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 2))
    assert await asyncio.to_thread(program, library, kafka, topic) == [0, 1]


@pytest.mark.real_if_long
@either
async def test_a_loop_that_is_another_one_is_the_consumers(
    kafka: KafkaHandle, library: ModuleType
) -> None:
    other = asyncio.new_event_loop()
    with pytest.warns(DeprecationWarning, match="The loop argument is deprecated"):
        consumer = consumer_of(library, kafka, loop=other)
    with pytest.raises(AssertionError):
        await consumer.start()
    consumer._closed = True
    other.close()
