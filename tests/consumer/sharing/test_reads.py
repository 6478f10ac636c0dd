"""Reads of a share consumer: acknowledgements, cancelled reads, several members."""

from __future__ import annotations

import asyncio
import json
import pickle
from contextlib import suppress
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaShareConsumer, ConsumerStoppedError, TopicPartition
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer.sharing.leases import DELIVERY_COUNT_LIMIT
from aiokafka_lite.deserializers import AsyncDeserializer, Serialized
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    DeserializationError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    InvalidTopicError,
    ShareSessionLimitReachedError,
    WrongLoopError,
)
from tests.consumer.sharing.reading import (
    PATIENCE_S,
    Record,
    filled,
    member,
    new_group,
    offsets,
    take,
)
from tests.support.cluster import KafkaHandle
from tests.support.rows import rows
from tests.support.share_groups import configure_share_group
from tests.support.waiting import until


async def test_a_read_accepts_the_records_that_were_read_before(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka), await new_group(kafka)
    async with timeout(PATIENCE_S):
        async with member(kafka, topic, group) as consumer:
            assert offsets(await take(consumer, 3)) == [0, 1, 2]
            assert [r.delivery_count for r in await take(consumer, 2)] == [1, 1]
        async with member(kafka, topic, group) as again:
            await kafka.produce(topic, 0, rows(5, 1))
            assert offsets(await take(again, 1)) == [5]  # the stop has accepted all others


async def test_an_exception_in_the_block_releases_the_records_that_were_read_last(
    kafka: KafkaHandle,
) -> None:
    topic, group = await filled(kafka), await new_group(kafka)

    async def fail() -> None:
        async with member(kafka, topic, group) as consumer:
            await take(consumer, 2)
            await take(consumer, 1)
            raise ZeroDivisionError

    async with timeout(PATIENCE_S):
        with pytest.raises(ZeroDivisionError):
            await fail()
        async with member(kafka, topic, group) as again:
            found = await take(again, 3)
            assert offsets(found) == [2, 3, 4]
            assert found[0].delivery_count == 2


async def test_explicit_acknowledgements_decide_on_each_record(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka), await new_group(kafka)
    async with timeout(PATIENCE_S):
        async with member(kafka, topic, group, ack_mode="explicit") as consumer:
            accepted, rejected, released, open_one, late = await take(consumer, 5)
            assert 0 < (accepted.lease_ms or 0) <= 30_000
            assert accepted.ack()
            assert not accepted.ack()
            assert not accepted.nack()
            assert accepted.lease_ms == 0
            assert rejected.reject()
            assert released.nack()
            assert not released.reject()
            (again,) = await take(consumer, 1)
            assert (again.offset, again.delivery_count) == (2, 2)
            assert again.ack()
            assert late.ack()
            assert open_one.delivery_count == 1
        async with member(kafka, topic, group) as other:
            (left,) = await take(other, 1)
            assert (left.offset, left.delivery_count) == (3, 2)
            assert await other.getmany(timeout_ms=300) == {}


