"""Headers of record batches: read, checked, iterated and patched, without their records.

Layout: org.apache.kafka.common.record.DefaultRecordBatch (magic 2) and LegacyRecord (magic 0, 1).
Magic 0 and 1 have no batches: here each message, also a wrapper, is a batch.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from aiokafka_lite.errors import CorruptRecordException, UnsupportedMagicError
from aiokafka_lite.records import checksum
from aiokafka_lite.records.codec import Codec

# base offset, length | leader epoch, magic, crc | attributes, last offset delta, base and max
# timestamp, producer id, producer epoch, base sequence, count
_HEADER: Final = struct.Struct(">qi ibI hiqqqhii")
HEADER_BYTES: Final = _HEADER.size
# offset, length | crc, magic, attributes
MESSAGE: Final = struct.Struct(">qi Ibb")
_int64 = struct.Struct(">q")
_PRODUCER: Final = struct.Struct(">qhi")  # id, epoch, base sequence
_LENGTH: Final = struct.Struct(">i")

LOG_OVERHEAD: Final = 12  # offset and length, which the length does not count
_LEADER_EPOCH_AT: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21  # the CRC of magic 2 starts here: what brokers patch is ahead of it
_MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_AT: Final = 43
_LEGACY_CRC_START: Final = 16
# The least length: crc, magic, attributes, [timestamp,] two lengths. Or, in magic 2, the header.
_MIN_LENGTHS: Final = (14, 22, HEADER_BYTES - LOG_OVERHEAD)

CODEC_MASK: Final = 0x07
_CODECS: Final = tuple(Codec)  # by number: the enum's own look-up takes ten times as long
_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

MAX_OFFSET: Final = 2**63 - 2  # so that the offset after it is one, too


class BatchHeader(NamedTuple):
    """A batch's header.

    Messages of magic 0 and 1 have `base_offset` (for a wrapper its last message's), `max_timestamp`
    (-1 in magic 0), `crc` and `attributes`. `last_offset_delta` is 0, and other fields are -1.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which no one needs here

    @property
    def size(self) -> int:
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The last offset of the batch when it was written, before compaction."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Codec:
        """The codec of the records. Raises UnsupportedCodecError for 5 to 7."""
        number = self.attributes & CODEC_MASK
        return _CODECS[number] if number < len(_CODECS) else Codec.of(number)

    @property
    def is_compressed(self) -> bool:
        return self.attributes & CODEC_MASK != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time until which compaction keeps the batch's tombstones and markers (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def timestamp_type(self) -> int:
        """0 is the producer's time. 1 is the append time, `max_timestamp`, of all records."""
        return 1 if self.attributes & _APPEND_TIME else 0


def read_header(view: memoryview, pos: int) -> BatchHeader | None:
    """Read the header of the batch at `pos`. Return None for the incomplete last batch."""
    left = len(view) - pos
    if left <= _MAGIC_AT:
        return None
    (length,) = _LENGTH.unpack_from(view, pos + 8)
    if length < _MIN_LENGTHS[0]:
        raise CorruptRecordException(
            f"a batch has the invalid length {length}: a batch has at least {_MIN_LENGTHS[0]} bytes"
        )
    if length > left - LOG_OVERHEAD:
        return None
    magic = view[pos + _MAGIC_AT]
    if magic > 2:
        raise UnsupportedMagicError(
            f"a batch has format version (magic) {magic}, but only the versions 0, 1 and 2 are "
            "supported"
        )
    if length < _MIN_LENGTHS[magic]:
        raise CorruptRecordException(f"a batch of {length} bytes is shorter than its header")
    header = _read_v2(view, pos) if magic == 2 else _read_message(view, pos)
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset > MAX_OFFSET:
        raise CorruptRecordException(
            f"a batch has invalid offsets: {header.base_offset} to {header.last_offset}"
        )
    return header


def peek_header(view: memoryview, pos: int) -> BatchHeader | None:
    """Return an unchecked header. None if it is incomplete or newer than magic 2."""
    left = len(view) - pos
    if left <= _MAGIC_AT:
        return None
    magic = view[pos + _MAGIC_AT]
    if magic == 2:
        return _read_v2(view, pos) if left >= HEADER_BYTES else None
    if magic > 2 or left < LOG_OVERHEAD + _MIN_LENGTHS[magic]:
        return None
    return _read_message(view, pos)


def _read_v2(view: memoryview, pos: int) -> BatchHeader:
    return BatchHeader._make(_HEADER.unpack_from(view, pos))


def _read_message(view: memoryview, pos: int) -> BatchHeader:
    offset, length, crc, magic, attributes = MESSAGE.unpack_from(view, pos)
    timestamp = -1
    if magic == 1:
        (timestamp,) = _int64.unpack_from(view, pos + MESSAGE.size)
    return BatchHeader(
        base_offset=offset,
        batch_length=length,
        leader_epoch=-1,
        magic=magic,
        crc=crc,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=-1,
    )


def check_crc(header: BatchHeader, batch: memoryview) -> None:
    """Raise CorruptRecordException if the checksum of a complete batch is wrong."""
    if header.magic == 2:
        computed = checksum.crc32c(batch[_ATTRIBUTES_AT:])
    else:
        computed = zlib.crc32(batch[_LEGACY_CRC_START:])
    if computed != header.crc:
        raise CorruptRecordException(
            f"checksum mismatch: the batch at offset {header.base_offset} has checksum "
            f"{header.crc:#010x} in its header, but its bytes have checksum {computed:#010x}"
        )


def iter_batches(
    view: memoryview, *, check_crcs: bool = True
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each complete batch with its header. Raises as `read_header` and `check_crc`."""
    pos = 0
    while (header := read_header(view, pos)) is not None:
        batch = view[pos : pos + header.size]
        if check_crcs:
            check_crc(header, batch)
        yield header, batch
        pos += header.size


def patch_batch(
    buffer: bytearray | memoryview,
    offset: int = 0,
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None = None,
) -> None:
    """Write the broker's fields into the batch at `offset`. An append time changes the checksum."""
    view = memoryview(buffer)
    _int64.pack_into(view, offset, base_offset)
    _LENGTH.pack_into(view, offset + _LEADER_EPOCH_AT, leader_epoch)
    if append_time_ms is not None:
        view[offset + _ATTRIBUTES_AT + 1] |= _APPEND_TIME
        _int64.pack_into(view, offset + _MAX_TIMESTAMP_AT, append_time_ms)
        reseal(view[offset:])


def patch_producer(
    batch: bytes, *, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytes:
    """Return a batch of magic 2 with another producer and sequence."""
    patched = bytearray(batch)
    _PRODUCER.pack_into(patched, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    reseal(memoryview(patched))
    return bytes(patched)


def reseal(batch: memoryview) -> None:
    """Update the checksum of a changed batch of magic 2."""
    (length,) = _LENGTH.unpack_from(batch, 8)
    checked = batch[_ATTRIBUTES_AT : LOG_OVERHEAD + length]
    struct.pack_into(">I", batch, _CRC_AT, checksum.crc32c(checked))


def sealed(header: BatchHeader, payload: bytes) -> bytes:
    """Return a batch of magic 2. The header gets the right length and checksum."""
    length = HEADER_BYTES - LOG_OVERHEAD + len(payload)
    unsealed = _HEADER.pack(*header._replace(batch_length=length))
    crc = checksum.crc32c(payload, checksum.crc32c(unsealed[_ATTRIBUTES_AT:]))
    unchecked, checked = unsealed[:_CRC_AT], unsealed[_ATTRIBUTES_AT:]
    return b"".join((unchecked, crc.to_bytes(4, "big"), checked, payload))


def wrapped_value(header: BatchHeader, message: memoryview) -> memoryview:
    """Return the compressed message set in a wrapper of magic 0 or 1. Its key is ignored."""
    pos = 18 if header.magic == 0 else 26  # magic 1 has a timestamp
    _key, pos = _slice(message, pos)
    value, pos = _slice(message, pos)
    if value is None or pos != len(message):
        raise CorruptRecordException(
            "a compressed message has no value, or has bytes after its value"
        )
    return value


def _slice(message: memoryview, pos: int) -> tuple[memoryview | None, int]:
    if len(message) - pos < 4:
        raise CorruptRecordException("a message is incomplete: it ends inside a length field")
    (length,) = _LENGTH.unpack_from(message, pos)
    pos += 4
    if length == -1:
        return None, pos
    if length < 0 or length > len(message) - pos:
        raise CorruptRecordException(f"a key or value of {length} bytes is longer than its message")
    return message[pos : pos + length], pos + length
