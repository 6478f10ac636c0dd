"""WriteTxnMarkers (key 27), versions 1 and 2.

2 the version of the transaction (KIP-1228). Coordinators write markers without asking anybody
here; administrators end with this what a lost coordinator left open (KIP-664).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.transactions.machine import ErrorType, Marker, TransactionVersion
from aiokafka_lite.errors import BrokerResponseError
from aiokafka_lite.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from aiokafka_lite.structs import TopicPartition


@handler(WriteTxnMarkersRequest, is_by_element=True)
def handle(ctx: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Write markers to partitions that this node leads."""
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
