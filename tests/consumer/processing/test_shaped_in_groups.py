"""Lists that wait, limits, `fair` and `priority` with rebalances, transactions and dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite.processing import Concurrency, DeadLetters, Outputs, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import member, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.virtual_time_if_embedded

Record = ConsumerRecord[bytes | None, bytes | None]
EACH, PATIENCE_S = 120, 40.0
SHAPES: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "lists": lambda topic: {"batch_size": 10, "batch_wait_ms": 40, "batch_by": "key"},
    "lists, limited": lambda topic: {
        "batch_size": 10, "batch_wait_ms": 40, "batch_by": "partition", "max_per_second": 100,
        "concurrency": Concurrency(3),
    },
    "fair": lambda topic: {
        "fair": True, "priority": {topic: 3}, "concurrency": Concurrency(4), "max_per_second": 900,
    },
}  # fmt: skip


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Callable[[str], dict[str, Any]]:
    return SHAPES[request.param]


def keyed(count: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(b"%d" % (n % 9), b"%d" % n) for n in range(count)]


def in_order(records: list[Record]) -> bool:
    lanes = {(record.partition, record.key) for record in records}
    return all(
        offsets == sorted(offsets)
        for lane in lanes
        if (offsets := [each.offset for each in records if (each.partition, each.key) == lane])
    )


@pytest.mark.real_if_long
@pytest.mark.parametrize("protocol", WAYS)
async def test_a_rebalance_loses_and_repeats_no_record(
    kafka: KafkaHandle, shape: Callable[[str], dict[str, Any]], protocol: str
) -> None:
    topic, group = await kafka.create_topic(partitions=4), unique("shaped")
    for partition in range(4):
        await kafka.produce(topic, partition, keyed(EACH))
    done: list[Record] = []

    async def handle(given: Record | list[Record]) -> None:
        await asyncio.sleep(0.01)
        done.extend(given if isinstance(given, list) else [given])

    first, second = (member(kafka, topic, group, **WAYS[protocol]) for _ in range(2))
    async with timeout(PATIENCE_S), running(first, handle, **shape(topic)):
        await until(lambda: len(done) > EACH)
        async with running(second, handle, **shape(topic)):
            await until(lambda: bool(second.assignment()))
            for partition in range(4):
                await kafka.produce(topic, partition, keyed(EACH))
            await until(lambda: len(done) > 5 * EACH)
        await until(lambda: len(done) >= 8 * EACH)
    counts = Counter((record.partition, record.offset) for record in done)
    assert len(counts) == 8 * EACH
    assert set(counts.values()) == {1}
    assert in_order(done)


async def test_outputs_and_dead_letters_are_written_once(
    kafka: KafkaHandle, shape: Callable[[str], dict[str, Any]]
) -> None:
    topic, target = await kafka.create_topic(partitions=2), await kafka.create_topic(partitions=1)
    dead, group = await kafka.create_topic(partitions=1), unique("shaped")
    for partition in range(2):
        await kafka.produce(topic, partition, keyed(EACH))

    async def handle(given: Record | list[Record], outputs: Outputs) -> None:
        records = given if isinstance(given, list) else [given]
        await asyncio.sleep(0.001)
        for record in records:
            if record.offset % 40 == 7:
                raise ValueError(record.offset)
            outputs.send(target, record.value, key=b"%d" % record.partition)

    async def committed() -> list[int | None]:
        tps = [TopicPartition(topic, partition) for partition in range(2)]
        async with AIOKafkaConsumer(
            bootstrap_servers=kafka.bootstrap_servers, group_id=group, enable_auto_commit=False
        ) as reader:
            return [await reader.committed(tp) for tp in tps]

    async with (
        timeout(PATIENCE_S),
        AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("shaped")
        ) as producer,
        running(
            member(kafka, topic, group),
            handle,
            transactions=producer,
            retry=Retry(attempts=2, first_delay_ms=10),
            dead_letter=DeadLetters(dead),
            **shape(topic),
        ),
    ):
        await eventually(committed, [EACH, EACH])
    async with AIOKafkaConsumer(
        target,
        dead,
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as reader:
        found: list[Record] = []
        async with timeout(PATIENCE_S):
            while len(found) < 2 * EACH:
                for records in (await reader.getmany(timeout_ms=200)).values():
                    found.extend(records)
    copies = Counter((each.key, each.value) for each in found if each.topic == target)
    assert len(copies) == 2 * (EACH - 3)
    assert set(copies.values()) == {1}
    letters = Counter(each.value for each in found if each.topic == dead)
    assert letters == {b"7": 2, b"47": 2, b"87": 2}
