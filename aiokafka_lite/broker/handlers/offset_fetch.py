"""OffsetFetch (key 9), versions 1 to 10.

2 null asks for all topics, and errors of the group have a field of their own; 3 throttle time;
5 leader epochs (KIP-320); 6 flexible; 7 require_stable (KIP-447); 8 several groups (KIP-709);
9 member id and epoch (KIP-848); 10 topic ids instead of names.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.offsets.cache import NOTHING_COMMITTED, CommittedOffset
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import NoError, UnknownTopicIdError, UnstableOffsetCommitError
from aiokafka_lite.protocol.messages.committed_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition

FIRST_WITH_GROUP_ERROR = 2
FIRST_WITH_TOPIC_IDS = 10


@handler(OffsetFetchRequest, is_by_element=True)
def handle(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return what groups have committed."""
    return OffsetFetchResponse(
        groups=[_fetch_group(ctx, group, request.require_stable) for group in request.groups]
    )


def _fetch_group(
    ctx: RequestContext, wanted: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    topics: list[OffsetFetchResponseTopics]
    error = ctx.groups.check_fetch(wanted.group_id, wanted.member_id, wanted.member_epoch)
    if error is not NoError and ctx.api_version < FIRST_WITH_GROUP_ERROR:
        topics = [_refused(topic, error) for topic in wanted.topics or ()]
    elif error is not NoError:
        topics = []
    elif wanted.topics is None:
        topics = _everything(ctx, wanted.group_id, require_stable)
    else:
        topics = [
            _fetch_topic(ctx, wanted.group_id, topic, require_stable) for topic in wanted.topics
        ]
    return OffsetFetchResponseGroup(group_id=wanted.group_id, topics=topics, error_code=error.errno)


def _fetch_topic(
    ctx: RequestContext, group_id: str, wanted: OffsetFetchRequestTopics, require_stable: bool
) -> OffsetFetchResponseTopics:
    name = wanted.name
    if ctx.api_version >= FIRST_WITH_TOPIC_IDS:
        topic = ctx.cluster.topic_by_id(wanted.topic_id)
        if topic is None:
            return _refused(wanted, UnknownTopicIdError)
        name = topic.name
    return OffsetFetchResponseTopics(
        name=name,
        topic_id=wanted.topic_id,
        partitions=[
            _unstable(index)
            if require_stable
            and ctx.groups.offsets.is_unstable(group_id, TopicPartition(name, index))
            else _partition(
                index,
                ctx.groups.committed(group_id, TopicPartition(name, index), wanted.topic_id),
            )
            for index in wanted.partition_indexes
        ],
    )


def _unstable(index: int) -> OffsetFetchResponsePartitions:
    """Answer for a partition whose offset a transaction commits that is open yet (KIP-447)."""
    return _partition(index, NOTHING_COMMITTED, UnstableOffsetCommitError)


def _everything(
    ctx: RequestContext, group_id: str, require_stable: bool
) -> list[OffsetFetchResponseTopics]:
    topics = []
    for name, partitions in ctx.groups.offsets.fetch_all(group_id).items():
        topic = ctx.cluster.topic(name)
        if topic is None and ctx.api_version >= FIRST_WITH_TOPIC_IDS:
            continue  # a topic that is gone has no id to go by
        topics.append(
            OffsetFetchResponseTopics(
                name=name,
                topic_id=ZERO_UUID if topic is None else topic.topic_id,
                partitions=[
                    _unstable(index)
                    if require_stable
                    and ctx.groups.offsets.is_unstable(group_id, TopicPartition(name, index))
                    else _partition(index, found)
                    for index, found in partitions.items()
                ],
            )
        )
    return topics


def _partition(
    index: int, committed: CommittedOffset, error: ErrorType = NoError
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error.errno,
    )


def _refused(wanted: OffsetFetchRequestTopics, error: ErrorType) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=wanted.name,
        topic_id=wanted.topic_id,
        partitions=[
            _partition(index, NOTHING_COMMITTED, error) for index in wanted.partition_indexes
        ],
    )
