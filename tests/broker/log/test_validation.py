"""Which batches a broker takes: at the limits, and beyond them with the reason."""

from __future__ import annotations

import dataclasses

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker.log.partition_log import LOG_APPEND_TIME, validated_batch
from aiokafka_lite.errors import (
    CorruptRecordException,
    InvalidRecordError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    UnsupportedCompressionTypeError,
)
from aiokafka_lite.records.batch import reseal
from tests.broker.batches import batch
from tests.broker.logs import T0, topic_config
from tests.support.for_each import for_each

ONE = batch(timestamp=T0)
AFTER_MAX_MS = 1_000
CONFIG = dataclasses.replace(
    topic_config(message_timestamp_after_max_ms=str(AFTER_MAX_MS)), max_message_bytes=len(ONE)
)
APPEND_TIME = dataclasses.replace(CONFIG, message_timestamp_type=LOG_APPEND_TIME)


def without_records(sent: bytes) -> bytes:
    changed = bytearray(sent)
    changed[57:61] = bytes(4)
    reseal(memoryview(changed))
    return bytes(changed)


@for_each(
    [
        (ONE, CONFIG, 3),
        (batch(timestamp=T0 + AFTER_MAX_MS), CONFIG, 3),
        (batch(timestamp=T0 + AFTER_MAX_MS + 1), APPEND_TIME, 3),
        (batch(timestamp=T0, producer_id=0, producer_epoch=0, base_sequence=0), CONFIG, 3),
        (batch(timestamp=T0, codec="zstd"), topic_config(), 7),
    ],
    ["exactly as large as allowed", "latest time", "append time", "first producer", "zstd"],
)
def test_batch_at_a_limit_is_taken(sent: bytes, config: object, version: int) -> None:
    header, view = validated_batch(sent, version, config, T0)  # type: ignore[arg-type]
    assert (header.size, view) == (len(sent), sent)


@for_each([
        (None, InvalidRecordError, "not 0"),
        (ONE[:-1], CorruptRecordException, "the batch is incomplete"),
        (ONE + b"rest", CorruptRecordException, "followed by 4 bytes that are not"),
        (ONE * 2, InvalidRecordError, "per partition, not 2"),
        (ONE * 3, InvalidRecordError, "per partition, not 3"),
        (ONE[:16] + b"\x01" + ONE[17:], InvalidRecordError, "only batches with magic byte 2"),
        (ONE[:16] + b"\x03" + ONE[17:], InvalidRecordError, "only batches with magic byte 2"),
        (without_records(ONE), InvalidRecordError, "at least 1 record, not 0"),
        (batch(2, timestamp=T0), MessageSizeTooLargeError, f"is {len(ONE)}"),
        (batch(timestamp=T0 + 1_001), InvalidTimestampError, "more than 1000 ms ahead"),
        (batch(producer_id=0, producer_epoch=0), InvalidRecordError, "producer id 0 needs"),
        (batch(base_offset=1), InvalidRecordError, "must have base offset 0, not 1"),
        (batch(timestamp=T0, codec="zstd"), UnsupportedCompressionTypeError, "version 7 or newer"),
    ], [
        "none", "short", "rest", "two", "three", "magic 1", "magic 3", "empty", "large", "late",
        "producer", "offset", "zstd",
    ])  # fmt: skip
def test_batch_beyond_a_limit_is_refused_with_the_reason(
    sent: bytes | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        validated_batch(sent, 6, CONFIG, T0)


def test_compacted_topic_takes_records_with_keys_only() -> None:
    config = topic_config(cleanup_policy="compact")
    validated_batch(ONE, 3, config, T0)
    some = [(T0, b"key", b"", ()), (T0, None, b"", ())]
    with pytest.raises(InvalidRecordError, match="has no key"):
        validated_batch(records.build_batch(some), 3, config, T0)
    validated_batch(records.build_batch(some), 3, topic_config(), T0)
