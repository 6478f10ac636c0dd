"""AIOKafkaProducer: the methods that applications call. The engine's parts do the work."""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
import weakref
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, cast

from aiokafka_lite._arguments import NUMBER
from aiokafka_lite._compat import Self, SentKT, SentVT
from aiokafka_lite._settings import takes_arguments_of
from aiokafka_lite._tasks import own_copy
from aiokafka_lite._transaction import LATEST
from aiokafka_lite._virtual import chance_for
from aiokafka_lite.client.aiokafka_names import ClientNames, wrap_as_aiokafkas
from aiokafka_lite.client.arguments import MOST_INT, check_text
from aiokafka_lite.client.life import Owner, StartableClient
from aiokafka_lite.errors import (
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    ProducerClosed,
)
from aiokafka_lite.producing.accumulator import NO_HEADERS
from aiokafka_lite.producing.aiokafka_names import SenderNames, TransactionNames, choose_partition
from aiokafka_lite.producing.batch import Output, OwnBatch, check_partition, check_timestamp
from aiokafka_lite.producing.config import ProducerConfig
from aiokafka_lite.producing.engine import ProducerEngine, ProducerLife
from aiokafka_lite.producing.group_offsets import (
    AnyOffset,
    DeliverySource,
    delivery_of,
    named_offsets,
)
from aiokafka_lite.producing.lease import ProducerLease
from aiokafka_lite.producing.transactions import ProducerTransaction, Transactions
from aiokafka_lite.structs import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    RecordMetadata,
    TopicPartition,
)

log = logging.getLogger(__name__)

Headers = Sequence[tuple[str, bytes | None]]


