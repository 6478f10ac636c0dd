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


class Sample:
    """The records of a topic since some time (None: the first record), of which some are read.

    `until_s` is the time at which the ends of the spans were looked up.
    """

    def __init__(self, since_ms: int | None, until_s: float) -> None:
        self._since_ms = since_ms
        self._until_s = until_s
        self._first_ms: int | None = None
        self._read_bytes = 0
        self._read_count = 0
        self._record_count = 0
        self._largest: Largest | None = None

    async def read(
        self, where: Connecting, spans: Mapping[TopicPartition, Span], *, is_all_wanted: bool
    ) -> None:
        """Read all records, or those that the request timeout and `MOST_SAMPLED_BYTES` allow."""
        self._record_count = sum(span.end - span.start for span in spans.values())
        if not self._record_count:
            return
        try:
            async with (
                timeout(None if is_all_wanted else where.config.request_timeout_s),
                where.consumer(isolation_level="read_uncommitted") as consumer,
                aclosing(records_of(consumer, spans, patience_s=where.patience_s)) as found,
            ):
                async for records in found:
                    for record in records:
                        self._take(record)
                    if not is_all_wanted and self._read_bytes >= MOST_SAMPLED_BYTES:
                        return
            self._record_count = self._read_count
        except asyncio.TimeoutError:
            pass

    def _take(self, record: Record) -> None:
        size = len(record.key or b"") + len(record.value or b"")
        for name, content in record.headers:
            size += len(name.encode()) + len(content or b"")
        self._read_count += 1
        self._read_bytes += size
        if self._largest is None or size > self._largest.bytes:
            self._largest = Largest(size, record.partition, record.offset)
        if self._first_ms is None or record.timestamp < self._first_ms:
            self._first_ms = record.timestamp

    @property
    def _seconds(self) -> float | None:
        """The time since then, None without records."""
        since_ms = self._first_ms if self._since_ms is None else self._since_ms
        return None if since_ms is None else max(0.001, self._until_s - since_ms / 1000)

    def row(self) -> Row:
        seconds, largest = self._seconds, self._largest
        return {
            "seconds": None if seconds is None else round(seconds, 3),
            "records": self._record_count,
            "records_per_second": self._per_second(self._record_count),
            "bytes_per_second": self._per_second(self._bytes),
            "read": self._read_count,
            "largest_record": None if largest is None else largest._asdict(),
        }

    def text(self) -> str:
        seconds = self._seconds
        if seconds is None:
            return "no records"
        if self._largest is None:
            return f"in the last {seconds:,.0f} s: no records"
        rate, byte_rate = self._per_second(self._record_count), self._per_second(self._bytes)
        part = f" of {self._read_count:,} read" if self._read_count < self._record_count else ""
        records = counted(self._record_count, "record")
        return (
            f"in the last {seconds:,.0f} s: {records}, {rate:,} records/s, "
            f"{size_text(round(byte_rate or 0))}/s; largest record{part}: "
            f"{size_text(self._largest.bytes)} "
            f"(partition {self._largest.partition}, offset {self._largest.offset})"
        )

    @property
    def _bytes(self) -> float:
        """The bytes of all records, estimated by those that were read."""
        return self._read_bytes * self._record_count / self._read_count if self._read_count else 0

    def _per_second(self, number: float) -> float | None:
        seconds = self._seconds
        return None if not seconds else round(number / seconds, 1)
