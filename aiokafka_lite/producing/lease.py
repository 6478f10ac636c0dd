"""A producer whose transactions are reserved for one caller.

Until `release`, all other calls that send or use transactions raise IllegalOperation. The lease
bypasses their closed gate.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from aiokafka_lite._tasks import own_copy
from aiokafka_lite._virtual import wall_ms
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
from aiokafka_lite.producing.batch import Headers, Output, check_partition, check_timestamp
from aiokafka_lite.producing.engine import ProducerEngine
from aiokafka_lite.producing.group_offsets import DeliveryInTransaction
from aiokafka_lite.producing.transactions import Transactions
from aiokafka_lite.structs import RecordMetadata

Encode = Callable[[object, object, "Headers | None"], "tuple[bytes | None, bytes | None, Headers]"]

# Errors that concern one record, and not its transaction. The codes are RECORD_LIST_TOO_LARGE,
# INVALID_TIMESTAMP, POLICY_VIOLATION and INVALID_RECORD.
REFUSALS: Final[tuple[type[Exception], ...]] = (
    IllegalArgumentError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    *(for_code(code) for code in (18, 32, 44, 87)),
)
# The same, including errors raised before a record is in a batch.
REFUSALS_AT_ONCE: Final[tuple[type[Exception], ...]] = (
    *REFUSALS,
    UnknownTopicOrPartitionError,
    TypeError,
    ValueError,
)


class ProducerLease:
    """The lease of a producer. `encode` applies the producer's serializers."""

    def __init__(self, engine: ProducerEngine, transactions: Transactions, encode: Encode) -> None:
        self._engine = engine
        self._transactions = transactions
        self._encode = encode

    @property
    def fatal_error(self) -> KafkaError | None:
        """The producer's fatal error, or ProducerClosed after its stop."""
        return self._engine.ended

    @property
    def most_bytes(self) -> int:
        return self._engine.config.buffer_memory

    def on_end(self, tell: Callable[[], None]) -> None:
        self._engine.on_end = tell

    def release(self) -> None:
        self._engine.lend_to(None)

    def knows(self, topic: str) -> bool:
        """Whether a topic needs no new metadata."""
        return self._engine.accumulator.is_known(topic)

    async def count_partitions(self, topic: str, limit_s: float = math.inf) -> int:
        return await self._engine.partition_count(topic, limit_s)

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
        """Return a serialized record. Raises as `AIOKafkaProducer.send`."""
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"the topic must be a non-empty string, not {topic!r}")
        number = None if partition is None else check_partition(partition)
        if number is not None and number < 0:
            raise ValueError(f"partition must not be negative, but is {number}")
        created_at = wall_ms() if timestamp_ms is None else check_timestamp(timestamp_ms)
        key_bytes, value_bytes, checked = self._encode(key, value, headers)
        output = Output(topic, key_bytes, value_bytes, number, created_at, checked)
        config = self._engine.config
        if output.size > min(config.max_request_size, config.buffer_memory):
            raise MessageSizeTooLargeError(
                f"a record of {output.size} bytes for {topic!r} exceeds the producer's "
                f"max_request_size={config.max_request_size} or "
                f"buffer_memory={config.buffer_memory}"
            )
        return output

    # --- Transactions ----------------------------------------------------------------------
    async def write(
        self, outputs: Sequence[Output], delivery: DeliveryInTransaction
    ) -> dict[int, Exception]:
        """Write records and finish deliveries in one transaction, which any failure aborts.

        If cancelled after EndTxn was sent, the outcome is unknown, as after a fatal error. Before,
        the transaction is aborted in the background. Returns the rejected records by their index,
        with the reasons; if any, the transaction is aborted. Raises the error of another failure.
        """
        self._raise_if_ended()
        await self._transactions.begin()
        self._raise_if_ended()  # it may have ended during the wait
        futures: list[asyncio.Future[RecordMetadata]] = []
        refused: dict[int, Exception] = {}
        try:
            error = await self._try_to_write(outputs, delivery, futures, refused)
            await self._abort()
        finally:
            self._transactions.abandon()
            failures = [
                each.exception() if each.done() and not each.cancelled() else None
                for each in futures
            ]
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
        """Send records and commit. Return the error, unless records were rejected at once."""
        try:
            for output in outputs:
                try:
                    futures.append(await self._engine.append(output, self._check_is_open))
                except REFUSALS_AT_ONCE as refusal:
                    refused[len(futures)] = refusal
                    return None
            self._transactions.commit_at_the_end(delivery)
            return await self._transactions.outcome(self._transactions.begin_commit())
        except KafkaError as error:
            return error

    def _check_is_open(self) -> None:
        if not self._transactions.takes_records:
            refusal = self._transactions.refusal()
            if isinstance(refusal, KafkaError):
                raise refusal
            raise ProducerClosed("the producer was stopped during the call")

    def _raise_if_ended(self) -> None:
        if (error := self._engine.ended) is not None:
            raise own_copy(error)

    async def _abort(self) -> None:
        if self._transactions.is_open:
            await self._transactions.outcome(self._transactions.begin_abort())
