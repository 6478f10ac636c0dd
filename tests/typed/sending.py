"""A user's program that writes, runs handlers and catches errors, as checkers are to see it."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer, Batch, ConsumerRecord, errors
from aiokafka_lite.errors import CommitFailedError, KafkaError, NotCoordinatorError
from aiokafka_lite.processing import DeadRecord, Retry, Router
from tests.typed.program import Order

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value, kind):
        """Return the value."""
        return value


Totals = dict[str, int]


def dump(totals: Totals) -> bytes:
    """Return JSON."""
    return json.dumps(totals).encode()


class Sender:
    """Keeps its producer in an attribute."""

    def __init__(self, servers: str) -> None:
        """Make the producer."""
        self.producer = AIOKafkaProducer(
            bootstrap_servers=servers, key_serializer=str.encode, value_serializer=dump
        )

    async def send(self, topic: str) -> int:
        """Send one record."""
        async with self.producer as producer:
            assert_type(producer, AIOKafkaProducer[str, Totals])
            future = await producer.send(topic, {"a": 1}, "key")
            return (await future).offset


async def send_by_lambda(servers: str, topic: str) -> int:
    """Send what may be anything to checkers."""
    async with AIOKafkaProducer(
        bootstrap_servers=servers, value_serializer=lambda value: json.dumps(value).encode()
    ) as producer:
        assert_type(producer, AIOKafkaProducer[Any, Any])
        return (await producer.send_and_wait(topic, {"a": 2}, b"key")).offset


async def send_by_key(servers: str, topic: str) -> int:
    """Send with a serializer of keys alone."""
    async with AIOKafkaProducer(bootstrap_servers=servers, key_serializer=str.encode) as producer:
        assert_type(producer, AIOKafkaProducer[str, Any])
        return (await producer.send_and_wait(topic, b'{"a": 3}', "key")).offset


async def send_bytes(producer: AIOKafkaProducer, topic: str) -> int:
    """Send without serializers."""
    async with producer:
        return (await producer.send_and_wait(topic, b'{"a": 4}', b"key")).offset


def bytes_producer(servers: str) -> AIOKafkaProducer[bytes | None, bytes | None]:
    """Return one of the type that it is declared to be of."""
    return AIOKafkaProducer(bootstrap_servers=servers, linger_ms=1)


class Handled(Exception):
    """All that is to be handled was."""


async def handle_all(servers: str, topic: str) -> list[Totals | str]:
    """Run a handler that refuses the first record, until the fourth."""
    seen: list[Totals | str] = []

    async def handle(record: ConsumerRecord[bytes | None, Totals]) -> None:
        if record.value == {"a": 1}:
            raise ValueError("the first one")
        seen.append(record.value)
        if record.offset == 3:
            raise Handled

    async def note(dead: DeadRecord) -> None:
        seen.append(str(dead.error))

    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"{topic}-handlers",
        auto_offset_reset="earliest",
        value_deserializer=json.loads,
    ) as consumer:
        try:
            await consumer.run(handle, retry=Retry(1, stop=Handled), dead_letter=note, breaker=None)
        except Handled:
            await commit(consumer)
    return seen


async def read_batch(consumer: AIOKafkaConsumer) -> list[bytes | None]:
    """Read in a block."""
    async with consumer, consumer.batch(timeout_ms=5_000) as batch:
        assert_type(batch, Batch)
        return [record.value for record in batch]


async def commit(consumer: AIOKafkaConsumer[Any, Any]) -> str:
    """Catch errors by their names, in both forms."""
    try:
        await consumer.commit()
    except (CommitFailedError, NotCoordinatorError) as error:
        return f"{error.retriable}"
    except errors.IllegalOperation:
        return "no group"
    except KafkaError as error:
        return str(error)
    return "committed"


async def handle_by_topic(consumer: AIOKafkaConsumer) -> None:
    """Run handlers by topic."""

    async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
        """Do nothing."""

    def handle_in_thread(record: ConsumerRecord[bytes | None, bytes | None]) -> int:
        """Do nothing."""
        return record.offset

    async def around(
        record: ConsumerRecord[bytes | None, bytes | None],
        call_next: Callable[[ConsumerRecord[bytes | None, bytes | None]], Awaitable[object]],
    ) -> None:
        """Call the handler."""
        await call_next(record)

    async def take(order: Order | None, record: ConsumerRecord[bytes | None, bytes | None]) -> None:
        """Do nothing."""

    async def take_list(orders: list[Order]) -> None:
        """Do nothing."""

    await consumer.run(take)
    await consumer.run(take_list, batch_size=2)
    await consumer.run(handle_in_thread, order=lambda record: record.value, middleware=[around])
    router = Router({"a": handle}, default=handle)
    router.on("b", re.compile("c"))(handle)
    by_name = {"a": handle}
    await consumer.run(by_name, concurrency=2)
    await consumer.run({"a": handle, re.compile("b"): handle})
    await consumer.run(router, batch_size=2)
