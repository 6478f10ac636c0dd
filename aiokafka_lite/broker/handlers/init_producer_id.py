"""InitProducerId (key 22), versions 0 to 5.

2 flexible; 3 a producer may say the id and epoch it has (KIP-360); 4 PRODUCER_FENCED;
5 TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.log.producers import NO_EPOCH, ProducerIdentity
from aiokafka_lite.errors import (
    InvalidProducerEpoch,
    InvalidRequestError,
    ProducerFencedError,
)
from aiokafka_lite.protocol.messages.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

FIRST_EPOCH: Final = 0
FIRST_WITH_FENCED: Final = 4


@handler(InitProducerIdRequest)
async def handle(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Hand out a producer id, and with a transactional id shut out whoever had it before."""
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
    error = ended.error
    if error is ProducerFencedError and ctx.api_version < FIRST_WITH_FENCED:
        error = InvalidProducerEpoch
    producer = ended.producer
    return InitProducerIdResponse(
        error_code=error.errno,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )
