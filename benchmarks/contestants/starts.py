"""Start a consumer and take its first record. Imports its client by itself, as that is measured."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from benchmarks.measure import StarvedError, Workload

Stop = Callable[[], Awaitable[object]]
Start = Callable[[Workload, "str | None"], Awaitable[Stop]]
"""Given the group, or None for an `assign`; returns what stops the consumer."""


def start_of(name: str) -> Start:
    """Return the function of this module that `name` says."""
    start: Start = globals()[name]
    return start


class _Consumer(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> object: ...
    async def getone(self) -> object: ...


async def lite(workload: Workload, group: str | None) -> Stop:
    """Start a consumer of ours, with its defaults, but by the protocol that the others speak."""
    from aiokafka_lite import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        *(workload.topics if group else ()),
        bootstrap_servers=workload.bootstrap_servers,
        group_id=group,
        group_protocol="classic",
        auto_offset_reset="earliest",
    )
    partitions = [TopicPartition(topic, number) for topic, number in workload.partitions()]
    assign = None if group else partial(consumer.assign, partitions)
    return await _first_record(consumer, assign, workload)


async def aiokafka(workload: Workload, group: str | None) -> Stop:
    """Start one of aiokafka's, with its defaults."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        *(workload.topics if group else ()),
        bootstrap_servers=workload.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
    )
    partitions = [TopicPartition(topic, number) for topic, number in workload.partitions()]
    assign = None if group else partial(consumer.assign, partitions)
    return await _first_record(consumer, assign, workload)


async def _first_record(
    consumer: _Consumer, assign: Callable[[], None] | None, workload: Workload
) -> Stop:
    try:
        await consumer.start()
        if assign is not None:
            assign()
        await asyncio.wait_for(consumer.getone(), workload.wait_s)
    except BaseException:
        await consumer.stop()
        raise
    return consumer.stop


async def confluent(workload: Workload, group: str | None) -> Stop:
    """Start one of confluent-kafka's, with its defaults; it blocks the loop, where nothing else is.

    Its consumers have a group's name always, which an `assign` makes no use of.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": workload.bootstrap_servers,
            "group.id": group or "bench-start",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": group is not None,
        }
    )
    if group:
        consumer.subscribe(list(workload.topics))
    else:
        # Without it the leader is looked for only after half a second.
        consumer.list_topics(workload.topics[0], workload.wait_s)
        consumer.assign(
            [TopicPartition(topic, part, OFFSET_BEGINNING) for topic, part in workload.partitions()]
        )
    message = consumer.poll(workload.wait_s)
    if message is None or message.error() is not None:
        consumer.close()
        raise StarvedError("no record" if message is None else str(message.error()))

    async def stop() -> None:
        consumer.close()

    return stop


def version_of(name: str) -> str:
    """Return the version of the client that the function of this name starts."""
    if name == "confluent":
        from benchmarks.contestants.confluent import VERSION

        return VERSION
    module = importlib.import_module({"lite": "aiokafka_lite", "aiokafka": "aiokafka"}[name])
    version: str = module.__version__
    return version
