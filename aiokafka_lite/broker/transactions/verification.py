"""Whether a producer may write to a partition: its transaction must have been told of it.

Records that nobody will ever end would hold up the readers of committed records for good, so the
leader of a partition asks the coordinator before the first batch of a transaction (KIP-890). Newer
clients leave it to the leader to tell the coordinator.

Reference: kafka.server.{AddPartitionsToTxnManager, ReplicaManager}.
"""

from __future__ import annotations

import enum

from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.transactions.services import ClusterTransactions
from aiokafka_lite.broker.transactions.values import ErrorType, TransactionVersion
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    InvalidProducerEpoch,
    InvalidTxnState,
    ProducerFencedError,
    TransactionAbortableError,
)
from aiokafka_lite.structs import TopicPartition


class Verification(enum.IntEnum):
    """What the client's version of a request stands for."""

    OLD = 0  # knows only INVALID_TXN_STATE
    ABORTABLE = 1  # knows TRANSACTION_ABORTABLE
    ADDS = 2  # has the partition added


def verify(
    transactions: ClusterTransactions,
    transactional_id: str,
    producer: ProducerIdentity,
    tp: TopicPartition,
    verification: Verification,
) -> ErrorType:
    """Ask the coordinator of a transactional id, in a way that the client understands."""
    try:
        coordinator = transactions.coordinator_of(transactional_id)
    except CoordinatorNotAvailableError:
        return CoordinatorNotAvailableError
    if verification is Verification.ADDS:
        error = coordinator.add_partitions(
            transactional_id, producer, [tp], TransactionVersion.EPOCH_PER_TRANSACTION
        )
    else:
        error = coordinator.verify_partition(transactional_id, producer, tp)
    if error is ProducerFencedError:
        return InvalidProducerEpoch  # producers abort upon it, and go on
    if error is TransactionAbortableError and verification is Verification.OLD:
        return InvalidTxnState
    return error
