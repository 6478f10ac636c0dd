"""DeleteRecords (key 21), versions 0 to 2.

2 flexible. Deleting moves a log's start; offsets of what is left do not change.
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of
from aiokafka_lite.errors import (
    InvalidTopicError,
    KafkaError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

TO_HIGH_WATERMARK: Final = -1
NO_LOW_WATERMARK: Final = -1


@handler(DeleteRecordsRequest, is_by_element=True)
async def handle(ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete what lies before the given offsets."""
    results = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[_delete(ctx, topic.name, wanted) for wanted in topic.partitions],
        )
        for topic in request.topics
    ]
    await ctx.cluster.disk.drained()
    return DeleteRecordsResponse(topics=results)


def _delete(
    ctx: RequestContext, topic: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index)
    try:
        result.low_watermark = _low_watermark(ctx, topic, wanted)
    except KafkaError as error:
        result.low_watermark, result.error_code = NO_LOW_WATERMARK, code_of(error)
    return result


def _low_watermark(ctx: RequestContext, name: str, wanted: DeleteRecordsPartition) -> int:
    topic = ctx.cluster.topic(name)
    partition = None if topic is None else topic.partition(wanted.partition_index)
    if topic is None or partition is None:
        raise UnknownTopicOrPartitionError(f"there is no partition {name}-{wanted.partition_index}")
    if topic.is_internal:
        raise InvalidTopicError(f"clients cannot delete records of the internal topic {name}")
    partition.check_leader(ctx.node.id)
    if not topic.config.is_deleted_by_retention:
        raise PolicyViolationError(
            f"records of {name} cannot be deleted, because the topic's cleanup.policy does not "
            "include delete"
        )
    offset = wanted.offset
    if offset == TO_HIGH_WATERMARK:
        offset = partition.high_watermark
    if offset < 0:
        raise OffsetOutOfRangeError(
            f"the offset must be at least 0, or {TO_HIGH_WATERMARK} for the high watermark, "
            f"not {offset}"
        )
    return partition.delete_before(offset)
