"""Handlers that look up offsets in logs, and delete records before an offset."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import partial
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import answered
from aiokafka_lite.broker.log.partition_log import TimedOffset
from aiokafka_lite.broker.log.segment import NO_TIMESTAMP
from aiokafka_lite.broker.slices import run_in_slices
from aiokafka_lite.broker.topics import Partition
from aiokafka_lite.errors import (
    InvalidTopicError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from aiokafka_lite.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from aiokafka_lite.protocol.source import Steps

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


@handler(ListOffsetsRequest)
def list_offsets(ctx: RequestContext, request: ListOffsetsRequest) -> Steps[ListOffsetsResponse]:
    is_committed = request.isolation_level == READ_COMMITTED
    return answered(ctx, request, partial(_look_up, is_committed=is_committed))


def _look_up(
    ctx: RequestContext,
    topic: ListOffsetsTopic,
    wanted: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
    *,
    is_committed: bool,
) -> None:
    partition = ctx.cluster.catalog.partition(topic.name, wanted.partition_index)
    _check_supported(ctx, wanted.timestamp)
    partition.check_leader(ctx.node.id, wanted.current_leader_epoch)
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


@handler(OffsetForLeaderEpochRequest)
def offset_for_leader_epoch(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    return answered(ctx, request, _end_of_epoch)


def _end_of_epoch(
    ctx: RequestContext,
    topic: OffsetForLeaderTopic,
    wanted: OffsetForLeaderPartition,
    answer: EpochEndOffset,
) -> None:
    partition = ctx.cluster.catalog.partition(topic.topic, wanted.partition)
    partition.check_leader(ctx.node.id, wanted.current_leader_epoch)
    answer.leader_epoch, answer.end_offset = partition.log.end_of_epoch(wanted.leader_epoch)


TO_HIGH_WATERMARK: Final = -1
NO_LOW_WATERMARK: Final = -1


@handler(DeleteRecordsRequest)
async def delete_records(
    ctx: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    response = await run_in_slices(answered(ctx, request, _delete))
    await ctx.cluster.disk.drained()
    return response


def _delete(
    ctx: RequestContext,
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
