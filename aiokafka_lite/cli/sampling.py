"""The recent rate of a topic and its largest record, for `describe`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._compat import timeout
from aiokafka_lite.cli.cat.reading import Record, Span, records_of
from aiokafka_lite.cli.output import Row, counted, size_text
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.cli.connecting import Connecting

# The default limit. With --since all records are read.
MOST_SAMPLED_BYTES: Final = 64 << 20


class Largest(NamedTuple):
    bytes: int
    partition: int
    offset: int


class Sample(NamedTuple):
    """The records of a topic since some time, and the bytes of the ones that were read.

    `seconds` is the time since then, None without records.
    """

    seconds: float | None
    record_count: int
    read_count: int
    read_bytes: int
    largest: Largest | None

    def row(self) -> Row:
        largest = self.largest
        return {
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "records": self.record_count,
            "records_per_second": self._per_second(self.record_count),
            "bytes_per_second": self._per_second(self._bytes),
            "read": self.read_count,
            "largest_record": None
            if largest is None
            else {
                "bytes": largest.bytes, "partition": largest.partition, "offset": largest.offset,
            },
        }  # fmt: skip

    def text(self) -> str:
        if self.seconds is None:
            return "no records"
        if self.largest is None:
            return f"in the last {self.seconds:,.0f} s: no records"
        rate, byte_rate = self._per_second(self.record_count), self._per_second(self._bytes)
        part = f" of {self.read_count:,} read" if self.read_count < self.record_count else ""
        records = counted(self.record_count, "record")
        return (
            f"in the last {self.seconds:,.0f} s: {records}, {rate:,} records/s, "
            f"{size_text(round(byte_rate or 0))}/s; largest record{part}: "
            f"{size_text(self.largest.bytes)} "
            f"(partition {self.largest.partition}, offset {self.largest.offset})"
        )

    @property
    def _bytes(self) -> float:
        """The bytes of all records, estimated by those that were read."""
        return self.read_bytes * self.record_count / self.read_count if self.read_count else 0

    def _per_second(self, number: float) -> float | None:
        return None if not self.seconds else round(number / self.seconds, 1)


async def sample(
    where: Connecting,
    spans: Mapping[TopicPartition, Span],
    since_ms: int | None,
    *,
    until_s: float,
    is_all_wanted: bool,
) -> Sample:
    """Read the records since some time, or since the first record (None).

    Without `is_all_wanted`, only some records are read, within the request timeout. `until_s` is
    the time at which the ends of the spans were looked up.
    """
    reading = _Reading(since_ms)
    if any(span.start < span.end for span in spans.values()):
        try:
            async with timeout(None if is_all_wanted else where.config.request_timeout_s):
                await reading.run(where, spans, None if is_all_wanted else MOST_SAMPLED_BYTES)
        except asyncio.TimeoutError:
            pass
    count = sum(span.end - span.start for span in spans.values())
    return reading.result(count if reading.is_cut else reading.count, until_s)


class _Reading:
    def __init__(self, since_ms: int | None) -> None:
        self._since_ms = since_ms
        self._first_ms: int | None = None
        self._bytes = 0
        self._largest = Largest(-1, 0, 0)
        self.count = 0
        self.is_cut = True

    async def run(
        self, where: Connecting, spans: Mapping[TopicPartition, Span], most_bytes: int | None
    ) -> None:
        async with (
            where.consumer(isolation_level="read_uncommitted") as consumer,
            aclosing(records_of(consumer, spans, patience_s=where.patience_s)) as found,
        ):
            async for records in found:
                for record in records:
                    self._take(record)
                if most_bytes is not None and self._bytes >= most_bytes:
                    return
        self.is_cut = False

    def _take(self, record: Record) -> None:
        size = len(record.key or b"") + len(record.value or b"")
        for name, content in record.headers:
            size += len(name.encode()) + len(content or b"")
        self.count += 1
        self._bytes += size
        if size > self._largest.bytes:
            self._largest = Largest(size, record.partition, record.offset)
        if self._first_ms is None or record.timestamp < self._first_ms:
            self._first_ms = record.timestamp

    def result(self, count: int, until_s: float) -> Sample:
        since_ms = self._first_ms if self._since_ms is None else self._since_ms
        seconds = None if since_ms is None else max(0.001, until_s - since_ms / 1000)
        largest = self._largest if self.count else None
        return Sample(seconds, count, self.count, self._bytes, largest)
