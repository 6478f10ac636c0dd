"""The transaction coordinator of a node (KIP-98, KIP-360, KIP-890).

It serves the transactional ids of its partitions of `__transaction_state`. Partitions keep their
own view of transactions in log/producers.py. Markers of transactions that end are written again
after a restart, which has no effect if they exist (Kafka: TransactionMarkerChannelManager)."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.coordinator_log import (
    ErrorType,
    InternalTopicLog,
    PartitionCoordinator,
)
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.log.producers import NO_PRODUCER, NO_PRODUCER_ID, ProducerIdentity
from aiokafka_lite.broker.topics import (
    GROUP_METADATA_TOPIC,
    NO_LEADER,
    TRANSACTION_STATE_TOPIC,
    Partition,
    ServingNode,
)
from aiokafka_lite.broker.transactions.machine import (
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Decision,
    Ended,
    Marker,
    Transaction,
    TransactionState,
    TransactionValue,
    TransactionVersion,
)
from aiokafka_lite.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    CoordinatorNotAvailableError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequestError,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaProtocolError,
    KafkaStorageError,
    LeaderNotAvailableError,
    NoError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.codec import decode_key, decode_versioned, encode_key, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    TRANSACTION_KEY_CLASSES,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.records import BatchHeader, ControlType, build_batch, control_batch, iter_batches
from aiokafka_lite.structs import TopicPartition


class TransactionRecord(NamedTuple):
    """One record of the log. Without a value, it ends a transactional id."""

    transactional_id: str
    value: TransactionValue | None


def encode_record(
    record: TransactionRecord, version: TransactionVersion
) -> tuple[bytes, bytes | None]:
    """Return key and value bytes in the layout of a transaction version."""
    key = encode_key(TransactionLogKey(transactional_id=record.transactional_id))
    value = record.value
    if value is None:
        return key, None
    stored = TransactionLogValue(
        producer_id=value.producer_id,
        producer_epoch=value.epoch,
        transaction_timeout_ms=value.timeout_ms,
        transaction_status=value.state,
        transaction_partitions=None if value.state is EMPTY else _by_topic(value.partitions),
        transaction_last_update_timestamp_ms=value.updated_ms,
        transaction_start_timestamp_ms=value.started_ms,
    )
    if version < TransactionVersion.FLEXIBLE_RECORDS:
        return key, encode_versioned(stored, 0)
    stored.previous_producer_id = value.previous_producer_id
    stored.next_producer_id = value.next_producer_id
    stored.client_transaction_version = value.client_version
    return key, encode_versioned(stored, 1)


def _by_topic(partitions: tuple[TopicPartition, ...]) -> list[PartitionsSchema]:
    topics: dict[str, PartitionsSchema] = {}
    for tp in partitions:
        topic = topics.setdefault(tp.topic, PartitionsSchema(topic=tp.topic, partition_ids=[]))
        topic.partition_ids.append(tp.partition)
    return list(topics.values())


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """Return a record of the log, or None if its type is unknown (a newer Kafka's)."""
    if key is None:
        raise KafkaProtocolError(f"a record of {TRANSACTION_STATE_TOPIC} has no key")
    decoded = decode_key(TRANSACTION_KEY_CLASSES, key)
    if decoded is None:
        return None
    if value is None:
        return TransactionRecord(decoded.transactional_id, None)
    stored = decode_versioned(TransactionLogValue, value)
    try:
        state = TransactionState(stored.transaction_status)
        version = TransactionVersion(stored.client_transaction_version)
    except ValueError as error:
        raise KafkaProtocolError(
            f"cannot load the state of transactional id {decoded.transactional_id!r}: {error}"
        ) from None
    return TransactionRecord(
        decoded.transactional_id,
        TransactionValue(
            producer_id=stored.producer_id,
            epoch=stored.producer_epoch,
            timeout_ms=stored.transaction_timeout_ms,
            previous_producer_id=stored.previous_producer_id,
            next_producer_id=stored.next_producer_id,
            state=state,
            partitions=tuple(
                TopicPartition(topic.topic, partition)
                for topic in stored.transaction_partitions or ()
                for partition in topic.partition_ids
            ),
            started_ms=stored.transaction_start_timestamp_ms,
            updated_ms=stored.transaction_last_update_timestamp_ms,
            client_version=version,
        ),
    )


class TransactionLog(InternalTopicLog[TransactionRecord]):
    topic = TRANSACTION_STATE_TOPIC

    def append(self, record: TransactionRecord, version: TransactionVersion) -> None:
        key, value = encode_record(record, version)
        batch = build_batch([(self.clock(), key, value, ())])
        self.open_partition(self.partition_for(record.transactional_id)).append(batch)

    def _entries(
        self, partition: int, header: BatchHeader, batch: memoryview
    ) -> Iterator[TransactionRecord]:
        for record in self._records(partition, header, batch):
            decoded = decode_record(record.key, record.value)
            if decoded is not None:
                yield decoded


log = logging.getLogger(__name__)

# Delay after the log rejected the abort of a transaction that timed out.
ABORT_RETRY_S: Final = 1.0
EXPIRIES_AT_ONCE: Final = 100
# transaction.remove.expired.transaction.cleanup.interval.ms
EXPIRY_CHECK_S: Final = 3_600.0

MARKERS_AT_ONCE: Final = 200
MARKER_RETRY_S: Final = 0.1
# Final results of a marker. Otherwise the topic was deleted, or a newer marker exists.
SETTLED: Final = (
    NoError,
    UnknownTopicOrPartitionError,
    InvalidProducerEpoch,
    TransactionCoordinatorFenced,
)


class TransactionCoordinator(PartitionCoordinator[TransactionRecord]):
    """One writer: this class, on the broker's loop."""

    load_task_name = "transaction-load"

    def __init__(self, cluster: ClusterTransactions) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self._version = TransactionVersion(cluster.config.transaction_version)
        self._log = TransactionLog(
            lambda index: cluster.partition(TRANSACTION_STATE_TOPIC, index),
            partition_count=lambda: cluster.catalog.coordinators(TRANSACTION_STATE_TOPIC),
            clock=cluster.clock,
        )
        self.transactions: dict[str, Transaction] = {}
        super().__init__(self._log, cluster.scope)
        # The next step of a transaction: the abort of an open one, or further markers.
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._holds_markers = False

    # -- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse requests. The next start completes transactions that end. Idempotent."""
        self._is_open = False
        for transactional_id in tuple(self._timers):
            self._cancel(transactional_id)

    # -- requests ------------------------------------------------------------------------------

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> Ended:
        """Answer InitProducerId, fence earlier producers, and abort their open transaction."""
        if not transactional_id:
            return Ended(InvalidRequestError)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return Ended(InvalidTransactionTimeout)
        error = self.availability(transactional_id)
        if error is not NoError:
            return Ended(error)
        known = self.transactions.get(transactional_id)
        spare = NO_PRODUCER_ID
        if known is None or known.needs_producer_id:
            spare = await self._cluster.new_producer_id()
            error = self.availability(transactional_id)  # it may have moved to another node
            if error is not NoError:
                return Ended(error)
            known = self.transactions.get(transactional_id)
        transaction = known or Transaction(
            transactional_id, TransactionValue(producer_id=spare, epoch=-1, timeout_ms=timeout_ms)
        )
        decision = transaction.init(
            timeout_ms, expected, self._version, spare, self._cluster.clock()
        )
        error = self._carry_out(transaction, decision)
        if error is not NoError:
            return Ended(error)
        if isinstance(decision, TransactionValue) and decision.state is PREPARE_ABORT:
            return Ended(ConcurrentTransactions)  # the previous transaction must end first
        return Ended(NoError, transaction.value.producer)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        version: TransactionVersion,
    ) -> ErrorType:
        transaction = self._find(transactional_id)
        if not isinstance(transaction, Transaction):
            return transaction
        decision = transaction.add(producer, partitions, version, self._cluster.clock())
        return self._carry_out(transaction, decision)

    def verify_partition(
        self, transactional_id: str, producer: ProducerIdentity, tp: TopicPartition
    ) -> ErrorType:
        transaction = self._find(transactional_id)
        if not isinstance(transaction, Transaction):
            return transaction
        return transaction.verify(producer, tp)

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        version: TransactionVersion,
        *,
        is_commit: bool,
    ) -> Ended:
        """Answer EndTxn. The stored outcome is final."""
        transaction = self._find(transactional_id)
        spare = NO_PRODUCER_ID
        if isinstance(transaction, Transaction) and transaction.needs_producer_id:
            spare = await self._cluster.new_producer_id()
            transaction = self._find(transactional_id)
        if not isinstance(transaction, Transaction):
            return Ended(transaction)
        now_ms = self._cluster.clock()
        decision = transaction.end(producer, version, spare, now_ms, is_commit=is_commit)
        if isinstance(decision, TransactionValue):
            error = self._carry_out(transaction, decision)
            # Return the identity that the producer will have once the markers are written.
            after = Transaction(transactional_id, decision).complete(now_ms).producer
            return Ended(error, after if error is NoError else NO_PRODUCER)
        return Ended(decision, transaction.value.producer if decision is NoError else NO_PRODUCER)

    def _find(self, transactional_id: str) -> Transaction | ErrorType:
        if not transactional_id:
            return InvalidRequestError
        error = self.availability(transactional_id)
        if error is not NoError:
            return error
        return self.transactions.get(transactional_id) or InvalidProducerIdMapping

    # -- the log -------------------------------------------------------------------------------

    def _carry_out(self, transaction: Transaction, decision: Decision) -> ErrorType:
        if not isinstance(decision, TransactionValue):
            return decision
        error = self._append(TransactionRecord(transaction.transactional_id, decision))
        if error is not NoError:
            return error
        self.transactions[transaction.transactional_id] = transaction
        transaction.become(decision)
        self._proceed(transaction)
        return NoError

    def _append(self, record: TransactionRecord) -> ErrorType:
        what = f"the state of transactional id {record.transactional_id!r}"
        return self._written(what, lambda: self._log.append(record, self._version))

    def _replay(self, record: TransactionRecord) -> None:
        """Apply one record of the log. Compaction may have removed intermediate states."""
        if record.value is None:
            self.transactions.pop(record.transactional_id, None)
        else:
            self.transactions[record.transactional_id] = Transaction(
                record.transactional_id, record.value
            )

    def _loaded(self, partition: int) -> None:
        for transactional_id in self._keys_in(partition, self.transactions):
            self._proceed(self.transactions[transactional_id])

    def _unload(self, partition: int) -> None:
        for transactional_id in self._keys_in(partition, self.transactions):
            self._forget(transactional_id)

    def _forget(self, transactional_id: str) -> None:
        del self.transactions[transactional_id]
        self._cancel(transactional_id)

    # -- markers -------------------------------------------------------------------------------

    def hold_markers(self) -> None:
        self._holds_markers = True

    def release_markers(self) -> None:
        self._holds_markers = False
        for transactional_id, transaction in tuple(self.transactions.items()):
            if transaction.is_ending and self.availability(transactional_id) is NoError:
                self._write_markers(transaction)

    def _write_markers(self, transaction: Transaction) -> None:
        """Write the markers of a transaction that ends, and complete it after the last one.

        They are usually written before the EndTxn response. Failed writes are retried: no leader, a
        loading coordinator, a failed disk. Transactions with many partitions yield to the loop.
        """
        self._cancel(transaction.transactional_id)
        if self._holds_markers:
            return
        delay_s = 0.0
        for tp in tuple(transaction.unmarked)[:MARKERS_AT_ONCE]:
            error = self._write_marker(transaction, tp)
            if error not in SETTLED:
                delay_s = MARKER_RETRY_S
                continue
            if error is not NoError:
                log.info(
                    "the transaction marker of transactional id %r was not written to %s: %s",
                    transaction.transactional_id, tp, error.message,
                )  # fmt: skip
            transaction.marked(tp)
        if transaction.unmarked:
            self._call_later(delay_s, self._write_markers, transaction)
        elif not self._complete(transaction):
            self._call_later(MARKER_RETRY_S, self._write_markers, transaction)

    def _write_marker(self, transaction: Transaction, tp: TopicPartition) -> ErrorType:
        value = transaction.value
        partition = self.partition_for(transaction.transactional_id)
        marker = Marker(
            value.producer_id,
            value.epoch,
            value.state is PREPARE_COMMIT,
            self._cluster.leader_epoch(partition),
            value.client_version,
        )
        return self._cluster.write_marker(tp, marker)

    def _complete(self, transaction: Transaction) -> bool:
        decision = transaction.complete(self._cluster.clock())
        return self._carry_out(transaction, decision) is NoError

    # -- time ----------------------------------------------------------------------------------

    def _proceed(self, transaction: Transaction) -> None:
        transactional_id, value = transaction.transactional_id, transaction.value
        if transaction.is_ending:
            self._write_markers(transaction)
        elif value.state is not ONGOING:
            self._cancel(transactional_id)
        elif transactional_id not in self._timers:
            left_ms = value.started_ms + value.timeout_ms - self._cluster.clock()
            # A clock that was set back must not prolong the transaction.
            delay_s = min(left_ms, value.timeout_ms) / 1000
            self._call_later(delay_s, self._time_out, transaction)

    def _call_later(
        self, delay_s: float, step: Callable[[Transaction], None], transaction: Transaction
    ) -> None:
        self._timers[transaction.transactional_id] = asyncio.get_running_loop().call_later(
            delay_s, step, transaction
        )

    def _cancel(self, transactional_id: str) -> None:
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()

    def _time_out(self, transaction: Transaction) -> None:
        log.info(
            "the transaction of transactional id %r is aborted, "
            "because it was open for longer than its timeout of %d ms",
            transaction.transactional_id, transaction.value.timeout_ms,
        )  # fmt: skip
        decision = transaction.fence(self._version, self._cluster.clock())
        if self._carry_out(transaction, decision) is not NoError:
            self._call_later(ABORT_RETRY_S, self._time_out, transaction)

    def expire_ids(self) -> Steps[None]:
        """Delete transactional ids that are unused for `transactional_id_expiration_ms`."""
        older_than_ms = self._cluster.clock() - self._config.transactional_id_expiration_ms
        for number, transactional_id in enumerate(tuple(self.transactions)):
            if number % EXPIRIES_AT_ONCE == 0:
                yield
            transaction = self.transactions.get(transactional_id)
            if (
                transaction is not None
                and transaction.may_expire(older_than_ms)
                and self._append(TransactionRecord(transactional_id, None)) is NoError
            ):
                self._forget(transactional_id)


