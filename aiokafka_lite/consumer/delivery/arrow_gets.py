"""Reads that return Arrow record batches. Imported with pyarrow at the first.

Columns are filled without an await, from the records that decode within a time slice, and positions
move at once. So a cancelled read has taken no records, and reads of rows and records mix freely.
When a pause is due, the batch ends, and the next read begins with the pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import Self
from aiokafka_lite.consumer.buffer.buffer import Buffer, Limits, Taken
from aiokafka_lite.consumer.buffer.chunk import Chunk, Record
from aiokafka_lite.consumer.buffer.decode import ChunkDecoder
from aiokafka_lite.errors import ConsumerStoppedError
from aiokafka_lite.records.arrow import DEFAULT_SCHEMA, ArrowColumns

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_ROWS: Final = 65_536
# Keys, values and headers of a batch of several rows.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024


class Rows:
    is_for_one: Final = False
    decodes: Final = True

    def __init__(self, arrow: ArrowColumns, decoder: ChunkDecoder) -> None:
        self._arrow = arrow
        self._decoder = decoder
        self._columns = arrow.columns
        self.count = 0
        self.batch: pa.RecordBatch | None = None

    @property
    def is_full(self) -> bool:
        return self.batch is not None or (self.count > 0 and self._columns.is_full)

    def take(self, chunk: Chunk, limit: int | None) -> Taken | None:
        """Add up to `limit` rows of a chunk, until a pause is due."""
        assert limit is not None  # noqa: S101 -- each read of rows has one
        if self.batch is not None or (chunk.decoded and self.count):
            return None  # it is for the next batch
        if chunk.decoded:
            return self._take_decoded(chunk, limit)
        columns, before = self._columns, self._columns.rows
        first_offset: int | None = None
        while (missing := limit - (columns.rows - before)) > 0 and self._decoder.fill(
            chunk, columns, missing
        ):
            if first_offset is None:
                first_offset = columns.first_offset
        self.count = columns.rows
        return None if first_offset is None else Taken(first_offset, chunk.position_after())

    def _take_decoded(self, chunk: Chunk, limit: int) -> Taken:
        records = chunk.decoded[:limit]
        records = records[: _count_within(records, MAX_BATCH_BYTES)]
        self.batch = self._arrow.from_records(records)
        self.count = len(records)
        chunk.pop(self.count)
        return Taken(
            records[0].offset, records[-1].offset + 1 if chunk.decoded else chunk.position_after()
        )

    def finish(self) -> None:
        if self._columns.rows:
            self.batch = self._arrow.finish()

    def clear(self) -> None:
        """Drop the rows from the columns, which other reads use."""
        self._columns.clear()


class ArrowGets:
    def __init__(self, buffer: Buffer, max_rows: int | None) -> None:
        self._max_rows = max_rows or DEFAULT_MAX_ROWS
        self._buffer = buffer
        self._latest: ArrowColumns | None = None

    def columns(self, schema: pa.Schema | None) -> ArrowColumns:
        """Return columns of a schema, those of the last call if it had the same one."""
        wanted = DEFAULT_SCHEMA if schema is None else schema
        if self._latest is None or self._latest.schema is not wanted:
            self._latest = new_columns(wanted)
        return self._latest

    def batches(
        self, schema: pa.Schema | None, max_rows: int | None, consumer: object = None
    ) -> ArrowBatches:
        """Return an iterator with columns of its own, which keeps the consumer alive."""
        return ArrowBatches(self, new_columns(schema), max_rows, consumer)

    async def one(
        self, arrow: ArrowColumns, timeout_s: float | None, max_rows: int | None
    ) -> pa.RecordBatch:
        rows = Rows(arrow, self._buffer.decoder)
        await self._buffer.take(rows, Limits((), timeout_s, max_rows or self._max_rows))
        return arrow.finish() if rows.batch is None else rows.batch


@dataclass(eq=False, repr=False)
class ArrowBatches:
    """The iterator of `consumer.batches()`. It ends when the consumer is stopped."""

    _gets: ArrowGets
    _columns: ArrowColumns
    _max_rows: int | None
    _consumer: object

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        try:
            return await self._gets.one(self._columns, None, self._max_rows)
        except ConsumerStoppedError:
            raise StopAsyncIteration from None


def new_columns(schema: pa.Schema | None) -> ArrowColumns:
    return ArrowColumns(schema, byte_limit=MAX_BATCH_BYTES)


def _count_within(records: Sequence[Record], limit_bytes: int) -> int:
    for count, record in enumerate(records):
        limit_bytes -= max(record.serialized_key_size, 0) + max(record.serialized_value_size, 0)
        if limit_bytes < 0:
            return max(count, 1)
    return len(records)
