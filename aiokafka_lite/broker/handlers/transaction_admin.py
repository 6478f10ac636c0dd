"""Handlers for administrators of transactions (KIP-664)."""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.kip848 import re2
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.broker.transactions.machine import (
    ErrorType,
    Marker,
    Transaction,
    TransactionVersion,
)
from aiokafka_lite.broker.transactions.machine import TransactionState as State
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    NoError,
    TransactionalIdNotFoundError,
)
from aiokafka_lite.protocol.messages.describe_transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    PartitionResponse,
    TopicData,
    TopicResponse,
    TransactionState,
)
from aiokafka_lite.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from aiokafka_lite.protocol.messages.list_transactions import TransactionState as ListedTransaction
from aiokafka_lite.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from aiokafka_lite.structs import TopicPartition


@handler(DescribeProducersRequest, is_by_element=True)
def describe_producers(
    ctx: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _producers_of(ctx, TopicPartition(topic.name, index))
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _producers_of(ctx: RequestContext, tp: TopicPartition) -> PartitionResponse:
    try:
        partition = ctx.cluster.partition(*tp)
        partition.check_leader(ctx.node.id)
    except BrokerResponseError as error:
        return PartitionResponse(partition_index=tp.partition, error_code=error.errno)
    return PartitionResponse(
        partition_index=tp.partition,
        active_producers=[*partition.log.producers.describe()],
    )


@handler(ListTransactionsRequest)
async def list_transactions(
    ctx: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """List the transactional ids of this node that match all filters."""
    if ctx.transactions.is_loading:
        return ListTransactionsResponse(error_code=CoordinatorLoadInProgressError.errno)
    wanted = request.transactional_id_pattern
    try:
        pattern = re2.compile(wanted) if wanted else None
    except re2.RegexError:
        return ListTransactionsResponse(error_code=InvalidRegularExpressionError.errno)
    unknown = [
        name async for name in in_slices(request.state_filters) if name not in State.__members__
    ]
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


@handler(DescribeTransactionsRequest, is_by_element=True)
def describe_transactions(
    ctx: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            _transaction(ctx, transactional_id) for transactional_id in request.transactional_ids
        ]
    )


def _transaction(ctx: RequestContext, transactional_id: str) -> TransactionState:
    error = (
        ctx.transactions.availability(transactional_id)
        if transactional_id
        else (InvalidRequestError)
    )
    transaction = ctx.transactions.transactions.get(transactional_id)
    if error is NoError and transaction is None:
        error = TransactionalIdNotFoundError
    if error is not NoError or transaction is None:
        return TransactionState(transactional_id=transactional_id, error_code=error.errno)
    value = transaction.value
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=value.state.name,
        transaction_timeout_ms=value.timeout_ms,
        transaction_start_time_ms=value.started_ms,
        producer_id=value.producer_id,
        producer_epoch=value.epoch,
        topics=_topics(transaction),
    )


def _topics(transaction: Transaction) -> list[TopicData]:
    topics: dict[str, TopicData] = {}
    for tp in transaction.unmarked if transaction.is_ending else transaction.value.partitions:
        topic = topics.setdefault(tp.topic, TopicData(topic=tp.topic, partitions=[]))
        topic.partitions.append(tp.partition)
    return list(topics.values())


@handler(WriteTxnMarkersRequest, is_by_element=True)
def write_txn_markers(
    ctx: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Write markers to partitions that this node leads.

    Coordinators here do not send this request. Administrators end hanging transactions with it.
    """
    return WriteTxnMarkersResponse(markers=[_write_all(ctx, marker) for marker in request.markers])


def _write_all(ctx: RequestContext, asked: WritableTxnMarker) -> WritableTxnMarkerResult:
    newest = max(TransactionVersion)
    marker = Marker(
        producer_id=asked.producer_id,
        epoch=asked.producer_epoch,
        is_commit=asked.transaction_result,
        coordinator_epoch=asked.coordinator_epoch,
        version=TransactionVersion(min(max(asked.transaction_version, 0), newest)),
    )
    return WritableTxnMarkerResult(
        producer_id=asked.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=index,
                        error_code=_write(ctx, TopicPartition(topic.name, index), marker).errno,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics
        ],
    )


def _write(ctx: RequestContext, tp: TopicPartition, marker: Marker) -> ErrorType:
    try:
        ctx.cluster.partition(*tp).check_leader(ctx.node.id)
    except BrokerResponseError as error:
        return type(error)
    return ctx.cluster.transactions.write_marker(tp, marker)
