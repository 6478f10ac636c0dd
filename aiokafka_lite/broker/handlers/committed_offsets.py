"""Handlers that store, return and delete the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.offsets import (
    NOTHING_COMMITTED,
    Committer,
    OffsetCommitEntry,
)
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import answered
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC
from aiokafka_lite.broker.transactions.verification import Verification, verify
from aiokafka_lite.errors import (
    InvalidGroupIdError,
    NoError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from aiokafka_lite.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aiokafka_lite.protocol.messages.group_records import OffsetCommitValue
from aiokafka_lite.protocol.messages.transactions import (
    FIRST_BY_TOPIC_ID,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition

Outcome: TypeAlias = (
    OffsetCommitResponsePartition | TxnOffsetCommitResponsePartition | OffsetDeleteResponsePartition
)

FIRST_COMMIT_BY_TOPIC_ID: Final = 10
FIRST_FETCH_BY_TOPIC_ID: Final = 10
FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND: Final = 9
FIRST_FETCH_WITH_GROUP_ERROR: Final = 2
FIRST_ABORTABLE: Final = 4
FIRST_THAT_ADDS: Final = 5


@handler(OffsetCommitRequest, is_by_element=True)
def offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    is_by_id = ctx.api_version >= FIRST_COMMIT_BY_TOPIC_ID
    resolved = [found for item in request.topics for found in _resolved(ctx, item, is_by_id)]
    offsets = [found for found in resolved if isinstance(found, OffsetCommitEntry)]
    errors = (
        ctx.groups.commit(
            request.group_id,
            offsets,
            Committer(
                request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
            ),
            retention_ms=request.retention_time_ms,
            knows_epochs=ctx.api_version >= FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND,
        )
        if offsets
        else ()
    )
    return answered(ctx, request, _outcomes(resolved, errors))


@handler(TxnOffsetCommitRequest, is_by_element=True)
def txn_offset_commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    is_by_id = ctx.api_version >= FIRST_BY_TOPIC_ID
    resolved = [found for item in request.topics for found in _resolved(ctx, item, is_by_id)]
    offsets = [found for found in resolved if isinstance(found, OffsetCommitEntry)]
    errors = _commit(ctx, request, offsets) if offsets else ()
    return answered(ctx, request, _outcomes(resolved, errors))


def _resolved(
    ctx: RequestContext,
    item: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic,
    is_by_id: bool,
) -> Sequence[OffsetCommitEntry | ErrorType]:
    """Return an entry per partition, or the error of a partition that does not exist."""
    topic = ctx.cluster.topic_by_id(item.topic_id) if is_by_id else ctx.cluster.topic(item.name)
    if topic is None:
        error = UnknownTopicIdError if is_by_id else UnknownTopicOrPartitionError
        return [error] * len(item.partitions)
    # A transactional commit by name is valid for each topic of this name.
    is_transactional = isinstance(item, TxnOffsetCommitRequestTopic)
    topic_id = item.topic_id if is_transactional else topic.topic_id
    return [
        UnknownTopicOrPartitionError
        if topic.partition(partition.partition_index) is None
        else OffsetCommitEntry(
            tp=TopicPartition(topic.name, partition.partition_index),
            topic_id=topic_id,
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata,
        )
        for partition in item.partitions
    ]


def _outcomes(
    resolved: Iterable[OffsetCommitEntry | TopicPartition | ErrorType],
    errors: Iterable[ErrorType],
) -> Callable[..., None]:
    """Return a function for `answered`. `errors` has one for each partition that exists."""
    rest = iter(errors)
    outcomes = (found if isinstance(found, type) else next(rest) for found in resolved)

    def fill(ctx: RequestContext, topic: object, wanted: object, answer: Outcome) -> None:
        answer.error_code = next(outcomes).errno

    return fill


def _commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest, offsets: list[OffsetCommitEntry]
) -> list[ErrorType]:
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    error = _verify(ctx, request, producer)
    if error is not NoError:
        return [error] * len(offsets)
    return ctx.groups.commit_in_transaction(
        request.group_id,
        offsets,
        producer,
        Committer(request.member_id, request.group_instance_id, request.generation_id),
    )


def _verify(
    ctx: RequestContext, request: TxnOffsetCommitRequest, producer: ProducerIdentity
) -> ErrorType:
    """Check that the group's partition is in the transaction, or add it (KIP-890)."""
    if not request.group_id:
        return InvalidGroupIdError
    error = ctx.groups.availability(request.group_id)
    if error is not NoError:
        return error
    tp = TopicPartition(GROUP_METADATA_TOPIC, ctx.groups.partition_for(request.group_id))
    producers = ctx.cluster.partition(*tp).log.producers
    if producers.has_open_transaction(producer.producer_id, producer.epoch):
        return NoError
    verification = Verification.of(ctx.api_version, FIRST_ABORTABLE, FIRST_THAT_ADDS)
    return verify(ctx.cluster.transactions, request.transactional_id, producer, tp, verification)


