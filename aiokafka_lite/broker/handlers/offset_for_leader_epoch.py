"""OffsetForLeaderEpoch (key 23), versions 2 to 4.

3 replica id; 4 flexible. A consumer asks for the end of the epoch it read last, to find out
whether the log was truncated after it (KIP-320).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of
from aiokafka_lite.errors import KafkaError, UnknownTopicOrPartitionError
from aiokafka_lite.protocol.messages.log_offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@handler(OffsetForLeaderEpochRequest, is_by_element=True)
def handle(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Say where leader epochs ended."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_of_epoch(ctx, topic.topic, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_of_epoch(
    ctx: RequestContext, topic: str, wanted: OffsetForLeaderPartition
) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition)
    known = ctx.cluster.topic(topic)
    partition = None if known is None else known.partition(wanted.partition)
    try:
        if partition is None:
            raise UnknownTopicOrPartitionError(f"there is no {topic}-{wanted.partition}")
        partition.check_leader(ctx.node.id, wanted.current_leader_epoch)
    except KafkaError as error:
        answer.error_code = code_of(error)
        return answer
    answer.leader_epoch, answer.end_offset = partition.end_of_epoch(wanted.leader_epoch)
    return answer
