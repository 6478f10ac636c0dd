"""The records of some partitions, from one offset to another, many at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer

Record: TypeAlias = ConsumerRecord[bytes | None, bytes | None]

# Without records for so long it is looked whether the rest of a partition has none: compaction and
# transactions leave offsets without records.
LOOK_FOR_GAPS_AFTER_MS: Final = 100


class Span(NamedTuple):
    """Offsets of a partition: from the first up to the end, which None puts off for ever."""

    start: int
    end: int | None


async def records_of(
    consumer: AIOKafkaConsumer, spans: Mapping[TopicPartition, Span]
) -> AsyncGenerator[list[Record], None]:
    """Yield the records of some spans, those of a partition in order; [] while there are none.

    Raises:
        KafkaError: As the consumer's `poll`.
    """
    ends = {tp: span.end for tp, span in spans.items() if span.end is None or span.start < span.end}
    if not ends:
        return
    consumer.assign(ends)
    for tp in ends:
        consumer.seek(tp, spans[tp].start)
    is_endless = any(end is None for end in ends.values())
    while ends:
        polled = await consumer.poll(None if is_endless else LOOK_FOR_GAPS_AFTER_MS)
        for tp, records in polled.items():
            end = ends.get(tp)
            if end is not None and records[-1].offset >= end - 1:
                del ends[tp]
                consumer.pause(tp)
                if records[-1].offset >= end:
                    records = [each for each in records if each.offset < end]
            if records:
                yield records
        if not polled and not is_endless:
            for tp in await _passed(consumer, ends):
                del ends[tp]
            yield []


async def _passed(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int | None]
) -> list[TopicPartition]:
    """Return the partitions whose position is beyond their end."""
    return [
        tp for tp, end in ends.items() if end is not None and await consumer.position(tp) >= end
    ]
