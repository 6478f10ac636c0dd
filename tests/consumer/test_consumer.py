"""The consumer against a broker: the same tests on the embedded one and on a real Kafka."""

from __future__ import annotations

import asyncio
import gc
import linecache
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    DeserializationError,
    IllegalOperation,
    IllegalStateError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle
from tests.support.reading import offsets_read, reading
from tests.support.rows import rows


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_poll_reads_every_record_in_order(
    kafka: KafkaHandle, decoder: str, codec: str
) -> None:
    topic = await kafka.create_topic(partitions=2)
    for partition in range(2):
        for first in range(0, 300, 100):
            await kafka.produce(topic, partition, rows(first, 100), codec=codec)
    async with reading(kafka, topic) as consumer:
        found = await offsets_read(consumer, 600)
    assert found == {0: list(range(300)), 1: list(range(300))}


async def test_records_that_come_while_waiting_are_handed_out(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:
        assert await consumer.poll(timeout_ms=50) == {}
        waiting = asyncio.ensure_future(consumer.poll())
        await kafka.produce(topic, 0, rows(0, 1))
        (batch,) = (await waiting).values()
        assert [record.offset for record in batch] == [0]


async def test_latest_reads_only_what_comes_after_the_start(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    async with reading(kafka, topic, auto_offset_reset="latest") as consumer:
        tp = TopicPartition(topic, 0)
        assert await consumer.position(tp) == 5
        await kafka.produce(topic, 0, rows(5, 1))
        assert (await consumer.getone()).offset == 5


async def test_small_fetches_read_everything(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    for partition in range(3):
        for first in range(0, 60, 5):
            await kafka.produce(topic, partition, rows(first, 5))
    async with reading(
        kafka, topic, max_partition_fetch_bytes=200, fetch_max_bytes=500
    ) as consumer:
        found = await offsets_read(consumer, 180)
    assert found == {partition: list(range(60)) for partition in range(3)}


@pytest.mark.real_if_long
async def test_a_small_budget_reads_everything(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    for partition in range(3):
        for first in range(0, 60, 20):
            await kafka.produce(topic, partition, rows(first, 20))
    async with reading(kafka, topic, max_buffered_bytes=1) as consumer:
        found = await offsets_read(consumer, 180)
        consumer.pause(*consumer.assignment())
        async with timeout(10):
            while consumer.metrics()["buffered_bytes"]:  # nothing of it is held for ever
                await consumer.poll(timeout_ms=10)
    assert found == {partition: list(range(60)) for partition in range(3)}


async def test_getmany_names_partitions_and_limits(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    for partition in range(2):
        await kafka.produce(topic, partition, rows(0, 10))
    first, second = (TopicPartition(topic, partition) for partition in range(2))
    async with reading(kafka, topic) as consumer:
        found = await consumer.getmany(second, timeout_ms=10_000, max_records=4)
        assert {tp: len(batch) for tp, batch in found.items()} == {second: 4}
        found = await consumer.getmany(first, timeout_ms=10_000)
        assert {tp: len(batch) for tp, batch in found.items()} == {first: 10}
        assert await consumer.getmany(first) == {}
        with pytest.raises(ValueError, match="max_records"):
            await consumer.getmany(max_records=0)
        with pytest.raises(IllegalStateError):
            await consumer.getmany(TopicPartition(topic, 7))
        assert (await consumer.getone(second)).offset == 4


@pytest.mark.real_if_long
async def test_getmany_without_a_limit_returns_what_the_caches_hold_of_each_partition(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=2)
    for partition in range(2):
        await kafka.produce(topic, partition, rows(0, 5_000))

    async with reading(kafka, topic) as consumer:
        read: dict[int, list[int]] = {0: [], 1: []}
        most = 0
        async with timeout(30):
            while any(len(offsets) < 5_000 for offsets in read.values()):
                for tp, some in (await consumer.getmany(timeout_ms=1_000)).items():
                    most = max(most, len(some))
                    read[tp.partition] += [record.offset for record in some]
        assert read == {partition: list(range(5_000)) for partition in range(2)}
        assert most == 2_000
        await consumer.seek_to_beginning()
        found = await consumer.getmany(timeout_ms=10_000, max_records=4_000)
        assert max(map(len, found.values())) == 4_000


async def test_seek_goes_anywhere(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 20))
    tp = TopicPartition(topic, 0)
    async with reading(kafka, topic, fetch_max_wait_ms=50) as consumer:
        assert (await consumer.getone()).offset == 0
        consumer.seek(tp, 15)
        assert await consumer.position(tp) == 15
        assert (await consumer.getone()).offset == 15
        consumer.seek(tp, 3)
        assert [(await consumer.getone()).offset for _ in range(2)] == [3, 4]
        assert await consumer.seek_to_beginning(tp)
        assert (await consumer.getone()).offset == 0
        assert await consumer.seek_to_end()
        assert await consumer.position(tp) == 20
        with pytest.raises(ValueError, match="Offset must be"):
            consumer.seek(tp, -1)
        with pytest.raises(IllegalStateError):
            consumer.seek(TopicPartition(topic, 5), 0)


@pytest.mark.real_if_long
async def test_pause_keeps_what_is_buffered(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    for partition in range(2):
        await kafka.produce(topic, partition, rows(0, 10))
    first = TopicPartition(topic, 0)
    async with reading(kafka, topic) as consumer:
        record = await consumer.getone(first)
        consumer.pause(first)
        assert consumer.paused() == {first}
        assert await offsets_read(consumer, 10) == {1: list(range(10))}
        assert await consumer.poll(timeout_ms=50) == {}
        consumer.resume(first)
        assert record.offset == 0
        assert await offsets_read(consumer, 9) == {0: list(range(1, 10))}


async def test_assign_reads_without_a_group(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    for partition in range(2):
        await kafka.produce(topic, partition, rows(0, 3))
    second = TopicPartition(topic, 1)
    async with reading(kafka) as consumer:
        consumer.assign([second])
        assert consumer.assignment() == {second}
        assert await offsets_read(consumer, 3) == {1: [0, 1, 2]}
        with pytest.raises(IllegalOperation):
            await consumer.commit()
        with pytest.raises(IllegalOperation):
            await consumer.committed(second)


async def test_offsets_are_found_by_time_and_at_both_ends(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    for i, at in enumerate((1_000, 2_000, 3_000)):
        await kafka.produce(topic, 0, rows(i, 1), timestamp_ms=at)
    async with reading(kafka, topic) as consumer:
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.end_offsets([tp]) == {tp: 3}
        asked = {tp: 1_500}
        assert await consumer.offsets_for_times(asked) == {tp: OffsetAndTimestamp(1, 2_000)}
        assert asked == {tp: 1_500}
        assert await consumer.offsets_for_times({tp: 1}) == {tp: OffsetAndTimestamp(0, 1_000)}
        assert await consumer.offsets_for_times({tp: 9_000}) == {tp: None}
        with pytest.raises(ValueError, match="negative"):
            await consumer.offsets_for_times({tp: -1})
        missing = TopicPartition(topic, 7)
        for asking in (
            consumer.end_offsets([tp, missing]),
            consumer.beginning_offsets([missing]),
            consumer.offsets_for_times({missing: 1}),
        ):
            with pytest.raises(
                UnknownTopicOrPartitionError, match="no partition 7: the topic has 1 "
            ):
                await asyncio.wait_for(asking, 10)


@pytest.mark.virtual_time
async def test_a_partition_that_was_just_created_has_its_offsets() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(kafka, "t") as consumer:
            created = TopicPartition("t", 1)
            mark = broker.requests.total
            with broker.on("Metadata").stale_metadata():
                asking = asyncio.ensure_future(consumer.end_offsets([created]))
                await broker.requests.wait_for("Metadata", since=mark)
                broker.add_partitions("t", 2)
                await broker.requests.wait_for("Metadata", since=mark, count=2)
            assert await asking == {created: 0}


@pytest.mark.virtual_time
async def test_topics_of_the_brokers_own_are_not_listed() -> None:
    async with Broker() as broker:
        for name in ("t", "__consumer_offsets"):
            broker.create_topic(name)
        async with reading(KafkaHandle("embedded", broker.bootstrap_servers)) as consumer:
            assert await consumer.topics() == {"t"}


async def test_a_partition_whose_records_were_all_deleted_is_at_its_end(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 7))
    await kafka.delete_records(topic, 0, 7)
    async with reading(kafka) as consumer:
        consumer.assign([tp])
        assert await consumer.beginning_offsets([tp]) == await consumer.end_offsets([tp]) == {tp: 7}
        assert await asyncio.wait_for(consumer.position(tp), 10) == 7
        assert await consumer.getmany(timeout_ms=50) == {}
        await kafka.produce(topic, 0, rows(7, 1))
        assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 7


async def test_what_brokers_said_can_be_asked_for(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 4))
    async with reading(kafka, topic) as consumer:
        begun_at = time.time()
        await offsets_read(consumer, 4)
        await asyncio.sleep(0.005)
        assert consumer.highwater(tp) == 4
        assert consumer.last_stable_offset(tp) == 4
        polled_at_ms = consumer.last_poll_timestamp(tp)
        assert polled_at_ms is not None
        assert int(begun_at * 1000) <= polled_at_ms < time.time() * 1000
        assert consumer.partitions_for_topic(topic) == {0}
        assert topic in await consumer.topics()
        with pytest.raises(AssertionError):
            consumer.highwater(TopicPartition(topic, 9))


async def test_without_a_reset_policy_the_lack_of_an_offset_is_an_error(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic, auto_offset_reset="none") as consumer:
        for _ in range(2):
            with pytest.raises(NoOffsetForPartitionError):
                await consumer.poll(timeout_ms=10_000)
        with pytest.raises(NoOffsetForPartitionError):
            await consumer.position(tp)
        consumer.seek(tp, 1)
        assert await offsets_read(consumer, 2) == {0: [1, 2]}
        consumer.seek(tp, 100)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError) as raised:
                await consumer.poll(timeout_ms=10_000)
            assert raised.value.args == ({tp: 100},)
        consumer.seek(tp, 2)
        assert await offsets_read(consumer, 1) == {0: [2]}


async def test_an_offset_out_of_range_is_reset_by_the_policy(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic) as consumer:
        await offsets_read(consumer, 3)
        consumer.seek(TopicPartition(topic, 0), 100)
        assert await offsets_read(consumer, 3) == {0: [0, 1, 2]}


@pytest.mark.real_if_long
async def test_deserialisers_are_applied_and_their_errors_can_be_skipped(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, [(b"a", b"1"), (b"b", b"x"), (b"c", b"3")])

    def number(value: bytes | None) -> object:
        return int(value or b"")

    async with reading(kafka, topic, value_deserializer=number) as consumer:
        assert (await consumer.getone()).value == 1
        for _ in range(2):
            with pytest.raises(DeserializationError) as raised:
                await consumer.getone()
            assert (raised.value.tp, raised.value.offset) == (tp, 1)
        consumer.seek(tp, 2)
        assert (await consumer.getone()).value == 3


@pytest.mark.real_if_long
async def test_getone_under_a_timeout_loses_nothing(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    found: list[int] = []

    async def produce() -> None:
        for first in range(0, 30, 3):
            await kafka.produce(topic, 0, rows(first, 3))

    async with reading(kafka, topic) as consumer:
        producing = asyncio.ensure_future(produce())
        while len(found) < 30:
            try:
                found.append((await asyncio.wait_for(consumer.getone(), 0.002)).offset)
            except asyncio.TimeoutError:
                continue
        await producing
    assert found == list(range(30))


@pytest.mark.real_if_long
async def test_the_next_request_is_sent_before_records_are_handed_out(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    for first in range(0, 100, 10):
        await kafka.produce(topic, 0, rows(first, 10))
    async with reading(kafka, topic, max_partition_fetch_bytes=300) as consumer:
        tp = TopicPartition(topic, 0)
        seen = 0
        while seen < 50:
            batch = (await consumer.poll(timeout_ms=10_000))[tp]
            seen += len(batch)
            cluster = inside.cluster(consumer)
            leader = cluster.view.leader(tp)
            assert leader is not None
            if cluster.pool.in_flight_request_count(leader.leader) == 0:
                # Answered already: by now, or in the fetch task's hands. No request goes out and
                # comes back within a few turns of the loop.
                for _ in range(3):
                    await asyncio.sleep(0)
                assert inside.has_untaken(consumer, leader.leader)


async def test_a_name_that_no_topic_may_have_is_refused_at_once(kafka: KafkaHandle) -> None:
    consumer = AIOKafkaConsumer("no such topic?", bootstrap_servers=kafka.bootstrap_servers)
    with pytest.raises(InvalidTopicError, match=r"no such topic\?"):
        await consumer.start()
    await consumer.stop()


@pytest.mark.every_loop
@pytest.mark.parametrize("group_id", [None, "g"])
async def test_an_unknown_topic_is_named_when_the_time_is_up(group_id: str | None) -> None:
    async with Broker(auto_create_topics=False) as broker:
        consumer = AIOKafkaConsumer(
            "nowhere",
            bootstrap_servers=broker.bootstrap_servers,
            group_id=group_id,
            request_timeout_ms=500,
        )
        with pytest.raises(UnknownTopicOrPartitionError, match=r"'nowhere' .*create it"):
            await consumer.start()
        await consumer.stop()
        assert not broker.requests.of("ConsumerGroupHeartbeat")  # so there was no rebalance


@pytest.mark.real_if_long
async def test_stop_ends_gets_and_iteration(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:

        async def read_all() -> list[int]:
            return [record.offset async for record in consumer]

        iterating = asyncio.ensure_future(read_all())
        polling = asyncio.ensure_future(consumer.poll())
        await asyncio.sleep(0.05)
        await consumer.stop()
        assert await iterating == []
        with pytest.raises(ConsumerStoppedError):
            await polling
        for get in (consumer.getone, consumer.getmany, consumer.poll):
            with pytest.raises(ConsumerStoppedError):
                await get()
        with pytest.raises(ConsumerStoppedError):
            aiter(consumer)
        assert await consumer.stop() == {}


async def test_stop_returns_in_time_when_a_fetch_is_in_flight(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic, fetch_max_wait_ms=30_000) as consumer:
        await consumer.poll(timeout_ms=100)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await consumer.stop(timeout=5)
        assert loop.time() - began < 1.0


@pytest.mark.real_if_long
async def test_cancelled_start_leaves_nothing_behind(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    before = asyncio.all_tasks()
    for delay_s in (0.0, 0.001, 0.003, 0.01):
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers)
        starting = asyncio.ensure_future(consumer.start())
        await asyncio.sleep(delay_s)
        if starting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert tasks_left(before) == []
        await consumer.stop()


def tasks_left(before: set[asyncio.Task[Any]]) -> list[str]:
    """Return the names of a consumer's tasks that were not there before."""
    scopes = ("fetch:", "positions:", "group:", "cluster:")
    names = [task.get_name() for task in asyncio.all_tasks() - before]
    return [name for name in names if name.startswith(scopes)]


@pytest.mark.real_if_long
async def test_start_can_be_tried_again_after_a_failure(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 2))
    before = asyncio.all_tasks()
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
    )
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await consumer.start()
    assert (await consumer.getone()).offset == 0
    with pytest.raises(AssertionError, match="only once"):
        await consumer.start()
    assert (await consumer.getone()).offset == 1
    await consumer.stop()
    assert tasks_left(before) == []


async def test_gets_before_the_start_say_so() -> None:
    consumer = AIOKafkaConsumer("t")
    for get in (
        consumer.getone,
        consumer.getmany,
        consumer.poll,
        consumer.__anext__,
        consumer.topics,
    ):
        with pytest.raises(IllegalStateError, match="start"):
            await get()
    await consumer.stop()


async def test_a_wrong_bootstrap_address_is_a_connection_error() -> None:
    consumer = AIOKafkaConsumer("t", bootstrap_servers="127.0.0.1:1", request_timeout_ms=2_000)
    with pytest.raises(KafkaConnectionError, match=r"127\.0\.0\.1:1"):
        await consumer.start()
    await consumer.stop()


@pytest.mark.parametrize("is_debugged", [False, True])
async def test_an_unclosed_consumer_says_so(is_debugged: bool) -> None:
    told: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    loop.set_debug(is_debugged)
    with pytest.warns(ResourceWarning, match="Unclosed AIOKafkaConsumer") as warned:
        AIOKafkaConsumer("t")  # nothing else holds it
    assert warned[0].filename == __file__
    (context,) = told
    assert context["message"] == "Unclosed AIOKafkaConsumer"
    assert ("source_traceback" in context) == is_debugged


@pytest.mark.parametrize("servers", ["127.0.0.1:1", "127.0.0.1:99999"])
async def test_a_consumer_whose_start_has_failed_is_no_unclosed_one(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "aiokafka_lite")  # what is logged holds what failed
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    with pytest.raises(KafkaError):
        async with AIOKafkaConsumer("t", bootstrap_servers=servers):
            pytest.fail("it has no broker")
    gc.collect()  # a warning of it would be an error
    assert told == []


async def test_a_consumer_whose_start_was_cancelled_is_no_unclosed_one() -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with Broker() as broker:
        consumer = AIOKafkaConsumer("t", bootstrap_servers=broker.bootstrap_servers)
        with broker.on("Metadata").hold() as held:
            starting = asyncio.ensure_future(consumer.start())
            await held.reached()
            starting.cancel()
            await asyncio.wait([starting])
    del consumer, starting
    gc.collect()
    assert told == []


def test_a_consumer_is_made_in_a_running_loop() -> None:
    with pytest.raises(RuntimeError):
        AIOKafkaConsumer("t")


async def _make(make: Callable[[], AIOKafkaConsumer]) -> None:
    consumer = make()
    await consumer.stop()


async def test_deprecated_arguments_warn() -> None:
    with pytest.warns(DeprecationWarning, match="loop") as warned:
        await _make(lambda: AIOKafkaConsumer("t", loop=asyncio.get_running_loop()))
    line = linecache.getline(warned[0].filename, warned[0].lineno)
    assert "AIOKafkaConsumer(" in line
    with pytest.warns(DeprecationWarning, match="api_version"):
        await _make(lambda: AIOKafkaConsumer("t", api_version="auto"))


async def test_what_needs_no_broker_works_before_the_start() -> None:
    consumer, tp, other = AIOKafkaConsumer(), TopicPartition("t", 0), TopicPartition("t", 1)
    consumer.assign([tp])
    assert (consumer.assignment(), consumer.subscription()) == ({tp}, frozenset())
    assert consumer.highwater(tp) is consumer.last_stable_offset(tp) is None
    assert consumer.last_poll_timestamp(tp) is None
    assert consumer.positions() == {}
    consumer.incremental_assign([other])
    consumer.pause(tp, other)
    consumer.resume(other)
    assert consumer.paused() == {tp}
    consumer.seek(tp, 5)
    assert consumer.positions() == {tp: OffsetAndMetadata(5, "")}
    consumer.incremental_unassign([tp])
    assert consumer.assignment() == {other}
    consumer.unsubscribe()
    assert consumer.assignment() == set()
    consumer.subscribe(["t", "u"])
    assert consumer.subscription() == {"t", "u"}
    await consumer.stop()


async def test_subscribe_checks_its_arguments() -> None:
    consumer = AIOKafkaConsumer()
    for arguments in ({}, {"topics": ["t"], "pattern": "t"}):
        with pytest.raises(TypeError):
            consumer.subscribe(**arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        consumer.subscribe("t")
    with pytest.raises(TypeError):
        consumer.subscribe(["t"], listener=object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="regular expression"):
        consumer.subscribe(pattern="(")
    consumer.subscribe(["t"])
    assert consumer.subscription() == {"t"}
    with pytest.raises(IllegalStateError):
        consumer.assign([TopicPartition("t", 0)])
    consumer.unsubscribe()
    consumer.assign([TopicPartition("t", 0)])
    await consumer.stop()


@pytest.mark.real_if_long
@pytest.mark.every_loop
async def test_gets_whose_deadlines_are_less_than_a_millisecond_away_wait_beside_each_other(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:
        for _ in range(20):
            gets = (consumer.getmany(timeout_ms=0.4 - each / 10) for each in range(3))
            assert await asyncio.gather(*gets) == [{}, {}, {}]
