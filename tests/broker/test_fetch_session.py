"""Incremental fetch sessions (KIP-227), on the embedded broker and on a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiokafka_lite.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.fetch import FetchResponse
from tests.broker.wire import FETCH_BY_NAME, answered, fetch_partition, fetch_request
from tests.support.cluster import KafkaHandle, unique
from tests.support.wire import RawClient

ROWS = [(b"k", b"v")]


async def open_session(client: RawClient, topic: str, partitions: Iterable[int]) -> FetchResponse:
    """Open a session from the start of some partitions, once all of them can be read."""
    parts = [fetch_partition(partition) for partition in partitions]
    for _ in range(200):
        answer = await client.request(fetch_request({topic: parts}, session_epoch=0), FETCH_BY_NAME)
        if not any(data.error_code for data in answered(answer).values()):
            return answer
        await asyncio.sleep(0.02)  # a real broker opens the logs of a new topic in its own time
    raise TimeoutError(f"{topic} cannot be read")


async def test_session_answers_only_what_is_new(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    await kafka.produce(topic, 1, ROWS)
    async with kafka.raw() as client:
        full = await open_session(client, topic, range(3))
        assert full.session_id > 0
        assert list(answered(full)) == [(topic, 0), (topic, 1), (topic, 2)]

        # Partition 1 was read: the client goes on behind it and says only that.
        moved = fetch_request(
            {topic: [fetch_partition(1, 1)]}, session_id=full.session_id, session_epoch=1
        )
        quiet = await client.request(moved, FETCH_BY_NAME)
        assert (quiet.error_code, quiet.session_id, quiet.responses) == (0, full.session_id, [])

        await kafka.produce(topic, 2, ROWS)
        request = fetch_request({}, session_id=full.session_id, session_epoch=2)
        news = await client.request(request, FETCH_BY_NAME)
        assert list(answered(news)) == [(topic, 2)]
        assert answered(news)[topic, 2].high_watermark == 1


async def test_session_waits_for_records_of_its_partitions(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with kafka.raw() as client:
        full = await open_session(client, topic, range(2))
        await kafka.produce(topic, 1, ROWS)
        request = fetch_request({}, session_id=full.session_id, session_epoch=1, max_wait_ms=20_000)
        assert list(answered(await client.request(request, FETCH_BY_NAME))) == [(topic, 1)]


async def test_forgotten_partition_is_not_answered_any_more(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with kafka.raw() as client:
        full = await open_session(client, topic, range(2))
        for partition in range(2):
            await kafka.produce(topic, partition, ROWS)
        request = fetch_request(
            {}, session_id=full.session_id, session_epoch=1, forgotten={topic: [0]}
        )
        assert list(answered(await client.request(request, FETCH_BY_NAME))) == [(topic, 1)]


async def test_added_partition_is_answered(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with kafka.raw() as client:
        await open_session(client, topic, range(2))  # both are ready
        full = await open_session(client, topic, [0])
        request = fetch_request(
            {topic: [fetch_partition(1)]}, session_id=full.session_id, session_epoch=1
        )
        # Its high watermark is news, even without records.
        assert list(answered(await client.request(request, FETCH_BY_NAME))) == [(topic, 1)]


async def test_partition_with_an_error_is_answered_every_time(kafka: KafkaHandle) -> None:
    missing = unique("missing")
    async with kafka.raw() as client:
        full = await client.request(
            fetch_request({missing: [fetch_partition()]}, session_epoch=0), FETCH_BY_NAME
        )
        for epoch in (1, 2):
            request = fetch_request({}, session_id=full.session_id, session_epoch=epoch)
            result = answered(await client.request(request, FETCH_BY_NAME))
            assert result[missing, 0].error_code == UnknownTopicOrPartitionError.errno


async def test_unknown_session_and_wrong_epoch_are_refused(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        full = await open_session(client, topic, [0])
        unknown = await client.request(
            fetch_request({}, session_id=full.session_id ^ 1, session_epoch=1), FETCH_BY_NAME
        )
        wrong = await client.request(
            fetch_request({}, session_id=full.session_id, session_epoch=5), FETCH_BY_NAME
        )
        right = await client.request(
            fetch_request({}, session_id=full.session_id, session_epoch=1), FETCH_BY_NAME
        )
    assert unknown.error_code == FetchSessionIdNotFound.errno
    assert wrong.error_code == InvalidFetchSessionEpoch.errno
    assert (unknown.session_id, wrong.session_id) == (0, 0)
    assert (unknown.responses, wrong.responses) == ([], [])
    assert right.error_code == 0


async def test_session_cannot_change_between_names_and_ids(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        full = await open_session(client, topic, [0])
        request = fetch_request({}, session_id=full.session_id, session_epoch=1)
        answer = await client.request(request, FETCH_BY_NAME + 1)
    assert answer.error_code == FetchSessionTopicIdError.errno


async def test_full_request_closes_the_session_it_names(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        first = await client.request(
            fetch_request({topic: [fetch_partition()]}, session_epoch=0), FETCH_BY_NAME
        )
        again = fetch_request(
            {topic: [fetch_partition()]}, session_id=first.session_id, session_epoch=0
        )
        second = await client.request(again, FETCH_BY_NAME)
        assert second.session_id not in (0, first.session_id)
        final = fetch_request(
            {topic: [fetch_partition()]}, session_id=second.session_id, session_epoch=-1
        )
        assert (await client.request(final, FETCH_BY_NAME)).session_id == 0
        for closed in (first, second):
            request = fetch_request({}, session_id=closed.session_id, session_epoch=1)
            answer = await client.request(request, FETCH_BY_NAME)
            assert answer.error_code == FetchSessionIdNotFound.errno


async def test_session_that_forgets_everything_is_over(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        full = await open_session(client, topic, [0])
        request = fetch_request(
            {}, session_id=full.session_id, session_epoch=1, forgotten={topic: [0]}
        )
        emptied = await client.request(request, FETCH_BY_NAME)
        assert (emptied.error_code, emptied.session_id, emptied.responses) == (0, 0, [])
        request = fetch_request({}, session_id=full.session_id, session_epoch=2)
        answer = await client.request(request, FETCH_BY_NAME)
        assert answer.error_code == FetchSessionIdNotFound.errno
