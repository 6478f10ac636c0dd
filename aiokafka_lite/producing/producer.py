"""AIOKafkaProducer: what applications call; the work is done by the engine's parts."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import traceback
import warnings
import weakref
from asyncio import _get_running_loop
from collections.abc import Callable, Mapping, Sequence
from operator import index
from types import TracebackType
from typing import Any, Final, Generic, NoReturn, SupportsIndex, cast

from aiokafka_lite._compat import Self, SentKT, SentVT, timeout_at
from aiokafka_lite._forks import tell_of_forks
from aiokafka_lite._settings import takes_arguments_of
from aiokafka_lite._tasks import own_copy
from aiokafka_lite._transaction import LATEST
from aiokafka_lite.client.aiokafka_names import ClientNames
from aiokafka_lite.errors import (
    ForkedError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    ProducerClosed,
    WrongLoopError,
)
from aiokafka_lite.producing.accumulator import NO_HEADERS
from aiokafka_lite.producing.aiokafka_names import SenderNames, TransactionNames, choose_partition
from aiokafka_lite.producing.batch import record_size_bound
from aiokafka_lite.producing.config import ProducerConfig
from aiokafka_lite.producing.engine import Intake, ProducerEngine
from aiokafka_lite.producing.group_offsets import (
    AnyOffset,
    DeliverySource,
    delivery_of,
    named_offsets,
)
from aiokafka_lite.producing.lease import ProducerLease
from aiokafka_lite.producing.own_batch import OwnBatch, check_timestamp
from aiokafka_lite.producing.transactions import ProducerTransaction, Transactions
from aiokafka_lite.structs import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    RecordMetadata,
    TopicPartition,
)

log = logging.getLogger(__name__)

Headers = Sequence[tuple[str, bytes | None]]

# One for all producers, as its state is 2.5 KiB; a forked child draws others than its parent.
_rng: Final = random.Random()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_rng.seed)


class AIOKafkaProducer(Generic[SentKT, SentVT]):
    """Writes records to Kafka from the running event loop, each once and in order.

    ::

        async with AIOKafkaProducer(bootstrap_servers="host:9092") as producer:
            future = await producer.send("orders", b"value", key=b"key")
            print((await future).offset)

    Arguments, defaults and behaviour are those of aiokafka's producer, except as said in the
    documentation. It is always idempotent: what is tried again is written once, and the records of
    a partition are in the order in which they were sent.

    `send` puts a record into a batch and returns a future of where it was written. A record that
    is in a batch is sent whatever becomes of the future: cancelling that only ends the wait.

    Raises:
        RuntimeError: Made outside a running event loop.
        ValueError: An argument cannot be used.
        TypeError: A serializer or partitioner is none.
        InsecureConfigError: Credentials would leave this machine without TLS; where the network
            is safe, `allow_plaintext_credentials` allows it.
        NotImplementedError: sasl_mechanism is GSSAPI (Kerberos).
    """

    @takes_arguments_of(ProducerConfig)
    def __init__(self, config: ProducerConfig[SentKT, SentVT]) -> None:
        self._loop = config.loop or asyncio.get_running_loop()
        self._config = config
        self._source_traceback = traceback.extract_stack() if self._loop.get_debug() else None
        self._key_serializer: Callable[[SentKT], bytes] | None = config.key_serializer
        self._value_serializer: Callable[[SentVT], bytes] | None = config.value_serializer
        if config.loop is not None:
            _warn_deprecated(
                "The loop argument is deprecated: a producer made inside a loop belongs to it"
            )
        if config.api_version is not None:
            _warn_deprecated(
                "The `api_version` parameter has been deprecated, and does nothing: versions are "
                "negotiated with each broker"
            )
        self._engine: ProducerEngine | None = None
        self._gate = Intake()
        self._stopping: asyncio.Future[None] | None = None
        self._closed = False
        self._is_forked = False
        tell_of_forks(self)
        me = weakref.ref(self)  # what is made here must not keep the producer alive

        def alive() -> AIOKafkaProducer[SentKT, SentVT]:
            producer = me()
            if producer is None:
                raise ProducerClosed("the producer was not stopped, and is collected")
            return producer

        # What programs written for aiokafka ask of its parts (aiokafka_names.py).
        self._client = ClientNames(
            lambda: alive()._running().cluster, config, lambda topic: alive().partitions_for(topic)
        )
        self._metadata = self._client.cluster
        self._partitioner = config.partitioner or choose_partition

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._config.client_id!r}>"

    @property
    def fatal_error(self) -> KafkaError | None:
        """The error after which it can do nothing any more; None: there is none."""
        return None if self._engine is None else self._engine.fatal

    @property
    def client(self) -> ClientNames:
        """What programs written for aiokafka ask of its client (client/aiokafka_names.py)."""
        return self._client

    @property
    def _sender(self) -> SenderNames:
        return SenderNames(lambda: self._closed or self.fatal_error is not None)

    @property
    def _txn_manager(self) -> TransactionNames | None:
        # As in aiokafka there is none without one of these.
        if self._config.transactional_id is None and not self._config.enable_idempotence:
            return None
        return TransactionNames(self._engine, self._config.transactional_id)

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

        May be tried again after it failed or was cancelled; nothing is left of the attempt.

        Raises:
            KafkaConnectionError: No bootstrap server could be reached.
            ClusterAuthorizationFailedError: The client may not produce idempotently.
            KafkaTimeoutError: No broker gave a producer id within request_timeout_ms.
            ProducerClosed: It was stopped.
            IllegalStateError: It was started before, or on another loop (WrongLoopError), or in
                another process (ForkedError).
        """
        if self._closed:
            raise ProducerClosed("the producer is stopped: make another one")
        if _get_running_loop() is not self._loop or self._is_forked:
            raise self._refusal()
        if self._engine is not None:
            raise IllegalStateError("a producer is started once")
        self._engine = engine = ProducerEngine(self._config, self._gate, _rng)
        try:
            await engine.start()
            if self._closed:
                raise ProducerClosed("the producer was stopped while it started")
        except BaseException:
            self._engine = None
            await engine.close()
            raise

    async def stop(self, timeout: float | None = None) -> None:
        """Send what is buffered, wait for the answers, disconnect; abort an open transaction.

        A second call waits for the first. When it is cancelled, or time is over, what was not
        acknowledged by then fails with ProducerClosed, though it may have been written.

        Args:
            timeout: Seconds to wait for answers; None: as long as delivery_timeout_ms allows.

        Raises:
            WrongLoopError: It belongs to another loop.
            ForkedError: It belongs to another process.
        """
        if self._is_forked:
            raise self._refusal()
        self._closed = True
        if self._engine is None:
            return
        if _get_running_loop() is not self._loop:
            raise self._refusal()
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
            return
        self._stopping = self._loop.create_future()
        engine = self._engine
        deadline = None if timeout is None else self._loop.time() + timeout
        try:
            async with timeout_at(deadline):
                await engine.finish()
        except asyncio.TimeoutError:
            pass
        finally:
            engine.abort(
                ProducerClosed("the producer was stopped before the record was acknowledged")
            )
            self._stopping.set_result(None)
        await engine.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.stop()

    def note_fork(self) -> None:
        """Refuse everything in a forked child: records sent there would be taken for the parent's.

        What the parent has still to send fails here, for whoever waits for it in the child.
        """
        self._is_forked = True
        if self._engine is not None:
            self._engine.forked(ForkedError("the record is the parent process's to send"))

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled, as it holds connections: give its "
            "settings away, and make another one there"
        )

    def __del__(self) -> None:
        # There is nothing to stop if it was not started; in a forked child it is the parent's.
        if getattr(self, "_engine", None) is None or self._closed or self._is_forked:
            return
        if not self._loop.is_closed():
            error = ProducerClosed("the producer was not stopped, and is collected")
            self._loop.call_soon_threadsafe(self._engine.abort, error)  # type: ignore[union-attr]
        warnings.warn(
            f"Unclosed {type(self).__name__} {self!r}", ResourceWarning, stacklevel=2, source=self
        )
        context: dict[str, object] = {
            "producer": self,
            "message": f"Unclosed {type(self).__name__}",
        }
        if self._source_traceback is not None:
            context["source_traceback"] = self._source_traceback
        self._loop.call_exception_handler(context)

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
        """Put a record into a batch, and return a future of where it is written.

        Awaits the network only for a topic that is not known yet, and for room among
        `buffer_memory`; otherwise it does not even suspend. When it is cancelled meanwhile, the
        record is not sent. Cancelling the future leaves the record on its way.

        Args:
            topic: Where to.
            value: In bytes, or what `value_serializer` takes; None is a tombstone.
            key: In bytes, or what `key_serializer` takes.
            partition: None leaves it to the partitioner.
            timestamp_ms: Since the epoch, 0 or more; None for now.
            headers: Pairs of name and value, in bytes.

        Returns:
            A future. It fails with KafkaTimeoutError if the record is not acknowledged within
            `delivery_timeout_ms`, and with the broker's error if that refuses it.

        Raises:
            UnknownTopicOrPartitionError: Metadata do not have the topic within
                `request_timeout_ms`, or not the partition.
            KafkaTimeoutError: There was no room within `request_timeout_ms`.
            MessageSizeTooLargeError: The record is larger than `max_request_size`.
            TopicAuthorizationFailedError, InvalidTopicError: The topic cannot be written to.
            TypeError: Topic, partition, key, value, timestamp or headers are of a wrong type.
            ValueError: The timestamp is negative, or 2**63 or more.
            ProducerClosed: The producer is stopped.
            IllegalStateError: It was not started.
            KafkaError: The error after which this producer can do nothing any more.
        """
        accumulator = self._gate.accumulator
        if accumulator is None or _get_running_loop() is not self._loop:
            raise self._refusal()
        sent_key: object = key
        sent: object = value
        if self._key_serializer is not None:
            sent_key = self._key_serializer(key)  # type: ignore[arg-type]  # None as well
        if self._value_serializer is not None:
            sent = self._value_serializer(value)  # type: ignore[arg-type]
        if timestamp_ms is not None:
            check_timestamp(timestamp_ms)
        if type(partition) is not int and partition is not None:
            partition = _partition(partition)
        if type(sent) is not bytes and sent is not None:
            sent = _bytes("value", sent)
        if type(sent_key) is not bytes and sent_key is not None:
            sent_key = _bytes("key", sent_key)
        checked = _checked_headers(headers) if headers else NO_HEADERS
        future = accumulator.append(topic, sent_key, sent, partition, timestamp_ms, checked)
        if future is None:
            return await self._send_in_time(topic, sent_key, sent, partition, timestamp_ms, checked)
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
        """Send a record and return where it was written; arguments and errors are `send`'s.

        When it is cancelled, the record may be written all the same.
        """
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def _send_in_time(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
    ) -> asyncio.Future[RecordMetadata]:
        """Wait for what a record needs, and put it into a batch then."""
        engine = self._running()
        transaction = engine.transaction

        def append(*, is_in_turn: bool) -> asyncio.Future[RecordMetadata] | None:
            self._raise_if_in_vain(engine, transaction)
            return engine.accumulator.append(
                topic, key, value, partition, timestamp_ms, headers, is_in_turn=is_in_turn
            )

        size = record_size_bound(key, value, headers)
        return await engine.append_in_time(append, topic, partition, size)

    def create_batch(self) -> OwnBatch:
        """Return an empty batch to be filled and given to `send_batch`."""
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
        """Send the records of a batch, in order and with nothing between them.

        Args:
            batch: Made by `create_batch`.
            topic: Where to.
            partition: None leaves it to the partitioner, as of a record without a key.

        Returns:
            A future of where the first record is.

        Raises: as `send`, and ValueError for a batch without records.
        """
        if not batch.record_count():
            raise ValueError("a batch needs a record: append one")
        if partition is not None:
            partition = _partition(partition)
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
        """Raise if a record that has waited cannot be sent any more, or not in its transaction."""
        if transaction is not None and engine.transactions is not None:
            engine.raise_if_fatal()
            engine.transactions.require(transaction)
        if self._gate.accumulator is None:
            raise self._refusal()

    async def flush(self) -> None:
        """Send everything at once, and wait until what was sent so far has an outcome.

        It raises nothing of that: each record's future does. Cancelling it leaves all as it is.
        Before the start and after the stop there is nothing to wait for.

        Raises:
            KafkaError: The producer can do nothing any more.
            WrongLoopError, ForkedError: It belongs to another loop or process.
        """
        if self._is_forked or _get_running_loop() is not self._loop:
            raise self._refusal()
        if self._engine is not None:
            self._engine.raise_if_fatal()
            await self._engine.accumulator.flush()

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions.

        Raises:
            UnknownTopicOrPartitionError: Metadata do not have the topic within
                `request_timeout_ms`.
            TopicAuthorizationFailedError, InvalidTopicError: The topic cannot be written to.
        """
        engine = self._running()
        if not engine.accumulator.has(topic, None):
            deadline = self._loop.time() + self._config.request_timeout_s
            await engine.until_known(topic, None, deadline)
        return set(range(engine.accumulator.partition_count(topic)))

    # --- Transactions ----------------------------------------------------------------------
    def transaction(self) -> TransactionBlock[SentKT, SentVT]:
        """Return a block that is a transaction.

        ::

            async with producer.transaction() as tx:
                await tx.send("copies", record.value)
                tx.commit_offsets(consumer)

        At its end everything is committed. Left by an exception or a cancellation, it is aborted:
        no record of it is read by whoever reads committed ones, and no offset counts.
        """
        return TransactionBlock(self)

    async def begin_transaction(self) -> None:
        """Begin a transaction; one that is ending is waited for.

        Raises:
            IllegalOperation: The producer has no transactional_id.
            IllegalStateError: A transaction is open already.
            KafkaError: The error after which this producer can do nothing any more.
        """
        await self._begin()

    async def _begin(self) -> ProducerTransaction:
        transaction = await self._transactions().begin()
        self._running()
        LATEST.set(transaction)
        return transaction

    async def commit_transaction(self) -> None:
        """Wait for all records, commit offsets, and commit the transaction.

        When it is cancelled before the coordinator is asked to commit, the transaction is aborted.
        Later it waits for the outcome, for `delivery_timeout_ms` at most. The cancellation is
        raised after that, so the transaction is over then, one way or the other.

        Raises:
            IllegalOperation: There is no transaction, or the producer has no transactional_id.
            TransactionAbortableError: A record or an offset was lost, for the reason that is its
                cause: abort, and begin again.
            CommitFailedError: The group has given the partitions whose offsets are committed to
                another member: abort, and go on with what the consumer is given next.
            ProducerFencedError: Another producer with this transactional_id was started, or the
                transaction took longer than transaction_timeout_ms. This one can do nothing more.
            KafkaTimeoutError: The coordinator did not answer in time, so the outcome is not known.
                This one can do nothing more.
            KafkaError: The error after which this producer can do nothing any more.
        """
        engine = self._running()
        transactions = self._transactions()
        task = transactions.begin_commit()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await transactions.outlast_commit(task)
            raise
        self._raise_outcome(engine, task)

    async def abort_transaction(self) -> None:
        """Give the transaction up: nothing of it counts. Records that are not sent yet fail.

        When it is cancelled the abort goes on, and the next `begin_transaction` waits for it.

        Raises:
            IllegalOperation: There is no transaction, or the producer has no transactional_id.
            ProducerFencedError: As `commit_transaction`; it is aborted all the same.
            KafkaTimeoutError: The coordinator did not answer in time; it aborts by itself after
                transaction_timeout_ms. This producer can do nothing more.
            KafkaError: The error after which this producer can do nothing any more.
        """
        engine = self._running()
        task = self._transactions().begin_abort()
        await asyncio.wait([task])
        self._raise_outcome(engine, task)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, AnyOffset],
        group_id: str | ConsumerGroupMetadata,
    ) -> None:
        """Store offsets of a group that count when the transaction is committed.

        Args:
            offsets: For each partition the next offset to read, or that and a string.
            group_id: The group, or `consumer.group_metadata()`. Only with the latter the group
                refuses what a member commits that has lost the partitions.

        Raises:
            IllegalOperation: There is no transaction, or the producer has no transactional_id.
            AutoCommitError: The consumer's auto-commit may commit the same records, even if the
                transaction is aborted. Nothing is stored.
            CommitFailedError: The group has given the partitions to another member, or a topic was
                deleted since.
            KafkaError: The group's coordinator refuses, or cannot be reached in time. After this
                and the above the transaction has to be aborted.
            ValueError, TypeError: `offsets` has another shape, or there is no group.
        """
        self._running()
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
        self._running()
        transactions = self._transactions()
        transactions.require(transaction)
        if not isinstance(source, Mapping):
            if group is not None:
                raise TypeError("a group is given with a dict of offsets only")
            transactions.commit_at_the_end(delivery_of(source))
        elif group is None:
            raise TypeError("offsets are committed of a group: give consumer.group_metadata()")
        else:
            transactions.commit_at_the_end(named_offsets(group, source))

    def _transactions(self) -> Transactions:
        if self._config.transactional_id is None:
            raise IllegalOperation(
                "You need to configure transaction_id to use transactions: give the producer a "
                "transactional_id"
            )
        engine = self._running()
        engine.raise_if_lent()
        if engine.transactions is None:
            raise AssertionError("a transactional id makes transactions")
        return engine.transactions

    def lend(self, borrower: str) -> ProducerLease:
        """Give the transactions to one caller, such as `consumer.run`, until it releases them.

        Args:
            borrower: What others are told who want to send meanwhile.

        Raises:
            IllegalOperation: There is no transactional_id, or another has them.
            IllegalStateError: The producer is not started, or in a transaction.
            KafkaError: The error after which this producer can do nothing any more.
        """
        transactions = self._transactions()
        if transactions.is_open:
            raise IllegalStateError("the producer is in a transaction: end that first")
        engine = self._running()
        engine.lend_to(borrower)
        return ProducerLease(engine, transactions, self._encode)

    def _raise_outcome(self, engine: ProducerEngine, task: asyncio.Task[KafkaError | None]) -> None:
        """Raise why a transaction could not be ended as it was to be."""
        if task.cancelled():
            raise ProducerClosed("the producer was stopped while the transaction ended")
        if (error := task.result()) is not None:
            engine.raise_if_fatal()
            raise own_copy(error)

    async def _leave_transaction(
        self, transaction: ProducerTransaction | None, exc: BaseException | None
    ) -> None:
        """End a transaction at the end of its block, unless the block has ended it already.

        Raises:
            KafkaError: It could not be committed; or what the block is left by, or came of the
                abort, is a consequence of this one, after which nothing can be done any more.
        """
        transactions = None if self._engine is None else self._engine.transactions
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
        """Raise why nothing can be done any more, if that is so, and not what the error says."""
        fatal = self.fatal_error
        if fatal is not None and type(fatal) is not type(error):
            raise own_copy(fatal) from error

    async def _abort_quietly(self) -> None:
        """Abort what is open, and wait for that in time, whatever comes of it.

        The error that the block is left by says more than what comes of the abort, which is logged.
        The abort goes on when its time is over or this is cancelled.
        """
        engine = self._engine
        transactions = None if engine is None else engine.transactions
        if transactions is None or not transactions.is_open:
            return
        task = transactions.begin_abort()
        await asyncio.wait([task], timeout=self._config.request_timeout_s)
        if not task.done():
            log.warning("the transaction is still being aborted: its coordinator does not answer")

    # --- Refusals --------------------------------------------------------------------------
    def _running(self) -> ProducerEngine:
        """Return the parts; raises if there are none, or nothing can be done with them."""
        if self._engine is None or self._closed or _get_running_loop() is not self._loop:
            raise self._refusal()
        self._engine.raise_if_fatal()
        return self._engine

    def _refusal(self) -> BaseException:
        """Return what to raise where nothing can be sent."""
        if self._is_forked:
            return ForkedError(
                "the producer belongs to the process that was forked, as do its sockets and its "
                "producer id: make another one here"
            )
        if self._loop is not _get_running_loop():
            return WrongLoopError(
                "a producer is used on the event loop on which it was made: from another thread, "
                "asyncio.run_coroutine_threadsafe gets there"
            )
        if self._closed:
            return ProducerClosed("the producer is stopped: make another one")
        if self._engine is None:
            return IllegalStateError("the producer is not started: await producer.start() first")
        return self._engine.refusal()


class TransactionBlock(Generic[SentKT, SentVT]):
    """A block of `AIOKafkaProducer.transaction()`.

    What it sends is of its own transaction: once that is over, it sends nothing.
    """

    def __init__(self, producer: AIOKafkaProducer[SentKT, SentVT]) -> None:
        self._producer = producer
        self._transaction: ProducerTransaction | None = None

    async def __aenter__(self) -> Self:
        if self._transaction is not None:
            raise IllegalStateError(
                "a block is one transaction: call producer.transaction() for the next"
            )
        self._transaction = await self._producer._begin()
        return self

    @property
    def is_committed(self) -> bool | None:
        """Whether it was committed, False as soon as it is aborted; None: that is not known."""
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
        """Send a record in this transaction: arguments, result and errors are the producer's.

        Raises:
            IllegalOperation: The transaction is over. The record is not sent, whichever
                transaction is open by then.
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
        """Send a record and return where it was written; as `send`."""
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
        """Commit offsets with the transaction, at the end of its block; sends nothing yet.

        What is committed says that these records are processed, in the name of the assignment
        under which they were returned. When the transaction is committed they count as processed,
        however the block is left.

        Args:
            source: A batch of `consumer.batch()`: its records. A record that is acknowledged by
                itself, or that a handler of `run` has: that one. A consumer: all that it has
                returned by now, which suits a program in which one task reads. Or a dict of
                offsets.
            group: With a dict, `consumer.group_metadata()` of the consumer that it is of.

        Raises:
            BatchRevokedError: A rebalance has taken some of the records' partitions away, or did so
                before others came back. The transaction has to be aborted.
            CommitFailedError: The consumer has lost its partitions.
            TransactionAbortableError: The transaction has to be aborted.
            IllegalOperation: There is no transaction; or the consumer has no group.
            AutoCommitError: The consumer's auto-commit may commit the same records, even if the
                transaction is aborted. Nothing is committed of them.
            IllegalStateError: The records of the batch are returned again already.
            ValueError, TypeError: A dict has another shape, or there is no group.
        """
        self._producer._commit_offsets_at_the_end(self._transaction, source, group)


def _partition(given: object) -> int:
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        return index(given)
    raise TypeError(f"a partition is a number, not {given!r}")


def _bytes(what: str, given: object) -> bytes:
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)  # from now on nobody changes it
    raise TypeError(
        f"a record's {what} is bytes or None, not {type(given).__name__}: "
        + (
            f"give the producer a {what}_serializer that makes bytes of it"
            if what in ("key", "value")
            else "encode it, as no serializer is asked for headers"
        )
    )


def _checked_headers(headers: Headers) -> Headers:
    """Return headers as they are written.

    Raises:
        TypeError: One is not a pair of a str and bytes, or None.
    """
    checked: list[tuple[str, bytes | None]] = []
    for given in cast("Sequence[object]", headers):  # whatever was given
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise TypeError(
                f"headers are pairs, [(name, bytes)], not {headers!r}: of a dict, give its items()"
            )
        name, content = given
        if not isinstance(name, str):
            raise TypeError(f"a header's name is a str, not {name!r}")
        checked.append((name, None if content is None else _bytes(f"header {name!r}", content)))
    return checked


def _warn_deprecated(text: str) -> None:
    warnings.warn(text, DeprecationWarning, stacklevel=4)
