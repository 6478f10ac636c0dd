"""InitProducerId (key 22), versions 0 to 5.

2 flexible; 3 a producer may say the id and epoch it has (KIP-360); 4 PRODUCER_FENCED;
5 TRANSACTION_ABORTABLE (KIP-890).

Only for idempotent producers: there are no transactions here yet.
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import InvalidRequestError, UnsupportedVersionError
from aiokafka_lite.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

FIRST_EPOCH: Final = 0


@handler(InitProducerIdRequest)
async def handle(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Hand out a producer id that no one had before."""
    if request.transactional_id is not None:
        error = UnsupportedVersionError if request.transactional_id else InvalidRequestError
        return InitProducerIdResponse(error_code=error.errno, producer_epoch=-1)
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return InitProducerIdResponse(error_code=InvalidRequestError.errno, producer_epoch=-1)
    producer_id = ctx.broker.catalog.next_producer_id()
    await ctx.broker.disk.settled()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)
