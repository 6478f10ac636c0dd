"""Batches of magic 2 from records: what producers, transaction coordinators and tests write.

Layout: org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord. Plain Python: the
consumer never builds a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from aiokafka_lite.records import checksum
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.transactions import CONTROL_KEY, END_MARKER_VALUE, ControlType

__all__ = ["BatchBuilder", "build_batch", "control_batch"]

Headers = Sequence[tuple[str, bytes | None]]

# base offset, length, leader epoch, magic, crc
UNCHECKED_PART: Final = struct.Struct(">qiibI")
# attributes, last offset delta, base timestamp, max timestamp, producer id, producer epoch,
# base sequence, count
CHECKED_PART: Final = struct.Struct(">hiqqqhii")
MAGIC: Final = 2
BYTES_AHEAD_OF_LENGTH_END: Final = 12
_HEADER_BYTES: Final = UNCHECKED_PART.size + CHECKED_PART.size

_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20


class BatchBuilder:
    """Collects records and makes one batch of them."""

    def __init__(
        self,
        *,
        codec: Codec | str = Codec.NONE,
        base_offset: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
        leader_epoch: int = -1,
    ) -> None:
        self._codec: Final = Codec.of(codec)
        self._base_offset: Final = base_offset
        self._leader_epoch: Final = leader_epoch
        self._producer: Final = (producer_id, producer_epoch, base_sequence)
        self._attributes: Final = (
            self._codec
            | (_TRANSACTIONAL if is_transactional else 0)
            | (_CONTROL if is_control else 0)
        )
        self._records = bytearray()
        self._base_timestamp = -1
        self._max_timestamp = -1
        self._last_delta = -1
        self.count = 0

    @property
    def size_estimate(self) -> int:
        """Bytes of the batch if compression saves nothing."""
        return _HEADER_BYTES + len(self._records)

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        offset: int | None = None,
    ) -> None:
        """Add a record.

        Args:
            timestamp_ms: Milliseconds since the epoch.
            key: Or None.
            value: Or None, a tombstone.
            headers: Pairs of name and value.
            offset: If not the one after the last record's (compaction leaves gaps).

        Raises:
            ValueError: The offset is not above the last record's.
        """
        delta = self._last_delta + 1 if offset is None else offset - self._base_offset
        if delta <= self._last_delta:
            raise ValueError(f"offset {offset} is not above the last record's")
        if self.count == 0:
            self._base_timestamp = self._max_timestamp = timestamp_ms
        body = bytearray(b"\x00")
        append_varint(body, timestamp_ms - self._base_timestamp)
        append_varint(body, delta)
        _append_nullable(body, key)
        _append_nullable(body, value)
        append_varint(body, len(headers))
        for name, header_value in headers:
            _append_nullable(body, name.encode())
            _append_nullable(body, header_value)
        append_varint(self._records, len(body))
        self._records += body
        self._max_timestamp = max(self._max_timestamp, timestamp_ms)
        self._last_delta = delta
        self.count += 1

    def build(self) -> bytes:
        """Return the batch's bytes.

        Raises:
            ValueError: There are no records.
        """
        if not self.count:
            raise ValueError("a batch needs a record")
        from aiokafka_lite.records.compression import compress  # on first use: see there

        payload = compress(self._codec, bytes(self._records))
        checked = CHECKED_PART.pack(
            self._attributes,
            self._last_delta,
            self._base_timestamp,
            self._max_timestamp,
            *self._producer,
            self.count,
        )
        crc = checksum.crc32c(payload, checksum.crc32c(checked))
        length = _HEADER_BYTES - BYTES_AHEAD_OF_LENGTH_END + len(payload)
        unchecked = UNCHECKED_PART.pack(self._base_offset, length, self._leader_epoch, MAGIC, crc)
        return b"".join((unchecked, checked, payload))


def build_batch(
    records: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
    *,
    codec: Codec | str = Codec.NONE,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    leader_epoch: int = -1,
) -> bytes:
    """Return one batch of (timestamp in ms, key, value, headers).

    Raises:
        ValueError: There are no records.
        UnsupportedCodecError: There is no such codec.
    """
    builder = BatchBuilder(
        codec=codec,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        is_control=is_control,
        leader_epoch=leader_epoch,
    )
    for timestamp_ms, key, value, headers in records:
        builder.append(timestamp_ms, key, value, headers)
    return builder.build()


def control_batch(
    control_type: ControlType | int,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Return the batch that ends a transaction: one marker, to commit or to abort."""
    key = CONTROL_KEY.pack(0, control_type)
    value = END_MARKER_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value, ())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        leader_epoch=leader_epoch,
    )


def append_varint(target: bytearray, number: int) -> None:
    """Append a zigzag varint."""
    raw = number << 1 if number >= 0 else ~(number << 1)
    while raw > 0x7F:
        target.append(raw & 0x7F | 0x80)
        raw >>= 7
    target.append(raw)


def _append_nullable(target: bytearray, content: bytes | None) -> None:
    if content is None:
        target.append(0x01)  # -1
    else:
        append_varint(target, len(content))
        target += content
