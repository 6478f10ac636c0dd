"""Handlers that open, extend and end transactions of producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.log.producers import NO_EPOCH, ProducerIdentity
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, INTERNAL_TOPICS
from aiokafka_lite.broker.transactions.machine import ErrorType, TransactionVersion
from aiokafka_lite.errors import (
    InvalidProducerEpoch,
    InvalidRequestError,
    KafkaStorageError,
    NoError,
    OperationNotAttempted,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.structs import TopicPartition

FIRST_EPOCH: Final = 0
FIRST_WITH_FENCED: Final = 2  # PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH
FIRST_INIT_WITH_FENCED: Final = 4
FIRST_FOR_BROKERS: Final = 4  # of AddPartitionsToTxn (KIP-890)
FIRST_WITH_EPOCHS: Final = 5  # of EndTxn (KIP-890)


@handler(InitProducerIdRequest)
async def init_producer_id(
    ctx: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Return a producer id. A transactional id fences its previous producer."""
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return InitProducerIdResponse(error_code=InvalidRequestError.errno, producer_epoch=NO_EPOCH)
    if request.transactional_id is None:
        producer_id = await ctx.cluster.transactions.new_producer_id()
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)
    expected = None
    if request.producer_id >= 0:
        expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    ended = await ctx.transactions.init_producer(
        request.transactional_id, request.transaction_timeout_ms, expected
    )
    return InitProducerIdResponse(
        error_code=_known_to(ctx, ended.error, FIRST_INIT_WITH_FENCED).errno,
        producer_id=ended.producer.producer_id,
        producer_epoch=ended.producer.epoch,
    )


def _known_to(ctx: RequestContext, error: ErrorType, first_version: int) -> ErrorType:
    """Replace PRODUCER_FENCED in versions before `first_version`."""
    if error is ProducerFencedError and ctx.api_version < first_version:
        return InvalidProducerEpoch
    return error


@handler(AddPartitionsToTxnRequest)
def add_partitions_to_txn(
    ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> Steps[AddPartitionsToTxnResponse]:
    """Add partitions to transactions: per transaction all partitions or none.

    From version 4 on the requests are of brokers, which may only verify (KIP-890).
    """
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
        partitions = AddPartitionsToTxnTopicResult(name=topic.name)
        result.topic_results.append(partitions)
        count += 1
        if not count % ELEMENTS_PER_STEP:
            yield
        for index in topic.partitions:
            error = errors.get(TopicPartition(topic.name, index), of_the_rest)
            partitions.results_by_partition.append(
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
    """Return the outcome of some partitions, and the outcome of all others."""
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
    return found, _known_to(ctx, outcome, FIRST_WITH_FENCED)


def _why_refused(ctx: RequestContext, tp: TopicPartition) -> ErrorType | None:
    if tp.topic in INTERNAL_TOPICS and ctx.api_version < FIRST_FOR_BROKERS:
        return TopicAuthorizationFailedError
    topic = ctx.cluster.topic(tp.topic)
    is_known = topic is not None and topic.partition(tp.partition) is not None
    return None if is_known else UnknownTopicOrPartitionError


@handler(AddOffsetsToTxnRequest)
async def add_offsets_to_txn(
    ctx: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add a group's partition of the offsets topic to a transaction."""
    try:
        await ctx.cluster.open_offsets_topic()
    except KafkaStorageError:
        return AddOffsetsToTxnResponse(error_code=KafkaStorageError.errno)
    error = ctx.transactions.add_partitions(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        [TopicPartition(GROUP_METADATA_TOPIC, ctx.groups.partition_for(request.group_id))],
        TransactionVersion.ORIGINAL,
    )
    return AddOffsetsToTxnResponse(error_code=_known_to(ctx, error, FIRST_WITH_FENCED).errno)


@handler(EndTxnRequest)
async def end_txn(ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort. The outcome is in the log before the response."""
    ended = await ctx.transactions.end(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        (
            TransactionVersion.EPOCH_PER_TRANSACTION
            if ctx.api_version >= FIRST_WITH_EPOCHS
            else TransactionVersion.ORIGINAL
        ),
        is_commit=request.committed,
    )
    return EndTxnResponse(
        error_code=_known_to(ctx, ended.error, FIRST_WITH_FENCED).errno,
        producer_id=ended.producer.producer_id,
        producer_epoch=ended.producer.epoch,
    )
