"""Reads two records and commits when told to; says what it is told: servers, topic, group."""

from __future__ import annotations

import asyncio
import sys

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import CommitFailedError
from aiokafka_lite.structs import TopicPartition

SERVERS, TOPIC, GROUP = sys.argv[1:]


class Telling(ConsumerRebalanceListener):
    """Prints what happens to the assignment."""

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        print("revoked", len(revoked), flush=True)

    def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        print("lost", len(lost), flush=True)

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        print("assigned", len(assigned), flush=True)


async def main() -> None:
    """Read two records, and commit them when a line comes in."""
    loop = asyncio.get_running_loop()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=SERVERS,
        group_id=GROUP,
        group_protocol="classic",  # whose session is as short as it says
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
    )
    consumer.subscribe([TOPIC], listener=Telling())
    async with consumer:
        for _ in range(2):
            await consumer.getone()
        print("ready", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        try:
            await consumer.commit({TopicPartition(TOPIC, 0): 2})
            print("committed", flush=True)
        except CommitFailedError:
            print("refused", flush=True)
        record = await consumer.getone()
        print("offset", record.offset, flush=True)


asyncio.run(main())
