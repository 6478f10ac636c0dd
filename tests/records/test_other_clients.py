"""Batches built by aiokafka and kafka-python are read; batches built here are read by them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy as AiokafkaBuilder
from aiokafka.record.legacy_records import _LegacyRecordBatchBuilderPy as AiokafkaLegacyBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords

from aiokafka_lite import records
from tests.records import kafka_python
from tests.support.crafted import FIRST_TIMESTAMP, offsets, record_set, take_all
from tests.support.for_each import for_each

COUNT = 30
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Builder(Protocol):
    def append(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> object: ...

    def build(self) -> bytes | bytearray: ...


def key(number: int) -> bytes | None:
    return b"key-%d" % number if number % 3 else None


def value(number: int) -> bytes | None:
    return b"value " * number if number % 4 else None


def headers(number: int) -> list[tuple[str, bytes | None]]:
    return [("a", b"1"), ("a", b"")] if number % 2 else []


def with_library(clients: Iterable[str], codecs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs without those for which kafka-python lacks a library."""
    for client, codec in itertools.product(clients, codecs):
        if client != "kafka-python" or codec in kafka_python.CODECS:
            yield client, codec


def built_by(builder: Builder, *, with_headers: bool) -> bytes:
    for number in range(COUNT):
        its_headers = headers(number) if with_headers else []
        builder.append(
            number,
            timestamp=FIRST_TIMESTAMP - number,
            key=key(number),
            value=value(number),
            headers=its_headers,
        )
    return bytes(builder.build())


def numbered_from_its_first(batch: bytes, magic: int, is_wrapper: bool) -> bytes:
    """Give a wrapper the offset of its last message, as the broker does."""
    if magic < 2 and is_wrapper:
        return (COUNT - 1).to_bytes(8, "big") + batch[8:]
    return batch


MAGIC_2_BUILDERS: dict[str, Callable[[int], Builder]] = {
    "aiokafka": lambda codec: AiokafkaBuilder(2, codec, 0, -1, -1, -1, 1 << 20),
    "kafka-python": lambda codec: kafka_python.DefaultRecordBatchBuilder(
        2, codec, 0, -1, -1, -1, 1 << 20
    ),
}
LEGACY_BUILDERS: dict[str, Callable[[int, int], Builder]] = {
    "aiokafka": lambda magic, codec: AiokafkaLegacyBuilder(magic, codec, 1 << 20),
    "kafka-python": lambda magic, codec: kafka_python.LegacyRecordBatchBuilder(
        magic, codec, 1 << 20
    ),
}


@pytest.mark.usefixtures("decoder")
@for_each(with_library(MAGIC_2_BUILDERS, CODECS))
def test_batch_of_another_client_is_read(client: str, codec: str) -> None:
    content = built_by(MAGIC_2_BUILDERS[client](CODECS[codec]), with_headers=True)
    taken = take_all(record_set(content), 7)
    assert offsets(taken) == list(range(COUNT))
    for number, record in enumerate(taken):
        assert record.timestamp == FIRST_TIMESTAMP - number
        assert (record.key, record.value) == (key(number), value(number))
        assert list(record.headers) == headers(number)


@pytest.mark.usefixtures("decoder")
@for_each(
    (client, codec, magic)
    for client, codec in with_library(LEGACY_BUILDERS, ["none", "gzip", "snappy", "lz4"])
    for magic in (0, 1)
    if (client, codec, magic) != ("aiokafka", "lz4", 0)  # aiokafka does not write it
)
def test_messages_of_another_client_are_read(client: str, codec: str, magic: int) -> None:
    built = built_by(LEGACY_BUILDERS[client](magic, CODECS[codec]), with_headers=False)
    content = numbered_from_its_first(built, magic, codec != "none")
    taken = take_all(record_set(content), 7)
    assert offsets(taken) == list(range(COUNT))
    for number, record in enumerate(taken):
        assert (record.key, record.value) == (key(number), value(number))
        assert record.timestamp == (FIRST_TIMESTAMP - number if magic else None)


@for_each(with_library(MAGIC_2_BUILDERS, CODECS))
def test_another_client_reads_our_batch(client: str, codec: str) -> None:
    content = records.build_batch(
        (
            (FIRST_TIMESTAMP - number, key(number), value(number), headers(number))
            for number in range(COUNT)
        ),
        codec=codec,
        base_offset=1000,
    )
    reader = AiokafkaRecords if client == "aiokafka" else kafka_python.MemoryRecords
    batch = reader(content).next_batch()
    assert batch is not None
    assert batch.validate_crc()
    read = [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in batch
    ]
    assert read == [
        (1000 + number, FIRST_TIMESTAMP - number, key(number), value(number), headers(number))
        for number in range(COUNT)
    ]
