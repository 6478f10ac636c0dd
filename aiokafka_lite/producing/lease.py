"""A producer whose transactions are one caller's: nobody else sends, begins or ends meanwhile.

`AIOKafkaProducer.lend` gives it away. Until `release`, every other call that sends or has to do
with transactions raises IllegalOperation, and `send` costs nothing more for that: the gate that it
looks at anyway is shut, and only the lease gets past it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._tasks import own_copy
from aiokafka_lite.errors import (
    IllegalArgumentError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerClosed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka_lite.producing.batch import Headers, record_size_bound
from aiokafka_lite.producing.engine import ProducerEngine
from aiokafka_lite.producing.own_batch import check_timestamp
from aiokafka_lite.structs import RecordMetadata

if TYPE_CHECKING:
    from aiokafka_lite.producing.group_offsets import DeliveryInTransaction
    from aiokafka_lite.producing.transactions import Transactions

Encode = Callable[[object, object, "Headers | None"], "tuple[bytes | None, bytes | None, Headers]"]

# What says that a record cannot be written, and nothing of the transaction that it is in:
# RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, POLICY_VIOLATION and INVALID_RECORD are brokers' words.
REFUSALS: Final[tuple[type[Exception], ...]] = (
    IllegalArgumentError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    *(for_code(code) for code in (18, 32, 44, 87)),
)
# The same, of what is raised before a record is in a batch.
REFUSALS_AT_ONCE: Final[tuple[type[Exception], ...]] = (
    *REFUSALS,
    UnknownTopicOrPartitionError,
    TypeError,
    ValueError,
)


class Output(NamedTuple):
    """A record to be written, and no fewer bytes than it takes."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    timestamp_ms: int
    headers: Headers
    size: int


