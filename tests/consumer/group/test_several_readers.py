"""Several tasks read one consumer: what each was given is finished by its own next read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka_lite._compat import timeout
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS
from tests.support.rows import rows
from tests.support.waiting import until

pytestmark = [pytest.mark.real_if_long, pytest.mark.virtual_time_if_embedded]

Record = ConsumerRecord[bytes | None, bytes | None]
PATIENCE_S = 30.0
PARTITIONS = 2
EACH = 60
TASKS = 5


async def by_getone(consumer: AIOKafkaConsumer) -> AsyncIterator[list[Record]]:
    while True:
        yield [await consumer.getone()]


async def by_async_for(consumer: AIOKafkaConsumer) -> AsyncIterator[list[Record]]:
    async for record in consumer:
        yield [record]


async def by_getmany(consumer: AIOKafkaConsumer) -> AsyncIterator[list[Record]]:
    while True:
        found = await consumer.getmany(timeout_ms=1_000, max_records=2)
        yield [record for records in found.values() for record in records]


async def by_poll(consumer: AIOKafkaConsumer) -> AsyncIterator[list[Record]]:
    while True:
        found = await consumer.poll(1_000, max_records=2)
        yield [record for records in found.values() for record in records]


READS = {
    "getone": by_getone,
    "async for": by_async_for,
    "getmany": by_getmany,
    "poll": by_poll,
}


def member(kafka: KafkaHandle, topic: str, group: str, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 20_000,
        "rebalance_timeout_ms": 20_000,
        "fetch_max_wait_ms": 50,
        "auto_commit_interval_ms": 10,
        **settings,
    }
    return AIOKafkaConsumer(topic, **arguments)  # type: ignore[arg-type]


class Pool:
    """Tasks that read one consumer; unless they `may_finish` they keep what they have."""

    def __init__(self, consumer: AIOKafkaConsumer, read: str, handled: Counter[tuple[int, int]]):
        self.consumer = consumer
        self.may_finish = True
        self.in_hand: dict[int, list[Record]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self._read = READS[read]
        self._handled = handled
        self._gates: dict[int, asyncio.Event] = {}

    async def start(self, count: int = TASKS, apart_s: float = 0.0) -> None:
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._work(len(self.tasks))))
            await asyncio.sleep(apart_s)

    async def _work(self, number: int) -> None:
        async for records in self._read(self.consumer):
            if not records:
                continue
            self.in_hand[number] = records
            gate = self._gates[number] = asyncio.Event()
            if self.may_finish:
                gate.set()
            for record in records:
                self._handled[record.partition, record.offset] += 1
            await asyncio.sleep(0.002)
            await gate.wait()
            del self.in_hand[number]

    def let_go(self, number: int) -> None:
        self._gates[number].set()

    def first_in_hand(self, partition: int) -> int:
        offsets = [
            record.offset
            for records in self.in_hand.values()
            for record in records
            if record.partition == partition
        ]
        return min(offsets, default=EACH)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        await self.consumer.stop()


@asynccontextmanager
async def pools(
    kafka: KafkaHandle, read: str, **settings: object
) -> AsyncIterator[tuple[Pool, Pool, Counter[tuple[int, int]]]]:
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("readers")
    for number in range(PARTITIONS):
        await kafka.produce(topic, number, rows(0, EACH))
    handled: Counter[tuple[int, int]] = Counter()
    first, second = (Pool(member(kafka, topic, group, **settings), read, handled) for _ in range(2))
    async with timeout(PATIENCE_S):
        await first.consumer.start()
        try:
            yield first, second, handled
        finally:
            await second.stop()
            await first.stop()


class CommitsWhatGoes(ConsumerRebalanceListener):
    """Commits all that was returned, when partitions are revoked."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.consumer = consumer

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if revoked:
            await self.consumer.commit()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        pass


async def committed(kafka: KafkaHandle, consumer: AIOKafkaConsumer) -> dict[int, int]:
    """What the group has committed, as somebody else sees it."""
    topic, group = next(iter(consumer.subscription())), consumer.group_metadata().group_id
    async with AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=group, enable_auto_commit=False
    ) as observer:
        tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        observer.assign(tps)
        return {tp.partition: await observer.committed(tp) or 0 for tp in tps}


@pytest.mark.few_rows(7)
@pytest.mark.parametrize("apart_s", [0.0, 0.1], ids=["at-once", "one-by-one"])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("protocol", WAYS.values(), ids=WAYS)
async def test_a_rebalance_waits_for_every_task_and_nothing_is_repeated(
    kafka: KafkaHandle, protocol: Mapping[str, object], read: str, apart_s: float
) -> None:
    async with pools(kafka, read, **protocol) as (first, second, handled):
        first.may_finish = False
        await first.start(apart_s=apart_s)
        await until(lambda: len(first.in_hand) == TASKS)
        for number in range(TASKS):  # from now on records come out of a chunk that is open
            first.let_go(number)
        await until(lambda: len(handled) >= 2 * TASKS and len(first.in_hand) == TASKS)
        joining = asyncio.create_task(second.consumer.start())
        await until(lambda: not first.consumer.health().is_ok)
        for number in range(TASKS):
            await asyncio.sleep(0.05)
            gone = [tp.partition for tp in second.consumer.assignment()]
            assert [first.first_in_hand(each) for each in gone] == [EACH] * len(gone)
            found = await committed(kafka, first.consumer)
            assert all(found[each] <= first.first_in_hand(each) for each in found)
            first.let_go(number)
        first.may_finish = True
        for number in tuple(first.in_hand):
            first.let_go(number)
        await joining
        await until(second.consumer.assignment)
        await second.start()
        await until(lambda: len(handled) == PARTITIONS * EACH)
        assert [place for place, count in handled.items() if count > 1] == []


@pytest.mark.parametrize("protocol", WAYS.values(), ids=WAYS)
async def test_what_the_application_commits_at_a_revocation_is_finished(
    kafka: KafkaHandle, protocol: Mapping[str, object]
) -> None:
    async with pools(kafka, "getone", **protocol, enable_auto_commit=False) as pair:
        first, second, handled = pair
        for pool in (first, second):
            topics = pool.consumer.subscription()
            pool.consumer.subscribe(list(topics), listener=CommitsWhatGoes(pool.consumer))
        await first.start()
        await until(lambda: len(handled) > 2 * TASKS)
        await second.consumer.start()
        await second.start()
        await until(lambda: len(handled) == PARTITIONS * EACH)
        assert [place for place, count in handled.items() if count > 1] == []
