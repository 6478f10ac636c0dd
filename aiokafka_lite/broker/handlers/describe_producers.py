"""DescribeProducers (key 61), version 0 (KIP-664)."""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import BrokerResponseError
from aiokafka_lite.protocol.messages.describe_transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from aiokafka_lite.structs import TopicPartition


@handler(DescribeProducersRequest, is_by_element=True)
def handle(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """Say who writes to partitions that this node leads."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _describe(ctx, TopicPartition(topic.name, index))
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe(ctx: RequestContext, tp: TopicPartition) -> PartitionResponse:
    try:
        partition = ctx.cluster.partition(*tp)
        partition.check_leader(ctx.node.id)
    except BrokerResponseError as error:
        return PartitionResponse(partition_index=tp.partition, error_code=error.errno)
    return PartitionResponse(
        partition_index=tp.partition,
        active_producers=[
            ProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.transaction_start_offset,
            )
            for each in partition.log.producers.describe()
        ],
    )
