"""What a record costs, beside aiokafka: in processor time, whatever else the machine does."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import aiokafka
import pytest

from aiokafka_lite import records
from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer import AIOKafkaConsumer

COUNT: Final = 20_000
ROUNDS: Final = 3

Read = Callable[[AIOKafkaConsumer], Awaitable[None]]


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        broker.create_topic("t")
        broker.produce_all("t", [NewRecord(b"v" * 100, key=b"k" * 8) for _ in range(COUNT)])
        yield broker


async def by_iteration(consumer: AIOKafkaConsumer) -> None:
    taken = 0
    async for _ in consumer:
        taken += 1
        if taken == COUNT:
            return


async def in_batches(consumer: AIOKafkaConsumer) -> None:
    taken = 0
    while taken < COUNT:
        taken += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
    assert taken == COUNT


async def cpu_s(make: Callable[..., AIOKafkaConsumer], servers: str, read: Read) -> float:
    """The processor time of this thread for reading the topic, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        consumer = make("t", bootstrap_servers=servers, auto_offset_reset="earliest")
        await consumer.start()
        try:
            began = time.thread_time()
            await read(consumer)
            best = min(best, time.thread_time() - began)
        finally:
            await consumer.stop()
    return best


@pytest.mark.skipif(not records.COMPILED, reason="the extension is not built")
@pytest.mark.parametrize(("read", "factor"), [(by_iteration, 8), (in_batches, 2.5)])
async def test_a_record_costs_a_fraction_of_what_it_costs_with_aiokafka(
    broker: BrokerThread, read: Read, factor: float
) -> None:
    ours = await cpu_s(AIOKafkaConsumer, broker.bootstrap_servers, read)
    theirs = await cpu_s(aiokafka.AIOKafkaConsumer, broker.bootstrap_servers, read)
    assert theirs / ours > factor, f"ours {ours:.4f} s, theirs {theirs:.4f} s"
