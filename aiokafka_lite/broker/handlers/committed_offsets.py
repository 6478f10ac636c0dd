"""Handlers that store, return and delete the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

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
from aiokafka_lite.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
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
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.structs import TopicPartition

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
    outcomes = yield from _outcomes(_resolved(ctx, request.topics, is_by_id), commit)
    return (yield from answered_with(ctx, request, outcomes))


@handler(TxnOffsetCommitRequest)
def txn_offset_commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest
) -> Steps[TxnOffsetCommitResponse]:
    is_by_id = ctx.api_version >= FIRST_BY_TOPIC_ID
    resolved = _resolved(ctx, request.topics, is_by_id)
    outcomes = yield from _outcomes(resolved, partial(_commit, ctx, request))
    return (yield from answered_with(ctx, request, outcomes))


def _resolved(
    ctx: RequestContext,
    topics: Sequence[OffsetCommitRequestTopic] | Sequence[TxnOffsetCommitRequestTopic],
    is_by_id: bool,
) -> Iterator[OffsetCommitEntry | ErrorType]:
    """Yield an entry per partition, or the error of a partition that does not exist."""
    for item in topics:
        topic = ctx.cluster.topic_by_id(item.topic_id) if is_by_id else ctx.cluster.topic(item.name)
        # A transactional commit by name is valid for each topic of this name.
        is_transactional = isinstance(item, TxnOffsetCommitRequestTopic)
        for partition in item.partitions:
            if topic is None:
                yield UnknownTopicIdError if is_by_id else UnknownTopicOrPartitionError
            elif topic.partition(partition.partition_index) is None:
                yield UnknownTopicOrPartitionError
            else:
                yield OffsetCommitEntry(
                    tp=TopicPartition(topic.name, partition.partition_index),
                    topic_id=item.topic_id if is_transactional else topic.topic_id,
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata,
                )


def _outcomes(
    resolved: Iterator[EntryT | ErrorType], change: Callable[[list[EntryT]], Sequence[ErrorType]]
) -> Steps[list[ErrorType]]:
    """Change offsets of existing partitions, and return an error type per partition."""
    outcomes: list[ErrorType] = []
    while part := list(islice(resolved, ELEMENTS_PER_STEP)):
        if outcomes:
            yield
        entries = [found for found in part if not isinstance(found, type)]
        errors = iter(change(entries) if entries else ())
        outcomes += (found if isinstance(found, type) else next(errors) for found in part)
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
        error = ctx.groups.check_fetch(wanted.group_id, wanted.member_id, wanted.member_epoch)
        group = OffsetFetchResponseGroup(group_id=wanted.group_id, error_code=error.errno)
        response.groups.append(group)
        if slices.is_over:
            yield from slices.pause()
        if wanted.topics is None and error is NoError:
            group.topics = _everything(ctx, wanted.group_id, request.require_stable)
        elif error is NoError or ctx.api_version < FIRST_FETCH_WITH_GROUP_ERROR:
            for each in wanted.topics or ():
                topic, found = _fetch_topic(ctx, wanted, each, error, request.require_stable)
                group.topics.append(topic)
                for partition in found:
                    topic.partitions.append(partition)
                    if slices.is_over:
                        yield from slices.pause()
    return response


def _fetch_topic(
    ctx: RequestContext,
    group: OffsetFetchRequestGroup,
    wanted: OffsetFetchRequestTopics,
    error: ErrorType,
    require_stable: bool,
) -> tuple[OffsetFetchResponseTopics, Iterator[OffsetFetchResponsePartitions]]:
    """Return a topic, and the partitions to be added to it."""
    name, topic_id = wanted.name, wanted.topic_id
    if error is NoError and ctx.api_version >= FIRST_FETCH_BY_TOPIC_ID:
        known = ctx.cluster.topic_by_id(topic_id)
        if known is None:
            error = UnknownTopicIdError
        else:
            name = known.name
    topic = OffsetFetchResponseTopics(name=name, topic_id=topic_id)
    if error is not NoError:
        return topic, (
            _partition(index, NOTHING_COMMITTED, error) for index in wanted.partition_indexes
        )
    return topic, (
        _committed(ctx, group.group_id, TopicPartition(name, index), topic_id, require_stable)
        for index in wanted.partition_indexes
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
    def existing() -> Iterator[TopicPartition | ErrorType]:
        for item in request.topics:
            topic = ctx.cluster.topic(item.name)
            for partition in item.partitions:
                if topic is None or topic.partition(partition.partition_index) is None:
                    yield UnknownTopicOrPartitionError
                else:
                    yield TopicPartition(item.name, partition.partition_index)

    def delete(tps: Sequence[TopicPartition]) -> Sequence[ErrorType]:
        error, errors = ctx.groups.delete_offsets(request.group_id, tps)
        if error is not NoError:
            raise error
        return errors

    try:
        delete(())  # also without existing partitions, the group's error counts
        outcomes = yield from _outcomes(existing(), delete)
    except BrokerResponseError as error:
        return OffsetDeleteResponse(error_code=error.errno)
    return (yield from answered_with(ctx, request, outcomes))
