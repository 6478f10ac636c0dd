"""ListOffsets (key 2), versions 1 to 11.

2 isolation level; 4 leader epochs (KIP-320); 6 flexible; 7 the record with the newest timestamp
(KIP-734); 8 the start of the local log (KIP-405); 9 the end of the tiered log (KIP-1005);
10 a timeout (KIP-1075); 11 the first offset not uploaded yet (KIP-1023).
"""

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
    KafkaError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

READ_COMMITTED: Final = 1
FIRST_WITH_LEADER_EPOCHS: Final = 4


class Special(enum.IntEnum):
    """Timestamps that are none."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


# Without tiered storage: nothing was ever uploaded.
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
def handle(ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Look up an offset in each partition."""
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
    known = ctx.cluster.topic(topic)
    partition = None if known is None else known.partition(wanted.partition_index)
    try:
        if partition is None:
            raise UnknownTopicOrPartitionError(f"there is no {topic}-{wanted.partition_index}")
        _check_supported(ctx, wanted.timestamp)
        partition.check_leader(ctx.node.id, wanted.current_leader_epoch)
        found = _find(partition, wanted.timestamp, is_committed=is_committed)
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


def _find(partition: Partition, timestamp: int, *, is_committed: bool) -> TimedOffset | None:
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
