"""Removes records from a batch, for compaction.

Reference: org.apache.kafka.common.record.MemoryRecords.filterTo. The batch keeps its range of
offsets and sequence numbers. Records are copied unchanged, unless the batch gets a delete horizon
(KIP-534): it replaces the base timestamp, so the timestamp deltas change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiokafka_lite.errors import CorruptRecordException
from aiokafka_lite.records._build_py import append_varint
from aiokafka_lite.records._decode_py import read_varint, read_varlong
from aiokafka_lite.records.batch import DELETE_HORIZON, HEADER_BYTES, BatchHeader, sealed
from aiokafka_lite.records.record_set import DEFAULT_MAX_BATCH_BYTES


def filter_batch(
    header: BatchHeader,
    batch: memoryview,
    kept: Sequence[bool],
    *,
    max_timestamp: int,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Return a batch of magic 2 with the records for which `kept` is true, or only its header.

    `max_timestamp` is that of the kept records. With append time, or without records, it is the
    previous one. `delete_horizon_ms` is a new time until which the batch's tombstones are kept.
    """
    shift_ms = 0
    if delete_horizon_ms is not None:
        shift_ms = header.base_timestamp - delete_horizon_ms
        header = header._replace(
            attributes=header.attributes | DELETE_HORIZON, base_timestamp=delete_horizon_ms
        )
    count = sum(kept)
    payload = b""
    if count:
        from aiokafka_lite.records.compression import compress  # late: see there

        payload = compress(header.codec, _kept_records(header, batch, kept, shift_ms))
    return sealed(header._replace(max_timestamp=max_timestamp, count=count), payload)


def _kept_records(
    header: BatchHeader, batch: memoryview, kept: Sequence[bool], shift_ms: int
) -> bytes:
    records = batch[HEADER_BYTES:]
    if header.is_compressed:
        from aiokafka_lite.records.compression import inflate  # late: see there

        records = inflate(header.codec, records, DEFAULT_MAX_BATCH_BYTES)
    collected = bytearray()
    for is_kept, (start, body, end) in zip(kept, _records(records), strict=True):
        if not is_kept:
            continue
        if shift_ms:
            _append_shifted(collected, records[body:end], shift_ms)
        else:
            collected += records[start:end]
    return bytes(collected)


def _records(records: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield the start of each record, of its body after the length, and its end."""
    start = 0
    while start < len(records):
        size, body = read_varint(records, start, len(records))
        if not 0 <= size <= len(records) - body:
            raise CorruptRecordException(f"a record of {size} bytes is longer than its batch")
        yield start, body, body + size
        start = body + size


def _append_shifted(collected: bytearray, record: memoryview, shift_ms: int) -> None:
    """Append a record, given without its length, with another timestamp delta."""
    delta, behind = read_varlong(record, 1, len(record))  # after the attributes
    body = bytearray(record[:1])
    append_varint(body, delta + shift_ms)
    body += record[behind:]
    append_varint(collected, len(body))
    collected += body
