"""Mistakes of users, each of which type checkers find: the comments say where, and which."""

from __future__ import annotations

import json

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka_lite.bad_records import RawRecord
from aiokafka_lite.deserializers import AsyncDeserializer, Deserializer, Serialized
from tests.typed.program import OfTopic, Order, order
from tests.typed.sending import dump


class Untold(Deserializer):  # type: ignore[type-arg]
    def deserialize(self, item: Serialized) -> Order:
        return order(item.payload)


class Different(Deserializer[Order]):
    def deserialize(self, item: Serialized) -> str:  # type: ignore[override]
        return item.topic


class NotAwaited(AsyncDeserializer[Order]):
    def deserialize(self, item: Serialized) -> Order:  # type: ignore[override]
        return order(item.payload)


def handle(record: ConsumerRecord[str, Order]) -> None:
    print(record.key, record.value.total)  # type: ignore[attr-defined]


async def without_deserialisers(consumer: AIOKafkaConsumer) -> None:
    record = await consumer.getone()
    print(record.value.decode())  # type: ignore[union-attr]
    print(record.value["amount"])  # type: ignore[call-overload, index]
    handle(record)  # type: ignore[arg-type]


async def with_one(consumer: AIOKafkaConsumer[bytes | None, Order]) -> None:
    handle(await consumer.getone())  # type: ignore[arg-type]
    async for record in consumer:
        print(record.key.decode(), record.value.amount)  # type: ignore[union-attr]
    for records in (await consumer.getmany()).values():
        text: str = records[0].value  # type: ignore[assignment]
        print(text)
    for records in (await consumer.poll()).values():
        print(records[0].value["amount"])  # type: ignore[index]
    await without_deserialisers(consumer)  # type: ignore[arg-type]
    await consumer.poll_arrow()  # type: ignore[misc]
    consumer.batches()  # type: ignore[misc]


async def of_null(record: ConsumerRecord[bytes | None, Order | None]) -> Order:
    print(record.value.amount)  # type: ignore[union-attr]
    return record.value  # type: ignore[return-value]


async def raw(record: ConsumerRecord[str, Order]) -> str:
    if isinstance(record, RawRecord):
        return str(record.value.amount)  # type: ignore[union-attr]
    print(record.error)  # type: ignore[attr-defined]
    return record.key


def made() -> AIOKafkaConsumer[bytes | None, str]:
    AIOKafkaConsumer("t", value_deserializer=str.upper)  # type: ignore[arg-type]
    AIOKafkaConsumer("t", value_deserializer=OfTopic)  # type: ignore[arg-type]
    AIOKafkaConsumer("t", value_deserialiser=json.loads)  # type: ignore[call-arg]
    AIOKafkaConsumer("t", group_id=7, value_deserializer=json.loads)  # type: ignore[arg-type]
    return AIOKafkaConsumer("t", value_deserializer=order)  # type: ignore[arg-type]


async def send() -> None:
    await AIOKafkaProducer(value_serializer=dump).send("t", b"a")  # type: ignore[arg-type]
    await AIOKafkaProducer(key_serializer=str.encode).send("t", key=b"a")  # type: ignore[arg-type]
    AIOKafkaProducer(value_serializer=dump, lingers_ms=1)  # type: ignore[call-arg]
    AIOKafkaProducer(linger_ms="1")  # type: ignore[arg-type]
    AIOKafkaProducer(key_serializer=len)  # type: ignore[arg-type]


async def handle_number(number: int) -> None:
    print(number)


async def handle_order(order: Order, record: ConsumerRecord[str, Order]) -> None:
    print(order.amount, record.key)


async def run(consumer: AIOKafkaConsumer) -> None:
    await consumer.run(handle_number)  # type: ignore[type-var]
    await consumer.run(handle_order)  # type: ignore[arg-type]
    await consumer.run({"a": 5})  # type: ignore[dict-item]
