"""Metadata cover what everybody wants to know: no question takes away what others watch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.network.request_log import SeenRequest
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import LeaderNotAvailableError
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import offsets_read, reading
from tests.support.rows import rows

SETTINGS: dict[str, object] = {
    "fetch_max_wait_ms": 50,
    "retry_backoff_ms": 20,
    "metadata_max_age_ms": 100,
    "heartbeat_interval_ms": 50,
}

Question = Callable[[AIOKafkaConsumer, TopicPartition], Awaitable[object]]
QUESTIONS: dict[str, Question] = {
    "beginning_offsets": lambda consumer, tp: consumer.beginning_offsets([tp]),
    "end_offsets": lambda consumer, tp: consumer.end_offsets([tp]),
    "offsets_for_times": lambda consumer, tp: consumer.offsets_for_times({tp: 0}),
}


async def until_assigned(consumer: AIOKafkaConsumer, wanted: set[TopicPartition]) -> None:
    async with _compat.timeout(20):
        while consumer.assignment() != wanted:
            await consumer.poll(timeout_ms=20)


@pytest.mark.parametrize("has_group", [False, True], ids=["no_group", "group"])
@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_pattern_finds_new_topics_after_a_question_about_another(
    kafka: KafkaHandle, question: str, has_group: bool
) -> None:
    prefix = unique("seen")
    first, other = await kafka.create_topic(f"{prefix}-1"), unique("other")
    settings = {**SETTINGS, "allow_auto_create_topics": False}
    if has_group:
        # In the other protocol the broker looks for the topics, and every ten seconds only.
        settings |= {"group_id": unique("group"), "group_protocol": "classic"}
    async with reading(kafka, **settings) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(pattern=f"^{prefix}-.*")
        await until_assigned(consumer, {TopicPartition(first, 0)})
        asked = asyncio.ensure_future(QUESTIONS[question](consumer, TopicPartition(other, 0)))
        await asyncio.sleep(0)
        await kafka.create_topic(other)  # all others are known already
        await asked
        second = await kafka.create_topic(f"{prefix}-2")
        await kafka.produce(second, 0, rows(0, 3))
        await until_assigned(consumer, {TopicPartition(first, 0), TopicPartition(second, 0)})
        assert await consumer.end_offsets([TopicPartition(second, 0)]) == {
            TopicPartition(second, 0): 3
        }
        await consumer.seek_to_beginning()
        assert await offsets_read(consumer, 3) == {0: [0, 1, 2]}


async def test_a_leader_that_asks_for_offsets_still_shares_out_what_others_are_given_more_of(
    kafka: KafkaHandle,
) -> None:
    ours, theirs, other = [await kafka.create_topic() for _ in range(3)]
    group = unique("group")
    settings = {**SETTINGS, "group_id": group}
    async with reading(kafka, ours, **settings) as leader:  # type: ignore[arg-type]
        await until_assigned(leader, {TopicPartition(ours, 0)})
        polling = asyncio.ensure_future(_poll_for_ever(leader))
        async with reading(kafka, theirs, **settings) as member:  # type: ignore[arg-type]
            await until_assigned(member, {TopicPartition(theirs, 0)})
            await until_assigned(leader, {TopicPartition(ours, 0)})
            assert await leader.end_offsets([TopicPartition(other, 0)]) == {
                TopicPartition(other, 0): 0
            }
            await kafka.add_partitions(theirs, 2)
            await until_assigned(member, {TopicPartition(theirs, 0), TopicPartition(theirs, 1)})
        polling.cancel()
        await asyncio.wait([polling])


async def _poll_for_ever(consumer: AIOKafkaConsumer) -> None:
    while True:
        await consumer.poll(timeout_ms=50)


# --- What is asked of brokers ----------------------------------------------------------------
def topics_asked_for(seen: SeenRequest) -> set[str] | None:
    """The topics that a Metadata request asks for; None: for all."""
    assert isinstance(seen.request, MetadataRequest)
    topics = seen.request.topics
    return None if topics is None else {topic.name or "" for topic in topics}


async def until_metadata(broker: Broker, wanted: set[str] | None) -> None:
    """Wait until metadata are asked for that cover these topics and no others."""

    def is_wanted(seen: SeenRequest) -> bool:
        return topics_asked_for(seen) == wanted

    mark = broker.requests.total
    await broker.requests.wait_for(MetadataRequest, since=mark, when=is_wanted, timeout_s=5)


async def test_a_question_that_is_answered_is_watched_no_more() -> None:
    async with Broker() as broker:
        for name in ("read", "other"):
            broker.create_topic(name)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(kafka, "read", **SETTINGS) as consumer:  # type: ignore[arg-type]
            mark = broker.requests.total
            await consumer.end_offsets([TopicPartition("other", 0)])
            asked = broker.requests.of(MetadataRequest, since=mark)
            assert any("other" in (topics_asked_for(each) or ()) for each in asked)
            await until_metadata(broker, {"read"})


async def test_a_question_that_is_cancelled_is_watched_no_more() -> None:
    async with Broker() as broker:
        for name in ("read", "other"):
            broker.create_topic(name)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(kafka, "read", **SETTINGS) as consumer:  # type: ignore[arg-type]
            with broker.on("ListOffsets").fail(LeaderNotAvailableError, times=None):
                question = asyncio.ensure_future(consumer.end_offsets([TopicPartition("other", 0)]))
                await until_metadata(broker, {"read", "other"})
                question.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await question
            await until_metadata(broker, {"read"})


async def test_a_question_is_watched_until_it_is_answered() -> None:
    """The leader moves while it is being asked: only metadata that cover the topic tell where."""
    async with Broker(nodes=2) as broker:
        broker.create_topic("read")
        broker.create_topic("other")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {**SETTINGS, "metadata_max_age_ms": 300_000}
        async with reading(kafka, "read", **settings) as consumer:  # type: ignore[arg-type]
            tp = TopicPartition("other", 0)
            await consumer.end_offsets([tp])
            broker.move_leader(tp)
            assert await asyncio.wait_for(consumer.end_offsets([tp]), 5) == {tp: 0}


async def test_a_leader_that_unsubscribes_watches_nothing_for_its_group() -> None:
    async with Broker() as broker:
        for name in ("ours", "theirs", "alone"):
            broker.create_topic(name)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {**SETTINGS, "group_id": "g", "group_protocol": "classic"}
        async with reading(kafka, "ours", **settings) as leader:  # type: ignore[arg-type]
            polling = asyncio.ensure_future(_poll_for_ever(leader))
            async with reading(kafka, "theirs", **settings):  # type: ignore[arg-type]
                await until_metadata(broker, {"ours", "theirs"})
                polling.cancel()
                await asyncio.wait([polling])
                leader.unsubscribe()
                leader.assign([TopicPartition("alone", 0)])
                await until_metadata(broker, {"alone"})
