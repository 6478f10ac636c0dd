"""Handlers that store, return and delete the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.offsets import (
    NOTHING_COMMITTED,
    Committer,
    OffsetCommitEntry,
)
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import answered_with
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.slices import LoopSlices
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC
from aiokafka_lite.broker.transactions.verification import Verification, verify
from aiokafka_lite.errors import (
    BrokerResponseError,
    InvalidGroupIdError,
    NoError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from aiokafka_lite.protocol.messages.coordinator_records import OffsetCommitValue
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aiokafka_lite.protocol.messages.transactions import (
    FIRST_BY_TOPIC_ID,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.structs import TopicPartition

RequestTopic: TypeAlias = (
    OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic | OffsetDeleteRequestTopic
)
EntryT = TypeVar("EntryT", OffsetCommitEntry, TopicPartition)

FIRST_COMMIT_BY_TOPIC_ID: Final = 10
FIRST_FETCH_BY_TOPIC_ID: Final = 10
FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND: Final = 9
FIRST_FETCH_WITH_GROUP_ERROR: Final = 2
FIRST_ABORTABLE: Final = 4
FIRST_THAT_ADDS: Final = 5


@handler(OffsetCommitRequest)
def offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> Steps[OffsetCommitResponse]:
    is_by_id = ctx.api_version >= FIRST_COMMIT_BY_TOPIC_ID
    commit = partial(
        ctx.groups.commit,
        request.group_id,
        committer=Committer(
            request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        ),
        retention_ms=request.retention_time_ms,
        knows_epochs=ctx.api_version >= FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND,
    )
    outcomes = yield from _outcomes(request.topics, partial(_entry, ctx, is_by_id), commit)
    return (yield from answered_with(ctx, request, outcomes))


@handler(TxnOffsetCommitRequest)
def txn_offset_commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest
) -> Steps[TxnOffsetCommitResponse]:
    is_by_id = ctx.api_version >= FIRST_BY_TOPIC_ID
    entry, commit = partial(_entry, ctx, is_by_id), partial(_commit, ctx, request)
    outcomes = yield from _outcomes(request.topics, entry, commit)
    return (yield from answered_with(ctx, request, outcomes))


def _entry(
    ctx: RequestContext,
    is_by_id: bool,
    item: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic,
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
) -> OffsetCommitEntry | ErrorType:
    """Return the entry of a partition, or the error of one that does not exist."""
    topic = ctx.cluster.topic_by_id(item.topic_id) if is_by_id else ctx.cluster.topic(item.name)
    if topic is None:
        return UnknownTopicIdError if is_by_id else UnknownTopicOrPartitionError
    if topic.partition(partition.partition_index) is None:
        return UnknownTopicOrPartitionError
    # A transactional commit by name is valid for each topic of this name.
    is_transactional = isinstance(item, TxnOffsetCommitRequestTopic)
    return OffsetCommitEntry(
        tp=TopicPartition(topic.name, partition.partition_index),
        topic_id=item.topic_id if is_transactional else topic.topic_id,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata,
    )


def _outcomes(
    topics: Sequence[RequestTopic],
    resolve: Callable[..., EntryT | ErrorType],
    change: Callable[[list[EntryT]], Sequence[ErrorType]],
) -> Steps[list[ErrorType]]:
    """Change offsets of existing partitions, and return an error type per partition.

    A partition is resolved in the step that changes its offset.
    """
    slices, outcomes = LoopSlices(), list[ErrorType]()
    part: list[tuple[RequestTopic, object]] = []

    def change_part() -> None:
        resolved = [resolve(topic, partition) for topic, partition in part]
        entries = [found for found in resolved if not isinstance(found, type)]
        errors = iter(change(entries) if entries else ())
        outcomes.extend(found if isinstance(found, type) else next(errors) for found in resolved)
        part.clear()

    for topic in topics:
        if slices.is_over:
            yield from slices.pause()
        for partition in topic.partitions:
            if len(part) == ELEMENTS_PER_STEP:
                change_part()
                yield
            part.append((topic, partition))
    change_part()
    return outcomes


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


@handler(OffsetFetchRequest)
def offset_fetch(ctx: RequestContext, request: OffsetFetchRequest) -> Steps[OffsetFetchResponse]:
    slices, response = LoopSlices(), OffsetFetchResponse()
    for wanted in request.groups:
        if slices.is_over:
            yield from slices.pause()
        group = OffsetFetchResponseGroup(group_id=wanted.group_id)
        response.groups.append(group)
        yield from _fetch_group(ctx, wanted, group, request.require_stable, slices)
    return response


def _fetch_group(
    ctx: RequestContext,
    wanted: OffsetFetchRequestGroup,
    group: OffsetFetchResponseGroup,
    require_stable: bool,
    slices: LoopSlices,
) -> Steps[None]:
    """Add the offsets of a group. Between two steps, the coordinator may lose them."""
    check = partial(ctx.groups.check_fetch, wanted.group_id, wanted.member_id, wanted.member_epoch)
    error = check()
    group.error_code = error.errno
    if error is NoError and wanted.topics is None:
        group.topics = _everything(ctx, wanted.group_id, require_stable)
    for each in wanted.topics or ():
        topic = OffsetFetchResponseTopics(name=each.name, topic_id=each.topic_id)
        group.topics.append(topic)
        for start in range(0, max(len(each.partition_indexes), 1), ELEMENTS_PER_STEP):
            if slices.is_over:
                yield from slices.pause()
                error = check()
                group.error_code = error.errno
            if error is not NoError and ctx.api_version >= FIRST_FETCH_WITH_GROUP_ERROR:
                group.topics = []
                return
            part = each.partition_indexes[start : start + ELEMENTS_PER_STEP]
            _fetch(ctx, wanted.group_id, topic, part, error, require_stable)


def _fetch(
    ctx: RequestContext,
    group_id: str,
    topic: OffsetFetchResponseTopics,
    indexes: Sequence[int],
    error: ErrorType,
    require_stable: bool,
) -> None:
    """Add the offsets of partitions to a topic."""
    if error is NoError and ctx.api_version >= FIRST_FETCH_BY_TOPIC_ID:
        known = ctx.cluster.topic_by_id(topic.topic_id)
        if known is None:
            error = UnknownTopicIdError
        else:
            topic.name = known.name
    for index in indexes:
        tp = TopicPartition(topic.name, index)
        topic.partitions.append(
            _committed(ctx, group_id, tp, topic.topic_id, require_stable)
            if error is NoError
            else _partition(index, NOTHING_COMMITTED, error)
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


@handler(OffsetDeleteRequest)
def offset_delete(ctx: RequestContext, request: OffsetDeleteRequest) -> Steps[OffsetDeleteResponse]:
    def existing(
        item: OffsetDeleteRequestTopic, partition: OffsetDeleteRequestPartition
    ) -> TopicPartition | ErrorType:
        topic = ctx.cluster.topic(item.name)
        if topic is None or topic.partition(partition.partition_index) is None:
            return UnknownTopicOrPartitionError
        return TopicPartition(item.name, partition.partition_index)

    def delete(tps: Sequence[TopicPartition]) -> Sequence[ErrorType]:
        error, errors = ctx.groups.delete_offsets(request.group_id, tps)
        if error is not NoError:
            raise error
        return errors

    try:
        delete(())  # also without existing partitions, the group's error counts
        outcomes = yield from _outcomes(request.topics, existing, delete)
    except BrokerResponseError as error:
        return OffsetDeleteResponse(error_code=error.errno)
    return (yield from answered_with(ctx, request, outcomes))
