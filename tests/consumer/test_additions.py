"""What the consumer takes beyond aiokafka: metadata of commits, by_duration, no auto-creation."""

from __future__ import annotations

import time

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.config import reset_timestamp
from aiokafka_lite.errors import IllegalOperation, UnknownTopicOrPartitionError
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokafka_lite.protocol.messages.offsets import ListOffsetsRequest
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.cluster import LATEST, KafkaHandle, unique
from tests.support.for_each import for_each
from tests.support.reading import reading
from tests.support.rows import rows


# --- committed -----------------------------------------------------------------------------
async def test_committed_answers_for_one_or_several_with_metadata_or_without(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=3)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    async with reading(kafka, group_id=unique("group"), enable_auto_commit=False) as consumer:
        consumer.assign([first, second, third])
        await consumer.commit({first: (7, "half way"), second: 0})
        assert await consumer.committed(first) == 7
        assert await consumer.committed(partition=second) == 0
        assert await consumer.committed(third) is None
        assert await consumer.committed(first, metadata=True) == OffsetAndMetadata(7, "half way")
        assert await consumer.committed(first, second, third) == {first: 7, second: 0, third: None}
        assert await consumer.committed(first, third, metadata=True) == {
            first: OffsetAndMetadata(7, "half way"),
            third: None,
        }
        with pytest.raises(TypeError):
            await consumer.committed((topic, 0), first)  # type: ignore[call-overload]


@pytest.mark.real_if_long
async def test_committed_needs_a_group(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:
        with pytest.raises(IllegalOperation):
            await consumer.committed(TopicPartition(topic, 0), TopicPartition(topic, 0))


# --- allow_auto_create_topics --------------------------------------------------------------
async def test_a_consumer_that_may_not_create_topics_finds_none(kafka: KafkaHandle) -> None:
    topic = unique("missing")
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        request_timeout_ms=1_000,
        allow_auto_create_topics=False,
    )
    with pytest.raises(UnknownTopicOrPartitionError):
        await consumer.start()
    await consumer.stop()
    async with kafka.raw() as client:
        (answer,) = (
            await client.request(
                MetadataRequest(
                    topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
                )
            )
        ).topics
    assert answer.error_code == UnknownTopicOrPartitionError.errno


async def test_topics_are_created_by_default_as_aiokafka_has_it(kafka: KafkaHandle) -> None:
    topic = unique("made")
    async with reading(kafka, topic) as consumer:
        assert consumer.partitions_for_topic(topic)


# --- by_duration ---------------------------------------------------------------------------
HOUR_MS = 3_600_000


async def test_by_duration_starts_at_the_first_record_that_is_young_enough(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    now_ms = int(time.time() * 1000)
    for hours in (30, 20, 10):
        await kafka.produce(topic, 0, rows(0, 2), timestamp_ms=now_ms - hours * HOUR_MS)
    for duration, first in (("P3D", 0), ("PT24H", 2), ("PT15H", 4)):
        async with reading(kafka, topic, auto_offset_reset=f"by_duration:{duration}") as consumer:
            assert (await consumer.getone()).offset == first


async def test_by_duration_where_nothing_is_so_young_starts_with_what_comes(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 3), timestamp_ms=int(time.time() * 1000) - HOUR_MS)
    async with reading(kafka, topic, auto_offset_reset="by_duration:PT30M") as consumer:
        assert await consumer.position(TopicPartition(topic, 0)) == 3
        assert await consumer.position(TopicPartition(topic, 1)) == 0
        await kafka.produce(topic, 0, rows(3, 1))
        assert (await consumer.getone()).offset == 3


def asks_for_the_end(context: object, request: object) -> bool:
    assert isinstance(request, ListOffsetsRequest)
    return any(p.timestamp == LATEST for topic in request.topics for p in topic.partitions)


async def test_by_duration_passes_over_nothing_that_comes_while_it_looks() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        with broker.on("ListOffsets", when=asks_for_the_end).hold() as rule:
            async with AIOKafkaConsumer(
                "t",
                bootstrap_servers=broker.bootstrap_servers,
                auto_offset_reset="by_duration:PT1H",
            ) as consumer:
                await rule.reached()  # nothing was young enough; and now something is
                broker.produce("t", b"young")
                rule.release()
                assert (await consumer.getone()).value == b"young"


@for_each(
    [
        ("PT12H", 12 * HOUR_MS),
        ("P7D", 7 * 24 * HOUR_MS),
        ("p1dt2h3m4.5s", 26 * HOUR_MS + 184_500),
        ("PT0S", 0),
        ("PT1H-30M", HOUR_MS // 2),
        ("-PT-5S", 5_000),
        ("PT-0.5S", None),
        ("PT1.1234S", 1_123),
        ("P99999D", None),
    ]
)
def test_durations_are_read_as_java_reads_them(duration: str, duration_ms: int | None) -> None:
    before = int(time.time() * 1000)
    if duration == "PT-0.5S":
        with pytest.raises(ValueError, match="negative"):
            reset_timestamp(f"by_duration:{duration}")
        return
    timestamp = reset_timestamp(f"by_duration:{duration}")
    assert timestamp is not None
    if duration_ms is None:  # older than the epoch: all there is, not one of the special times
        assert timestamp == 0
        return
    assert before - duration_ms <= timestamp <= int(time.time() * 1000) - duration_ms


@pytest.mark.parametrize(
    "policy",
    ["by_duration", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:P1DT",
     "by_duration:1H", "by_duration:P1H", "by_duration:-PT5S", "by_duration:P1Y", "Latest"],
)  # fmt: skip
async def test_policies_that_cannot_be_read_are_refused_at_once(policy: str) -> None:
    with pytest.raises(ValueError, match="auto_offset_reset"):
        AIOKafkaConsumer(auto_offset_reset=policy)
