"""OffsetCommit (key 8): store a group's positions.

v5 drops the retention time; v6 leader epochs (KIP-320); v7 static members (KIP-345); v8 is
flexible; v9 also for groups of KIP-848; v10 names topics by id (KIP-848).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import override
from aiokafka_lite.protocol.schema import (
    ZERO_UUID,
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
    uuid,
)

_FIRST_WITHOUT_NAMES: Final = 10


class OffsetCommitResponsePartition(Struct):
    """The outcome for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetCommitResponseTopic(Struct):
    """A topic by name, from v10 on by id."""

    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)  # KIP-516
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition, "0+")


class OffsetCommitResponse(Response):
    """The outcome by partition."""

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, "0+")


class OffsetCommitRequestPartition(Struct):
    """The position in one partition."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)  # KIP-320
    committed_metadata: str | None = string("0+", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    """A topic by name, from v10 on by id."""

    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)  # KIP-516
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition, "0+")


class OffsetCommitRequest(Request[OffsetCommitResponse], key=8, versions="2-10", flexible="8+"):
    """Store positions, if the member is of this generation."""

    group_id: str = string("0+")
    generation_id_or_member_epoch: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("1+", ignorable=True)
    group_instance_id: str | None = string("7+", nullable="7+", default=None)  # KIP-345
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, "0+")

    @property
    @override
    def usable_max_version(self) -> int:
        if any(topic.topic_id == ZERO_UUID for topic in self.topics):
            return _FIRST_WITHOUT_NAMES - 1
        return self.max_version
