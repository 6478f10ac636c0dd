"""How dead letters are written: each by itself, or with its offset in a transaction.

::

    plain            send ── acknowledged ── finished ── committed, some time later
                                          ^ a crash here: written again by the next owner

    in an outbox     begin ── send ── offsets ── committed ── finished
                                               ^ a crash up to here: nobody has seen any of it

The outbox (consumer/processing/outbox.py) is the run's, or one of their own.
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
    """A dead letter; it is of the time at which it is written."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    headers: Headers


class Writer(Protocol):
    """Writes dead letters, from `open` to `close`."""

    async def open(self) -> None:
        """Connect; what it raises leaves nothing behind."""

    async def count_partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""

    async def write(self, dead: DeadRecord, letter: Letter) -> None:
        """Write a record; its end says that this is done for good."""

    async def close(self) -> None:
        """Disconnect."""


class PlainWriter:
    """Writes letters as they come.

    Args:
        make: Makes a producer.
        given: Is used instead, and stays started.
    """

    def __init__(self, make: NewProducer, given: AIOKafkaProducer | None) -> None:
        self._producer = make() if given is None else given
        self._is_own = given is None

    async def open(self) -> None:
        """Start a producer of its own."""
        if self._is_own:
            await self._producer.start()

    async def count_partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return len(await self._producer.partitions_for(topic))

    async def write(self, dead: DeadRecord, letter: Letter) -> None:
        """Send a letter, and wait for its acknowledgement."""
        await self._producer.send_and_wait(
            letter.topic,
            letter.value,
            letter.key,
            partition=letter.partition,
            headers=letter.headers,
        )

    async def close(self) -> None:
        """Stop a producer of its own."""
        if self._is_own:
            await self._producer.stop()


class OwnProducer:
    """A producer that is made when one is needed."""

    can_replace: Final = True

    def __init__(self, make: NewProducer) -> None:
        self._make = make
        self._producer: AIOKafkaProducer | None = None
        self._lease: ProducerLease | None = None

    async def lend(self) -> ProducerLease:
        """Return the producer; start one if there is none."""
        if self._lease is None:
            producer = self._make()
            await producer.start()
            self._producer = producer
            self._lease = producer.lend("DeadLetters writes by it")
        return self._lease

    async def dismiss(self) -> None:
        """Stop it."""
        producer, self._producer, self._lease = self._producer, None, None
        if producer is not None:
            await producer.stop()


class OutboxWriter:
    """Writes letters in an outbox's transactions, each with the offset of its record.

    Args:
        outbox: Has them.
        is_own: It is for letters only: opened and closed here.
    """

    def __init__(self, outbox: Outbox, *, is_own: bool) -> None:
        self._outbox = outbox
        self._is_own = is_own

    async def open(self) -> None:
        """Open an outbox of its own."""
        if self._is_own:
            await self._outbox.open()

    async def count_partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return await (await self._outbox.lease()).count_partitions(topic)

    async def write(self, dead: DeadRecord, letter: Letter) -> None:
        """Have a letter written in the next transaction, and wait until that is committed."""
        if dead.job is None:
            raise IllegalStateError("only a record of consumer.run() has an offset to commit")
        output = ProducerLease.output(
            letter.topic, letter.key, letter.value, letter.partition, None, letter.headers
        )
        await self._outbox.deliver(dead.job, output)

    async def close(self) -> None:
        """Close an outbox of its own."""
        if self._is_own:
            await self._outbox.close()
