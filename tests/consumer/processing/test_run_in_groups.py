"""`consumer.run` in a group: what a rebalance waits for, what it cuts off, and who goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.processing import Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS
from tests.support.rows import rows
from tests.support.waiting import eventually, until

pytestmark = [pytest.mark.virtual_time_if_embedded, pytest.mark.real_if_long]

Record = ConsumerRecord[bytes | None, bytes | None]
PATIENCE_S = 30.0
EACH = 12


@pytest.fixture(params=WAYS)
def protocol(request: pytest.FixtureRequest) -> Mapping[str, object]:
    return WAYS[request.param]


class Member:
    """A consumer that runs, and what its handler was called with."""

    def __init__(self, kafka: KafkaHandle, topic: str, group: str, **settings: object) -> None:
        arguments: dict[str, object] = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 6000,
            "rebalance_timeout_ms": 10_000,
            "fetch_max_wait_ms": 50,
            **settings,
        }
        self.consumer = AIOKafkaConsumer(topic, **arguments)  # type: ignore[arg-type]
        self.begun: list[Record] = []
        self.done: list[Record] = []
        self.cut: list[Record] = []
        # Until it is set, handlers of these partitions wait.
        self.gate = asyncio.Event()
        self.is_held: Callable[[Record], bool] = lambda record: False
        self.stubborn_s = 0.0
        self.task: asyncio.Task[None] | None = None

    async def handle(self, record: Record) -> None:
        self.begun.append(record)
        try:
            if self.is_held(record):
                await self.gate.wait()
        except asyncio.CancelledError:
            if self.stubborn_s:
                await asyncio.sleep(self.stubborn_s)
            self.cut.append(record)
            raise
        self.done.append(record)

    def run(self, **arguments: object) -> None:
        self.task = asyncio.create_task(
            self.consumer.run(self.handle, **arguments)  # type: ignore[call-overload]
        )

    async def stop(self) -> None:
        self.gate.set()
        await self.consumer.stop()
        if self.task is not None:
            await asyncio.wait([self.task])

    def places(self, records: list[Record]) -> set[tuple[int, int]]:
        return {(record.partition, record.offset) for record in records}


@asynccontextmanager
async def two(
    kafka: KafkaHandle, settings: Mapping[str, object], **arguments: object
) -> AsyncIterator[tuple[Member, Member]]:
    """A member that runs on both partitions of a filled topic, and one that is to join."""
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    for number in range(2):
        await kafka.produce(topic, number, rows(0, EACH))
    first, second = (Member(kafka, topic, group, **settings) for _ in range(2))
    async with timeout(PATIENCE_S):
        await first.consumer.start()
        try:
            yield first, second
        finally:
            await second.stop()
            await first.stop()


async def test_a_rebalance_waits_for_handlers_and_nothing_is_repeated(
    kafka: KafkaHandle, protocol: Mapping[str, object]
) -> None:
    async with two(kafka, protocol) as (first, second):
        first.is_held = lambda record: record.offset < 4
        first.run(concurrency=8, order=None)
        await until(lambda: sum(map(first.is_held, first.begun)) == 8)
        joining = asyncio.create_task(second.consumer.start())
        await until(lambda: not first.consumer.health().is_ok)
        await asyncio.sleep(0.3)
        assert not joining.done() or not second.consumer.assignment()
        first.gate.set()
        await joining
        second.run(order=None)
        await until(lambda: len(first.done) + len(second.done) == 2 * EACH)
        assert not first.cut
    assert not first.places(first.begun) & second.places(second.begun)


async def test_handlers_that_take_too_long_are_cut_off_and_only_theirs_is_repeated(
    kafka: KafkaHandle, protocol: Mapping[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    async with two(kafka, {**protocol, "rebalance_hold_ms": 500}) as (first, second):
        first.is_held = lambda record: record.offset == 5
        first.stubborn_s = 0.4
        first.run(order=None)
        await until(lambda: len(first.done) == 2 * EACH - 2)
        ended_before: list[bool] = []

        def has_ended(record: Record) -> bool:
            ended_before.append((record.partition, 5) in first.places(first.cut))
            return False

        second.is_held = has_ended
        await second.consumer.start()
        second.run(order=None)
        await until(second.consumer.assignment)
        moved = {tp.partition for tp in second.consumer.assignment()}
        await until(lambda: len(second.done) == len(moved))
        await asyncio.sleep(0.2)
        assert second.places(second.done) == {(number, 5) for number in moved}
        assert all(ended_before)
        assert first.places(first.cut) >= {(number, 5) for number in moved}
        assert "the application did not finish all records in the time" in caplog.text
        assert "have not ended" not in caplog.text  # the end of the last one was noticed


async def test_a_key_whose_handler_still_works_waits_when_its_partition_comes_back(
    kafka: KafkaHandle,
) -> None:
    """By the eager protocol everything is taken away and most comes back."""
    async with two(kafka, {**WAYS["eager"], "rebalance_hold_ms": 300}) as (first, second):
        first.is_held = lambda record: record.offset == 5
        first.stubborn_s = 3.0
        first.run(order="key")
        await until(lambda: len(first.done) == 2 * EACH - 2)
        await second.consumer.start()
        second.run(order="key")
        await until(lambda: len(first.consumer.assignment()) == 1)
        (kept,) = first.consumer.assignment()
        await asyncio.sleep(0.5)
        assert [r.offset for r in first.begun if r.partition == kept.partition].count(5) == 1
        first.gate.set()
        await until(lambda: (kept.partition, 5) in first.places(first.done))
        assert (kept.partition, 5) in first.places(first.cut)


async def test_a_pause_between_attempts_may_be_longer_than_the_poll_interval(
    kafka: KafkaHandle, protocol: Mapping[str, object]
) -> None:
    settings = {**protocol, "max_poll_interval_ms": 700}
    async with two(kafka, settings) as (first, _):
        failures = 1

        async def handle(record: Record) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise ConnectionError
            first.done.append(record)

        with first.consumer.events() as events:
            first.handle = handle  # type: ignore[method-assign]
            first.run(order="partition", retry=Retry(first_delay_ms=2000))
            await until(lambda: len(first.done) == 2 * EACH)
        names = [event.name async for event in events]
        assert "revoked" not in names
        assert "lost" not in names


async def test_what_is_paused_does_not_begin_and_goes_on_when_it_is_resumed(
    kafka: KafkaHandle,
) -> None:
    async with two(kafka, {}) as (first, _):
        tps = first.consumer.assignment()
        first.is_held = lambda record: record.offset == 0
        first.run(order="partition")
        await until(lambda: len(first.begun) == 2)
        (paused, _) = sorted(tps)
        first.consumer.pause(paused)
        first.gate.set()
        await until(lambda: len(first.done) == EACH + 1)
        await asyncio.sleep(0.2)
        assert [r.offset for r in first.done if r.partition == paused.partition] == [0]
        first.consumer.resume(paused)
        await until(lambda: len(first.done) == 2 * EACH)


async def test_a_partition_that_stands_still_leaves_the_others_their_share(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    for number in range(2):
        await kafka.produce(topic, number, rows(0, 500))
    member = Member(kafka, topic, group)
    member.is_held = lambda record: record.partition == 0 and record.offset == 3
    async with timeout(PATIENCE_S):
        await member.consumer.start()
        try:
            member.run(order=None, max_uncommitted=50, concurrency=10)
            await until(lambda: sum(r.partition == 1 for r in member.done) == 500)
            await asyncio.sleep(0.2)
            stuck = [r for r in member.begun if r.partition == 0]
            # The last get may bring some more than there was room for.
            assert 25 <= len(stuck) <= 50 + 64
            said = member.consumer.explain(TopicPartition(topic, 0))
            assert f"{topic}/0 offset 3, key b'3', was passed to its handler" in said
            assert "The partition's commit waits for this record" in said
            member.gate.set()
            await until(lambda: len(member.done) == 1000)
        finally:
            await member.stop()


async def test_a_handler_that_awaits_what_was_cancelled_has_failed_and_is_tried_again(
    kafka: KafkaHandle,
) -> None:
    async with two(kafka, {}) as (first, _):
        is_first = True

        async def handle(record: Record) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                gone = asyncio.get_running_loop().create_future()
                gone.cancel()
                await gone
            first.done.append(record)

        first.handle = handle  # type: ignore[method-assign]
        first.run(retry=Retry(first_delay_ms=1))
        await until(lambda: len(first.done) == 2 * EACH)


async def test_a_seek_back_hands_out_again_and_what_was_at_work_finishes_nothing(
    kafka: KafkaHandle,
) -> None:
    async with two(kafka, {}) as (first, _):
        tp = min(first.consumer.assignment())
        first.is_held = lambda record: record.partition == tp.partition and record.offset == 6
        first.run(order=None)
        await until(lambda: len(first.done) == 2 * EACH - 1)
        first.consumer.seek(tp, 6)
        await until(lambda: [r.offset for r in first.begun].count(6) == 3)
        await until(lambda: len(first.done) == 2 * EACH - 1 + EACH - 7)
        first.gate.set()
        await until(lambda: [r.offset for r in first.done].count(6) == 3)
        await until(lambda: first.consumer.metrics()["processing_uncommitted"] == 0)
        await eventually(lambda: first.consumer.committed(tp), EACH)
