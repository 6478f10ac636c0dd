"""Columns in the memory layout of Arrow, in plain Python.

The reference and the fallback of the compiled `_columns`, with the same results. Layout:
https://arrow.apache.org/docs/format/Columnar.html. `records.arrow` creates pyarrow's record batches
from `finish`.

A *row group* keeps topic, partition and timestamp type once for consecutive rows.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite.errors import RecordTooLargeError
from aiokafka_lite.structs import ConsumerRecord

# Values are contiguous, and their ends are int32.
MAX_COLUMN_BYTES: Final = 2**31 - 1
# A header's two int32, for the ends of name and value.
HEADER_BYTES: Final = 8
_MAX_INT64: Final = 2**63 - 1

Memory: TypeAlias = object  # has the buffer protocol


class RowGroup(NamedTuple):
    """Consecutive rows with the same values. Magic 0 has no timestamp type."""

    topic: str
    partition: int
    timestamp_type: int | None
    rows: int


class Timestamps(NamedTuple):
    """An int64 per row, and a validity bit per row, None if all rows are valid."""

    values: Memory
    valid: Memory | None


class Binary(NamedTuple):
    """Bytes per row: value n is `content[bounds[n]:bounds[n + 1]]`, with int32 bounds."""

    bounds: Memory
    content: Memory
    valid: Memory | None


class Headers(NamedTuple):
    """The headers of row n are those from `bounds[n]` to `bounds[n + 1]`."""

    bounds: Memory
    valid: Memory | None
    names: Binary
    values: Binary
    header_count: int


class Filled(NamedTuple):
    """All columns of some rows. None is an unwanted column, or headers if no row has any."""

    rows: int
    row_groups: tuple[RowGroup, ...]
    offsets: Memory | None
    timestamps: Timestamps | None
    keys: Binary | None
    values: Binary | None
    headers: Headers | None


class _Bits:
    def __init__(self) -> None:
        self.cleared: list[int] = []

    def finish(self, rows: int) -> bytearray | None:
        if not self.cleared:
            return None
        bits = bytearray(b"\xff") * ((rows + 7) // 8)
        for row in self.cleared:
            bits[row >> 3] &= ~(1 << (row & 7)) & 0xFF
        return bits


class _Values:
    def __init__(self) -> None:
        self.bounds = array("i", [0])
        self._content = bytearray()
        self._bits = _Bits()

    def append(self, value: bytes | None) -> None:
        if value is None:
            self._bits.cleared.append(len(self.bounds) - 1)
        else:
            self._content += value
        self.bounds.append(len(self._content))

    def finish(self) -> Binary:
        return Binary(self.bounds, self._content, self._bits.finish(len(self.bounds) - 1))


class Columns:
    """Rows that grow at the end, until `finish` returns them.

    `size_bytes` are those of wanted keys, values and headers. If `is_full`, the next row did not
    fit, and rows are added only after `finish`. `first_offset` is the first since `mark`, or -1.
    """

    def __init__(
        self,
        *,
        offsets: bool = True,
        timestamp_factor: int = 1,
        keys: bool = True,
        values: bool = True,
        headers: bool = True,
        byte_limit: int | None = None,
    ) -> None:
        """Start without rows. A flag says whether to fill its column.

        Kafka's milliseconds are multiplied by `timestamp_factor`. 0 leaves timestamps out, and a
        product beyond int64 becomes null. A row without headers has null, not an empty list.
        `byte_limit` limits `size_bytes`, unless one row alone exceeds it. By default it is the
        limit of int32 bounds.
        """
        self._wants_offsets = offsets
        self._timestamp_factor = timestamp_factor
        self._wants_keys = keys
        self._wants_values = values
        self._wants_headers = headers
        self._byte_limit = min(byte_limit or MAX_COLUMN_BYTES, MAX_COLUMN_BYTES)
        self.first_offset = self.last_offset = -1
        self.clear()

    def __len__(self) -> int:
        return self.rows

    def clear(self) -> None:
        self.rows = 0
        self.size_bytes = 0
        self.is_full = False
        self._row_groups: list[RowGroup] = []
        self._offsets = array("q")
        self._timestamps = array("q")
        self._timestamp_bits = _Bits()
        self._keys = _Values()
        self._values = _Values()
        self._header_bounds = array("i", [0])
        self._header_bits = _Bits()
        self._names = _Values()
        self._header_values = _Values()

    def add(self, record: ConsumerRecord) -> bool:
        """Add a row. Return False if it does not fit after the existing ones."""
        headers = [(name.encode(), value) for name, value in record.headers]
        size_bytes = 0
        if self._wants_keys:
            size_bytes += len(record.key or b"")
        if self._wants_values:
            size_bytes += len(record.value or b"")
        if self._wants_headers:
            size_bytes += sum(len(n) + len(v or b"") + HEADER_BYTES for n, v in headers)
        if size_bytes > self._byte_limit - self.size_bytes:
            if self.rows:
                self.is_full = True
                return False
            if size_bytes > MAX_COLUMN_BYTES:
                raise RecordTooLargeError(
                    f"a record of {size_bytes} bytes is too large for an Arrow column, which can "
                    f"contain up to {MAX_COLUMN_BYTES} bytes"
                )
        self.size_bytes += size_bytes
        if self._wants_offsets:
            self._offsets.append(record.offset)
        if self._timestamp_factor:
            self._add_timestamp(record.timestamp)
        if self._wants_keys:
            self._keys.append(record.key)
        if self._wants_values:
            self._values.append(record.value)
        if self._wants_headers:
            self._add_headers(headers)
        self.rows += 1
        if self.first_offset < 0:
            self.first_offset = record.offset
        self.last_offset = record.offset
        return True

    def _add_timestamp(self, timestamp: int | None) -> None:
        scaled = None if timestamp is None else timestamp * self._timestamp_factor
        if scaled is None or not -_MAX_INT64 - 1 <= scaled <= _MAX_INT64:
            self._timestamp_bits.cleared.append(self.rows)
            scaled = 0
        self._timestamps.append(scaled)

    def _add_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        if not headers:
            self._header_bits.cleared.append(self.rows)
        for name, value in headers:
            self._names.append(name)
            self._header_values.append(value)
        self._header_bounds.append(len(self._names.bounds) - 1)

    def mark(self) -> None:
        """Set `first_offset` to the offset of the next row."""
        self.first_offset = -1

    def end_row_group(
        self, topic: str, partition: int, timestamp_type: int | None, first_row: int
    ) -> None:
        added = self.rows - first_row
        if not added:
            return
        if self._row_groups and self._row_groups[-1][:3] == (topic, partition, timestamp_type):
            added += self._row_groups.pop().rows
        self._row_groups.append(RowGroup(topic, partition, timestamp_type, added))

    def finish(self) -> Filled:
        """Return the rows and remove them."""
        filled = Filled(
            self.rows,
            tuple(self._row_groups),
            self._offsets if self._wants_offsets else None,
            self._finish_timestamps() if self._timestamp_factor else None,
            self._keys.finish() if self._wants_keys else None,
            self._values.finish() if self._wants_values else None,
            self._finish_headers() if len(self._names.bounds) > 1 else None,
        )
        self.clear()
        return filled

    def _finish_timestamps(self) -> Timestamps:
        return Timestamps(self._timestamps, self._timestamp_bits.finish(self.rows))

    def _finish_headers(self) -> Headers:
        return Headers(
            self._header_bounds,
            self._header_bits.finish(self.rows),
            names=self._names.finish(),
            values=self._header_values.finish(),
            header_count=len(self._names.bounds) - 1,
        )
