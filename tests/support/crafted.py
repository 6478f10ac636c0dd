"""Batches and messages with whatever claims a test wants them to make, under a right checksum."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import TypeAlias

from aiokafka_lite import records
from aiokafka_lite.records.batch import reseal
from aiokafka_lite.structs import ConsumerRecord

Record: TypeAlias = ConsumerRecord

FIRST_TIMESTAMP = 1_700_000_000_000


def numbered(count: int) -> list[tuple[int, bytes, bytes, tuple[tuple[str, bytes], ...]]]:
    """Records for the builder with keys and values that tell them apart."""
    return [
        (FIRST_TIMESTAMP + number, b"k%d" % number, b"v%d" % number, ()) for number in range(count)
    ]


def batch(count: int = 3, *, base_offset: int = 0, codec: str = "none", **more: object) -> bytes:
    return records.build_batch(
        numbered(count),
        base_offset=base_offset,
        codec=codec,
        **more,  # type: ignore[arg-type]
    )


def varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def record(
    delta: int,
    *,
    key: bytes = b"\x01",
    value: bytes = b"\x02v",
    headers: bytes = b"\x00",
    timestamp_delta: bytes = b"\x00",
    length: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """A record of magic 2; key, value and headers with what is ahead of them."""
    body = b"\x00" + timestamp_delta + varint(delta) + key + value + headers + tail
    return varint(len(body) if length is None else length) + body


def raw_batch(
    payload: bytes,
    *,
    count: int,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_timestamp: int = FIRST_TIMESTAMP,
    max_timestamp: int = FIRST_TIMESTAMP,
    producer_id: int = -1,
    magic: int = 2,
) -> bytes:
    """A batch around any payload."""
    content = bytearray(
        struct.pack(
            ">qiibIhiqqqhii",
            base_offset,
            49 + len(payload),
            0,
            magic,
            0,
            attributes,
            count - 1 if last_offset_delta is None else last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            -1,
            -1,
            count,
        )
        + payload
    )
    reseal(memoryview(content))
    return bytes(content)


def message(
    offset: int,
    value: bytes | None,
    *,
    magic: int,
    key: bytes | None = None,
    attributes: int = 0,
    timestamp: int = FIRST_TIMESTAMP,
    tail: bytes = b"",
) -> bytes:
    """A message of magic 0 or 1; a wrapper if the attributes name a codec."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for content in (key, value):
        body += struct.pack(">i", -1 if content is None else len(content)) + (content or b"")
    body += tail
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def record_set(
    content: bytes,
    *,
    fetch_offset: int = 0,
    check_crcs: bool = True,
    aborted: Iterable[tuple[int, int]] | None = None,
    max_batch_bytes: int = 1 << 20,
    may_block: bool = False,
) -> records.RecordSet:
    return records.RecordSet(
        "topic",
        7,
        memoryview(content),
        fetch_offset=fetch_offset,
        check_crcs=check_crcs,
        aborted=aborted,
        max_batch_bytes=max_batch_bytes,
        may_block=may_block,
    )


def take(record_set: records.RecordSet, most: int) -> list[Record]:
    """Take records as a consumer does, which decompresses large batches in another thread."""
    while not (more := record_set.take(most)) and not record_set.is_exhausted:
        record_set.inflate()
    return more


def take_all(record_set: records.RecordSet, at_a_time: int = 1000) -> list[Record]:
    taken: list[Record] = []
    while more := take(record_set, at_a_time):
        taken += more
    return taken


def offsets(taken: Iterable[Record]) -> list[int]:
    return [record.offset for record in taken]


CODECS = [codec.name.lower() for codec in records.Codec]
TRANSACTIONAL = 0x10


CONTROL = 0x30


def corrupted(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def of_transaction(producer_id: int, base_offset: int, count: int = 2) -> bytes:
    return batch(count, base_offset=base_offset, producer_id=producer_id, is_transactional=True)


def committed(producer_id: int, base_offset: int) -> bytes:
    return records.control_batch(
        records.ControlType.COMMIT,
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=1,
        base_offset=base_offset,
    )


def aborted(producer_id: int, base_offset: int) -> bytes:
    return records.control_batch(
        records.ControlType.ABORT,
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=1,
        base_offset=base_offset,
    )


def interleaved() -> bytes:
    """Producer 1 commits at 4 and aborts at 12, producer 2 aborts at 5, producer 3 has no list."""
    return b"".join(
        (
            of_transaction(1, 0),
            of_transaction(2, 2),
            committed(1, 4),
            aborted(2, 5),
            batch(2, base_offset=6),
            of_transaction(2, 8),
            of_transaction(1, 10),
            aborted(1, 12),
            committed(2, 13),
            of_transaction(3, 14),
        )
    )
