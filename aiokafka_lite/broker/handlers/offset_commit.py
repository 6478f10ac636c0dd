"""OffsetCommit (key 8), versions 2 to 10.

2 a retention time, gone with 5; 3 throttle time; 6 leader epochs (KIP-320); 7 static members
(KIP-345); 8 flexible; 9 a member of an unknown group gets GROUP_ID_NOT_FOUND instead of
ILLEGAL_GENERATION (KIP-848); 10 topic ids instead of names.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.offsets.cache import OffsetCommitEntry
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.topics import Topic
from aiokafka_lite.errors import (
    GroupIdNotFound,
    IllegalGenerationError,
    NoError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from aiokafka_lite.structs import TopicPartition

FIRST_WITH_GROUP_ID_NOT_FOUND = 9
FIRST_WITH_TOPIC_IDS = 10


@handler(OffsetCommitRequest, is_by_element=True)
def handle(ctx: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Store what a group has consumed."""
    offsets: list[OffsetCommitEntry] = []
    # Answers in the order of the request; those of `offsets` are filled in afterwards.
    accepted: list[OffsetCommitResponsePartition] = []
    response = OffsetCommitResponse()
    for item in request.topics:
        answer = OffsetCommitResponseTopic(name=item.name, topic_id=item.topic_id)
        response.topics.append(answer)
        topic, error = _find(ctx, item)
        for partition in item.partitions:
            index = partition.partition_index
            result = OffsetCommitResponsePartition(partition_index=index, error_code=error.errno)
            answer.partitions.append(result)
            if topic is None:
                continue
            if topic.partition(index) is None:
                result.error_code = UnknownTopicOrPartitionError.errno
                continue
            accepted.append(result)
            offsets.append(
                OffsetCommitEntry(
                    tp=TopicPartition(topic.name, index),
                    topic_id=topic.topic_id,
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata,
                )
            )
    if not offsets:
        return response
    errors = ctx.groups.commit(
        request.group_id,
        offsets,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        retention_ms=request.retention_time_ms,
        unknown_group=(
            GroupIdNotFound
            if ctx.api_version >= FIRST_WITH_GROUP_ID_NOT_FOUND
            else IllegalGenerationError
        ),
        knows_epochs=ctx.api_version >= FIRST_WITH_GROUP_ID_NOT_FOUND,
    )
    for result, commit_error in zip(accepted, errors, strict=True):
        result.error_code = commit_error.errno
    return response


def _find(ctx: RequestContext, item: OffsetCommitRequestTopic) -> tuple[Topic | None, ErrorType]:
    if ctx.api_version >= FIRST_WITH_TOPIC_IDS:
        topic = ctx.cluster.topic_by_id(item.topic_id)
        return topic, NoError if topic else UnknownTopicIdError
    topic = ctx.cluster.topic(item.name)
    return topic, NoError if topic else UnknownTopicOrPartitionError
