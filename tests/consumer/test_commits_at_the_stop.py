"""A commit that the application makes during the stop, or after it."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    CommitFailedError,
    CoordinatorLoadInProgressError,
    IllegalStateError,
    KafkaError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import in_both_protocols
from tests.support.rows import rows
from tests.support.waiting import until

PATIENCE_S = 20.0


async def topic_of_ten(kafka: KafkaHandle) -> TopicPartition:
    """A partition with ten records."""
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 10))
    return TopicPartition(topic, 0)


def consumer_of(
    kafka: KafkaHandle, tp: TopicPartition, group: str, **settings: object
) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        tp.topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        **settings,  # type: ignore[arg-type]
    )


async def committed(kafka: KafkaHandle, tp: TopicPartition, group: str) -> int | None:
    """What the group has committed, as the next member finds it."""
    async with consumer_of(kafka, tp, group) as reader:
        return await reader.committed(tp)


@in_both_protocols
@pytest.mark.parametrize("auto", [True, False])
async def test_offsets_that_are_committed_during_the_stop_are_kept(
    kafka: KafkaHandle, protocol: str, auto: bool
) -> None:
    tp, group = await topic_of_ten(kafka), unique("g")
    async with timeout(PATIENCE_S):
        consumer = consumer_of(kafka, tp, group, group_protocol=protocol, enable_auto_commit=auto)
        await consumer.start()
        for _ in range(5):
            await consumer.getone()
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        await consumer.commit({tp: 3})
        assert await stopping == {}
        # A clean stop commits all that was returned.
        assert await committed(kafka, tp, group) == (5 if auto else 3)


async def test_a_stop_leaves_the_group_after_the_commits_that_are_on_their_way() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        tp = await topic_of_ten(kafka)
        consumer = consumer_of(kafka, tp, "g", enable_auto_commit=False)
        await consumer.start()
        await consumer.getone()
        with broker.on("OffsetCommit").hold() as rule:
            committing = asyncio.create_task(consumer.commit({tp: 1}))
            await rule.reached()
            # The stop ends with the commit, long before its timeout.
            stopping = asyncio.create_task(consumer.stop(3 * PATIENCE_S))
            await asyncio.sleep(0.1)
            assert not stopping.done()
        await committing
        assert await stopping == {}
        assert await committed(kafka, tp, "g") == 1


async def test_a_stop_waits_for_a_commit_that_is_tried_again() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        tp = await topic_of_ten(kafka)
        settings = {"enable_auto_commit": False, "retry_backoff_ms": 300}
        consumer = consumer_of(kafka, tp, "g", **settings)
        await consumer.start()
        await consumer.getone()
        refused = broker.on("OffsetCommit").fail(CoordinatorLoadInProgressError)
        committing = asyncio.create_task(consumer.commit({tp: 1}))
        await until(lambda: refused.hits == 1)
        assert await consumer.stop() == {}
        await committing
        assert await committed(kafka, tp, "g") == 1


@pytest.mark.real_if_long
async def test_a_commit_after_the_stop_fails_as_a_commit_and_says_why(kafka: KafkaHandle) -> None:
    tp = await topic_of_ten(kafka)
    async with timeout(PATIENCE_S):
        consumer = consumer_of(kafka, tp, unique("g"))
        with pytest.raises(IllegalStateError, match="not started"):
            await consumer.commit({tp: 1})
        await consumer.start()
        await consumer.getone()
        await consumer.stop()
        for offsets in ({tp: 1}, None):
            with pytest.raises(CommitFailedError, match=r"is stopped.*before stop\(\)") as caught:
                await consumer.commit(offsets)
            assert isinstance(caught.value, KafkaError)


async def test_a_commit_that_the_stop_ends_fails_as_a_commit() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        tp = await topic_of_ten(kafka)
        consumer = consumer_of(kafka, tp, "g", enable_auto_commit=False)
        await consumer.start()
        await consumer.getone()
        with broker.on("OffsetCommit").hold() as rule:
            committing = asyncio.create_task(consumer.commit({tp: 1}))
            await rule.reached()
            await consumer.stop(0.1)
            with pytest.raises(CommitFailedError, match="unknown whether the offsets"):
                await committing
