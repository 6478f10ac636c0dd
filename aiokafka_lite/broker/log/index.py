"""Where the batches of one segment lie: by offset, by position, by time."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

NO_TIMESTAMP: Final = -1
_ROW_BYTES = 3 * 8


class BatchIndex:
    """Three parallel columns, one row per batch, in the order of the log.

    Unlike Kafka's sparse index it has every batch, so that nothing is ever scanned in Python;
    24 bytes a batch. The third column is the newest timestamp *so far*, which never decreases:
    the first row that reaches a timestamp is the first batch that holds a record so new.
    """

    __slots__ = ("_base_offsets", "_newest_timestamps", "_positions", "end_position")

    def __init__(self) -> None:
        self._base_offsets = array("q")
        self._positions = array("q")
        self._newest_timestamps = array("q")
        self.end_position = 0

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def first_timestamp(self) -> int:
        """The newest timestamp of the first batch, -1 without records."""
        return self._newest_timestamps[0] if self._newest_timestamps else NO_TIMESTAMP

    @property
    def newest_timestamp(self) -> int:
        """The newest timestamp in the segment, -1 without records."""
        return self._newest_timestamps[-1] if self._newest_timestamps else NO_TIMESTAMP

    def add(self, base_offset: int, size: int, max_timestamp: int) -> None:
        """Note the batch that was just written at the end of the segment."""
        self._base_offsets.append(base_offset)
        self._positions.append(self.end_position)
        self._newest_timestamps.append(max(max_timestamp, self.newest_timestamp))
        self.end_position += size

    def truncate(self, row: int) -> None:
        """Forget a row and all after it."""
        self.end_position = self._positions[row]
        del self._base_offsets[row:], self._positions[row:], self._newest_timestamps[row:]

    def row_of(self, offset: int) -> int:
        """Return the row of the batch that holds an offset, or of the last one before it."""
        return max(bisect_right(self._base_offsets, offset) - 1, 0)

    def span(self, row: int) -> tuple[int, int]:
        """Return where a batch starts and ends."""
        is_last = row + 1 == len(self._positions)
        return self._positions[row], self.end_position if is_last else self._positions[row + 1]

    def end_before(self, offset: int) -> int:
        """Return where the batches end whose base offsets lie before an offset."""
        row = bisect_left(self._base_offsets, offset)
        return self._positions[row] if row < len(self._positions) else self.end_position

    def end_within(self, row: int, max_bytes: int) -> int:
        """Return the end of the last whole batch within `max_bytes` of the start of `row`."""
        limit = self._positions[row] + max_bytes
        if limit >= self.end_position:
            return self.end_position
        return self._positions[bisect_right(self._positions, limit) - 1]

    def first_row_reaching(self, timestamp: int) -> int:
        """Return the first batch with a record of that time or later; without one, the end."""
        return bisect_left(self._newest_timestamps, timestamp)

    def to_bytes(self) -> bytes:
        """Return the columns for a file; the byte order is this machine's."""
        columns = (self._base_offsets, self._positions, self._newest_timestamps)
        return b"".join(column.tobytes() for column in columns)

    @classmethod
    def from_bytes(cls, stored: bytes, end_position: int) -> BatchIndex | None:
        """Rebuild an index from its file, or return None when the file is no index."""
        rows, rest = divmod(len(stored), _ROW_BYTES)
        if rest or not rows:
            return None
        index = cls()
        for number, column in enumerate(
            (index._base_offsets, index._positions, index._newest_timestamps)
        ):
            column.frombytes(stored[number * rows * 8 : (number + 1) * rows * 8])
        index.end_position = end_position
        return index
