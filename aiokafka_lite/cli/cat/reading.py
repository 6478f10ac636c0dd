"""The records of some partitions, from one offset to another, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer

Record: TypeAlias = ConsumerRecord[bytes | None, bytes | None]

# Without records for so long it is looked whether the rest of a partition has none: compaction and
# transactions leave offsets without records.
LOOK_FOR_GAPS_AFTER_MS: Final = 100
# How old what brokers say of a topic's partitions may get, and how often that is looked at.
KNOWN_FOR_S: Final = 30.0
LOOK_FOR_PARTITIONS_AFTER_S: Final = 1.0


class Span(NamedTuple):
    """Offsets of a partition: from the first up to the end."""

    start: int
    end: int


async def records_of(
    consumer: AIOKafkaConsumer, spans: Mapping[TopicPartition, Span]
) -> AsyncGenerator[list[Record], None]:
    """Yield the records of some spans, those of a partition in order; [] while there are none.

    Raises:
        KafkaError: As the consumer's `poll`.
    """
    ends = {tp: span.end for tp, span in spans.items() if span.start < span.end}
    _begin(consumer, {tp: spans[tp].start for tp in ends})
    while ends:
        polled = await consumer.poll(LOOK_FOR_GAPS_AFTER_MS)
        for tp, records in polled.items():
            end = ends.get(tp)
            if end is not None and records[-1].offset >= end - 1:
                del ends[tp]
                consumer.pause(tp)
                if records[-1].offset >= end:
                    records = [each for each in records if each.offset < end]
            if records:
                yield records
        if not polled:
            for tp in await _passed(consumer, ends):
                del ends[tp]
            yield []


async def _passed(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Return the partitions whose position is beyond their end."""
    return [tp for tp, end in ends.items() if await consumer.position(tp) >= end]


async def follow(
    consumer: AIOKafkaConsumer,
    starts: Mapping[TopicPartition, int],
    newcomers: Newcomers | None = None,
) -> AsyncGenerator[list[Record], None]:
    """Yield the records from some offsets on, without end, and those of newcomers.

    Raises:
        KafkaError: As the consumer's `poll`.
    """
    _begin(consumer, starts)
    now_s = asyncio.get_running_loop().time
    look_at = now_s()
    while True:
        if newcomers is not None and now_s() >= look_at:
            newcomers.read()
            look_at = now_s() + LOOK_FOR_PARTITIONS_AFTER_S
        for records in (await consumer.poll(LOOK_FOR_PARTITIONS_AFTER_S * 1000)).values():
            yield records


def _begin(consumer: AIOKafkaConsumer, starts: Mapping[TopicPartition, int]) -> None:
    consumer.assign(starts)
    for tp, start in starts.items():
        consumer.seek(tp, start)


class Newcomers:
    """Partitions that a topic is given while it is read."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, known: Collection[int]) -> None:
        self._consumer = consumer
        self._topic = topic
        self._known = set(known)

    def read(self) -> None:
        """Read those that are new, from their beginning."""
        new = (self._consumer.partitions_for_topic(self._topic) or set()) - self._known
        self._known |= new
        tps = [TopicPartition(self._topic, number) for number in sorted(new)]
        self._consumer.incremental_assign(tps)
        for tp in tps:
            self._consumer.seek(tp, 0)
