"""Decodes the records of a batch, in plain Python.

The reference and the fallback of the compiled decoder, with the same records and errors for any
bytes. Layouts: org.apache.kafka.common.record DefaultRecord (magic 2) and LegacyRecord (magic 0
and 1).

Each length is checked against the remaining bytes before use: `n > end - pos`. Invalid bytes raise
CorruptRecordException only.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from aiokafka_lite._compat import override
from aiokafka_lite.errors import CorruptRecordException
from aiokafka_lite.records.batch import CODEC_MASK, LOG_OVERHEAD, MAX_OFFSET, MESSAGE
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.records._columns_py import Columns

Record: TypeAlias = ConsumerRecord

# Length, attributes, timestamp delta, offset delta, two lengths of -1 and a header count.
MIN_RECORD_BYTES: Final = 7
_MIN_HEADER_BYTES: Final = 2
# Of one record. A header takes some 100 bytes of memory, and two in the batch.
MAX_HEADERS: Final = 1 << 18
# As costly as a record.
_HEADERS_A_RECORD: Final = 64
_MAX_INT64: Final = 2**63 - 1
_int32 = struct.Struct(">i")
_int64 = struct.Struct(">q")


class BatchCursor:
    """Reads the records of a batch of magic 2 once."""

    def __init__(
        self,
        topic: str,
        partition: int,
        records: memoryview,
        *,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        floor: int,
        ceiling: int = sys.maxsize,
    ) -> None:
        """Check the header's record count.

        Records at offsets from `floor` on are taken, up to the first one at `ceiling` or above.
        `last_offset_delta` is the largest valid delta. `append_time` replaces all timestamps.
        """
        if count < 0 or count > len(records) // MIN_RECORD_BYTES:
            raise CorruptRecordException(
                f"a batch has the invalid record count {count}, with only {len(records)} bytes of "
                "records"
            )
        self._topic = topic
        self._partition = partition
        self._buffer = records
        self._pos = 0
        self._left = count
        self._base_offset = base_offset
        self._previous_delta = -1
        self._last_delta = last_offset_delta
        self._base_timestamp = base_timestamp
        self._append_time = append_time
        self._floor = floor
        self._ceiling = ceiling

    def go_on(self, records: memoryview, count: int) -> None:
        """Continue with the next `count` records in other memory, after all others were taken."""
        self._buffer = records
        self._pos = 0
        self._left = count

    def pass_early(self) -> bool:
        """Skip the records below the floor. Return True if these are all."""
        while self._left:
            record, end = self._parse_next()
            if record.offset >= self._floor:
                return False
            self._pass(record, end)
        return self._is_finished()

    def take(self, into: list[Record], limit: int) -> bool:
        """Append at most `limit` records, also before an error. Return True at the end."""
        while self._left and limit > 0:
            record, end = self._parse_next()
            if record.offset >= self._ceiling:
                self._pass_rest()
                break
            self._pass(record, end)
            if record.offset >= self._floor:
                into.append(record)
                limit -= 1 + len(record.headers) // _HEADERS_A_RECORD
        return self._is_finished()

    def take_columns(self, columns: object, limit: int) -> bool:
        """Add at most `limit` rows, unless the columns are full. Return True at the end."""
        if not isinstance(columns, columns_class()):
            raise TypeError(
                "columns made by the compiled decoder cannot be filled by the Python decoder"
            )
        return self._add_rows(columns, limit)

    def _add_rows(self, columns: Columns, limit: int) -> bool:
        first_row = columns.rows
        try:
            while self._left and limit > 0 and not columns.is_full:
                record, end = self._parse_next()
                if record.offset >= self._ceiling:
                    self._pass_rest()
                    break
                if record.offset >= self._floor:
                    if not columns.add(record):
                        break
                    limit -= 1 + len(record.headers) // _HEADERS_A_RECORD
                self._pass(record, end)
        finally:
            columns.end_row_group(self._topic, self._partition, self._timestamp_type, first_row)
        return self._is_finished()

    @property
    def _timestamp_type(self) -> int | None:
        return 0 if self._append_time is None else 1

    def _pass(self, record: Record, end: int) -> None:
        self._previous_delta = record.offset - self._base_offset
        self._left -= 1
        self._pos = end

    def _pass_rest(self) -> None:
        self._left = 0
        self._pos = len(self._buffer)

    def _is_finished(self) -> bool:
        if self._left:
            return False
        if self._pos != len(self._buffer):
            raise CorruptRecordException("a batch has bytes after its last record")
        return True

    def _parse_next(self) -> tuple[Record, int]:
        buffer = self._buffer
        length, pos = read_varint(buffer, self._pos, len(buffer))
        if length < 1 or length > len(buffer) - pos:
            raise CorruptRecordException(f"a record of {length} bytes is longer than its batch")
        end = pos + length
        pos += 1  # attributes: none are defined
        timestamp_delta, pos = read_varlong(buffer, pos, end)
        offset_delta, pos = read_varint(buffer, pos, end)
        key, pos = _nullable(buffer, pos, end)
        value, pos = _nullable(buffer, pos, end)
        headers, pos = _headers(buffer, pos, end)
        if pos != end:
            raise CorruptRecordException("a record is longer than its fields")
        if self._left == 1 and end != len(buffer):
            raise CorruptRecordException("a batch has bytes after its last record")
        if not self._previous_delta < offset_delta <= self._last_delta:
            raise CorruptRecordException(
                f"a record has the invalid offset delta {offset_delta}: the value must be "
                f"above {self._previous_delta} and at most {self._last_delta}"
            )
        timestamp = self._base_timestamp + timestamp_delta
        if not -_MAX_INT64 - 1 <= timestamp <= _MAX_INT64:
            raise CorruptRecordException(f"a record has the invalid timestamp {timestamp}")
        if self._append_time is not None:
            timestamp = self._append_time
        return self._record(offset_delta, timestamp, key, value, headers), end

    def _record(
        self,
        offset_delta: int,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes], ...] = (),
        crc: int | None = None,
    ) -> Record:
        return ConsumerRecord(
            self._topic,
            self._partition,
            self._base_offset + offset_delta,
            timestamp,  # type: ignore[arg-type]  # aiokafka gives None for magic 0, and so do we
            self._timestamp_type,  # type: ignore[arg-type]
            key,
            value,
            crc,
            -1 if key is None else len(key),
            -1 if value is None else len(value),
            headers,
        )


def whole_records(view: memoryview, limit: int) -> tuple[int, int, int]:
    """Find the complete records of magic 2, by their lengths only.

    Returns their number, their end, and the bytes of the record after them, 0 if unknown.
    """
    count = pos = 0
    while count < limit:
        try:
            length, start = read_varint(view, pos, len(view))
        except CorruptRecordException:
            return count, pos, 0
        if length < 1:
            return count, pos, 0
        if length > len(view) - start:
            return count, pos, start + length - pos
        pos = start + length
        count += 1
    return count, pos, 0


PlainBatches: Final = None
"""This decoder takes the general way for all batches, which is the reference."""


class MessageCursor(BatchCursor):
    """Reads messages of magic 0 or 1, alone or in a wrapper, also for the compiled decoder."""

    def __init__(
        self,
        topic: str,
        partition: int,
        messages: memoryview,
        *,
        magic: int,
        wrapper_offset: int | None,
        append_time: int | None,
        floor: int,
        ceiling: int = sys.maxsize,
    ) -> None:
        """Find the messages: one, or those of a wrapper.

        In magic 1, `wrapper_offset` is the offset of the wrapper's last message, and the messages
        have relative offsets (KIP-31).
        """
        self._magic = magic
        count, last_offset = _count_messages(messages)
        if not 0 <= last_offset <= MAX_OFFSET:
            raise CorruptRecordException(f"a message has the invalid offset {last_offset}")
        base_offset = 0
        if wrapper_offset is not None and magic == 1:
            if last_offset > wrapper_offset:
                raise CorruptRecordException(
                    f"the compressed message at offset {wrapper_offset} contains the higher "
                    f"offset {last_offset}"
                )
            base_offset = wrapper_offset - last_offset
        super().__init__(
            topic,
            partition,
            messages,
            count=count,
            base_offset=base_offset,
            last_offset_delta=last_offset,
            base_timestamp=0,
            append_time=append_time,
            floor=floor,
            ceiling=ceiling,
        )

    @override
    def take_columns(self, columns: object, limit: int) -> bool:
        """Add at most `limit` rows, of either decoder. See `BatchCursor.take_columns`."""
        return self._add_rows(cast("Columns", columns), limit)

    @property
    @override
    def _timestamp_type(self) -> int | None:
        return None if self._magic == 0 else super()._timestamp_type

    @override
    def _parse_next(self) -> tuple[Record, int]:
        buffer = self._buffer
        offset, size, crc, magic, attributes = MESSAGE.unpack_from(buffer, self._pos)
        end = self._pos + LOG_OVERHEAD + size
        pos = self._pos + MESSAGE.size
        if magic != self._magic or attributes & CODEC_MASK:
            raise CorruptRecordException(
                "a message in a compressed message is compressed again, or has another format "
                "version"
            )
        timestamp: int | None = None
        if magic == 1:
            # `_count_messages` rejects messages that are too short for it.
            (timestamp,) = _int64.unpack_from(buffer, pos)
            pos += 8
            if self._append_time is not None:
                timestamp = self._append_time
        key, pos = _nullable_int32(buffer, pos, end)
        value, pos = _nullable_int32(buffer, pos, end)
        if pos != end:
            raise CorruptRecordException("a message is longer than its fields")
        if not self._previous_delta < offset <= self._last_delta:
            raise CorruptRecordException(
                f"a message has the invalid offset {offset}: the value must be above "
                f"{self._previous_delta} and at most {self._last_delta}"
            )
        return self._record(offset, timestamp, key, value, crc=crc), end


def columns_class() -> type[Columns]:
    from aiokafka_lite.records._columns_py import Columns  # late, because few callers need it

    return Columns


def end_offset(view: memoryview) -> int | None:
    """See `record_set.end_offset`."""
    pos = 0
    end: int | None = None
    while len(view) - pos > 16:
        (base_offset,) = _int64.unpack_from(view, pos)
        (length,) = _int32.unpack_from(view, pos + 8)
        if length < 14 or length > len(view) - pos - LOG_OVERHEAD or base_offset < 0:
            break
        last_offset_delta = 0
        if view[pos + 16] == 2:
            if length < 49:
                break
            (last_offset_delta,) = _int32.unpack_from(view, pos + 23)
        if last_offset_delta < 0 or base_offset >= _MAX_INT64 - last_offset_delta:
            break
        end = max(end or 0, base_offset + last_offset_delta + 1)
        pos += LOG_OVERHEAD + length
    return end


def read_varint(buffer: memoryview, pos: int, end: int) -> tuple[int, int]:
    return _zigzag(buffer, pos, end, 32)


def read_varlong(buffer: memoryview, pos: int, end: int) -> tuple[int, int]:
    return _zigzag(buffer, pos, end, 64)


def _zigzag(buffer: memoryview, pos: int, end: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    while pos < end and shift < bits:
        byte = buffer[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> bits:
                break
            return raw >> 1 ^ -(raw & 1), pos
        shift += 7
    raise CorruptRecordException("a varint is incomplete or too long")


def _nullable(buffer: memoryview, pos: int, end: int) -> tuple[bytes | None, int]:
    length, pos = read_varint(buffer, pos, end)
    return _bytes_or_none(buffer, pos, end, length)


def _nullable_int32(buffer: memoryview, pos: int, end: int) -> tuple[bytes | None, int]:
    if end - pos < 4:
        raise CorruptRecordException("a message is incomplete: it ends inside a length field")
    (length,) = _int32.unpack_from(buffer, pos)
    return _bytes_or_none(buffer, pos + 4, end, length)


def _bytes_or_none(buffer: memoryview, pos: int, end: int, length: int) -> tuple[bytes | None, int]:
    if length == -1:
        return None, pos
    if length < 0 or length > end - pos:
        raise CorruptRecordException(
            f"a key, value or header of {length} bytes is longer than its record"
        )
    return bytes(buffer[pos : pos + length]), pos + length


def _headers(buffer: memoryview, pos: int, end: int) -> tuple[tuple[tuple[str, bytes], ...], int]:
    count, pos = read_varint(buffer, pos, end)
    if count == 0:
        return (), pos
    if count < 0 or count > min((end - pos) // _MIN_HEADER_BYTES, MAX_HEADERS):
        raise CorruptRecordException(f"a record has the invalid header count {count}")
    headers: list[tuple[str, bytes]] = []
    for _ in range(count):
        name, pos = _nullable(buffer, pos, end)
        if name is None:
            raise CorruptRecordException("a record has a header without a key")
        value, pos = _nullable(buffer, pos, end)
        # As in Java's client, a name that is not UTF-8 does not block the partition.
        headers.append((name.decode("utf-8", "replace"), value))  # type: ignore[arg-type]
    return tuple(headers), pos


def _count_messages(messages: memoryview) -> tuple[int, int]:
    """Return the number of messages, and the offset of the last one."""
    count = pos = 0
    offset = -1
    while pos < len(messages):
        if len(messages) - pos < MESSAGE.size:
            raise CorruptRecordException("a message inside a compressed message is incomplete")
        offset, size = MESSAGE.unpack_from(messages, pos)[:2]
        if size < 14 or size > len(messages) - pos - LOG_OVERHEAD:
            raise CorruptRecordException(
                f"a message of {size} bytes is longer than the compressed message that contains it"
            )
        pos += LOG_OVERHEAD + size
        count += 1
    if not count:
        raise CorruptRecordException("a compressed message contains no messages")
    return count, offset
