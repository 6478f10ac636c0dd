"""Builds batches of magic 2 in plain Python: the fallback, and the oracle of the tests.

Layout: org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from aiokafka_lite.records.batch import HEADER_BYTES, LOG_OVERHEAD, BatchHeader, sealed
from aiokafka_lite.records.codec import Codec

BytesLike: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Sequence[tuple[str, BytesLike | None]]

# The most bytes of a record without its key, value and headers: length 5, attributes 1, timestamp
# delta 10, offset delta 5.
MOST_FRAMING_BYTES: Final = 21
INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

_MAGIC: Final = 2
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20


class BatchBuilder:
    """Collects records and builds one batch of them, for any producer.

    `size_estimate` are the bytes without compression. After `build` it accepts no records, and
    keeps only the returned bytes. Producers leave `base_offset` and `leader_epoch` to the broker.
    Only brokers write markers (`is_control`).
    """

    def __init__(
        self,
        *,
        codec: Codec | str | int = Codec.NONE,
        base_offset: int = 0,
        is_transactional: bool = False,
        is_control: bool = False,
        leader_epoch: int = -1,
    ) -> None:
        self._codec: Final = Codec.of(codec)
        self._base_offset: Final = _integer("base_offset", base_offset, 64)
        self._leader_epoch: Final = _integer("leader_epoch", leader_epoch, 32)
        self._attributes: Final = (
            self._codec
            | (_TRANSACTIONAL if is_transactional else 0)
            | (_CONTROL if is_control else 0)
        )
        self._records = bytearray()
        # The latest result of `build`, which replaces the records.
        self._built: bytes | None = None
        self._base_timestamp = self._max_timestamp = -1
        self._last_delta = -1
        self.count = 0
        self.size_estimate = HEADER_BYTES

    def append(
        self,
        timestamp_ms: int,
        key: BytesLike | None,
        value: BytesLike | None,
        headers: Headers = (),
        *,
        offset: int | None = None,
    ) -> None:
        """Add a record. An error does not change the batch.

        `offset` is by default the one after the last record's. Compaction leaves gaps. TypeError
        names the argument of a wrong type. ValueError refuses numbers out of range, lone surrogates
        in a header's name, a batch of 2 GiB, and records after `build`.
        """
        if self._built is not None:
            raise ValueError("the batch is complete: create another batch for this record")
        timestamp_ms = _integer("timestamp_ms", timestamp_ms, 64)
        offset_delta = self._offset_delta(offset)
        base = self._base_timestamp if self.count else timestamp_ms
        timestamp_delta = timestamp_ms - base
        if not INT64_MIN <= timestamp_delta <= INT64_MAX:
            raise ValueError(
                f"timestamp_ms {timestamp_ms} is too far from {base}, the timestamp of the batch's "
                "first record: the difference must fit into 64 bits"
            )
        if self.size_estimate + size_of(key, value, headers) - LOG_OVERHEAD > INT32_MAX:
            raise ValueError(
                "a batch must have less than 2 GiB: create another batch for this record"
            )
        body = bytearray(b"\x00")
        append_varint(body, timestamp_delta)
        append_varint(body, offset_delta)
        _append_content(body, key)
        _append_content(body, value)
        append_varint(body, len(headers))
        for name, content in headers:
            _append_content(body, name.encode())
            _append_content(body, content)
        append_varint(self._records, len(body))
        self._records += body
        self.size_estimate = HEADER_BYTES + len(self._records)
        self._base_timestamp = base
        self._max_timestamp = max(self._max_timestamp, timestamp_ms) if self.count else timestamp_ms
        self._last_delta = offset_delta
        self.count += 1

    def _offset_delta(self, offset: int | None) -> int:
        if offset is None:
            delta = self._last_delta + 1
        else:
            delta = _integer("offset", offset, 64) - self._base_offset
            if delta <= self._last_delta:
                raise ValueError(
                    f"offset {offset} is too low: the next record of this batch must have offset "
                    f"{self._base_offset + self._last_delta + 1} or higher"
                )
        if delta > INT32_MAX:
            raise ValueError(
                f"offset {self._base_offset + delta} is more than {INT32_MAX} above the batch's "
                "first offset: create another batch"
            )
        return delta

    def build(
        self, *, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1
    ) -> bytes:
        """Return the batch's bytes.

        A second call may name another producer. It changes the header only, and does not compress
        again. `producer_id` is -1 for a producer that is not idempotent (KIP-98).
        """
        producer_id = _integer("producer_id", producer_id, 64)
        producer_epoch = _integer("producer_epoch", producer_epoch, 16)
        base_sequence = _integer("base_sequence", base_sequence, 32)
        if not self.count:
            raise ValueError("a batch needs at least one record")
        header = BatchHeader(
            base_offset=self._base_offset,
            batch_length=-1,
            leader_epoch=self._leader_epoch,
            magic=_MAGIC,
            crc=0,
            attributes=self._attributes,
            last_offset_delta=self._last_delta,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            count=self.count,
        )
        self._built = sealed(header, self._payload())
        self._records = bytearray()
        return self._built

    def _payload(self) -> bytes:
        if self._built is not None:
            return self._built[HEADER_BYTES:]
        from aiokafka_lite.records.compression import compress  # late: see there

        return compress(self._codec, bytes(self._records))


def size_of(key: BytesLike | None, value: BytesLike | None, headers: Headers = ()) -> int:
    """Return an upper bound of a record's bytes, at most 17 more than it adds to a batch."""
    if not isinstance(headers, (tuple, list, Sequence)):
        raise TypeError(f"headers must be a sequence of pairs, not {type(headers).__name__}")
    size = MOST_FRAMING_BYTES + _size_of_content("key", key) + _size_of_content("value", value)
    size += _size_of_varint(len(headers))
    pairs: Sequence[object] = headers  # of unchecked types
    for index, header in enumerate(pairs):
        if not (isinstance(header, (tuple, list)) and len(header) == 2):
            raise TypeError(
                f"headers[{index}] must be a pair of name and value, not {type(header).__name__}"
            )
        name, content = header
        if not isinstance(name, str):
            raise TypeError(f"the name of headers[{index}] must be str, not {type(name).__name__}")
        size += _size_of_content("", name.encode())
        size += _size_of_content(f"the value of headers[{index}]", content)
    return size


