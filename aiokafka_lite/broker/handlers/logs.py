"""Handlers that append batches to logs, look up offsets, and delete records before an offset.

As in Kafka, Produce versions 0 to 2 are advertised and refused: librdkafka derives the broker's
features from them (KAFKA-18659).
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiokafka_lite.broker.handlers.base import (
    RequestContext,
    answered,
    code_of,
    endpoints,
    handler,
    handles_each,
    text_of,
)
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.log.partition_log import TimedOffset, validated_batch
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.broker.log.segment import NO_TIMESTAMP
from aiokafka_lite.broker.topics import NO_LEADER, Partition, Topic
from aiokafka_lite.broker.transactions.coordinator import Verification
from aiokafka_lite.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptRecordException,
    InvalidProducerIdMapping,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaError,
    KafkaProtocolError,
    NoError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    TransactionalIdAuthorizationFailed,
    UnsupportedCodecError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages.fetch import LeaderIdAndEpoch
from aiokafka_lite.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from aiokafka_lite.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.records import BatchHeader, read_header
from aiokafka_lite.structs import TopicPartition

FIRST_WITH_LEADER_HINTS: Final = 10

FIRST_ABORTABLE: Final = 11
FIRST_THAT_ADDS: Final = 12

_ATTRIBUTES_END: Final = 22
_TRANSACTIONAL: Final = 0x10

# Translated to NotEnoughReplicasError, which producers of all versions retry.
_RETRIED: Final = (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)

NO_ACKS: Final = 0
ALL_REPLICAS: Final = -1
LEGAL_ACKS: Final = (ALL_REPLICAS, NO_ACKS, 1)
NO_OFFSET: Final = -1

# The only client that may write to internal topics.
ADMIN_CLIENT_ID: Final = "__admin_client"


@handler(ProduceRequest, advertised_min_version=0)
def produce(
    ctx: RequestContext, request: ProduceRequest
) -> Steps[ProduceResponse | Awaitable[ProduceResponse] | None]:
    """Append one batch to each partition.

    An appended batch is in the page cache, as in Kafka: it survives the process, but not a power
    failure. The response waits until a new topic would survive, too.

    Raises:
        KafkaProtocolError: A partition failed and the client expects no response (acks=0). Closing
            the connection is the only way to report that.
    """
    outcome = _Outcome((yield from why_refused(request)))
    answer = yield from answered(ctx, request, partial(_append, outcome=outcome))
    if request.acks != NO_ACKS:
        answer.node_endpoints = endpoints(ctx, outcome.leaders)
        return answer if outcome.are_topics_kept else _answer_when_kept(ctx, answer)
    if outcome.failed is not None:
        raise KafkaProtocolError(
            f"a Produce request with acks=0 failed with error code {outcome.failed.error_code}: "
            f"{outcome.failed.error_message}"
        )
    return None


@dataclass(slots=True)
class _Outcome:
    """The outcome of a request for all of its partitions."""

    refused: BrokerResponseError | None  # the error of the whole request
    failed: PartitionProduceResponse | None = None  # the first partition with an error
    # The nodes that lead moved partitions, in order.
    leaders: dict[int, None] = field(default_factory=dict)
    are_topics_kept: bool = True


async def _answer_when_kept(ctx: RequestContext, answer: ProduceResponse) -> ProduceResponse:
    await ctx.cluster.disk.settled()
    return answer


def _append(
    ctx: RequestContext,
    request: ProduceRequest,
    data: TopicProduceData,
    item: PartitionProduceData,
    answer: PartitionProduceResponse,
    *,
    outcome: _Outcome,
) -> None:
    acks = request.acks
    try:
        if outcome.refused is not None:
            raise outcome.refused
        if acks not in LEGAL_ACKS:
            raise InvalidRequiredAcksError(f"acks must be one of {LEGAL_ACKS}, not {acks}")
        topic, partition = _find(ctx, data, item.index)
        partition.check_leader(ctx.node.id)
        needed = min(topic.config.min_insync_replicas, len(partition.replicas))
        if acks == ALL_REPLICAS and len(partition.isr) < needed:
            raise NotEnoughReplicasError(
                f"the number of in-sync replicas is {len(partition.isr)}, "
                f"but acks=all requires at least {needed} (min.insync.replicas)"
            )
        now_ms = ctx.cluster.clock()
        header, batch = validated_batch(item.records, ctx.api_version, topic.config, now_ms)
        if header.is_transactional:
            _verify_batch(ctx, request.transactional_id or "", header, partition)
        result = partition.append_batch(
            header, batch, append_time_ms=now_ms if topic.config.is_log_append_time else None
        )
    except KafkaError as error:
        is_codec = isinstance(error, UnsupportedCodecError)
        answer.error_code = CorruptRecordException.errno if is_codec else code_of(error)
        answer.error_message, answer.base_offset = text_of(error), NO_OFFSET
        outcome.failed = outcome.failed or answer
        if isinstance(error, NotLeaderForPartitionError):
            _hint_at_leader(ctx, data, answer, outcome)
        return
    outcome.are_topics_kept = outcome.are_topics_kept and ctx.cluster.catalog.is_kept(topic)
    answer.base_offset = result.base_offset
    answer.log_append_time_ms = result.log_append_time_ms
    answer.log_start_offset = partition.log_start_offset


def why_refused(request: ProduceRequest) -> Steps[BrokerResponseError | None]:
    """Return the error for a whole Produce request, if any."""
    producers = set[tuple[int, int]]()
    for number, header in enumerate(_transactional(request), 1):
        if header is not None:
            producers.add((header.producer_id, header.producer_epoch))
        if not number % ELEMENTS_PER_STEP:
            yield
    if producers and request.transactional_id is None:
        return TransactionalIdAuthorizationFailed(
            "the request has transactional records, but no transactional id"
        )
    if len(producers) > 1:
        return InvalidProducerIdMapping(
            f"the request has transactional records of {len(producers)} producers, "
            f"but only one producer is allowed"
        )
    return None


def _transactional(request: ProduceRequest) -> Iterator[BatchHeader | None]:
    """Yield the headers of transactional batches, and None for each topic and other batch."""
    for data in request.topic_data:
        yield None
        for item in data.partition_data:
            header = None
            view = memoryview(item.records or b"")
            if len(view) > _ATTRIBUTES_END and view[_ATTRIBUTES_END] & _TRANSACTIONAL:
                with suppress(KafkaError):  # validation reports the error
                    header = read_header(view, 0)
            yield header if header is not None and header.is_transactional else None


def _verify_batch(
    ctx: RequestContext, transactional_id: str, header: BatchHeader, partition: Partition
) -> None:
    """Check that a batch is part of its producer's transaction, or add the partition."""
    producers = partition.log.producers
    if producers.has_open_transaction(header.producer_id, header.producer_epoch):
        return
    verification = Verification.of(ctx.api_version, FIRST_ABORTABLE, FIRST_THAT_ADDS)
    adds = verification is Verification.ADDS
    producers.verifying(header, has_epochs=adds)
    error = ctx.cluster.transactions.verify(
        transactional_id,
        ProducerIdentity(header.producer_id, header.producer_epoch),
        TopicPartition(partition.topic, partition.index),
        verification,
    )
    reason = error.message
    if error in _RETRIED or (error is ConcurrentTransactions and not adds):
        error = NotEnoughReplicasError
    if error is not NoError:
        raise error(
            f"producer {header.producer_id} has no open transaction that includes "
            f"{partition.topic}-{partition.index}: {reason}"
        )


