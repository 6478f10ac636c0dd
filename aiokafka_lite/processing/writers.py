"""Writing dead letters: each on its own, or with its offset in a transaction.

::

    plain            send ── acknowledged ── finished ── committed, some time later
                                          ^ a crash here: written again by the next owner

    in an outbox     begin ── send ── offsets ── committed ── finished
                                               ^ a crash up to here: no reader has seen any of it

The outbox (consumer/processing/outbox.py) is that of the run, or the writer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from aiokafka_lite.consumer.processing.handling import DeadRecord
from aiokafka_lite.consumer.processing.outbox import Outbox
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing.lease import ProducerLease

Headers = Sequence[tuple[str, bytes]]
NewProducer = Callable[[], AIOKafkaProducer]


class Letter(NamedTuple):
    """A dead letter, with the timestamp of its writing."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    headers: Headers


class Writer(Protocol):
    """Writes dead letters, from `open` to `close`."""

    async def open(self) -> None:
        """Connect; a failure leaves no connection behind."""

    async def count_partitions(self, topic: str) -> int: ...

    async def write(self, dead: DeadRecord, letter: Letter) -> None:
        """Write a record, and return when it is permanently written."""

    async def close(self) -> None: ...


class PlainWriter:
    """Writes each letter on its own; a given producer stays started."""

    def __init__(self, make: NewProducer, given: AIOKafkaProducer | None) -> None:
        self._producer = make() if given is None else given
        self._is_own = given is None

    async def open(self) -> None:
        if self._is_own:
            await self._producer.start()

    async def count_partitions(self, topic: str) -> int:
        return len(await self._producer.partitions_for(topic))

    async def write(self, dead: DeadRecord, letter: Letter) -> None:
        await self._producer.send_and_wait(
            letter.topic,
            letter.value,
            letter.key,
            partition=letter.partition,
            headers=letter.headers,
        )

    async def close(self) -> None:
        if self._is_own:
            await self._producer.stop()


class OwnProducer:
    """A producer that is created on first use."""

    can_replace: Final = True

    def __init__(self, make: NewProducer) -> None:
        self._make = make
        self._producer: AIOKafkaProducer | None = None
        self._lease: ProducerLease | None = None

    async def lend(self) -> ProducerLease:
        if self._lease is None:
            producer = self._make()
            await producer.start()
            self._producer = producer
            self._lease = producer.lend("DeadLetters writes with this producer")
        return self._lease

    async def dismiss(self) -> None:
        producer, self._producer, self._lease = self._producer, None, None
        if producer is not None:
            await producer.stop()


class OutboxWriter:
    """Writes letters in an outbox's transactions, each with the offset of its record.

    Args:
        is_own: Whether the outbox is only for letters, and opened and closed here.
    """

    def __init__(self, outbox: Outbox, *, is_own: bool) -> None:
        self._outbox = outbox
        self._is_own = is_own

    async def open(self) -> None:
        if self._is_own:
            await self._outbox.open()

    async def count_partitions(self, topic: str) -> int:
        return await (await self._outbox.lease()).count_partitions(topic)

    async def write(self, dead: DeadRecord, letter: Letter) -> None:
        if dead.job is None:
            raise IllegalStateError(
                "dead letters can be written in transactions only for records that consumer.run() "
                "processes"
            )
        output = ProducerLease.output(
            letter.topic, letter.key, letter.value, letter.partition, None, letter.headers
        )
        await self._outbox.deliver(dead.job, output)

    async def close(self) -> None:
        if self._is_own:
            await self._outbox.close()
