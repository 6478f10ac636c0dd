"""EndTxn (key 26), versions 0 to 5.

2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE; 5 every transaction has an epoch of its
own, and the answer brings the next one's (KIP-890).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.transactions.machine import TransactionVersion
from aiokafka_lite.errors import InvalidProducerEpoch, ProducerFencedError
from aiokafka_lite.protocol.messages.transactions import EndTxnRequest, EndTxnResponse

FIRST_WITH_FENCED: Final = 2
FIRST_WITH_EPOCHS: Final = 5


@handler(EndTxnRequest)
async def handle(ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort; the outcome is in the log when this is answered."""
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
    error = ended.error
    if error is ProducerFencedError and ctx.api_version < FIRST_WITH_FENCED:
        error = InvalidProducerEpoch
    return EndTxnResponse(
        error_code=error.errno,
        producer_id=ended.producer.producer_id,
        producer_epoch=ended.producer.epoch,
    )
