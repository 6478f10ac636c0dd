"""A user's program that reads in every way, with the types that checkers are to see.

It is checked as users' code is, and run: what was promised has to come.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka_lite.bad_records import RawRecord
from aiokafka_lite.deserializers import (
    AsyncDeserializer,
    BatchDeserializer,
    Deserializer,
    Serialized,
    Undeserializable,
)

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:  # from Python 3.11 on it is typing's

    def assert_type(value, kind):
        """Return the value."""
        return value


K = TypeVar("K")
V = TypeVar("V")


@dataclass
class Order:
    """What a record says."""

    amount: int


def order(payload: bytes) -> Order:
    """Raise for null."""
    return Order(json.loads(payload)["amount"])


def order_or_none(payload: bytes | None) -> Order | None:
    """Of a compacted topic, where null says that a key is gone."""
    return None if payload is None else order(payload)


class OfTopic(Deserializer[Order]):
    """Could ask for topic and headers."""

    def deserialize(self, item: Serialized) -> Order:
        """Return what it says."""
        return order(item.payload)


class OfRegistry(AsyncDeserializer[Order]):
    """Could wait for a schema."""

    async def deserialize(self, item: Serialized) -> Order:
        """Return what it says."""
        return order(item.payload)


class OfMany(BatchDeserializer[Order]):
    """Could wait for the schemas of many."""

    async def deserialize_batch(
        self, items: Sequence[Serialized]
    ) -> Sequence[Order | Undeserializable]:
        """Return what each says."""
        empty = Undeserializable(ValueError("empty"))
        return [order(item.payload) if item.payload else empty for item in items]


class Service:
    """Keeps its consumer in an attribute, and handles records in a method."""

    def __init__(self, servers: str, topic: str) -> None:
        """Make the consumer."""
        self.consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=servers,
            auto_offset_reset="earliest",
            key_deserializer=bytes.decode,
            value_deserializer=order,
        )
        self.amounts: dict[str, int] = {}

    def handle(self, record: ConsumerRecord[str, Order]) -> None:
        """Note the amount."""
        self.amounts[record.key.upper()] = record.value.amount

    async def run(self, count: int) -> dict[str, int]:
        """Read that many keys."""
        async with self.consumer as consumer:
            assert_type(consumer, AIOKafkaConsumer[str, Order])
            while len(self.amounts) < count:
                found = await consumer.getmany(timeout_ms=1_000, max_records=1)
                assert_type(found, dict[TopicPartition, list[ConsumerRecord[str, Order]]])
                for records in found.values():
                    self.handle(records[0])
        return self.amounts


def compacted(servers: str, topic: str) -> AIOKafkaConsumer[str, Order | None]:
    """Return a consumer of the type that it is declared to be of."""
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        key_deserializer=lambda payload: payload.decode(),
        value_deserializer=order_or_none,
    )


async def first(consumer: AIOKafkaConsumer[K, V]) -> V:
    """Read one record of whatever type, and stop."""
    async with consumer:
        return (await consumer.getone()).value


def verdict(consumer: AIOKafkaConsumer[object, object]) -> str:
    """Take any consumer."""
    return consumer.health().verdict


async def read_bytes(consumer: AIOKafkaConsumer) -> bytes | None:
    """Read without deserialisers, records first and then rows."""
    async with consumer:
        record = await consumer.getone()
        assert_type(record.key, bytes | None)
        assert_type(record.value, bytes | None)
        async for rows in consumer.batches(max_rows=1):  # pyright: ignore -- pyarrow has no types
            assert rows.num_rows == 1  # pyright: ignore -- the same
            break
    return record.value


async def read_json(servers: str, topic: str) -> int:
    """Read what may be anything."""
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        value_deserializer=json.loads,
    ) as consumer:
        next_one = await anext(consumer)
        assert_type(next_one, ConsumerRecord[bytes | None, Any])
        amount: int = next_one.value["amount"]
        async for record in consumer:
            assert_type(record, ConsumerRecord[bytes | None, Any])
            amount += record.value["amount"]
            if record.offset == 1:
                break
    return amount


async def read_compacted(servers: str, topic: str) -> list[int | None]:
    """Read to the null that the third record is."""
    amounts: list[int | None] = []
    async with compacted(servers, topic) as consumer:
        assert verdict(consumer) == "ok"
        while len(amounts) < 3:
            for tp, records in (await consumer.poll(max_records=1)).items():
                assert_type(tp, TopicPartition)
                for record in records:
                    assert_type(record.value, Order | None)
                    amounts.append(record.value.amount if record.value else None)
    return amounts


async def read_by_objects(servers: str, topic: str) -> list[Order | None]:
    """Read with deserialisers of the other kinds, which are not asked about null."""
    of_topic = AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        value_deserializer=OfTopic(),
    )
    assert_type(of_topic, AIOKafkaConsumer[bytes | None, Order | None])
    of_registry = AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        key_deserializer=str,
        value_deserializer=OfRegistry(),
    )
    assert_type(of_registry, AIOKafkaConsumer[str, Order | None])
    of_many = AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        value_deserializer=OfMany(),
    )
    assert_type(of_many, AIOKafkaConsumer[bytes | None, Order | None])
    return [await first(of_topic), await first(of_registry), await first(of_many)]


async def read_bad(servers: str, topic: str) -> list[Order | bytes | None]:
    """Read to the bad record, which comes as it is."""
    found: list[Order | bytes | None] = []
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        value_deserializer=order,
        on_bad_record="raw",
    ) as consumer:
        async for record in consumer:
            if isinstance(record, RawRecord):
                assert_type(record.value, bytes | None)
                found.append(record.value)
            else:
                assert_type(record.value, Order)
                found.append(record.value)
            if record.offset == 3:
                break
    return found
