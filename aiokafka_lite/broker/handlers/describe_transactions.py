"""DescribeTransactions (key 65), version 0 (KIP-664)."""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.transactions.machine import Transaction
from aiokafka_lite.errors import InvalidRequestError, NoError, TransactionalIdNotFoundError
from aiokafka_lite.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


@handler(DescribeTransactionsRequest, is_by_element=True)
def handle(
    ctx: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Say what transactional ids are doing."""
    return DescribeTransactionsResponse(
        transaction_states=[
            _describe(ctx, transactional_id) for transactional_id in request.transactional_ids
        ]
    )


def _describe(ctx: RequestContext, transactional_id: str) -> TransactionState:
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
