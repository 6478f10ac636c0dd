"""A position that the application asks for passes over nothing, except where it is the group's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import PATIENCE_S, Record, filled, member, offsets
from tests.consumer.processing.acking import take as take_without_limit
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import rows
from tests.support.waiting import eventually, until

COUNT = 20
UNFINISHED = 5


@pytest.fixture
async def next_owner(kafka: KafkaHandle) -> AsyncIterator[AIOKafkaConsumer]:
    """Begins at record 5: the owner before has finished all others."""
    topic, group = await filled(kafka, count=COUNT), unique("sought")
    async with timeout(PATIENCE_S):
        async with member(kafka, topic, group_id=group, rebalance_hold_ms=0) as owner:
            for record in await take(owner, COUNT):
                assert record.offset == UNFINISHED or record.ack()
        consumer = member(kafka, topic, group_id=group, rebalance_hold_ms=0)
        async with consumer:
            assert await consumer.position(TopicPartition(topic, 0)) == UNFINISHED
            yield consumer


async def take(consumer: AIOKafkaConsumer, count: int) -> list[Record]:
    async with timeout(PATIENCE_S / 4):
        return await take_without_limit(consumer, count)


def only(consumer: AIOKafkaConsumer) -> TopicPartition:
    (tp,) = consumer.assignment()
    return tp


@pytest.mark.real_if_long
async def test_seek_to_beginning_returns_all_records(next_owner: AIOKafkaConsumer) -> None:
    assert await next_owner.seek_to_beginning()
    assert offsets(await take(next_owner, COUNT)) == list(range(COUNT))


async def test_so_does_a_seek_to_the_offset_of_a_time(next_owner: AIOKafkaConsumer) -> None:
    tp = only(next_owner)
    found = (await next_owner.offsets_for_times({tp: 0}))[tp]
    assert found is not None
    next_owner.seek(tp, found.offset)
    assert offsets(await take(next_owner, COUNT)) == list(range(COUNT))


@pytest.mark.real_if_long
async def test_after_a_seek_to_the_end_all_records_behind_a_seek_are_returned(
    next_owner: AIOKafkaConsumer,
) -> None:
    assert await next_owner.seek_to_end()
    next_owner.seek(only(next_owner), 0)
    assert offsets(await take(next_owner, COUNT)) == list(range(COUNT))


@pytest.mark.real_if_long
async def test_run_handles_all_records_from_the_beginning(
    kafka: KafkaHandle, next_owner: AIOKafkaConsumer
) -> None:
    tp = only(next_owner)
    group = next_owner.group_metadata().group_id
    await next_owner.stop()
    async with member(kafka, tp.topic, group_id=group, ack_mode="implicit") as consumer:
        handled: list[int] = []

        async def handle(record: object) -> None:
            handled.append(record.offset)  # type: ignore[attr-defined]

        assert await consumer.position(tp) == UNFINISHED
        assert await consumer.seek_to_beginning()
        running = asyncio.create_task(consumer.run(handle, order="partition"))
        await until(lambda: COUNT - 1 in handled)
        assert handled == list(range(COUNT))
        await consumer.stop()
        await running


@pytest.mark.real_if_long
async def test_seek_to_committed_passes_over_what_is_finished_behind_it(
    kafka: KafkaHandle, next_owner: AIOKafkaConsumer
) -> None:
    tp = only(next_owner)
    next_owner.seek(tp, 0)
    (first,) = await take(next_owner, 1)
    assert first.offset == 0
    assert await next_owner.seek_to_committed() == {tp: UNFINISHED}
    await kafka.produce(tp.topic, 0, rows(COUNT, 1))
    records = await take(next_owner, 2)
    assert offsets(records) == [UNFINISHED, COUNT]
    assert all(record.ack() for record in (first, *records))
    await eventually(lambda: next_owner.committed(tp), COUNT + 1)


@pytest.mark.real_if_long
async def test_what_was_finished_before_a_seek_to_the_beginning_is_returned_again(
    next_owner: AIOKafkaConsumer,
) -> None:
    """What is finished while the position is looked up lies behind it, too."""
    (record,) = await take(next_owner, 1)
    seeking = asyncio.create_task(next_owner.seek_to_beginning())
    await asyncio.sleep(0)
    record.ack()
    assert await seeking
    assert offsets(await take(next_owner, COUNT)) == list(range(COUNT))


Seek = Callable[[AIOKafkaConsumer, TopicPartition], Awaitable[object]]


async def _seek_to(consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int) -> None:
    consumer.seek(tp, offset)


# COUNT records have been returned, and as many again have not.
SEEKS: dict[str, tuple[Seek, int]] = {
    "to the last returned": (partial(_seek_to, offset=COUNT - 1), COUNT - 1),
    "behind it": (partial(_seek_to, offset=COUNT + 5), COUNT),
    "to the end": (lambda consumer, tp: consumer.seek_to_end(tp), COUNT),
}


@pytest.mark.real_if_long
@pytest.mark.parametrize("how", SEEKS)
async def test_finished_records_before_a_seek_are_passed_over_when_run_begins_again(
    kafka: KafkaHandle, how: str
) -> None:
    seek, next_returned = SEEKS[how]
    topic = await filled(kafka, count=2 * COUNT)
    tp = TopicPartition(topic, 0)
    async with timeout(PATIENCE_S), member(kafka, topic, ack_mode="implicit") as consumer:
        handled: list[int] = []
        has_failed: list[bool] = []

        async def handle(record: Record) -> None:
            handled.append(record.offset)
            if record.offset == 0 and not has_failed:
                await until(lambda: len(handled) == COUNT)
                await seek(consumer, tp)
                has_failed.append(True)
                raise ConnectionError

        with pytest.raises(ConnectionError):
            await consumer.run(handle, concurrency=COUNT, order=None, max_uncommitted=COUNT)
        handled.clear()
        running = asyncio.ensure_future(consumer.run(handle, concurrency=COUNT, order=None))
        await until(lambda: 2 * COUNT - 1 in handled)
        running.cancel()
        assert handled == [0, *range(next_returned, 2 * COUNT)]


@pytest.mark.real_if_long
@pytest.mark.parametrize("how", SEEKS)
async def test_the_next_owner_passes_over_what_was_finished_before_a_seek(
    kafka: KafkaHandle, how: str
) -> None:
    seek, next_returned = SEEKS[how]
    topic, group = await filled(kafka, count=2 * COUNT), unique("sought")
    async with timeout(PATIENCE_S):
        async with member(kafka, topic, group_id=group, rebalance_hold_ms=0) as owner:
            for record in await take(owner, COUNT):
                assert record.offset == UNFINISHED or record.ack()
            await seek(owner, TopicPartition(topic, 0))
        async with member(kafka, topic, group_id=group, rebalance_hold_ms=0) as next_owner:
            assert offsets(await take(next_owner, 2)) == [UNFINISHED, next_returned]


# --- What an earlier owner has finished --------------------------------------------------------
async def _seek_to_each(consumer: AIOKafkaConsumer, tp: TopicPartition, *sought: int) -> None:
    for offset in sought:
        consumer.seek(tp, offset)


async def _seek_to_the_position(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    consumer.seek(tp, await consumer.position(tp))


# Record UNFINISHED is returned, all others up to COUNT are finished: what the next owner returns.
SEEKS_OVER_FINISHED: dict[str, tuple[Seek, list[int]]] = {
    "forward": (partial(_seek_to, offset=12), [UNFINISHED, 12]),
    "behind all finished": (partial(_seek_to, offset=COUNT + 5), [UNFINISHED, COUNT]),
    "forward and back": (lambda c, tp: _seek_to_each(c, tp, 12, 8), [UNFINISHED, 8]),
    "forward twice": (lambda c, tp: _seek_to_each(c, tp, 8, 12), [UNFINISHED, 8]),
    "to the position": (_seek_to_the_position, [UNFINISHED, UNFINISHED + 1]),
    "back": (partial(_seek_to, offset=3), [3, 4]),
    "to the beginning": (lambda c, tp: c.seek_to_beginning(tp), [0, 1]),
    "to the end": (lambda c, tp: c.seek_to_end(tp), [UNFINISHED, COUNT]),
}


@asynccontextmanager
async def _acking(kafka: KafkaHandle, topic: str, group: str) -> AsyncIterator[AIOKafkaConsumer]:
    async with member(kafka, topic, group_id=group, rebalance_hold_ms=0) as consumer:
        assert offsets(await take(consumer, 1)) == [UNFINISHED]
        yield consumer


@asynccontextmanager
async def _running(kafka: KafkaHandle, topic: str, group: str) -> AsyncIterator[AIOKafkaConsumer]:
    begun: list[int] = []

    async def handle(record: Record) -> None:
        begun.append(record.offset)
        await asyncio.Event().wait()

    settings: dict[str, object] = {"ack_mode": "implicit", "rebalance_hold_ms": 0}
    async with member(kafka, topic, group_id=group, **settings) as consumer:
        run = asyncio.ensure_future(consumer.run(handle, order="partition", max_uncommitted=1))
        await until(lambda: begun == [UNFINISHED])
        yield consumer
        await consumer.stop(1)  # the handler does not end before
    await run


@pytest.mark.few_rows(5)
@pytest.mark.parametrize(
    ("how", "how_lost"),
    [
        *((how, "crash") for how in SEEKS_OVER_FINISHED),
        *((how, lost) for how in ("forward", "to the end") for lost in ("stop", "rebalance")),
    ],
)
@pytest.mark.parametrize("at_work", [_acking, _running])
async def test_what_an_earlier_owner_finished_before_a_sought_offset_stays_finished(
    kafka: KafkaHandle,
    at_work: Callable[[KafkaHandle, str, str], AbstractAsyncContextManager[AIOKafkaConsumer]],
    how: str,
    how_lost: str,
) -> None:
    seek, returned = SEEKS_OVER_FINISHED[how]
    topic, group = await filled(kafka, count=COUNT), unique("sought")
    other = await filled(kafka)
    tp = TopicPartition(topic, 0)
    async with timeout(PATIENCE_S), AsyncExitStack() as stack:
        async with member(kafka, topic, group_id=group, rebalance_hold_ms=0) as owner:
            for record in await take(owner, COUNT):
                assert record.offset == UNFINISHED or record.ack()
        await kafka.produce(topic, 0, rows(COUNT, COUNT))
        async with AsyncExitStack() as life:
            owner = await life.enter_async_context(at_work(kafka, topic, group))
            await seek(owner, tp)
            await owner.commit()
            if how_lost == "rebalance":
                owner.subscribe([other])
                await until(lambda: owner.assignment() == {TopicPartition(other, 0)})
            if how_lost != "stop":
                stack.push_async_callback(life.pop_all().aclose)
        next_owner = member(kafka, group_id=group, rebalance_hold_ms=0)
        await stack.enter_async_context(next_owner)
        next_owner.assign([tp])
        assert offsets(await take(next_owner, 2)) == returned
