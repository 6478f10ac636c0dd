"""Sends to many topics: each costs as much as the first."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.producing.accumulator import KnownTopic
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from tests.producing.sending import producer_of, values_in
from tests.support.cluster import KafkaHandle, unique

COUNT = 40


def names_asked(broker: Broker) -> list[list[str | None]]:
    """What each Metadata request since the start has named."""
    requests = [cast("MetadataRequest", each.request) for each in broker.requests.of("Metadata")]
    return [[topic.name for topic in each.topics or ()] for each in requests]


async def test_topics_that_are_sent_to_one_after_another_are_asked_for_one_by_one() -> None:
    topics = [f"topic-{number:02}" for number in range(COUNT)]
    async with Broker() as broker:
        for topic in topics[::2]:  # the others are made by asking
            broker.create_topic(topic)
        async with producer_of(broker) as producer:
            broker.requests.clear()
            for topic in topics:
                await producer.send_and_wait(topic, b"first")
            assert names_asked(broker) == [[topic] for topic in topics]
            for topic in topics:
                await producer.send_and_wait(topic, b"second")
            assert len(names_asked(broker)) == COUNT


async def test_topics_that_are_sent_to_at_the_same_time_are_asked_for_together() -> None:
    topics = [f"topic-{number:02}" for number in range(COUNT)]
    async with Broker() as broker, producer_of(broker) as producer:
        broker.requests.clear()
        await asyncio.gather(*(producer.send_and_wait(topic, b"first") for topic in topics))
        assert names_asked(broker) == [topics]


async def test_what_is_known_of_a_topic_is_not_looked_at_for_the_sake_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()
    update, partition = KnownTopic.update, ClusterView.partition

    def count_updates(self: KnownTopic, *args: object) -> bool:
        calls["update"] += 1
        return update(self, *args)  # type: ignore[arg-type]

    def count_looks(self: ClusterView, *args: object) -> object:
        calls["partition"] += 1
        return partition(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(KnownTopic, "update", count_updates)
    monkeypatch.setattr(ClusterView, "partition", count_looks)
    async with Broker() as broker, producer_of(broker) as producer:
        await producer.send_and_wait("first", b"value")
        before = calls.copy()
        await producer.send_and_wait("second", b"value")
        of_one = calls - before
        for number in range(COUNT):
            await producer.send_and_wait(f"topic-{number}", b"value")
        assert (calls - before - of_one) == Counter({n: c * COUNT for n, c in of_one.items()})


async def test_every_record_for_new_topics_is_written(kafka: KafkaHandle) -> None:
    topics = [await kafka.create_topic() for _ in range(3)] + [unique("made") for _ in range(3)]
    async with timeout(60), producer_of(kafka) as producer:
        for value in (b"first", b"second"):
            for topic in topics:
                await producer.send_and_wait(topic, value, partition=0)
    for topic in topics:
        assert await values_in(kafka, topic) == [b"first", b"second"]


@pytest.mark.virtual_time
async def test_new_topics_do_not_keep_the_others_from_being_asked_for_in_time() -> None:
    async with Broker() as broker, producer_of(broker, metadata_max_age_ms=5_000) as producer:
        broker.create_topic("old")
        await producer.send_and_wait("old", b"value")
        for number in range(60):
            await producer.send_and_wait(f"new-{number:02}", b"value")
            await asyncio.sleep(0.1)
        whole = [names for names in names_asked(broker) if len(names) > 1]
        assert len(whole) == 1
        assert "old" in whole[0]