@handler(OffsetFetchRequest, is_by_element=True)
def offset_fetch(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        groups=[_fetch_group(ctx, group, request.require_stable) for group in request.groups]
    )


def _fetch_group(
    ctx: RequestContext, wanted: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    topics: list[OffsetFetchResponseTopics]
    error = ctx.groups.check_fetch(wanted.group_id, wanted.member_id, wanted.member_epoch)
    if error is not NoError and ctx.api_version < FIRST_FETCH_WITH_GROUP_ERROR:
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
    if ctx.api_version >= FIRST_FETCH_BY_TOPIC_ID:
        topic = ctx.cluster.topic_by_id(wanted.topic_id)
        if topic is None:
            return _refused(wanted, UnknownTopicIdError)
        name = topic.name
    return OffsetFetchResponseTopics(
        name=name,
        topic_id=wanted.topic_id,
        partitions=[
            _committed(ctx, group_id, TopicPartition(name, index), wanted.topic_id, require_stable)
            for index in wanted.partition_indexes
        ],
    )


def _committed(
    ctx: RequestContext, group_id: str, tp: TopicPartition, topic_id: bytes, require_stable: bool
) -> OffsetFetchResponsePartitions:
    """Return an offset, or the error of one that an open transaction commits (KIP-447)."""
    if require_stable and ctx.groups.offsets.is_unstable(group_id, tp):
        return _partition(tp.partition, NOTHING_COMMITTED, UnstableOffsetCommitError)
    return _partition(tp.partition, ctx.groups.offsets.fetch(group_id, tp, topic_id))


def _everything(
    ctx: RequestContext, group_id: str, require_stable: bool
) -> list[OffsetFetchResponseTopics]:
    topics = []
    for name, partitions in ctx.groups.offsets.fetch_all(group_id).items():
        topic = ctx.cluster.topic(name)
        if topic is None and ctx.api_version >= FIRST_FETCH_BY_TOPIC_ID:
            continue  # a deleted topic has no id
        topics.append(
            OffsetFetchResponseTopics(
                name=name,
                topic_id=ZERO_UUID if topic is None else topic.topic_id,
                partitions=[
                    _committed(ctx, group_id, TopicPartition(name, each), ZERO_UUID, require_stable)
                    for each in partitions
                ],
            )
        )
    return topics


def _partition(
    index: int, committed: OffsetCommitValue, error: ErrorType = NoError
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


@handler(OffsetDeleteRequest, is_by_element=True)
def offset_delete(ctx: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    resolved: list[TopicPartition | ErrorType] = []
    for item in request.topics:
        topic = ctx.cluster.topic(item.name)
        resolved += (
            UnknownTopicOrPartitionError
            if topic is None or topic.partition(partition.partition_index) is None
            else TopicPartition(item.name, partition.partition_index)
            for partition in item.partitions
        )
    tps = [found for found in resolved if isinstance(found, TopicPartition)]
    error, errors = ctx.groups.delete_offsets(request.group_id, tps)
    if error is not NoError:
        return OffsetDeleteResponse(error_code=error.errno)
    return answered(ctx, request, _outcomes(resolved, errors))
