"""Handlers that open, extend, end and describe transactions of producers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from aiokafka_lite.broker.groups.coordinator_log import ErrorType
from aiokafka_lite.broker.groups.kip848 import re2
from aiokafka_lite.broker.handlers.base import RequestContext, answered_with, handler, handles_each
from aiokafka_lite.broker.log.producers import NO_EPOCH, ProducerIdentity
from aiokafka_lite.broker.slices import in_slices, run_in_slices
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, INTERNAL_TOPICS
from aiokafka_lite.broker.transactions.machine import Marker, Transaction, TransactionVersion
from aiokafka_lite.broker.transactions.machine import TransactionState as State
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    InvalidProducerEpoch,
    InvalidRegularExpressionError,
    InvalidRequestError,
    KafkaStorageError,
    NoError,
    OperationNotAttempted,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from aiokafka_lite.protocol.messages.list_transactions import TransactionState as ListedTransaction
from aiokafka_lite.protocol.messages.offsets import PartitionErrorCode
from aiokafka_lite.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    TopicData,
    TopicRequest,
    TransactionState,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
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


def _version(ctx: RequestContext, first_with_epochs: int) -> TransactionVersion:
    has_epochs = ctx.api_version >= first_with_epochs
    return TransactionVersion.EPOCH_PER_TRANSACTION if has_epochs else TransactionVersion.ORIGINAL


@handler(AddPartitionsToTxnRequest)
async def add_partitions_to_txn(
    ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions, each all or none. Since v4 brokers send it (KIP-890)."""
    added = [await _add(ctx, each) async for each in in_slices(request.transactions)]
    errors = (error for errors in added for error in errors)
    return await run_in_slices(answered_with(ctx, request, errors))


async def _add(
    ctx: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> Sequence[ErrorType]:
    """Return an error type for each partition, in order."""
    transactional_id = transaction.transactional_id
    producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    tps = [
        TopicPartition(topic.name, index)
        async for topic in in_slices(transaction.topics)
        async for index in in_slices(topic.partitions)
    ]
    if transaction.verify_only:
        verify = partial(ctx.transactions.verify_partition, transactional_id, producer)
        return [verify(tp) async for tp in in_slices(tps)]
    refused = [_why_refused(ctx, tp) async for tp in in_slices(tps)]
    if any(refused):
        return [error or OperationNotAttempted for error in refused]
    version = _version(ctx, FIRST_FOR_BROKERS)
    outcome = ctx.transactions.add_partitions(transactional_id, producer, tps, version)
    return [_known_to(ctx, outcome, FIRST_WITH_FENCED)] * len(tps)


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
    try:
        await ctx.cluster.open_internal_topic(GROUP_METADATA_TOPIC)
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
        _version(ctx, FIRST_WITH_EPOCHS),
        is_commit=request.committed,
    )
    return EndTxnResponse(
        error_code=_known_to(ctx, ended.error, FIRST_WITH_FENCED).errno,
        producer_id=ended.producer.producer_id,
        producer_epoch=ended.producer.epoch,
    )


# --- Administration (KIP-664) ---
@handles_each(DescribeProducersRequest)
def describe_producers(
    ctx: RequestContext,
    request: DescribeProducersRequest,
    topic: TopicRequest,
    index: int,
    answer: PartitionResponse,
) -> None:
    try:
        partition = ctx.cluster.partition(topic.name, index)
        partition.check_leader(ctx.node.id)
    except BrokerResponseError as error:
        answer.error_code = error.errno  # without a message
    else:
        answer.active_producers = [*partition.log.producers.describe()]


@handler(ListTransactionsRequest)
async def list_transactions(
    ctx: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    wanted = request.transactional_id_pattern
    try:
        pattern = re2.compile(wanted) if wanted else None
    except re2.RegexError:
        return ListTransactionsResponse(error_code=InvalidRegularExpressionError.errno)
    unknown = [
        name async for name in in_slices(request.state_filters) if name not in State.__members__
    ]
    if ctx.transactions.is_loading:
        return ListTransactionsResponse(error_code=CoordinatorLoadInProgressError.errno)
    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            ListedTransaction(
                transactional_id=transactional_id,
                producer_id=transaction.value.producer_id,
                transaction_state=transaction.state.name,
            )
            async for transactional_id, transaction in in_slices(
                tuple(ctx.transactions.transactions.items())
            )
            if _passes(request, transaction, ctx.cluster.clock())
            and (pattern is None or pattern.matches(transactional_id))
        ],
    )


def _passes(request: ListTransactionsRequest, transaction: Transaction, now_ms: int) -> bool:
    value = transaction.value
    if request.producer_id_filters and value.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and value.state.name not in request.state_filters:
        return False
    return request.duration_filter < 0 or now_ms - value.started_ms > request.duration_filter


@handles_each(DescribeTransactionsRequest)
def describe_transaction(
    ctx: RequestContext,
    request: DescribeTransactionsRequest,
    transactional_id: str,
    answer: TransactionState,
) -> None:
    is_named = bool(transactional_id)
    error = ctx.transactions.availability(transactional_id) if is_named else InvalidRequestError
    transaction = ctx.transactions.transactions.get(transactional_id)
    if error is not NoError or transaction is None:
        raise TransactionalIdNotFoundError if error is NoError else error
    value = transaction.value
    answer.transaction_state = value.state.name
    answer.transaction_timeout_ms = value.timeout_ms
    answer.transaction_start_time_ms = value.started_ms
    answer.producer_id, answer.producer_epoch = value.producer
    answer.topics = _topics(transaction)


def _topics(transaction: Transaction) -> list[TopicData]:
    topics: dict[str, TopicData] = {}
    for tp in transaction.unmarked if transaction.is_ending else transaction.value.partitions:
        topic = topics.setdefault(tp.topic, TopicData(topic=tp.topic, partitions=[]))
        topic.partitions.append(tp.partition)
    return list(topics.values())


@handles_each(WriteTxnMarkersRequest)
def write_txn_marker(
    ctx: RequestContext,
    request: WriteTxnMarkersRequest,
    marker: WritableTxnMarker,
    topic: TopicRequest,
    index: int,
    answer: PartitionErrorCode,
) -> None:
    """Administrators end hanging transactions with this. Coordinators here do not send it."""
    ctx.cluster.partition(topic.name, index).check_leader(ctx.node.id)
    newest = max(TransactionVersion)
    wanted = Marker(
        producer_id=marker.producer_id,
        epoch=marker.producer_epoch,
        is_commit=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        version=TransactionVersion(min(max(marker.transaction_version, 0), newest)),
    )
    tp = TopicPartition(topic.name, index)
    answer.error_code = ctx.cluster.transactions.write_marker(tp, wanted).errno
