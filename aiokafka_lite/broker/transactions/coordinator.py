"""The transaction coordinator of a node: serves the transactional ids of its partitions.

Requests are decided by the machine, appended to `__transaction_state`, then applied. Markers of
transactions that end are written again after a restart, which has no effect if they exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.coordinator_log import OffsetsLog
from aiokafka_lite.broker.groups.loading import PartitionCoordinator
from aiokafka_lite.broker.log.producers import NO_PRODUCER, NO_PRODUCER_ID, ProducerIdentity
from aiokafka_lite.broker.topics import TRANSACTION_STATE_TOPIC
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
from aiokafka_lite.broker.transactions.markers import MarkerWriter
from aiokafka_lite.broker.transactions.transaction_log import TransactionLog, TransactionRecord
from aiokafka_lite.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequestError,
    InvalidTransactionTimeout,
    NoError,
)
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

# Delay after the log rejected the abort of a transaction that timed out.
RETRY_S: Final = 1.0
EXPIRIES_AT_ONCE: Final = 100


class TransactionServices(Protocol):
    """The cluster as the coordinator uses it."""

    @property
    def clock(self) -> Callable[[], int]: ...
    @property
    def scope(self) -> TaskScope: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def partition_count(self) -> int: ...

    def partition(self, topic: str, index: int) -> OffsetsLog: ...

    def leader_epoch(self, index: int) -> int:
        """Return the epoch in which the node leads a partition of the topic."""

    async def new_producer_id(self) -> int:
        """Return an id that no producer had or will have, also after a crash."""

    def write_marker(self, tp: TopicPartition, marker: Marker) -> ErrorType:
        """Write a marker to the leader of a partition."""


class TransactionCoordinator(PartitionCoordinator[TransactionRecord]):
    """The transactions that a node coordinates. One writer: this class, on the broker's loop."""

    load_task_name = "transaction-load"

    def __init__(self, services: TransactionServices) -> None:
        self._services = services
        self._config = services.config
        self._version = TransactionVersion(services.config.transaction_version)
        self._log = TransactionLog(
            lambda index: services.partition(TRANSACTION_STATE_TOPIC, index),
            partition_count=lambda: services.partition_count,
            clock=services.clock,
        )
        self.transactions: dict[str, Transaction] = {}
        super().__init__(self._log, services.scope)
        self.markers = MarkerWriter(self._write_marker, self._complete)
        self._timeouts: dict[str, asyncio.TimerHandle] = {}

    # -- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse requests. The next start completes transactions that end. Idempotent."""
        self._is_open = False
        self.markers.close()
        for transactional_id in tuple(self._timeouts):
            self._unwatch(transactional_id)

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
            spare = await self._services.new_producer_id()
            error = self.availability(transactional_id)  # it may have moved to another node
            if error is not NoError:
                return Ended(error)
            known = self.transactions.get(transactional_id)
        transaction = known or Transaction(
            transactional_id, TransactionValue(producer_id=spare, epoch=-1, timeout_ms=timeout_ms)
        )
        decision = transaction.init(
            timeout_ms, expected, self._version, spare, self._services.clock()
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
        decision = transaction.add(producer, partitions, version, self._services.clock())
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
            spare = await self._services.new_producer_id()
            transaction = self._find(transactional_id)
        if not isinstance(transaction, Transaction):
            return Ended(transaction)
        now_ms = self._services.clock()
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
        """Store and apply a decision, and write its markers."""
        if not isinstance(decision, TransactionValue):
            return decision
        error = self._append(TransactionRecord(transaction.transactional_id, decision))
        if error is not NoError:
            return error
        self.transactions[transaction.transactional_id] = transaction
        transaction.become(decision)
        self._watch(transaction)
        if transaction.is_ending:
            self.markers.begin(transaction)
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
        for transaction in self._in(partition):
            self._watch(transaction)
            if transaction.is_ending:
                self.markers.begin(transaction)

    def _unload(self, partition: int) -> None:
        for transaction in self._in(partition):
            self._forget(transaction.transactional_id)

    def _forget(self, transactional_id: str) -> None:
        del self.transactions[transactional_id]
        self.markers.forget(transactional_id)
        self._unwatch(transactional_id)

    def _in(self, partition: int) -> Iterator[Transaction]:
        for transactional_id, transaction in tuple(self.transactions.items()):
            if self.partition_for(transactional_id) == partition:
                yield transaction

    # -- markers -------------------------------------------------------------------------------

    def _write_marker(self, transaction: Transaction, tp: TopicPartition) -> ErrorType:
        value = transaction.value
        partition = self.partition_for(transaction.transactional_id)
        marker = Marker(
            value.producer_id,
            value.epoch,
            value.state is PREPARE_COMMIT,
            self._services.leader_epoch(partition),
            value.client_version,
        )
        return self._services.write_marker(tp, marker)

    def _complete(self, transaction: Transaction) -> bool:
        decision = transaction.complete(self._services.clock())
        return self._carry_out(transaction, decision) is NoError

    # -- time ----------------------------------------------------------------------------------

    def _watch(self, transaction: Transaction) -> None:
        """Abort a transaction that exceeds its producer's timeout."""
        transactional_id, value = transaction.transactional_id, transaction.value
        if value.state is not ONGOING:
            self._unwatch(transactional_id)
        elif transactional_id not in self._timeouts:
            left_ms = value.started_ms + value.timeout_ms - self._services.clock()
            # A clock that was set back must not prolong the transaction.
            self._abort_after(min(left_ms, value.timeout_ms) / 1000, transaction)

    def _abort_after(self, delay_s: float, transaction: Transaction) -> None:
        self._timeouts[transaction.transactional_id] = asyncio.get_running_loop().call_later(
            delay_s, self._time_out, transaction
        )

    def _unwatch(self, transactional_id: str) -> None:
        timer = self._timeouts.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()

    def _time_out(self, transaction: Transaction) -> None:
        log.info(
            "the transaction of transactional id %r is aborted, "
            "because it was open for longer than its timeout of %d ms",
            transaction.transactional_id, transaction.value.timeout_ms,
        )  # fmt: skip
        decision = transaction.fence(self._version, self._services.clock())
        if self._carry_out(transaction, decision) is not NoError:
            self._abort_after(RETRY_S, transaction)

    def expire_ids(self) -> Steps[None]:
        """Delete transactional ids that are unused for `transactional_id_expiration_ms`."""
        older_than_ms = self._services.clock() - self._config.transactional_id_expiration_ms
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
