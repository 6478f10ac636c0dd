"""Rebalance listeners, and consumers that have one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique


class Calls(ConsumerRebalanceListener):
    """Writes down what the listener is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, set[TopicPartition]]] = []

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.calls.append(("revoked", set(revoked)))

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.calls.append(("assigned", set(assigned)))


class Losing(Calls):
    """Writes down what it is told of lost partitions, too."""

    async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        self.calls.append(("lost", set(lost)))


Callback = Callable[[AIOKafkaConsumer, set[TopicPartition]], Awaitable[object]]


class Acting(ConsumerRebalanceListener):
    """Does something with its consumer when partitions are given, or taken away."""

    consumer: AIOKafkaConsumer

    def __init__(
        self, *, assigned: Callback | None = None, revoked: Callback | None = None
    ) -> None:
        self._assigned, self._revoked = assigned, revoked
        self.results: list[object] = []

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        if self._assigned is not None:
            self.results.append(await self._assigned(self.consumer, assigned))

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if self._revoked is not None and revoked:
            self.results.append(await self._revoked(self.consumer, revoked))


@asynccontextmanager
async def listening(
    kafka: KafkaHandle,
    topic: str,
    listener: ConsumerRebalanceListener,
    **arguments: object,
) -> AsyncIterator[AIOKafkaConsumer]:
    """A started member of a new classic group whose rebalances the listener is told of.

    Each call of `subscribe` is a rebalance of all of its partitions.
    """
    settings: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": unique("g"),
        "group_protocol": "classic",
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        # Most tests ask for nothing more before they have the group rebalance.
        "rebalance_hold_ms": 500,
        **arguments,
    }
    consumer = AIOKafkaConsumer(**settings)  # type: ignore[arg-type]
    if isinstance(listener, Acting):
        listener.consumer = consumer
    consumer.subscribe([topic], listener=listener)
    async with consumer:
        yield consumer


def beat_count(consumer: AIOKafkaConsumer) -> int:
    """How many heartbeats were answered."""
    count = consumer.metrics()["heartbeats_total"]
    assert isinstance(count, int)
    return count
