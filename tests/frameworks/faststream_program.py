"""A FastStream application as its users write it, but for the first two lines."""
# ruff: noqa: E402 -- as in every program, install() comes first

from aiokafka_lite import as_aiokafka

as_aiokafka.install()

import asyncio
import json
import sys

from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaMessage, TopicPartition


async def main(bootstrap_servers: str, topic: str, batched: str, manual: str) -> None:
    """Publish numbers, refuse one of them the first time, and print what was handled."""
    broker = KafkaBroker(bootstrap_servers, client_id="stream")
    handled: list[int] = []
    batches: list[list[int]] = []
    done, all_batched = asyncio.Event(), asyncio.Event()

    @broker.subscriber(
        topic, group_id=f"{topic}-group", auto_offset_reset="earliest", ack_policy=AckPolicy.MANUAL
    )
    async def handle(number: int, message: KafkaMessage) -> None:
        is_first_time = number not in handled
        handled.append(number)
        if number == 3 and is_first_time:
            await message.nack()
            return
        await message.ack()
        if number == 4:
            done.set()

    @broker.subscriber(
        batched,
        group_id=f"{batched}-group",
        auto_offset_reset="earliest",
        batch=True,
        max_records=10,
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def handle_many(numbers: list[int]) -> None:
        batches.append(numbers)
        if sum(map(len, batches)) == 6:
            all_batched.set()

    by_hand = broker.subscriber(
        partitions=[TopicPartition(manual, 0)], auto_offset_reset="earliest"
    )

    async with broker:
        await broker.start()
        for number in range(5):
            await broker.publish(number, topic)
        await broker.publish_batch(*range(6), topic=batched)
        await broker.publish(42, manual)
        one = await by_hand.get_one(timeout=30.0)
        await asyncio.wait_for(done.wait(), 60)
        await asyncio.wait_for(all_batched.wait(), 60)
        found = {
            "handled": handled,
            "batched": [number for batch in batches for number in batch],
            "by_hand": None if one is None else await one.decode(),
            "consumer": type(by_hand.consumer).__module__,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
