"""Committed offsets that cannot be had yet are waited for: no position is made up instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as TheirPartition

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    BrokerResponseError,
    TopicAuthorizationFailedError,
    UnstableOffsetCommitError,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import consumer_of, reading
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S

COMMITTED = {TopicPartition("t", 0): 3, TopicPartition("t", 1): 4}


# --- Answers without the offsets -------------------------------------------------------------
def unstable(topic: OffsetFetchResponseTopics) -> None:
    for found in topic.partitions:
        found.error_code = UnstableOffsetCommitError.errno


def one_left_out(topic: OffsetFetchResponseTopics) -> None:
    del topic.partitions[0]
    unstable(topic)


def all_left_out(topic: OffsetFetchResponseTopics) -> None:
    topic.partitions.clear()


@pytest.mark.parametrize("spoil", [unstable, one_left_out, all_left_out])
@pytest.mark.parametrize(
    ("reset", "times"),
    [
        ("earliest", 3),
        ("latest", 3),
        ("none", 3),
        pytest.param("earliest", 18, marks=pytest.mark.slow),  # more than 10 s
    ],
)
async def test_a_member_waits_for_committed_offsets_however_often_it_has_to_ask(
    spoil: Callable[[OffsetFetchResponseTopics], None], reset: str, times: int
) -> None:
    def spoilt(context: object, request: object) -> OffsetFetchResponse:
        assert isinstance(request, OffsetFetchRequest)
        (asked,) = request.groups
        answer = OffsetFetchResponseGroup(group_id=asked.group_id)
        for topic in asked.topics or ():
            partitions = [
                OffsetFetchResponsePartitions(partition_index=number, committed_offset=-1)
                for number in topic.partition_indexes
            ]
            answer.topics.append(
                OffsetFetchResponseTopics(
                    name=topic.name, topic_id=topic.topic_id, partitions=partitions
                )
            )
            spoil(answer.topics[-1])
        return OffsetFetchResponse(groups=[answer])

    async with Broker(num_partitions=2) as broker:
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        await handle.create_topic("t", partitions=2)
        for partition in range(2):
            await handle.produce("t", partition, rows(0, 10))
        async with reading(handle, group_id="g", enable_auto_commit=False) as consumer:
            consumer.assign(list(COMMITTED))
            await consumer.commit(COMMITTED)
        asked_before = broker.requests.of("ListOffsets")
        rule = broker.on("OffsetFetch").answer(spoilt, times=times)
        offsets: dict[TopicPartition, int] = {}
        async with reading(
            handle, "t", group_id="g", auto_offset_reset=reset, retry_backoff_ms=5
        ) as consumer:
            while len(offsets) < 2:
                for tp, batch in (await consumer.poll(timeout_ms=10_000)).items():
                    offsets.setdefault(tp, batch[0].offset)
        assert offsets == COMMITTED
        assert rule.is_over
        assert broker.requests.of("ListOffsets") == asked_before  # nothing was reset


# --- Transactions that commit offsets ----------------------------------------------------------
def begin_to_commit(bootstrap_servers: str, group_id: str, tp: TopicPartition, at: int) -> Producer:
    """Commit an offset in a transaction that stays open."""
    settings = {"bootstrap.servers": bootstrap_servers}
    producer = Producer({**settings, "transactional.id": unique("tx"), "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    consumer = Consumer({**settings, "group.id": group_id})
    try:
        metadata = consumer.consumer_group_metadata()
        offsets = [TheirPartition(tp.topic, tp.partition, at)]
        producer.send_offsets_to_transaction(offsets, metadata, PATIENCE_S)
    finally:
        consumer.close()
    return producer


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
async def test_a_position_waits_for_the_end_of_a_transaction_that_commits_it(
    kafka: KafkaHandle, is_committed: bool
) -> None:
    topic, group_id = await kafka.create_topic(), unique("g")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    async with reading(kafka, group_id=group_id, enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        await consumer.commit({tp: 3})
    producer = await asyncio.to_thread(begin_to_commit, kafka.bootstrap_servers, group_id, tp, 7)
    async with reading(kafka, topic, group_id=group_id, retry_backoff_ms=20) as consumer:
        async with timeout(PATIENCE_S):
            while "committed" not in consumer.explain(tp):
                assert await consumer.poll(timeout_ms=100) == {}
        assert await consumer.poll(timeout_ms=500) == {}
        waiting = asyncio.ensure_future(consumer.getone())
        await asyncio.to_thread(
            producer.commit_transaction if is_committed else producer.abort_transaction, PATIENCE_S
        )
        record = await asyncio.wait_for(waiting, PATIENCE_S)
        assert record.offset == (7 if is_committed else 3)


# --- Errors of some partitions -----------------------------------------------------------------
@pytest.mark.parametrize("kind", [TopicAuthorizationFailedError, UnstableOffsetCommitError])
async def test_the_error_of_one_partition_holds_up_no_other(
    kind: type[BrokerResponseError],
) -> None:
    def refused(context: object, request: object) -> OffsetFetchResponse:
        assert isinstance(request, OffsetFetchRequest)
        groups = []
        for group in request.groups:
            answer = OffsetFetchResponseGroup(group_id=group.group_id)
            for asked in group.topics or ():
                topic = OffsetFetchResponseTopics(name=asked.name, topic_id=asked.topic_id)
                for number in asked.partition_indexes:
                    found = OffsetFetchResponsePartitions(
                        partition_index=number, committed_offset=-1, metadata=""
                    )
                    found.error_code = kind.errno if number else 0
                    topic.partitions.append(found)
                answer.topics.append(topic)
            groups.append(answer)
        return OffsetFetchResponse(groups=groups)

    async with Broker() as broker:
        broker.create_topic("t", 2)
        rule = broker.on("OffsetFetch").answer(refused, times=None)
        async with consumer_of(broker, group_id="g") as consumer:
            consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
            for number in (0, 1):
                broker.produce("t", b"%d" % number, partition=number)
            read: list[bytes | None] = []
            raised = 0
            async with timeout(PATIENCE_S):
                while not read or (raised < 2 and not kind.retriable):
                    try:
                        read.append((await consumer.getone()).value)
                    except kind as error:
                        assert error.tp == TopicPartition("t", 1)  # noqa: PT017
                        raised += 1
            assert read == [b"0"]
            assert kind.__name__ in consumer.explain(TopicPartition("t", 1))
            rule.remove()
            async with timeout(PATIENCE_S):
                while read != [b"0", b"1"]:
                    with suppress(kind):
                        read.append((await consumer.getone()).value)
