"""The transaction coordinator of a node: serves the transactional ids of its partitions.

Markers of transactions that end are written again after a restart, which has no effect if they
exist (Kafka: TransactionMarkerChannelManager).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.loading import PartitionCoordinator
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
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Decision,
    Ended,
    ErrorType,
    Marker,
    Transaction,
    TransactionValue,
    TransactionVersion,
)
from aiokafka_lite.broker.transactions.transaction_log import TransactionLog, TransactionRecord
from aiokafka_lite.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequestError,
    InvalidTransactionTimeout,
    KafkaStorageError,
    LeaderNotAvailableError,
    NoError,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.records import ControlType, control_batch, iter_batches
from aiokafka_lite.structs import TopicPartition

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
        """Answer InitProducerId, and fence earlier producers of the transactional id.

        Their open transaction is aborted first, with the reply CONCURRENT_TRANSACTIONS, which the
        client retries.
        """
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

    def write_marker(self, tp: TopicPartition, marker: Marker) -> ErrorType:
        """End a producer's transaction in a partition, on the partition's leader."""
        try:
            partition = self.partition(*tp)
            if partition.leader_id == NO_LEADER:
                return LeaderNotAvailableError
            if tp.topic == GROUP_METADATA_TOPIC:
                return self._write_to_groups(partition, marker)
            self._write(partition, marker)
        except BrokerResponseError as error:
            return type(error)
        except OSError:
            return KafkaStorageError
        return NoError

    def _write_to_groups(self, partition: Partition, marker: Marker) -> ErrorType:
        """End a transaction that committed offsets, also in the group coordinator."""
        groups = self.nodes[partition.leader_id].groups
        error = groups.availability_of(partition.index)
        if error is NoError:
            self._write(partition, marker)
            groups.offsets.end_transaction(
                partition.index, marker.producer_id, is_commit=marker.is_commit
            )
        return error

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