class Verification(enum.IntEnum):
    """What the client's request version supports."""

    OLD = 0  # supports only INVALID_TXN_STATE
    ABORTABLE = 1  # supports TRANSACTION_ABORTABLE
    ADDS = 2  # the leader adds the partition

    @classmethod
    def of(cls, api_version: int, first_abortable: int, first_that_adds: int) -> Verification:
        if api_version >= first_that_adds:
            return cls.ADDS
        return cls.ABORTABLE if api_version >= first_abortable else cls.OLD


class CoordinatingNode(ServingNode, Protocol):
    groups: GroupCoordinator
    transactions: TransactionCoordinator


@dataclass(eq=False)
class ClusterTransactions:
    """The cluster's transactions, which tests reach as `broker.transactions`."""

    config: BrokerConfig
    nodes: Mapping[int, CoordinatingNode]
    catalog: TopicCatalog
    disk: DiskQueue
    clock: Callable[[], int]
    scope: TaskScope

    def partition(self, topic: str, index: int) -> Partition:
        return self.catalog.partition(topic, index)

    def leader_epoch(self, index: int) -> int:
        return self.partition(TRANSACTION_STATE_TOPIC, index).leader_epoch

    async def new_producer_id(self) -> int:
        producer_id = self.catalog.next_producer_id()
        await self.disk.settled()
        return producer_id

    def expire_ids(self) -> Steps[None]:
        for node in self.nodes.values():
            yield from node.transactions.expire_ids()

    # For tests

    def hold_markers(self) -> None:
        """Delay the markers of transactions that end, on every node, until `release_markers`.

        EndTxn is answered and its outcome is stored. Consumers with read_committed wait, and
        producers get CONCURRENT_TRANSACTIONS.
        """
        for node in self.nodes.values():
            node.transactions.hold_markers()

    def release_markers(self) -> None:
        for node in self.nodes.values():
            node.transactions.release_markers()

    # Other nodes

    def coordinator_of(self, transactional_id: str) -> TransactionCoordinator | None:
        node_id = self.catalog.coordinator_of(TRANSACTION_STATE_TOPIC, transactional_id)
        node = self.nodes.get(node_id)
        return None if node is None else node.transactions

    def verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tp: TopicPartition,
        verification: Verification,
    ) -> ErrorType:
        """Verify that a producer's transaction includes a partition before its first write.

        Records outside a transaction would never be committed or aborted, and would block
        read_committed consumers permanently. Newer clients let the partition leader add the
        partition to the transaction (KIP-890). Returns an error that the client's version supports.
        """
        coordinator = self.coordinator_of(transactional_id)
        if coordinator is None:
            return CoordinatorNotAvailableError
        if verification is Verification.ADDS:
            error = coordinator.add_partitions(
                transactional_id, producer, [tp], TransactionVersion.EPOCH_PER_TRANSACTION
            )
        else:
            error = coordinator.verify_partition(transactional_id, producer, tp)
        if error is ProducerFencedError:
            return InvalidProducerEpoch  # producers then abort, and continue
        if error is TransactionAbortableError and verification is Verification.OLD:
            return InvalidTxnState
        return error

    def write_marker(self, tp: TopicPartition, marker: Marker) -> ErrorType:
        """End a producer's transaction in a partition, on the partition's leader."""
        try:
            partition = self.partition(*tp)
            if partition.leader_id == NO_LEADER:
                return LeaderNotAvailableError
            if tp.topic != GROUP_METADATA_TOPIC:
                self._write(partition, marker)
                return NoError
            # The transaction committed offsets, which the group coordinator has, too.
            groups = self.nodes[partition.leader_id].groups
            error = groups.availability_of(partition.index)
            if error is NoError:
                self._write(partition, marker)
                groups.offsets.end_transaction(
                    partition.index, marker.producer_id, is_commit=marker.is_commit
                )
            return error
        except BrokerResponseError as error:
            return type(error)
        except OSError:
            return KafkaStorageError

    def _write(self, partition: Partition, marker: Marker) -> None:
        batch = bytearray(
            control_batch(
                ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
                producer_id=marker.producer_id,
                producer_epoch=marker.epoch,
                timestamp_ms=self.clock(),
                coordinator_epoch=marker.coordinator_epoch,
            )
        )
        ((header, _),) = iter_batches(memoryview(batch))
        partition.log.producers.check_marker(header, marker.coordinator_epoch, marker.version)
        partition.append_batch(header, batch)
