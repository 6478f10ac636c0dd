"""The process of a member. SIGTERM has it leave, and SIGKILL is one of the storm's ways."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from aiokafka_lite import AIOKafkaShareConsumer
from aiokafka_lite.errors import LeaseLostError
from aiokafka_lite.events import LeaseLost
from aiokafka_lite.structs import ConsumerRecord
from tests.chaos.sharing.journal import Did, Journal

CONCURRENCY: Final = 64
POLL_S: Final = 0.1
Life = Callable[[str, str, str, Path], Coroutine[None, None, None]]
"""Is told the address, the group, the topic, and where to write."""
LONGEST_S: Final = 0.2
"""How long handlers take. Some take a hundred times as long, which is longer than the lock."""
LONG_SHARE: Final = 0.0005
LONG_FACTOR: Final = 100


def _pause_s() -> float:
    pause_s = random.uniform(0, LONGEST_S)
    return pause_s * LONG_FACTOR if random.random() < LONG_SHARE else pause_s


async def lite(address: str, group: str, topic: str, path: Path) -> None:
    """Live with `run` of ours."""
    journal = Journal(path)

    async def handle(record: ConsumerRecord[bytes, bytes]) -> None:
        place = record.partition, record.offset
        journal.note(Did.BEGUN, *place, record.delivery_count)
        try:
            await asyncio.sleep(_pause_s())
        except asyncio.CancelledError as error:
            is_lost = isinstance(error.__cause__, LeaseLostError)
            journal.note(Did.LOST if is_lost else Did.CANCELLED, *place)
            raise
        journal.note(Did.FINISHED, *place)

    async def listen() -> None:
        async for event in consumer.events():
            if isinstance(event, LeaseLost):
                for offset in range(*event.offsets):
                    journal.note(Did.LOST, event.tp.partition, offset)

    async with AIOKafkaShareConsumer(topic, bootstrap_servers=address, group_id=group) as consumer:
        listening = asyncio.ensure_future(listen())
        await consumer.run(handle, concurrency=CONCURRENCY)
    await listening
    journal.close()


async def confluent(address: str, group: str, topic: str, path: Path) -> None:
    """Live with confluent-kafka's client, one poll after the other."""
    from confluent_kafka import ShareConsumer

    is_stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_stopped.set)
    journal = Journal(path)

    def answered(offsets: Any, error: object) -> None:
        for place, found in offsets.items() if error is not None else ():
            for offset in found:
                journal.note(Did.LOST, place.partition, offset)

    async def handle(message: Any) -> None:
        journal.note(
            Did.BEGUN, message.partition(), message.offset(), message.delivery_count() or 0
        )
        await asyncio.sleep(_pause_s())
        journal.note(Did.FINISHED, message.partition(), message.offset())

    consumer = ShareConsumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "log_level": 0,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": CONCURRENCY,
        }
    )
    consumer.set_acknowledgement_commit_callback(answered)
    consumer.subscribe([topic])
    while not is_stopped.is_set():
        messages = [each for each in consumer.poll(POLL_S) if each.error() is None]
        await asyncio.gather(*map(handle, messages))
        for message in messages:
            consumer.acknowledge(message)
        await asyncio.sleep(0)
    consumer.close()
    journal.close()


LIVES: Final[Mapping[str, Life]] = {"lite": lite, "confluent": confluent}


def main(client: str, address: str, group: str, topic: str, path: str) -> None:
    asyncio.run(LIVES[client](address, group, topic, Path(path)))


if __name__ == "__main__":
    main(*sys.argv[1:])
