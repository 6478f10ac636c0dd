"""`await consumer.commit()` in handlers of `run`, while the group rebalances."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import member
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS
from tests.support.rows import rows

PARTITIONS = 4
EACH = 150


@pytest.mark.few_rows(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("enable_auto_commit", [True, False])
async def test_handlers_that_commit_do_not_fail_when_a_rebalance_takes_partitions(
    kafka: KafkaHandle, way: str, enable_auto_commit: bool
) -> None:
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    for number in range(PARTITIONS):
        await kafka.produce(topic, number, rows(0, EACH))
    settings: Mapping[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": enable_auto_commit,
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 6_000,
        "fetch_max_wait_ms": 50,
        **WAYS[way],
    }
    seen: Counter[tuple[int, int]] = Counter()

    async def member() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(topic, **settings)  # type: ignore[arg-type]

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            seen[record.partition, record.offset] += 1
            await asyncio.sleep(0.002)
            await consumer.commit()

        await consumer.start()
        running.append(asyncio.ensure_future(consumer.run(handle, concurrency=10)))
        return consumer

    running: list[asyncio.Future[None]] = []
    async with timeout(90):
        first = await member()
        while len(seen) < PARTITIONS * EACH:
            other = await member()
            await asyncio.sleep(0.3)
            await other.stop()
            assert not running[0].done() or running[0].result() is None
        await first.stop()
        for task in running:
            await task  # raises nothing
    # Without auto-commit nobody commits what was finished behind the last commit of a handler.
    assert not enable_auto_commit or set(seen.values()) == {1}


async def test_a_task_that_a_handler_starts_finishes_no_record_of_another_handler(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 2))
    attempts: Counter[int] = Counter()
    has_failed = asyncio.Event()

    async with timeout(90), member(kafka, topic, unique("g")) as consumer:

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            attempts[record.offset] += 1
            if record.offset == 1:
                # The task cannot know for which call it commits: the next one may have begun.
                with pytest.raises(IllegalStateError):
                    await asyncio.create_task(consumer.commit({tp: 2}))
                has_failed.set()
            elif attempts[0] == 1:
                await has_failed.wait()
                raise ValueError(record.offset)

        await consumer.run(handle, order=None, retry=3, until="end")
        assert attempts == {0: 2, 1: 1}
        await consumer.commit()
        assert await consumer.committed(tp) == 2