async def test_a_nack_with_a_delay_holds_the_record_until_then(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    loop = asyncio.get_running_loop()
    async with timeout(PATIENCE_S), member(kafka, topic, group, ack_mode="explicit") as consumer:
        (record,) = await take(consumer, 1)
        began = loop.time()
        assert record.nack(delay_ms=400)
        assert not record.ack()
        (again,) = await take(consumer, 1)
        assert loop.time() - began >= 0.39
        assert again.delivery_count == 2
        with pytest.raises(ValueError, match="negative"):
            again.nack(-1)


async def test_receipts_are_not_pickled_and_refuse_other_threads(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    async with timeout(PATIENCE_S), member(kafka, topic, group, ack_mode="explicit") as consumer:
        (record,) = await take(consumer, 1)
        copy = pickle.loads(pickle.dumps(record))  # noqa: S301 -- made here
        assert copy.lease_ms is None
        with pytest.raises(RuntimeError, match="explicit"):
            copy.ack()
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(record.ack)
        assert record.ack()


async def test_implicit_records_have_no_acknowledgements(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        (record,) = await take(consumer, 1)
        assert record.lease_ms is None
        with pytest.raises(RuntimeError, match="explicit"):
            record.reject()


async def test_a_cancelled_getone_loses_no_record(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(), await new_group(kafka)
    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        found: list[Record] = []
        waiting = asyncio.ensure_future(consumer.getone())
        for _ in range(20):
            await asyncio.sleep(0.005)
            waiting.cancel()
            await asyncio.wait([waiting])
            waiting = asyncio.ensure_future(consumer.getone())
        await kafka.produce(topic, 0, rows(0, 20))
        while len(found) < 20:
            done, _ = await asyncio.wait([waiting], timeout=0.001)
            if not done:
                waiting.cancel()
                await asyncio.wait([waiting])
            if not waiting.cancelled():
                found.append(waiting.result())
            waiting = asyncio.ensure_future(consumer.getone())
        waiting.cancel()
        await asyncio.wait([waiting])
        assert offsets(found) == list(range(20))
        assert all(record.delivery_count == 1 for record in found)


async def test_records_of_a_cancelled_read_go_to_a_read_that_waits(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka), await new_group(kafka)
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    class Slow(AsyncDeserializer[bytes]):
        async def deserialize(self, item: Serialized) -> bytes:
            begun.set()
            await may_go_on.wait()
            return bytes(item.payload)

    async with (
        timeout(PATIENCE_S),
        member(kafka, topic, group, value_deserializer=Slow()) as consumer,
    ):
        cancelled = asyncio.create_task(consumer.getmany(max_records=5, timeout_ms=None))
        await begun.wait()
        waiting = [asyncio.create_task(consumer.getone()) for _ in range(2)]
        await asyncio.sleep(0.1)  # they wait for records
        may_go_on.set()
        cancelled.cancel()
        assert sorted(offsets(await asyncio.gather(*waiting))) == [0, 1]


async def test_iterations_end_with_the_stop(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka), await new_group(kafka)
    consumer = member(kafka, topic, group)
    found: list[int] = []

    async def read() -> None:
        async for record in consumer:
            found.append(record.offset)  # noqa: PERF401 -- looked at meanwhile

    async with timeout(PATIENCE_S):
        async with consumer:
            reading = asyncio.create_task(read())
            await until(lambda: len(found) == 5)
        await reading
        assert found == [0, 1, 2, 3, 4]
        with pytest.raises(ConsumerStoppedError):
            await consumer.getone()


async def test_two_members_share_one_partition(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 40), await new_group(kafka)
    async with timeout(PATIENCE_S), member(kafka, topic, group) as one:
        first = await take(one, 5)
        async with member(kafka, topic, group) as two:
            second = await take(two, 5)
            assert one.assignment() == two.assignment() == {TopicPartition(topic, 0)}
            assert not {*offsets(first)} & {*offsets(second)}


async def test_a_task_that_fails_releases_its_records(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 2), await new_group(kafka)

    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:

        async def fail() -> None:
            await take(consumer, 1)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await asyncio.create_task(fail())
        found = {record.offset: record.delivery_count for record in await take(consumer, 2)}
        assert found == {0: 2, 1: 1}


async def test_records_are_read_only_with_a_subscription_and_after_the_start(
    kafka: KafkaHandle,
) -> None:
    topic, group = await filled(kafka), await new_group(kafka)
    consumer: AIOKafkaShareConsumer[Any, Any] = AIOKafkaShareConsumer(
        group_id=group, bootstrap_servers=kafka.bootstrap_servers
    )
    with pytest.raises(IllegalStateError, match="not started"):
        await consumer.getone()
    async with timeout(PATIENCE_S), consumer:
        with pytest.raises(IllegalStateError, match="Not subscribed"):
            await consumer.getone()
        assert not consumer.health().is_ok
        consumer.subscribe([topic])
        assert consumer.subscription() == {topic}
        assert offsets(await take(consumer, 5)) == [0, 1, 2, 3, 4]
        assert consumer.health().verdict == "ok"
        assert consumer.metrics()["records_total"] == 5
        assert "leased and not settled" in consumer.explain(TopicPartition(topic, 0))
        assert "not subscribed" in consumer.explain(TopicPartition("other", 0))


async def test_health_and_explain_name_what_a_node_answers_instead_of_records() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        broker.create_topic("topic")
        broker.on("ShareFetch").fail(ShareSessionLimitReachedError, None, at="answer")
        async with AIOKafkaShareConsumer(
            "topic", group_id="group", bootstrap_servers=broker.bootstrap_servers
        ) as consumer:
            reading = asyncio.create_task(consumer.getone())
            await until(lambda: "ShareSessionLimitReached" in str(consumer.health().reasons))
            assert not consumer.health().is_ok
            assert "ShareSessionLimitReached" in consumer.explain(TopicPartition("topic", 0))
            reading.cancel()


async def test_health_names_the_failure_of_a_start_of_run_and_of_the_block() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        consumer: AIOKafkaShareConsumer[Any, Any] = AIOKafkaShareConsumer(
            "topic", group_id="group", bootstrap_servers=broker.bootstrap_servers
        )
        broker.on("ShareGroupHeartbeat").fail(GroupAuthorizationFailedError, at="answer")
        with pytest.raises(GroupAuthorizationFailedError):
            await consumer.start()
        assert "start() failed" in str(consumer.health().reasons)
        with suppress(ZeroDivisionError):
            async with consumer:
                with pytest.raises(InvalidTopicError):
                    await consumer.run(print, dead_letter="no topic")
                health = consumer.health()
                assert health.verdict == "degraded"
                assert "run() ended with" in str(health.reasons)
                assert await consumer.getmany(timeout_ms=0) == {}
                assert consumer.health().is_ok
                raise ZeroDivisionError
        health = consumer.health()
        assert health.verdict == "dead"
        assert "block ended with ZeroDivisionError" in str(health.reasons)


async def test_a_read_raises_when_the_group_may_not_be_read_any_more() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        broker.create_topic("topic")
        async with AIOKafkaShareConsumer(
            "topic", group_id="group", bootstrap_servers=broker.bootstrap_servers
        ) as consumer:
            broker.on("ShareFetch").fail(GroupAuthorizationFailedError, at="answer")
            with pytest.raises(GroupAuthorizationFailedError):
                await consumer.getone()


@pytest.mark.virtual_time
async def test_health_and_explain_name_a_topic_that_does_not_exist() -> None:
    async with Broker(auto_create_topics=False) as broker:
        broker.create_topic("topic")
        async with AIOKafkaShareConsumer(
            "topik", group_id="group", bootstrap_servers=broker.bootstrap_servers
        ) as consumer:
            await until(lambda: "topik" in str(consumer.health().reasons))
            assert "'topic'" in consumer.explain(TopicPartition("topik", 0))


@pytest.mark.virtual_time
async def test_health_and_metrics_have_ages_and_the_records_that_may_be_archived() -> None:
    async with Broker(group_share_delivery_count_limit=DELIVERY_COUNT_LIMIT) as broker:
        broker.create_topic("topic")
        await configure_share_group(
            broker.bootstrap_servers, "group", {"auto.offset.reset": "earliest"}
        )
        broker.produce("topic", b"x", partition=0)
        consumer: AIOKafkaShareConsumer[Any, Any] = AIOKafkaShareConsumer(
            "topic",
            group_id="group",
            bootstrap_servers=broker.bootstrap_servers,
            ack_mode="explicit",
        )
        async with consumer:
            for _ in range(DELIVERY_COUNT_LIMIT - 1):
                (await consumer.getone()).nack()
            assert consumer.health().verdict == "ok"
            record = await consumer.getone()
            assert consumer.metrics()["leases_at_delivery_limit"] == 1
            assert "share.delivery.count.limit" in str(consumer.health().reasons)
            await asyncio.sleep(20)
            health, metrics = consumer.health(), consumer.metrics()
            assert health.last_heartbeat_s == metrics["last_heartbeat_age_seconds"]
            assert 0 < (health.last_heartbeat_s or 0) <= 5
            assert 15 < (health.last_fetch_s or 0) < 25
            assert record.ack()
            assert consumer.health().verdict == "ok"


@pytest.mark.virtual_time
async def test_the_stop_waits_only_briefly_for_a_coordinator_that_is_not_available() -> None:
    loop = asyncio.get_running_loop()
    async with Broker() as broker:
        broker.create_topic("topic")
        consumer = AIOKafkaShareConsumer(
            "topic", group_id="group", bootstrap_servers=broker.bootstrap_servers
        )
        await consumer.start()
        for api in ("FindCoordinator", "ShareGroupHeartbeat"):
            broker.on(api).fail(CoordinatorNotAvailableError, None, at="answer")
        await asyncio.sleep(10)
        began = loop.time()
        await consumer.stop()
        assert loop.time() - began < 3.0


class Json(AsyncDeserializer[object]):
    async def deserialize(self, item: Serialized) -> object:
        await asyncio.sleep(0)
        return json.loads(item.payload)


@pytest.mark.parametrize("deserializer", [json.loads, Json()], ids=["plain", "async"])
async def test_a_read_raises_for_a_bad_record_and_releases_it(
    kafka: KafkaHandle, deserializer: Any
) -> None:
    topic = await kafka.create_topic()
    group = await new_group(kafka, delivery_count_limit=2)
    await kafka.produce(topic, 0, [(None, b"1"), (None, b"{"), (None, b"3")])
    settings = {"value_deserializer": deserializer}
    async with timeout(PATIENCE_S), member(kafka, topic, group, **settings) as consumer:
        found: list[object] = []
        failures = 0
        while len(found) < 2 or failures < 2:
            try:
                found.append((await consumer.getone()).value)
            except DeserializationError as error:
                failures += error.offset == 1
        assert found == [1, 3]
