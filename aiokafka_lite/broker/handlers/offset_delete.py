"""OffsetDelete (key 47), version 0 (KIP-496)."""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import NoError, UnknownTopicOrPartitionError
from aiokafka_lite.protocol.messages.committed_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from aiokafka_lite.structs import TopicPartition


@handler(OffsetDeleteRequest, is_by_element=True)
def handle(ctx: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Forget committed offsets of topics that the group does not consume."""
    tps: list[TopicPartition] = []
    accepted: list[OffsetDeleteResponsePartition] = []
    topics = []
    for item in request.topics:
        topic = ctx.cluster.topic(item.name)
        answer = OffsetDeleteResponseTopic(name=item.name)
        topics.append(answer)
        for partition in item.partitions:
            result = OffsetDeleteResponsePartition(partition_index=partition.partition_index)
            answer.partitions.append(result)
            if topic is None or topic.partition(partition.partition_index) is None:
                result.error_code = UnknownTopicOrPartitionError.errno
            else:
                accepted.append(result)
                tps.append(TopicPartition(item.name, partition.partition_index))
    error, errors = ctx.groups.removal.delete(request.group_id, tps)
    if error is not NoError:
        return OffsetDeleteResponse(error_code=error.errno)
    for result, delete_error in zip(accepted, errors, strict=True):
        result.error_code = delete_error.errno
    return OffsetDeleteResponse(topics=topics)
