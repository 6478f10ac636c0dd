"""AddPartitionsToTxn (key 24), versions 0 to 5.

2 PRODUCER_FENCED; 3 flexible, the newest for clients; 4 for brokers: several transactions at once,
may only verify (KIP-890); 5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.topics import INTERNAL_TOPICS
from aiokafka_lite.broker.transactions.values import ErrorType, ProducerIdentity, TransactionVersion
from aiokafka_lite.errors import (
    InvalidProducerEpoch,
    OperationNotAttempted,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from aiokafka_lite.structs import TopicPartition

FIRST_WITH_FENCED: Final = 2
FIRST_FOR_BROKERS: Final = 4


@handler(AddPartitionsToTxnRequest)
def handle(ctx: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions, all of one transaction or none."""
    return AddPartitionsToTxnResponse(
        results_by_transaction=[_add(ctx, transaction) for transaction in request.transactions]
    )


def _add(
    ctx: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    errors = _errors(ctx, transaction)
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=errors[TopicPartition(topic.name, index)].errno,
                    )
                    for index in topic.partitions
                ],
            )
            for topic in transaction.topics
        ],
    )


def _errors(
    ctx: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> dict[TopicPartition, ErrorType]:
    """Return the outcome for each partition."""
    tps = list(_partitions(transaction))
    transactional_id = transaction.transactional_id
    producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    if transaction.verify_only:
        return {tp: ctx.transactions.verify_partition(transactional_id, producer, tp) for tp in tps}
    refused = {tp: error for tp in tps if (error := _why_refused(ctx, tp))}
    if refused:
        return dict.fromkeys(tps, OperationNotAttempted) | refused
    version = (
        TransactionVersion.ORIGINAL
        if ctx.api_version < FIRST_FOR_BROKERS
        else TransactionVersion.EPOCH_PER_TRANSACTION
    )
    error = ctx.transactions.add_partitions(transactional_id, producer, tps, version)
    if error is ProducerFencedError and ctx.api_version < FIRST_WITH_FENCED:
        error = InvalidProducerEpoch
    return dict.fromkeys(tps, error)


def _partitions(transaction: AddPartitionsToTxnTransaction) -> Iterator[TopicPartition]:
    for topic in transaction.topics:
        for index in topic.partitions:
            yield TopicPartition(topic.name, index)


def _why_refused(ctx: RequestContext, tp: TopicPartition) -> ErrorType | None:
    if tp.topic in INTERNAL_TOPICS and ctx.api_version < FIRST_FOR_BROKERS:
        return TopicAuthorizationFailedError
    topic = ctx.broker.topic(tp.topic)
    is_known = topic is not None and topic.partition(tp.partition) is not None
    return None if is_known else UnknownTopicOrPartitionError
