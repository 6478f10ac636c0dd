"""Checks of a batch before it is appended (Kafka: LogValidator, UnifiedLog).

Headers and checksums are checked, records only if the topic's configuration requires it.
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Buffer, Never
from aiokafka_lite.broker.log.partition_log import TopicConfig
from aiokafka_lite.errors import (
    CorruptRecordException,
    InvalidRecordError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedMagicError,
)
from aiokafka_lite.records import BatchHeader, Codec, each_record, read_header
from aiokafka_lite.records.batch import check_crc

MAGIC: Final = 2
FIRST_PRODUCE_WITH_ZSTD: Final = 7


def validated_batch(
    records: Buffer | None, api_version: int, config: TopicConfig, now_ms: int
) -> tuple[BatchHeader, memoryview]:
    """Return the single batch of a partition in a Produce request, or raise Kafka's error."""
    header, batch = _only_batch(records)
    _check_header(header)
    if header.codec is Codec.ZSTD and api_version < FIRST_PRODUCE_WITH_ZSTD:
        raise UnsupportedCompressionTypeError(
            f"zstd needs Produce version {FIRST_PRODUCE_WITH_ZSTD} or newer, "
            f"but the request has version {api_version}"
        )
    if header.size > config.max_message_bytes:
        raise MessageSizeTooLargeError(
            f"the batch has {header.size} bytes, "
            f"but max.message.bytes is {config.max_message_bytes}"
        )
    latest = now_ms + config.timestamp_after_max_ms
    if not config.is_log_append_time and header.max_timestamp > latest:
        raise InvalidTimestampError(
            f"timestamp {header.max_timestamp} is more than {config.timestamp_after_max_ms} ms "
            f"ahead of the broker's clock (message.timestamp.after.max.ms)"
        )
    if config.is_compacted and any(record.key is None for record in each_record(batch)):
        raise InvalidRecordError("a record has no key, but the topic has cleanup.policy=compact")
    return header, batch


def _only_batch(records: Buffer | None) -> tuple[BatchHeader, memoryview]:
    view = memoryview(b"" if records is None else records)
    header = _read_header(view, 0)
    if header is None:
        if len(view):
            raise CorruptRecordException("the batch is incomplete")
        raise InvalidRecordError(
            "a Produce request must have exactly one batch per partition, not 0"
        )
    if header.size != len(view):
        _refuse_rest(view, header.size)
    check_crc(header, view)
    return header, view


def _read_header(view: memoryview, pos: int) -> BatchHeader | None:
    try:
        header = read_header(view, pos)
    except UnsupportedMagicError as error:
        raise InvalidRecordError(
            f"only batches with magic byte {MAGIC} are accepted: {error}"
        ) from error
    if header is not None and header.magic != MAGIC:
        raise InvalidRecordError(
            f"only batches with magic byte {MAGIC} are accepted, not {header.magic}"
        )
    return header


def _refuse_rest(view: memoryview, pos: int) -> Never:
    """Raise the error for bytes after the first batch."""
    count = 1
    while (header := _read_header(view, pos)) is not None:
        count, pos = count + 1, pos + header.size
    if count > 1:
        raise InvalidRecordError(
            f"a Produce request must have exactly one batch per partition, not {count}"
        )
    raise CorruptRecordException(
        f"the batch is followed by {len(view) - pos} bytes that are not a complete batch"
    )


def _check_header(header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRecordError(
            "only brokers can write control batches, such as transaction markers"
        )
    if header.count < 1:
        raise InvalidRecordError(f"a batch must have at least 1 record, not {header.count}")
    if header.last_offset_delta != header.count - 1:
        raise InvalidRecordError(
            f"a batch with {header.count} records must have last_offset_delta {header.count - 1}, "
            f"not {header.last_offset_delta}"
        )
    if header.base_offset != 0:
        raise InvalidRecordError(f"a new batch must have base offset 0, not {header.base_offset}")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecordError(
            f"a batch with producer id {header.producer_id} needs a sequence number of at least "
            f"0, not {header.base_sequence}"
        )
