"""Dead letters that cannot be written: they wait, and delay neither good records nor rebalances."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.processing import Concurrency, DeadRecord, Retry
from aiokafka_lite.structs import ConsumerRecord
from tests.consumer.processing.running import member, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.waiting import until

pytestmark = [pytest.mark.virtual_time_if_embedded, pytest.mark.real_if_long]

Record = ConsumerRecord[bytes | None, bytes | None]
PATIENCE_S: Final = 60.0


async def test_letters_that_cannot_be_written_take_no_handler_and_delay_no_rebalance(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    done, is_up = [Counter[bytes | None](), Counter[bytes | None]()], asyncio.Event()
    written: list[DeadRecord] = []

    async def write(dead: DeadRecord) -> None:
        await is_up.wait()
        written.append(dead)

    def handler(number: int) -> Callable[[Record], Awaitable[None]]:
        async def handle(record: Record) -> None:
            if record.value == b"bad":
                raise ValueError
            done[number][record.value] += 1

        return handle

    def run(number: int) -> AbstractAsyncContextManager[asyncio.Task[None]]:
        return running(
            members[number],
            handler(number),
            concurrency=2,
            retry=Retry(attempts=1, dead=ValueError),
            dead_letter=write,
        )

    for partition in range(2):
        values = [b"bad"] * 5 + [b"%d" % n for n in range(20)]
        await kafka.produce(topic, partition, [(None, value) for value in values])
    members = [member(kafka, topic, group) for _ in range(2)]
    async with timeout(PATIENCE_S), run(0):
        await until(lambda: sum(done[0].values()) == 40)
        await asyncio.sleep(6)
        (reason,) = members[0].health().reasons
        assert "the dead letter of" in reason
        assert "9 others" in reason
        began_at = asyncio.get_running_loop().time()
        async with run(1):
            await until(lambda: members[1].assignment())
            assert asyncio.get_running_loop().time() - began_at < 15
            is_up.set()
            await until(lambda: len(written) == 10)
    assert not done[1]


async def test_a_letter_that_is_cancelled_at_once_is_written_later(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(b"%d" % n, b"bad") for n in range(3)])
    spawn, written = TaskScope.spawn, list[int]()
    cancelled: list[asyncio.Task[object]] = []

    def spawn_and_cancel(scope: TaskScope, *args: Any, **options: Any) -> asyncio.Task[object]:
        task: asyncio.Task[object] = spawn(scope, *args, **options)
        if options.get("name") == "dead letter" and not cancelled:
            cancelled.append(task)
            scope.cancel(task)
        return task

    async def write(dead: DeadRecord) -> None:
        written.append(dead.record.offset)

    async def handle(record: Record) -> None:
        raise ValueError

    monkeypatch.setattr(TaskScope, "spawn", spawn_and_cancel)
    consumer = member(kafka, topic, unique("g"))
    async with running(consumer, handle, breaker=None, dead_letter=write):
        await until(lambda: sorted(written) == [0, 1, 2])


async def test_as_many_letters_as_calls_are_written_at_once(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, b"bad")] * 20)
    limit, active, most = Concurrency(3), 0, Counter[int]()

    async def write(dead: DeadRecord) -> None:
        nonlocal active
        active += 1
        most[limit.value] = max(most[limit.value], active)
        if most.total() == 3:
            limit.value = 5
        await asyncio.sleep(0.1)
        active -= 1

    async def fail(record: Record) -> None:
        raise ValueError

    consumer = member(kafka, topic, unique("g"))
    async with running(consumer, fail, concurrency=limit, breaker=None, dead_letter=write):
        await until(lambda: consumer.metrics()["processing_dead_total"] == 20)
    assert most == {3: 3, 5: 5}
