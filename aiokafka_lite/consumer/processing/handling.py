"""Arguments of `consumer.run`: how records are handled, and where failed ones are written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

from aiokafka_lite._arguments import is_int
from aiokafka_lite.client.arguments import ClientArguments
from aiokafka_lite.consumer.buffer.chunk import serialized
from aiokafka_lite.consumer.config import is_async_callable
from aiokafka_lite.consumer.processing.breaker import CircuitBreaker
from aiokafka_lite.consumer.processing.lanes import Job, Order
from aiokafka_lite.consumer.processing.retry import ONCE, Retry
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.consumer.commits.transactional import OffsetsInTransaction
    from aiokafka_lite.consumer.processing.outbox import Outbox


@dataclass(frozen=True, eq=False)
class DeadRecord:
    """A record without attempts left.

    Attributes:
        record: The record as the handler received it.
        error: The error of the last attempt.
        attempts: The number of attempts.
    """

    record: ConsumerRecord
    error: BaseException
    attempts: int
    # Whose it is to finish, in a table of what is finished.
    job: Job | None = field(default=None, repr=False)

    @property
    def key(self) -> bytes | None:
        """The key's bytes, also if it was deserialised."""
        return serialized(self.record)[0]

    @property
    def value(self) -> bytes | None:
        """The value's bytes, also if it was deserialised."""
        return serialized(self.record)[1]


DeadLetter = Callable[[DeadRecord], Awaitable[object]]


class RunContext(NamedTuple):
    """The run whose dead letters are written.

    Attributes:
        arguments: The consumer's, for a connection to the cluster.
        group_id: The group whose offsets are committed.
        offsets: For a transaction that commits them; None: the consumer does not commit.
        finish: Marks a record as finished, before the writer of its letter returns.
        outbox: The outbox of the run's transactions, if it has one.
    """

    arguments: ClientArguments
    group_id: str | None
    offsets: OffsetsInTransaction | None
    finish: Callable[[Job], None]
    outbox: Outbox | None


@runtime_checkable
class DeadLetterKeeper(Protocol):
    """A `DeadLetter` with calls at the start and the end of a run."""

    async def open(self, run: RunContext) -> None: ...

    async def close(self) -> None: ...

    async def __call__(self, dead: DeadRecord) -> object:
        """Store a record, and return when it is stored."""


def check_producer(name: str, producer: object) -> None:
    if producer is not None and not hasattr(producer, "lend"):
        raise TypeError(f"{name} must be an AIOKafkaProducer or None, not {producer!r}")


def retry_of(retry: object) -> Retry:
    if retry is None:
        return ONCE
    if is_int(retry):
        return Retry(attempts=retry)
    if not isinstance(retry, Retry):
        raise TypeError(f"retry must be Retry(…), a number of attempts, or None, not {retry!r}")
    return retry


def dead_letter_of(dead_letter: object) -> DeadLetter | None:
    if isinstance(dead_letter, str):
        # By name: the package of what users import stands above this one.
        kept: DeadLetter = import_module("aiokafka_lite.processing").DeadLetters(dead_letter)
        return kept
    if dead_letter is not None and not is_async_callable(dead_letter):
        raise TypeError(
            'dead_letter must be DeadLetters("topic"), the name of a topic, an async def function '
            f"that takes a DeadRecord, or None, not {dead_letter!r}"
        )
    return cast("DeadLetter | None", dead_letter)


def breaker_of(breaker: object) -> CircuitBreaker | None:
    if breaker == "default":
        return CircuitBreaker()
    if breaker is not None and not isinstance(breaker, CircuitBreaker):
        raise TypeError(f'breaker must be CircuitBreaker(…), "default" or None, not {breaker!r}')
    return breaker


@dataclass(frozen=True)
class Handling:
    """The arguments of `AIOKafkaConsumer.run`, checked."""

    concurrency: int
    order: Order
    batch_size: int | None
    max_uncommitted: int
    retry: Retry
    dead_letter: DeadLetter | None
    breaker: CircuitBreaker | None

    def __post_init__(self) -> None:
        for name in ("concurrency", "batch_size", "max_uncommitted"):
            number = getattr(self, name)
            if number is None and name == "batch_size":
                continue
            if not is_int(number) or number < 1:
                raise ValueError(f"{name} must be a positive int, not {number!r}")
        if self.order not in ("key", "partition", None):
            raise ValueError(f'order must be "key", "partition" or None, not {self.order!r}')
