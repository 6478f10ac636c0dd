"""Gets that hand out Arrow record batches; imported when the first is asked for, with pyarrow.

Columns are filled in one go, without an await, from what can be decoded within a time slice, and
the positions move before anything else happens. So a get that is cancelled has taken nothing, gets
of rows and of records may be mixed at will, and there is nothing to drop when a partition is paused
or taken away. What a pause is due for (decompression in a thread, the end of the slice) ends the
batch; the next get begins with the pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import Self
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.buffer import Buffer
from aiokafka_lite.consumer.buffer.chunk import Chunk, Record
from aiokafka_lite.consumer.delivery.ready import ReadyRecords
from aiokafka_lite.errors import ConsumerStoppedError, KafkaError
from aiokafka_lite.records.arrow import DEFAULT_SCHEMA, ArrowColumns

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_ROWS: Final = 65_536
# Keys, values and headers of a batch of several rows.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024


class ArrowGets:
    """What `poll_arrow` and `batches` do."""

    def __init__(
        self,
        state: SubscriptionState,
        buffer: Buffer,
        ready: ReadyRecords,
        max_rows: int | None,
    ) -> None:
        self._max_rows = max_rows or DEFAULT_MAX_ROWS
        self._state = state
        self._buffer = buffer
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._latest: ArrowColumns | None = None

    def columns(self, schema: pa.Schema | None) -> ArrowColumns:
        """Return columns of a schema; the same ones as long as the same schema is asked for.

        Raises:
            TypeError: The schema is none.
            ValueError: The schema has columns that there are not, or types that do not fit.
        """
        wanted = DEFAULT_SCHEMA if schema is None else schema
        if self._latest is None or self._latest.schema is not wanted:
            self._latest = new_columns(wanted)
        return self._latest

    def batches(
        self, schema: pa.Schema | None, max_rows: int | None, consumer: object = None
    ) -> ArrowBatches:
        """Return an iterator of batches, with columns of its own, that keeps a consumer alive."""
        return ArrowBatches(self, new_columns(schema), max_rows, consumer)

    async def one(
        self, arrow: ArrowColumns, timeout_s: float | None, max_rows: int | None
    ) -> pa.RecordBatch:
        """Return the next rows; an empty batch when the time is up first."""
        max_rows = max_rows or self._max_rows
        loop = self._loop
        deadline = None if timeout_s is None else loop.time() + timeout_s
        self._ready.close()
        self._state.enter_get()
        try:
            if timeout_s is not None and timeout_s <= 0 and not self._buffer.line.is_any_served(()):
                # A loop of gets that never wait must not keep the fetchers from working.
                await asyncio.sleep(0)
            while await self._buffer.wait((), deadline):
                part = await self._buffer.first_in_line(())
                # Another task's get may have opened a share meanwhile.
                self._ready.close()
                if part is None:
                    continue
                if part.decoded:
                    return self._pop_decoded(part, arrow, max_rows)
                batch = self._pop(arrow, max_rows)
                if batch is not None:
                    return batch
            return arrow.empty()
        finally:
            self._state.leave_get(loop.time())

    def _pop_decoded(self, part: Chunk, arrow: ArrowColumns, max_rows: int) -> pa.RecordBatch:
        """Hand out what was decoded record by record, for another get, and is left over."""
        count = _count_within(part.decoded[:max_rows], MAX_BATCH_BYTES)
        batch = arrow.from_records(part.decoded[:count])
        self._buffer.pop((part.partition.tp,), count)
        return batch

    def _pop(self, arrow: ArrowColumns, max_rows: int) -> pa.RecordBatch | None:
        """Hand out rows, as many as there are before a pause is due.

        Raises:
            KafkaError: What stands first in line, or alone.
        """
        filled: list[tuple[Chunk, int | None]] = []
        failed: tuple[Chunk, KafkaError] | None = None
        is_alone = True  # what has failed: nothing else is in line
        batch: pa.RecordBatch | None = None
        buffer, columns = self._buffer, arrow.columns
        line = buffer.line.front(max_rows)
        try:
            for parts in line:
                before = columns.rows
                self._fill(parts, arrow, max_rows, filled)
                front = filled[-1][0]  # all ahead of it are exhausted
                if front.error is not None and columns.rows == before:
                    failed = failed or (front, front.error)
                    if parts is line[0]:
                        break
                elif not front.is_exhausted:
                    is_alone = False
                if columns.rows >= max_rows or columns.is_full or buffer.is_over_budget:
                    break
            if row_count := columns.rows:
                batch = arrow.finish()
                self._state.record_count += row_count
        except BaseException:
            # As from a lack of memory: nothing is handed out, all is fetched again.
            columns.clear()
            for part, _ in filled:
                self._state.refetch(part.partition)
            raise
        for part, first_offset in filled:
            buffer.hand_out_rows(part, first_offset)
        if filled:
            buffer.keep_to_budget(filled[-1][0])
        if batch is not None:
            buffer.end_turn(line[0][0].partition)
        elif failed is not None and is_alone:
            buffer.poison.fail(*failed)
        return batch

    def _fill(
        self,
        parts: Sequence[Chunk],
        arrow: ArrowColumns,
        max_rows: int,
        filled: list[tuple[Chunk, int | None]],
    ) -> None:
        """Fill columns from a partition's shares; note from which, and their first offsets."""
        columns = arrow.columns
        for part in parts:
            first_offset: int | None = None
            filled.append((part, None))
            while columns.rows < max_rows and self._buffer.fill(
                part, columns, max_rows - columns.rows
            ):
                if first_offset is None:
                    first_offset = columns.first_offset
            filled[-1] = (part, first_offset)
            if not part.is_exhausted:
                return


class ArrowBatches:
    """What `async for batch in consumer.batches()` iterates over; ends when it is stopped."""

    def __init__(
        self, gets: ArrowGets, columns: ArrowColumns, max_rows: int | None, consumer: object
    ) -> None:
        self._consumer = consumer
        self._gets = gets
        self._columns = columns
        self._max_rows = max_rows

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        try:
            return await self._gets.one(self._columns, None, self._max_rows)
        except ConsumerStoppedError:
            raise StopAsyncIteration from None


def new_columns(schema: pa.Schema | None) -> ArrowColumns:
    """Return columns that are full when a batch is large enough."""
    return ArrowColumns(schema, byte_limit=MAX_BATCH_BYTES)


def _count_within(records: Sequence[Record], limit_bytes: int) -> int:
    """Return how many records, but one at least, have keys and values within a limit."""
    for count, record in enumerate(records):
        limit_bytes -= max(record.serialized_key_size, 0) + max(record.serialized_value_size, 0)
        if limit_bytes < 0:
            return max(count, 1)
    return len(records)
