"""AddPartitionsToTxn (key 24), versions 0 to 5.

2 PRODUCER_FENCED; 3 flexible, the newest for clients; 4 for brokers: several transactions at once,
may only verify (KIP-890); 5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.topics import INTERNAL_TOPICS
from aiokafka_lite.broker.transactions.machine import ErrorType, TransactionVersion
from aiokafka_lite.errors import (
    InvalidProducerEpoch,
    NoError,
    OperationNotAttempted,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.structs import TopicPartition

FIRST_WITH_FENCED: Final = 2
FIRST_FOR_BROKERS: Final = 4


@handler(AddPartitionsToTxnRequest)
def handle(
    ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> Steps[AddPartitionsToTxnResponse]:
    """Add partitions to transactions, all of one transaction or none."""
    answer = AddPartitionsToTxnResponse()
    for number, transaction in enumerate(request.transactions, 1):
        answer.results_by_transaction.append((yield from _add(ctx, transaction)))
        if not number % ELEMENTS_PER_STEP:
            yield
    return answer


def _add(
    ctx: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> Steps[AddPartitionsToTxnResult]:
    tps: list[TopicPartition] = []
    for topic in transaction.topics:
        for index in topic.partitions:
            tps.append(TopicPartition(topic.name, index))
            if not len(tps) % ELEMENTS_PER_STEP:
                yield
    errors, of_the_rest = yield from _errors(ctx, transaction, tps)
    result = AddPartitionsToTxnResult(transactional_id=transaction.transactional_id)
    count = 0
    for topic in transaction.topics:
        told = AddPartitionsToTxnTopicResult(name=topic.name)
        result.topic_results.append(told)
        count += 1
        if not count % ELEMENTS_PER_STEP:
            yield
        for index in topic.partitions:
            error = errors.get(TopicPartition(topic.name, index), of_the_rest)
            told.results_by_partition.append(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=error.errno
                )
            )
            count += 1
            if not count % ELEMENTS_PER_STEP:
                yield
    return result


def _errors(
    ctx: RequestContext, transaction: AddPartitionsToTxnTransaction, tps: Sequence[TopicPartition]
) -> Steps[tuple[dict[TopicPartition, ErrorType], ErrorType]]:
    """Return the outcome for some partitions, and that for all others."""
    transactional_id = transaction.transactional_id
    producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    found: dict[TopicPartition, ErrorType] = {}
    for number, tp in enumerate(tps, 1):
        if not number % ELEMENTS_PER_STEP:
            yield
        if transaction.verify_only:
            found[tp] = ctx.transactions.verify_partition(transactional_id, producer, tp)
        elif error := _why_refused(ctx, tp):
            found[tp] = error
    if transaction.verify_only:
        return found, NoError
    if found:
        return found, OperationNotAttempted
    version = (
        TransactionVersion.ORIGINAL
        if ctx.api_version < FIRST_FOR_BROKERS
        else TransactionVersion.EPOCH_PER_TRANSACTION
    )
    outcome = ctx.transactions.add_partitions(transactional_id, producer, tps, version)
    if outcome is ProducerFencedError and ctx.api_version < FIRST_WITH_FENCED:
        outcome = InvalidProducerEpoch
    return found, outcome


def _why_refused(ctx: RequestContext, tp: TopicPartition) -> ErrorType | None:
    if tp.topic in INTERNAL_TOPICS and ctx.api_version < FIRST_FOR_BROKERS:
        return TopicAuthorizationFailedError
    topic = ctx.cluster.topic(tp.topic)
    is_known = topic is not None and topic.partition(tp.partition) is not None
    return None if is_known else UnknownTopicOrPartitionError
