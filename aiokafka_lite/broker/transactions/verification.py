"""Verification that a producer's transaction includes a partition before its first write (KIP-890).

Records outside a transaction would never be committed or aborted, and would block read_committed
consumers permanently. Newer clients let the partition leader add the partition to the transaction.

Kafka: kafka.server.{AddPartitionsToTxnManager, ReplicaManager}.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.topics import Partition
from aiokafka_lite.broker.transactions.coordinator import ClusterTransactions
from aiokafka_lite.broker.transactions.machine import ErrorType, TransactionVersion
from aiokafka_lite.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    NoError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.records import BatchHeader, read_header
from aiokafka_lite.structs import TopicPartition

FIRST_ABORTABLE: Final = 11
FIRST_THAT_ADDS: Final = 12

_ATTRIBUTES_END: Final = 22
_TRANSACTIONAL: Final = 0x10

# Translated to NotEnoughReplicasError, which producers of all versions retry.
_RETRIED: Final = (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)


class Verification(enum.IntEnum):
    """Support of the client's request version."""

    OLD = 0  # supports only INVALID_TXN_STATE
    ABORTABLE = 1  # supports TRANSACTION_ABORTABLE
    ADDS = 2  # the leader adds the partition

    @classmethod
    def of(cls, api_version: int, first_abortable: int, first_that_adds: int) -> Verification:
        if api_version >= first_that_adds:
            return cls.ADDS
        return cls.ABORTABLE if api_version >= first_abortable else cls.OLD


def verify(
    transactions: ClusterTransactions,
    transactional_id: str,
    producer: ProducerIdentity,
    tp: TopicPartition,
    verification: Verification,
) -> ErrorType:
    """Ask the coordinator. Returns an error that the client's version supports."""
    coordinator = transactions.coordinator_of(transactional_id)
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


def why_refused(request: ProduceRequest) -> Steps[BrokerResponseError | None]:
    """Return the error for a whole Produce request, if any."""
    producers = set[tuple[int, int]]()
    for number, header in enumerate(_transactional(request), 1):
        if header is not None:
            producers.add((header.producer_id, header.producer_epoch))
        if not number % ELEMENTS_PER_STEP:
            yield
    if producers and request.transactional_id is None:
        return TransactionalIdAuthorizationFailed(
            "the request has transactional records, but no transactional id"
        )
    if len(producers) > 1:
        return InvalidProducerIdMapping(
            f"the request has transactional records of {len(producers)} producers, "
            f"but only one producer is allowed"
        )
    return None


def _transactional(request: ProduceRequest) -> Iterator[BatchHeader | None]:
    """Yield the headers of transactional batches, and None for each topic and other batch."""
    for data in request.topic_data:
        yield None
        for item in data.partition_data:
            header = None
            view = memoryview(item.records or b"")
            if len(view) > _ATTRIBUTES_END and view[_ATTRIBUTES_END] & _TRANSACTIONAL:
                with suppress(KafkaError):  # validation reports the error
                    header = read_header(view, 0)
            yield header if header is not None and header.is_transactional else None


def verify_batch(
    transactions: ClusterTransactions,
    api_version: int,
    transactional_id: str,
    header: BatchHeader,
    partition: Partition,
) -> None:
    """Check that a batch is part of its producer's transaction, or add the partition."""
    producers = partition.log.producers
    if producers.has_open_transaction(header.producer_id, header.producer_epoch):
        return
    verification = Verification.of(api_version, FIRST_ABORTABLE, FIRST_THAT_ADDS)
    adds = verification is Verification.ADDS
    producers.verifying(header, has_epochs=adds)
    error = verify(
        transactions,
        transactional_id,
        ProducerIdentity(header.producer_id, header.producer_epoch),
        TopicPartition(partition.topic, partition.index),
        verification,
    )
    reason = error.message
    if error in _RETRIED or (error is ConcurrentTransactions and not adds):
        error = NotEnoughReplicasError
    if error is not NoError:
        raise error(
            f"producer {header.producer_id} has no open transaction that includes "
            f"{partition.topic}-{partition.index}: {reason}"
        )