class AIOKafkaProducer(StartableClient, Generic[SentKT, SentVT]):
    """Writes records to Kafka from the running event loop, each once and in order.

    ::

        async with AIOKafkaProducer(bootstrap_servers="host:9092") as producer:
            future = await producer.send("orders", b"value", key=b"key")
            print((await future).offset)

    Arguments, defaults and behaviour are aiokafka's, with the exceptions in the documentation. The
    producer is always idempotent (KIP-98): a retried record is written once, and the records of a
    partition are written in the order of the calls of `send`.

    Raises:
        RuntimeError: No event loop is running.
        ValueError, TypeError: An argument is wrong.
        InsecureConfigError: Credentials would leave this machine without TLS, or an ssl_context is
            unused, with brokers on other machines. On a trusted network set
            `allow_plaintext_credentials`.
        NotImplementedError: sasl_mechanism is GSSAPI (Kerberos).
    """

    @takes_arguments_of(ProducerConfig)
    def __init__(self, config: ProducerConfig[SentKT, SentVT]) -> None:
        self._loop = config.loop or asyncio.get_running_loop()
        self._config = config
        self._source_traceback = traceback.extract_stack() if self._loop.get_debug() else None
        self._key_serializer: Callable[[SentKT], bytes] | None = config.key_serializer
        self._value_serializer: Callable[[SentVT], bytes] | None = config.value_serializer
        chance = chance_for(config.seed, config.chance_name, self._loop)
        self._life = ProducerLife(config, chance, self._loop)
        self._owner = Owner("producer", self._loop, self._life.forked)
        me = weakref.ref(self)  # objects made here must not keep the producer alive

        def alive() -> AIOKafkaProducer[SentKT, SentVT]:
            producer = me()
            if producer is None:
                raise ProducerClosed("the producer was garbage-collected without stop()")
            return producer

        # The parts that programs written for aiokafka use (aiokafka_names.py).
        self._client = ClientNames(
            lambda: alive()._running().cluster, config, lambda topic: alive().partitions_for(topic)
        )
        self._metadata = self._client.cluster
        self._partitioner = config.partitioner or choose_partition

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._config.client_id!r}>"

    @property
    def fatal_error(self) -> KafkaError | None:
        """The error after which the producer can only be stopped, or None."""
        return self._life.fatal

    @property
    def client(self) -> ClientNames:
        """The attributes of aiokafka's client that programs use (client/aiokafka_names.py)."""
        return self._client

    @property
    def _sender(self) -> SenderNames:
        life = self._life
        return SenderNames(lambda: life.is_stopping or life.fatal is not None)

    @property
    def _txn_manager(self) -> TransactionNames | None:
        # As in aiokafka, it needs one of these two settings.
        if self._config.transactional_id is None and not self._config.enable_idempotence:
            return None
        return TransactionNames(self._life, self._config.transactional_id)

    def _partition(
        self,
        topic: str,
        partition: int | None,
        key: object,
        value: object,
        serialized_key: bytes | None,
        serialized_value: bytes | None,
    ) -> int:
        if partition is not None:
            return partition
        return self._running().accumulator.partition_of_next(topic, serialized_key)

    # --- Start and stop --------------------------------------------------------------------
    async def start(self) -> None:
        """Connect to the cluster and get a producer id.

        If `start` fails or is cancelled, its connections are closed, and it may be called again.

        Raises:
            KafkaConnectionError: No bootstrap server could be reached.
            ClusterAuthorizationFailedError: The client may not produce idempotently.
            KafkaTimeoutError: No broker assigned a producer id within `request_timeout_ms`.
            ProducerClosed: The producer was stopped.
            IllegalStateError: The producer was started before, belongs to another event loop
                (WrongLoopError) or to another process (ForkedError).
        """
        self._owner.check()
        if self._life.is_stopping:
            raise self._life.refusal()
        wrap_as_aiokafkas(self, AIOKafkaProducer, _ORIGINAL)
        await self._life.start()

    async def stop(self, timeout: float | None = None) -> None:
        """Send the buffered records, wait for their acknowledgements and disconnect.

        An open transaction is aborted. A second call waits for the first. If `stop` times out or is
        cancelled, the futures of unacknowledged records fail with ProducerClosed, although these
        records may have been written.

        Args:
            timeout: Seconds to wait for acknowledgements. None waits up to `delivery_timeout_ms`.

        Raises:
            TypeError: The timeout is no number.
            WrongLoopError, ForkedError: The producer belongs to another event loop or process.
        """
        self._owner.check()
        NUMBER.check("timeout", timeout, or_none=True)
        await self._life.stop(timeout)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.stop()

    def __del__(self) -> None:
        # Only a started producer has to be stopped, and only in its own process.
        life: ProducerLife | None = getattr(self, "_life", None)
        if life is not None and life.current is not None and not self._owner.is_forked:
            life.forgotten(self, self._source_traceback)

    # --- Records ---------------------------------------------------------------------------
    async def send(
        self,
        topic: str,
        value: SentVT | None = None,
        key: SentKT | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Put a record into a batch and return a future of its offset.

        Awaits the network only if the topic is not in the metadata yet or `buffer_memory` is used
        up. If the call is cancelled, the record is not sent. If the future is cancelled, it is
        sent.

        Args:
            topic: The topic.
            value: Bytes, or an argument of `value_serializer`. None is a tombstone.
            key: Bytes, or an argument of `key_serializer`.
            partition: None lets the partitioner choose.
            timestamp_ms: Milliseconds since the epoch, 0 or more. None is the current time.
            headers: Pairs of a name and bytes or None.

        Returns:
            A future that fails with KafkaTimeoutError after `delivery_timeout_ms`, and with the
            broker's error if the broker rejects the record.

        Raises:
            UnknownTopicOrPartitionError: The topic or the partition does not appear in the metadata
                within `request_timeout_ms`.
            KafkaTimeoutError: `buffer_memory` stays used up for `request_timeout_ms`.
            MessageSizeTooLargeError: The record is larger than `max_request_size`.
            TopicAuthorizationFailedError, InvalidTopicError: The topic cannot be written to.
            TypeError, ValueError: An argument is wrong.
            ProducerClosed, IllegalStateError: The producer is stopped, or not started.
            KafkaError: `fatal_error` of the producer.
        """
        accumulator = self._life.accumulator
        if accumulator is None or _get_running_loop() is not self._loop:
            raise self._refusal()
        sent_key: object = key
        sent: object = value
        if self._key_serializer is not None:
            sent_key = self._key_serializer(key)  # type: ignore[arg-type]  # called for None, too
        if self._value_serializer is not None:
            sent = self._value_serializer(value)  # type: ignore[arg-type]
        if timestamp_ms is not None:
            check_timestamp(timestamp_ms)
        if partition is not None and type(partition) is not int:
            partition = check_partition(partition)
        if type(sent) is not bytes and sent is not None:
            sent = _bytes("value", sent)
        if type(sent_key) is not bytes and sent_key is not None:
            sent_key = _bytes("key", sent_key)
        checked = _checked_headers(headers) if headers else NO_HEADERS
        try:
            future = accumulator.append(topic, sent_key, sent, partition, timestamp_ms, checked)
        except TypeError:  # of a topic that cannot be a key, such as a list
            check_text("a topic's name", topic)
            raise
        if future is None:
            engine = self._running()
            output = Output(topic, sent_key, sent, partition, timestamp_ms, checked)
            # No lambda: for its variables, each call of this method would create three cells.
            in_vain = partial(self._raise_if_in_vain, engine, engine.transaction)
            return await engine.append(output, in_vain)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: SentVT | None = None,
        key: SentKT | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record, wait for its acknowledgement and return its offset. See `send`.

        If the call is cancelled, the record may have been written.
        """
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    def create_batch(self) -> OwnBatch:
        """Return an empty batch for `send_batch`."""
        most = min(self._config.max_batch_size, self._config.max_request_size)
        return OwnBatch(most, self._encode)

    def _encode(
        self, key: object, value: object, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None, Headers]:
        if self._key_serializer is not None:
            key = self._key_serializer(key)  # type: ignore[arg-type]  # whatever was given
        if self._value_serializer is not None:
            value = self._value_serializer(value)  # type: ignore[arg-type]
        return (
            None if key is None else _bytes("key", key),
            None if value is None else _bytes("value", value),
            _checked_headers(headers) if headers else NO_HEADERS,
        )

    async def send_batch(
        self, batch: OwnBatch, topic: str, *, partition: int | None
    ) -> asyncio.Future[RecordMetadata]:
        """Send the records of a batch, in order and without other records between them.

        The batch is closed. Cancellation and errors are those of `send`.

        Args:
            batch: A batch from `create_batch`, with records.
            topic: The topic.
            partition: None lets the partitioner choose, as for a record without a key.

        Returns:
            A future of the first record's offset.

        Raises:
            TypeError: An argument has another type.
            ValueError: The batch is empty.
        """
        if not isinstance(batch, OwnBatch):
            raise TypeError(f"batch must be a batch that create_batch() returned, not {batch!r}")
        check_text("a topic's name", topic)
        if not batch.record_count():
            raise ValueError("cannot send an empty batch: append a record first")
        if partition is not None:
            partition = check_partition(partition)
        batch.close()
        engine = self._running()
        transaction = engine.transaction

        def append(*, is_in_turn: bool) -> asyncio.Future[RecordMetadata] | None:
            self._raise_if_in_vain(engine, transaction)
            return engine.accumulator.append_batch(topic, partition, batch, is_in_turn=is_in_turn)

        return await engine.append_in_time(append, topic, partition, batch.size())

    def _raise_if_in_vain(
        self,
        engine: ProducerEngine,
        transaction: ProducerTransaction | None,
    ) -> None:
        """Raise if a record that was waiting cannot be sent any more, or not in its transaction."""
        if transaction is not None and engine.transactions is not None:
            self._life.raise_if_fatal()
            engine.transactions.require(transaction)
        if self._life.accumulator is None:
            raise self._refusal()

    async def flush(self) -> None:
        """Send all batches at once, and wait until each record is acknowledged or fails.

        Only records sent before the call count. Their futures raise their errors, `flush` does not.
        Cancelling it has no effect on the records. Before `start` and after `stop` it returns at
        once.

        Raises:
            KafkaError: `fatal_error` of the producer.
            WrongLoopError, ForkedError: The producer belongs to another event loop or process.
        """
        self._owner.check()
        if (engine := self._life.parts) is not None:
            self._life.raise_if_fatal()
            await engine.accumulator.flush()

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions.

        Awaits the network only if the topic is not in the metadata yet. Raises as `send`.
        """
        return set(range(await self.count_partitions(topic)))

    async def count_partitions(self, topic: str, limit_s: float = math.inf) -> int:
        """As `partitions_for`, within a limit that `request_timeout_ms` may shorten."""
        engine = self._running()
        check_text("a topic's name", topic)
        return await engine.partition_count(topic, limit_s)

    # --- Transactions ----------------------------------------------------------------------
    def transaction(self) -> TransactionBlock[SentKT, SentVT]:
        """Return an `async with` block that is a transaction.

        ::

            async with producer.transaction() as tx:
                await tx.send("copies", record.value)
                tx.commit_offsets(consumer)

        The end of the block commits the transaction. If the block raises or is cancelled, the
        transaction is aborted: read_committed consumers skip its records, and its offsets are not
        committed.
        """
        return TransactionBlock(self)

    async def begin_transaction(self) -> None:
        """Begin a transaction, after the previous one has ended.

        Raises:
            IllegalOperation: The producer has no transactional_id.
            IllegalStateError: A transaction is open already.
            KafkaError: `fatal_error` of the producer.
        """
        await self._begin()

    async def _begin(self) -> ProducerTransaction:
        transaction = await self._transactions().begin()
        self._running()
        LATEST.set(transaction)
        return transaction

    async def commit_transaction(self) -> None:
        """Wait for the acknowledgements of all records, commit the offsets and the transaction.

        If the call is cancelled before EndTxn is sent, the transaction is aborted. Later the call
        waits up to `delivery_timeout_ms` for the outcome and then raises the cancellation.

        Raises:
            IllegalOperation: No transaction is open, or the producer has no transactional_id.
            TransactionAbortableError: A record was not written, or an offset not committed. The
                error's cause is the reason. Abort the transaction, and begin another one.
            CommitFailedError: The group has assigned the partitions of these offsets to another
                member. Abort, and continue with the records that the consumer returns next.
            ProducerFencedError: Another producer with this transactional_id was started, or the
                transaction took longer than `transaction_timeout_ms`. It is a `fatal_error`.
            KafkaTimeoutError: The coordinator did not respond in time, so the outcome is unknown.
                It is a `fatal_error`.
            KafkaError: `fatal_error` of the producer.
        """
        transactions = self._transactions()
        task = transactions.begin_commit()
        try:
            error = await transactions.outcome(task)
        except asyncio.CancelledError:
            await transactions.outlast_commit(task)
            raise
        self._raise_outcome(error)

    async def abort_transaction(self) -> None:
        """Abort the transaction. The futures of records that are not sent yet fail.

        A cancelled abort continues, and the next `begin_transaction` waits for it.

        Raises:
            IllegalOperation: No transaction is open, or the producer has no transactional_id.
            ProducerFencedError: As in `commit_transaction`. The transaction is aborted anyway.
            KafkaTimeoutError: The coordinator did not respond in time. It aborts the transaction
                after `transaction_timeout_ms`. The error is a `fatal_error`.
            KafkaError: `fatal_error` of the producer.
        """
        transactions = self._transactions()
        self._raise_outcome(await transactions.outcome(transactions.begin_abort()))

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, AnyOffset],
        group_id: str | ConsumerGroupMetadata,
    ) -> None:
        """Send offsets of a group to its coordinator. They are committed with the transaction.

        After CommitFailedError and other errors of the group the transaction must be aborted.

        Args:
            offsets: For each partition the offset of the next record to read, or a pair of that
                offset and a metadata string.
            group_id: The group, or `consumer.group_metadata()`. Only with the latter does the group
                reject the offsets of a member that has lost the partitions (KIP-447).

        Raises:
            IllegalOperation: No transaction is open, or the producer has no transactional_id.
            AutoCommitError: The consumer's auto-commit may commit the same records, even if the
                transaction is aborted. No offset is sent.
            CommitFailedError: The group has assigned the partitions to another member, or a topic
                was deleted.
            KafkaError: The group's coordinator rejects the offsets, or is not reached in time.
            ValueError, TypeError: `offsets` has another shape, or the group id is missing.
        """
        transactions = self._transactions()
        if not transactions.takes_records:
            raise transactions.refusal()
        await transactions.send_offsets(named_offsets(group_id, offsets))

    def _commit_offsets_at_the_end(
        self,
        transaction: ProducerTransaction | None,
        source: DeliverySource | ConsumerRecord[Any, Any] | Mapping[TopicPartition, AnyOffset],
        group: ConsumerGroupMetadata | str | None,
    ) -> None:
        transactions = self._transactions()
        transactions.require(transaction)
        if not isinstance(source, Mapping):
            if group is not None:
                raise TypeError("the `group` argument is allowed only with a dict of offsets")
            transactions.commit_at_the_end(delivery_of(source))
        elif group is None:
            raise TypeError(
                "a dict of offsets needs the `group` argument, which names their group: pass "
                "consumer.group_metadata()"
            )
        else:
            transactions.commit_at_the_end(named_offsets(group, source))

    def _transactions(self) -> Transactions:
        engine = self._running()
        if engine.transactions is None:
            raise IllegalOperation(
                "You need to configure transaction_id to use transactions: give the producer a "
                "transactional_id"
            )
        engine.raise_if_lent()
        return engine.transactions

    def lend(self, borrower: str) -> ProducerLease:
        """Reserve the transactions for one caller, such as `consumer.run`, until `release`.

        `borrower` is the text of the error that other callers get.

        Raises:
            IllegalOperation: The producer has no transactional_id, or is lent already.
            IllegalStateError: The producer is not started, or a transaction is open.
        """
        transactions = self._transactions()
        if transactions.is_open:
            raise IllegalStateError(
                "the producer has an open transaction: commit or abort the open transaction first"
            )
        engine = self._running()
        engine.lend_to(borrower)
        return ProducerLease(engine, transactions, self._encode)

    def _raise_outcome(self, error: KafkaError | None) -> None:
        if error is not None:
            self._life.raise_if_fatal()
            raise own_copy(error)

    async def _leave_transaction(
        self, transaction: ProducerTransaction | None, exc: BaseException | None
    ) -> None:
        """End a transaction at the end of its block, unless the block has ended it.

        A `fatal_error` of the producer replaces its consequence, the error of the block.
        """
        engine = self._life.parts
        transactions = None if engine is None else engine.transactions
        if transactions is not None and transactions.current is not transaction:
            return
        if exc is None:
            try:
                await self.commit_transaction()
            except KafkaError as error:
                await self._abort_quietly()
                self._raise_fatal_behind(error)
                raise
        else:
            await self._abort_quietly()
            if isinstance(exc, KafkaError):
                self._raise_fatal_behind(exc)

    def _raise_fatal_behind(self, error: KafkaError) -> None:
        fatal = self.fatal_error
        if fatal is not None and type(fatal) is not type(error):
            raise own_copy(fatal) from error

    async def _abort_quietly(self) -> None:
        """Abort the open transaction and wait up to `request_timeout_ms`. Errors are only logged.

        The abort continues after the timeout and after a cancellation.
        """
        engine = self._life.parts
        transactions = None if engine is None else engine.transactions
        if transactions is None or not transactions.is_open:
            return
        task = transactions.begin_abort()
        await asyncio.wait([task], timeout=self._config.request_timeout_s)
        if not task.done():
            log.warning(
                "the transaction is still being aborted, because the coordinator has not answered "
                "within request_timeout_ms=%s. Aborting continues in the background",
                self._config.request_timeout_ms,
            )

    # --- Refusals --------------------------------------------------------------------------
    def _running(self) -> ProducerEngine:
        """Return the engine, or raise if the producer is not running or has a fatal error."""
        engine = self._life.current
        if engine is None or self._life.is_stopping or _get_running_loop() is not self._loop:
            raise self._refusal()
        self._life.raise_if_fatal()
        return engine

    def _refusal(self) -> BaseException:
        self._owner.check()
        return self._life.refusal()


_ORIGINAL: Final[Mapping[str, object]] = {"send": AIOKafkaProducer.send}


class TransactionBlock(Generic[SentKT, SentVT]):
    """The block of `AIOKafkaProducer.transaction()`. After its transaction, its methods raise."""

    def __init__(self, producer: AIOKafkaProducer[SentKT, SentVT]) -> None:
        self._producer = producer
        self._transaction: ProducerTransaction | None = None

    async def __aenter__(self) -> Self:
        if self._transaction is not None:
            raise IllegalStateError(
                "a transaction() block can be entered only once: call producer.transaction() again"
            )
        self._transaction = await self._producer._begin()
        return self

    @property
    def is_committed(self) -> bool | None:
        """False once the transaction is aborted, None while the outcome is unknown."""
        return None if self._transaction is None else self._transaction.is_committed

    async def send(
        self,
        topic: str,
        value: SentVT | None = None,
        key: SentKT | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Send a record in this transaction. See `AIOKafkaProducer.send`.

        Raises:
            IllegalOperation: The transaction has ended. The record is not sent, even if another
                transaction is open.
        """
        self._producer._transactions().require(self._transaction)
        return await self._producer.send(topic, value, key, partition, timestamp_ms, headers)

    async def send_and_wait(
        self,
        topic: str,
        value: SentVT | None = None,
        key: SentKT | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record, wait for its acknowledgement and return its offset. See `send`."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._producer._leave_transaction(self._transaction, exc)

    def commit_offsets(
        self,
        source: DeliverySource | ConsumerRecord[Any, Any] | Mapping[TopicPartition, AnyOffset],
        group: ConsumerGroupMetadata | str | None = None,
    ) -> None:
        """Commit offsets with the transaction, at the end of its block. This call sends no request.

        The offsets mark these records as processed, under the assignment with which the consumer
        returned them, even if their own block raises after the commit.

        Args:
            source: A batch of `consumer.batch()` stands for its records. A record, in per-record
                acknowledgement or in a handler of `run`, stands for itself. A consumer stands for
                all records that it has returned, if one task reads. Or a dict of offsets.
            group: With a dict only: `consumer.group_metadata()` of the consumer of these offsets.

        Raises:
            BatchRevokedError, CommitFailedError: A rebalance has revoked partitions of these
                records. The transaction has to be aborted.
            TransactionAbortableError: The transaction has to be aborted.
            IllegalOperation: No transaction is open, or the consumer has no group.
            AutoCommitError: The consumer's auto-commit may commit the same records, even if the
                transaction is aborted. Their offsets are not committed.
            IllegalStateError: The consumer already returns the records of the batch again.
            ValueError, TypeError: A dict has another shape, or the group is missing.
        """
        self._producer._commit_offsets_at_the_end(self._transaction, source, group)


def _bytes(what: str, given: object) -> bytes:
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)  # a copy that the caller cannot change
    raise TypeError(
        f"a record's {what} must be bytes or None, not {type(given).__name__}: "
        + (
            f"pass a {what}_serializer that converts the {what} to bytes"
            if what in ("key", "value")
            else "encode the header's value, because serializers do not apply to headers"
        )
    )


def _checked_headers(headers: Headers) -> Headers:
    if not isinstance(headers, Iterable):
        raise TypeError(f"headers must be a list of (name, bytes) pairs, not {headers!r}")
    checked: list[tuple[str, bytes | None]] = []
    for given in cast("Sequence[object]", headers):  # whatever was given
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise TypeError(
                f"headers must be a list of (name, bytes) pairs, not {headers!r}: for a dict, pass "
                "its items()"
            )
        name, content = given
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be a str, not {name!r}")
        if not name.isascii():
            check_text("a header's name", name, MOST_INT)
        checked.append((name, None if content is None else _bytes(f"header {name!r}", content)))
    return checked
