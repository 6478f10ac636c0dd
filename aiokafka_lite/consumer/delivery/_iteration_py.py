"""The iterator of `async for` in plain Python: fallback and model of the compiled one."""

from __future__ import annotations

from aiokafka_lite.consumer.buffer.chunk import Record
from aiokafka_lite.consumer.delivery.record_cursor import RecordCursor


class RecordIterator:
    """Feeds `async for` from a cursor, and otherwise from `await _next_record()`."""

    _cursor: RecordCursor

    def _iterate_over(self, cursor: RecordCursor) -> None:
        self._cursor = cursor

    async def _next_record(self) -> Record:
        raise NotImplementedError

    async def __anext__(self) -> Record:
        record = self._cursor.take()
        return await self._next_record() if record is None else record