def _hint_at_leader(
    ctx: RequestContext,
    data: TopicProduceData,
    answer: PartitionProduceResponse,
    outcome: _Outcome,
) -> None:
    """Add the current leader to the response (KIP-951)."""
    _, partition = _find(ctx, data, answer.index)
    if ctx.api_version >= FIRST_WITH_LEADER_HINTS and partition.leader_id != NO_LEADER:
        answer.current_leader = LeaderIdAndEpoch(
            leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
        )
        outcome.leaders[partition.leader_id] = None


def _find(ctx: RequestContext, data: TopicProduceData, index: int) -> tuple[Topic, Partition]:
    catalog = ctx.cluster.catalog
    partition = catalog.partition(data.name if data.topic_id == ZERO_UUID else data.topic_id, index)
    topic = catalog.topics[partition.topic]
    if topic.is_internal and ctx.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopicError(f"only brokers can write to the internal topic {topic.name}")
    return topic, partition


READ_COMMITTED: Final = 1
FIRST_WITH_LEADER_EPOCHS: Final = 4


class Special(enum.IntEnum):
    """Timestamps of ListOffsets with a meaning of their own."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


# They have no offset without tiered storage.
_NOT_TIERED: Final = (Special.LATEST_TIERED, Special.EARLIEST_PENDING_UPLOAD)

FIRST_VERSIONS: Final[Mapping[int, int]] = {
    Special.LATEST: 1,
    Special.EARLIEST: 1,
    Special.MAX_TIMESTAMP: 7,
    Special.EARLIEST_LOCAL: 8,
    Special.LATEST_TIERED: 9,
    Special.EARLIEST_PENDING_UPLOAD: 11,
}


@handles_each(ListOffsetsRequest)
def list_offset(
    ctx: RequestContext,
    request: ListOffsetsRequest,
    topic: ListOffsetsTopic,
    wanted: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
) -> None:
    partition = ctx.cluster.catalog.partition(topic.name, wanted.partition_index)
    _check_supported(ctx, wanted.timestamp)
    partition.check_leader(ctx.node.id, wanted.current_leader_epoch)
    is_committed = request.isolation_level == READ_COMMITTED
    found = _offset_at(partition, wanted.timestamp, is_committed=is_committed)
    if found is not None:
        answer.offset, answer.timestamp = found
        if ctx.api_version >= FIRST_WITH_LEADER_EPOCHS:
            answer.leader_epoch = partition.log.epochs.epoch_of(found.offset)


def _check_supported(ctx: RequestContext, timestamp: int) -> None:
    first_version = FIRST_VERSIONS.get(timestamp)
    if timestamp < 0 and (first_version is None or ctx.api_version < first_version):
        raise UnsupportedVersionError(
            f"ListOffsets version {ctx.api_version} does not support timestamp {timestamp}"
        )


def _offset_at(partition: Partition, timestamp: int, *, is_committed: bool) -> TimedOffset | None:
    log = partition.log
    end = log.last_stable_offset if is_committed else log.high_watermark
    if timestamp == Special.LATEST:
        return TimedOffset(end, NO_TIMESTAMP)
    if timestamp in (Special.EARLIEST, Special.EARLIEST_LOCAL):
        return TimedOffset(log.log_start_offset, NO_TIMESTAMP)
    if timestamp in _NOT_TIERED:
        return None
    found = (
        log.offset_of_newest()
        if timestamp == Special.MAX_TIMESTAMP
        else log.offset_at_time(timestamp)
    )
    return found if found is not None and found.offset < end else None


@handles_each(OffsetForLeaderEpochRequest)
def offset_for_leader_epoch(
    ctx: RequestContext,
    request: OffsetForLeaderEpochRequest,
    topic: OffsetForLeaderTopic,
    wanted: OffsetForLeaderPartition,
    answer: EpochEndOffset,
) -> None:
    partition = ctx.cluster.catalog.partition(topic.topic, wanted.partition)
    partition.check_leader(ctx.node.id, wanted.current_leader_epoch)
    answer.leader_epoch, answer.end_offset = partition.log.end_of_epoch(wanted.leader_epoch)


TO_HIGH_WATERMARK: Final = -1
NO_LOW_WATERMARK: Final = -1


@handles_each(DeleteRecordsRequest, then=DiskQueue.drained)
def delete_records(
    ctx: RequestContext,
    request: DeleteRecordsRequest,
    asked: DeleteRecordsTopic,
    wanted: DeleteRecordsPartition,
    result: DeleteRecordsPartitionResult,
) -> None:
    name, result.low_watermark = asked.name, NO_LOW_WATERMARK
    partition = ctx.cluster.catalog.partition(name, wanted.partition_index)
    topic = ctx.cluster.known_topic(name)
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
    result.low_watermark = partition.delete_before(offset)