class ProducerLease:
    """A producer in one caller's hands.

    Args:
        engine: Of the producer.
        transactions: Of the same one.
        encode: Applies its serializers.
    """

    def __init__(self, engine: ProducerEngine, transactions: Transactions, encode: Encode) -> None:
        self._engine = engine
        self._transactions = transactions
        self._encode = encode
        self._loop = asyncio.get_running_loop()

    @property
    def fatal_error(self) -> KafkaError | None:
        """The error after which the producer can do nothing any more, or that it was stopped."""
        return self._engine.ended

    @property
    def most_bytes(self) -> int:
        """How many bytes of records may wait at a time."""
        return self._engine.config.buffer_memory

    def on_end(self, tell: Callable[[], None]) -> None:
        """Call a function when there is a fatal error."""
        self._engine.on_end = tell

    def release(self) -> None:
        """Let others use the producer again; idempotent."""
        self._engine.lend_to(None)

    def knows(self) -> Callable[[str], bool]:
        """Return what tells whether a topic can be written to without asking for it."""
        return self._engine.accumulator.is_known

    async def count_partitions(self, topic: str) -> int:
        """Return how many partitions a topic has.

        Raises:
            KafkaError: It is not there, or cannot be written to.
        """
        engine = self._engine
        if not engine.accumulator.has(topic, None):
            deadline = self._loop.time() + engine.config.request_timeout_s
            await engine.until_known(topic, None, deadline)
        return engine.accumulator.partition_count(topic)

    # --- Records ---------------------------------------------------------------------------
    def encoded(
        self,
        topic: object,
        value: object,
        key: object,
        partition: object,
        timestamp_ms: object,
        headers: Headers | None,
    ) -> Output:
        """Return what is to be written, serialized; the arguments are those of `send`.

        Raises:
            TypeError, ValueError: It is not what can be written.
            MessageSizeTooLargeError: It is larger than `max_request_size`.
        """
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"a topic is a name, not {topic!r}")
        number = None if partition is None else _checked_partition(partition)
        created_at = (
            time.time_ns() // 1_000_000 if timestamp_ms is None else check_timestamp(timestamp_ms)
        )
        key_bytes, value_bytes, checked = self._encode(key, value, headers)
        size = record_size_bound(key_bytes, value_bytes, checked)
        config = self._engine.config
        if size > min(config.max_request_size, config.buffer_memory):
            raise MessageSizeTooLargeError(
                f"a record of {size} bytes for {topic!r} is larger than the producer's "
                f"max_request_size={config.max_request_size}, or its buffer_memory"
            )
        return Output(topic, key_bytes, value_bytes, number, created_at, checked, size)

    @staticmethod
    def output(
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
    ) -> Output:
        """Return what is to be written, of what is in bytes already."""
        now = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        size = record_size_bound(key, value, headers)
        return Output(topic, key, value, partition, now, headers, size)

    # --- Transactions ----------------------------------------------------------------------
    async def write(
        self, outputs: Sequence[Output], delivery: DeliveryInTransaction
    ) -> dict[int, Exception]:
        """Write records and finish others in one transaction; whatever fails, it is aborted.

        When it is cancelled before the transaction commits, that is aborted. Later its outcome is
        not known.

        Returns:
            Which of the records are refused for a reason of their own, and why: then neither the
            others nor the offsets are written. Nothing: all is committed.

        Raises:
            KafkaError: Nothing is written; or `fatal_error` is there, and that is not known.
        """
        self._raise_if_ended()
        await self._transactions.begin()
        self._raise_if_ended()  # while it waited for the end of the one before
        futures: list[asyncio.Future[RecordMetadata]] = []
        refused: dict[int, Exception] = {}
        try:
            error = await self._try_to_write(outputs, delivery, futures, refused)
            await self._abort()
        finally:
            if self._transactions.is_open:
                self._transactions.begin_abort()  # goes on by itself
            failures = [each.exception() if _has_failed(each) else None for each in futures]
        self._raise_if_ended()
        refused |= {n: each for n, each in enumerate(failures) if isinstance(each, REFUSALS)}
        if error is not None and not refused:
            raise error
        return refused

    async def _try_to_write(
        self,
        outputs: Sequence[Output],
        delivery: DeliveryInTransaction,
        futures: list[asyncio.Future[RecordMetadata]],
        refused: dict[int, Exception],
    ) -> KafkaError | None:
        """Send records and commit; return why that failed, if no record was refused at once."""
        try:
            for output in outputs:
                try:
                    futures.append(await self._send(output))
                except REFUSALS_AT_ONCE as refusal:
                    refused[len(futures)] = refusal
                    return None
            self._check_is_open()
            self._transactions.commit_at_the_end(delivery)
            return await self._end(self._transactions.begin_commit())
        except KafkaError as error:
            return error

    async def _send(self, output: Output) -> asyncio.Future[RecordMetadata]:
        """Put a record into a batch, once its topic is known and there is room.

        Raises:
            Exception: It cannot be written, or the transaction has to be aborted.
        """
        accumulator = self._engine.accumulator

        def append(*, is_in_turn: bool) -> asyncio.Future[RecordMetadata] | None:
            self._check_is_open()
            return accumulator.append(*output[:6], is_in_turn=is_in_turn)

        if (future := append(is_in_turn=False)) is not None:
            return future
        return await self._engine.append_in_time(
            append, output.topic, output.partition, output.size
        )

    def _check_is_open(self) -> None:
        """Check that the transaction takes records.

        Raises:
            KafkaError: Why it does not.
        """
        if not self._transactions.takes_records:
            self._raise_if_ended()
            refusal = self._transactions.refusal()
            if isinstance(refusal, KafkaError):
                raise refusal
            raise ProducerClosed("the producer was stopped meanwhile")

    def _raise_if_ended(self) -> None:
        if (error := self._engine.ended) is not None:
            raise own_copy(error)

    async def _abort(self) -> None:
        """Abort what is open, and wait for that; why it fails is the producer's fatal error."""
        if self._transactions.is_open:
            await self._end(self._transactions.begin_abort())

    async def _end(self, task: asyncio.Task[KafkaError | None]) -> KafkaError | None:
        """Wait for the end of a transaction; return what it failed by."""
        await asyncio.wait([task])
        if task.cancelled():
            return ProducerClosed("the producer was stopped while the transaction ended")
        return task.result()


def _checked_partition(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"partition is an int or None, not {number!r}")
    if number < 0:
        raise ValueError(f"partition is not negative, as {number} is")
    return number


def _has_failed(future: asyncio.Future[RecordMetadata]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None