def append_varint(target: bytearray, number: int) -> None:
    raw = number << 1 if number >= 0 else ~(number << 1)
    while raw > 0x7F:
        target.append(raw & 0x7F | 0x80)
        raw >>= 7
    target.append(raw)


def _size_of_varint(number: int) -> int:
    return (max(1, (number << 1).bit_length()) + 6) // 7


def _append_content(target: bytearray, content: BytesLike | None) -> None:
    if content is None:
        target.append(0x01)  # -1
    else:
        size = content.nbytes if isinstance(content, memoryview) else len(content)
        append_varint(target, size)
        target += content


def _size_of_content(what: str, content: object) -> int:
    if content is None:
        return 1
    if isinstance(content, (bytes, bytearray)):
        size = len(content)
    elif isinstance(content, memoryview):
        if not content.c_contiguous:
            raise TypeError(f"{what} is a memoryview that is not contiguous: pass bytes(view)")
        size = content.nbytes
    else:
        raise TypeError(
            f"{what} must be bytes, bytearray, memoryview or None, not {type(content).__name__}"
        )
    return _size_of_varint(size) + size


def _integer(what: str, number: object, bits: int) -> int:
    if not isinstance(number, int):
        raise TypeError(f"{what} must be int, not {type(number).__name__}")
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"{what} is {number}, which does not fit into {bits} bits")
    return int(number)  # a bool is one too, but is written as a number
