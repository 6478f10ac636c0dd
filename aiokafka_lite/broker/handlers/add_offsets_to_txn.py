"""AddOffsetsToTxn (key 25), versions 0 to 4.

2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC
from aiokafka_lite.broker.transactions.machine import TransactionVersion
from aiokafka_lite.errors import InvalidProducerEpoch, KafkaStorageError, ProducerFencedError
from aiokafka_lite.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from aiokafka_lite.structs import TopicPartition

FIRST_WITH_FENCED: Final = 2


@handler(AddOffsetsToTxnRequest)
async def handle(ctx: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """Add the partition that a group's offsets go to."""
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
    if error is ProducerFencedError and ctx.api_version < FIRST_WITH_FENCED:
        error = InvalidProducerEpoch
    return AddOffsetsToTxnResponse(error_code=error.errno)
