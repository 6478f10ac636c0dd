"""The records of some partitions, from one offset to another, and filters of them."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aiokafka_lite.cli.problems import UsageError
from aiokafka_lite.errors import KafkaTimeoutError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.cli.connecting import Connecting

Record: TypeAlias = ConsumerRecord[bytes | None, bytes | None]

# After this time without records, positions show whether the rest of a partition has none, because
# compaction and transactions leave offsets without records.
LOOK_FOR_GAPS_AFTER_MS: Final = 100
# The age of the metadata, and the interval of checks for new partitions.
KNOWN_FOR_S: Final = 30.0
LOOK_FOR_PARTITIONS_AFTER_S: Final = 1.0


class Span(NamedTuple):
    start: int
    end: int


async def records_of(
    consumer: AIOKafkaConsumer, spans: Mapping[TopicPartition, Span], *, patience_s: float
) -> AsyncGenerator[list[Record], None]:
    """Yield the records of some spans, in order per partition, and [] while none arrive.

    Raises KafkaTimeoutError if for `patience_s` no fetch was answered.
    """
    ends = {tp: span.end for tp, span in spans.items() if span.start < span.end}
    _begin(consumer, {tp: spans[tp].start for tp in ends})
    now_s = asyncio.get_running_loop().time
    began_at = now_s()
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
        if polled:
            began_at = now_s()  # the caller may have taken its time
        else:
            for tp, end in tuple(ends.items()):
                if await consumer.position(tp) >= end:
                    del ends[tp]
            silent_s = now_s() - began_at
            if (last_fetch_s := consumer.health().last_fetch_s) is not None:
                silent_s = min(silent_s, last_fetch_s)
            if ends and silent_s >= patience_s:
                tp = min(ends)
                raise KafkaTimeoutError(
                    f"brokers have answered no fetch for {silent_s:.0f} s: check the brokers, or "
                    f"raise --timeout ({tp.topic}/{tp.partition}: {consumer.explain(tp)})"
                )
            yield []


async def read_spans(
    where: Connecting, spans: Mapping[TopicPartition, Span], isolation_level: str
) -> AsyncGenerator[list[Record], None]:
    """Yield as `records_of`, by a consumer of its own, which starts only if there is a record."""
    if all(span.start >= span.end for span in spans.values()):
        return
    async with (
        where.consumer(isolation_level=isolation_level) as consumer,
        aclosing(records_of(consumer, spans, patience_s=where.patience_s)) as found,
    ):
        async for records in found:
            yield records


async def follow(
    consumer: AIOKafkaConsumer,
    starts: Mapping[TopicPartition, int],
    topic: str | None = None,
    known: Collection[int] = (),
) -> AsyncGenerator[list[Record], None]:
    """Yield the records from some offsets on, without end, and those of new partitions of a topic.

    `known` are the partitions of the topic that are not new.
    """
    _begin(consumer, starts)
    now_s, numbers = asyncio.get_running_loop().time, set(known)
    look_at = now_s()
    while True:
        if topic is not None and now_s() >= look_at:
            new = (consumer.partitions_for_topic(topic) or set()) - numbers
            numbers |= new
            tps = [TopicPartition(topic, number) for number in sorted(new)]
            consumer.incremental_assign(tps)
            for tp in tps:
                consumer.seek(tp, 0)
            look_at = now_s() + LOOK_FOR_PARTITIONS_AFTER_S
        for records in (await consumer.poll(LOOK_FOR_PARTITIONS_AFTER_S * 1000)).values():
            yield records


def _begin(consumer: AIOKafkaConsumer, starts: Mapping[TopicPartition, int]) -> None:
    consumer.assign(starts)
    for tp, start in starts.items():
        consumer.seek(tp, start)


Filter: TypeAlias = Callable[[Sequence[Record]], list[Record]]


def filter_of(options: argparse.Namespace, *, sees_headers: bool) -> Filter | None:
    """Return a function that selects the records that match all patterns. None without patterns.

    A null key or value does not match. With `sees_headers` the pattern of values may also match a
    header, as ``name=value``.
    """

    def search(pattern: str) -> Callable[[bytes], bool]:
        flags = re.IGNORECASE if options.ignore_case else 0
        return _search(pattern, options.fixed_strings, flags)

    of_value = None if options.grep is None else search(options.grep)
    of_key = None if options.key is None else search(options.key)
    of_headers = [(name, search(pattern)) for name, pattern in options.header]
    if of_value is None and of_key is None and not of_headers:
        return None

    def matches(record: Record) -> bool:
        if of_key is not None and (record.key is None or not of_key(record.key)):
            return False
        if of_value is not None and not (
            (record.value is not None and of_value(record.value))
            or (sees_headers and any(of_value(_line(*header)) for header in record.headers))
        ):
            return False
        return all(
            any(found == name and of(text or b"") for found, text in record.headers)
            for name, of in of_headers
        )

    return lambda records: [each for each in records if matches(each) is not options.invert_match]


def _line(name: str, value: bytes | None) -> bytes:
    return name.encode("utf-8", "surrogateescape") + b"=" + (value or b"")


def _search(pattern: str, is_fixed: bool, flags: int) -> Callable[[bytes], bool]:
    encoded = pattern.encode("utf-8", "surrogateescape")
    if is_fixed and not flags:
        return lambda content: encoded in content
    try:
        search = re.compile(re.escape(encoded) if is_fixed else encoded, flags).search
    except re.error as error:
        raise UsageError(
            f"{pattern!r} is not a regular expression: {error} (use -F to search for plain text)"
        ) from error
    return lambda content: search(content) is not None
