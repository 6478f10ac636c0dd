"""Copies records from one topic to another, and commits in the same transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.structs import TopicPartition
from tests.producing.sending import producer_of, values_in
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import committed


class Copying:
    """A topic with records, one for their copies, and a group that copies them."""

    def __init__(self, kafka: KafkaHandle, source: str, copies: str) -> None:
        self.kafka = kafka
        self.source, self.copies, self.group = source, copies, unique("g")
        self.tp = TopicPartition(source, 0)

    def consumer(self, **settings: object) -> AIOKafkaConsumer:
        arguments: dict[str, object] = {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "group_id": self.group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 6_000,
            "fetch_max_wait_ms": 50,
            **settings,
        }
        return AIOKafkaConsumer(self.source, **arguments)  # type: ignore[arg-type]

    def producer(self) -> AIOKafkaProducer:
        return producer_of(self.kafka, transactional_id=unique("tx"))

    @asynccontextmanager
    async def both(
        self, **settings: object
    ) -> AsyncIterator[tuple[AIOKafkaConsumer, AIOKafkaProducer]]:
        async with self.consumer(**settings) as consumer, self.producer() as producer:
            yield consumer, producer

    async def read_copies(self) -> list[bytes | None]:
        return await values_in(self.kafka, self.copies, 0, isolation_level="read_committed")

    async def committed(self) -> int | None:
        return await committed(self.kafka, self.group, self.tp)
