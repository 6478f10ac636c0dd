"""Handlers that look up offsets in logs, and delete records before an offset."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of
from aiokafka_lite.broker.log.partition_log import TimedOffset
from aiokafka_lite.broker.log.segment import NO_TIMESTAMP
from aiokafka_lite.broker.topics import Partition
from aiokafka_lite.errors import (
    InvalidTopicError,
    KafkaError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages.log_offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from aiokafka_lite.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

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


@handler(ListOffsetsRequest, is_by_element=True)
def list_offsets(ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    is_committed = request.isolation_level == READ_COMMITTED
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _look_up(ctx, topic.name, wanted, is_committed=is_committed)
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _look_up(
    ctx: RequestContext, topic: str, wanted: ListOffsetsPartition, *, is_committed: bool
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    try:
        partition = ctx.cluster.catalog.partition(topic, wanted.partition_index)
        _check_supported(ctx, wanted.timestamp)
        partition.check_leader(ctx.node.id, wanted.current_leader_epoch)
        found = _offset_at(partition, wanted.timestamp, is_committed=is_committed)
    except KafkaError as error:
        answer.error_code = code_of(error)
        return answer
    if found is not None:
        answer.offset, answer.timestamp = found
        if ctx.api_version >= FIRST_WITH_LEADER_EPOCHS:
            answer.leader_epoch = partition.log.epochs.epoch_of(found.offset)
    return answer


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


@handler(OffsetForLeaderEpochRequest, is_by_element=True)
def offset_for_leader_epoch(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
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
    try:
        partition = ctx.cluster.catalog.partition(topic, wanted.partition)
        partition.check_leader(ctx.node.id, wanted.current_leader_epoch)
    except KafkaError as error:
        answer.error_code = code_of(error)
        return answer
    answer.leader_epoch, answer.end_offset = partition.log.end_of_epoch(wanted.leader_epoch)
    return answer


TO_HIGH_WATERMARK: Final = -1
NO_LOW_WATERMARK: Final = -1


@handler(DeleteRecordsRequest, is_by_element=True)
async def delete_records(
    ctx: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
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
    return partition.delete_before(offset)
