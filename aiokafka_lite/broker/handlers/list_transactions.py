"""ListTransactions (key 66), versions 0 to 2.

1 those that run for longer than a time (KIP-994); 2 those that match a pattern (KIP-1152).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.kip848 import re2
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.broker.transactions.machine import Transaction
from aiokafka_lite.broker.transactions.machine import TransactionState as State
from aiokafka_lite.errors import CoordinatorLoadInProgressError, InvalidRegularExpressionError
from aiokafka_lite.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


@handler(ListTransactionsRequest)
async def handle(ctx: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """List the transactional ids that this node coordinates and the filters let pass."""
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
            TransactionState(
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
