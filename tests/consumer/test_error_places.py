"""Errors of records that cannot be read say where these are, in their text: logs have no more."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    BrokerResponseError,
    CorruptRecordException,
    DecompressionLimitError,
    DeserializationError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from aiokafka_lite.records.batch import reseal
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle
from tests.support.crafted import raw_batch, record, varint
from tests.support.reading import reading
from tests.support.rows import rows

MIB: Final = 2**20
TP: Final = TopicPartition("orders", 1)
# Each record is a batch of its own; this one's is spoilt.
OFFSET: Final = 4

Spoil = Callable[[bytearray], bytes]


def with_wrong_crc(content: bytearray) -> bytes:
    content[-1] ^= 0xFF
    return bytes(content)


def with_unknown_codec(content: bytearray) -> bytes:
    content[22] |= 7
    reseal(memoryview(content))
    return bytes(content)


def with_unknown_magic(content: bytearray) -> bytes:
    content[16] = 9
    return bytes(content)


def with_wrong_count(content: bytearray) -> bytes:
    content[57:61] = (1000).to_bytes(4, "big")
    reseal(memoryview(content))
    return bytes(content)


def bomb(content: bytearray) -> bytes:
    stream = gzip.compress(record(0, value=varint(66 * MIB) + bytes(66 * MIB)), 1)
    return raw_batch(stream, count=1, base_offset=OFFSET, attributes=1)


def cut(content: bytearray) -> bytes:
    return bytes(content[:-1])


SPOILT: Final[dict[str, tuple[Spoil, type[KafkaError]]]] = {
    "checksum": (with_wrong_crc, CorruptRecordException),
    "count": (with_wrong_count, CorruptRecordException),
    "codec": (with_unknown_codec, UnsupportedCodecError),
    "format": (with_unknown_magic, UnsupportedMagicError),
    "bomb": (bomb, DecompressionLimitError),
    "cut": (cut, RecordTooLargeError),
}


def only_at_offset(spoil: Spoil) -> Callable[[TopicPartition, bytes], bytes]:
    """Return what spoils the batch at the offset, wherever it comes; a batch cut short is last."""

    def rewrite(tp: TopicPartition, view: bytes) -> bytes:
        batches: list[bytes] = []
        pos = 0
        while pos + 12 <= len(view):
            size = 12 + int.from_bytes(view[pos + 8 : pos + 12], "big")
            batch = view[pos : pos + size]
            pos += size
            if int.from_bytes(batch[:8], "big") != OFFSET:
                batches.append(batch)
                continue
            if spoil is cut and batches:
                break  # it is the first of the next answer
            batches.append(spoil(bytearray(batch)))
            if spoil is cut:
                break
        return b"".join(batches)

    return rewrite


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic(TP.topic, 2)
        for number in range(OFFSET + 2):
            broker.produce(TP.topic, b"%d" % number, partition=TP.partition)
        yield broker


async def for_ever(get: Callable[[], Awaitable[object]]) -> None:
    while True:
        await get()


async def error_of(broker: Broker, way: str, **arguments: object) -> KafkaError:
    """The first error that a get raises."""
    consumer = AIOKafkaConsumer(
        TP.topic,
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
        max_batch_bytes=64 * MIB,
        **arguments,  # type: ignore[arg-type]
    )
    async with consumer:
        gets: dict[str, Callable[[], Awaitable[object]]] = {
            "getone": consumer.getone,
            "poll_arrow": consumer.poll_arrow,
            "getmany": lambda: consumer.getmany(timeout_ms=1_000),
        }
        with pytest.raises(KafkaError) as caught:
            await for_ever(gets[way])
    return caught.value


def assert_says_where(error: KafkaError, offset: int = OFFSET) -> None:
    assert (error.tp, error.offset) == (TP, offset)
    for part in (TP.topic, str(TP.partition), f"at offset {offset}"):
        assert part in str(error)


@pytest.mark.few_rows(7)
@pytest.mark.parametrize("way", ["getone", "getmany", "poll_arrow"])
@pytest.mark.parametrize("kind", SPOILT)
async def test_a_batch_that_cannot_be_read_is_named(broker: Broker, kind: str, way: str) -> None:
    spoil, error_class = SPOILT[kind]
    broker.on("Fetch").rewrite_batch(only_at_offset(spoil), times=None)
    error = await error_of(broker, way)
    assert type(error) is error_class
    assert_says_where(error)


@pytest.mark.parametrize("kind", [CorruptRecordException, MessageSizeTooLargeError])
async def test_a_partition_that_a_broker_cannot_serve_is_named(
    broker: Broker, kind: type[BrokerResponseError]
) -> None:
    broker.on("Fetch", topic=TP.topic, partition=TP.partition).fail(kind, times=None)
    assert_says_where(await error_of(broker, "getmany"), 0)


@pytest.mark.real_if_long
async def test_a_record_that_cannot_be_deserialised_is_named(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 1, rows(0, 3))

    def refuse(value: bytes | None) -> object:
        if value == b"value 2":
            raise ValueError(value)
        return value

    async with reading(kafka, topic, value_deserializer=refuse) as consumer:
        with pytest.raises(DeserializationError, match=f"{topic}/1 at offset 2"):
            await for_ever(lambda: consumer.getmany(timeout_ms=1_000))
