"""The process of a member. SIGTERM has it leave, and SIGKILL is one of the storm's ways."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.chaos.sharing.journal import Did, Journal

CONCURRENCY: Final = 64
POLL_S: Final = 0.1
Life = Callable[[str, str, str, Journal], Awaitable[None]]
LONGEST_S: Final = 0.02
"""How long handlers take. Some take a hundred times as long."""
LONG_SHARE: Final = 0.001
LONG_FACTOR: Final = 100


def _pause_s() -> float:
    pause_s = random.uniform(0, LONGEST_S)
    return pause_s * LONG_FACTOR if random.random() < LONG_SHARE else pause_s


async def confluent(address: str, group: str, topic: str, journal: Journal) -> None:
    """Live with confluent-kafka's client, one poll after the other."""
    from confluent_kafka import ShareConsumer

    is_stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_stopped.set)

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


LIVES: Final[Mapping[str, Life]] = {"confluent": confluent}


def main(client: str, address: str, group: str, topic: str, path: str) -> None:
    journal = Journal(Path(path))
    asyncio.run(LIVES[client](address, group, topic, journal))  # type: ignore[arg-type]
    journal.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
