"""TxnOffsetCommit (key 28): commit a group's offsets within a transaction (KIP-98).

v2 leader epochs (KIP-320); v3 is flexible and fences members (KIP-447); v4 abortable errors, v5
also adds the group to the transaction (KIP-890); v6 names topics by id (KIP-1319).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import override
from aiokafka_lite.protocol.schema import (
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

_FIRST_TO_ADD_GROUP: Final = 5  # to the transaction, in transactions of version 2 (KIP-890)
FIRST_BY_TOPIC_ID: Final = 6


class TxnOffsetCommitResponsePartition(Struct):
    """The outcome for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class TxnOffsetCommitResponseTopic(Struct):
    """A topic that was committed: by name, from v6 on by id."""

    name: str = string("0-5", ignorable=True)
    topic_id: bytes = uuid("6+", ignorable=True)  # KIP-1319
    partitions: list[TxnOffsetCommitResponsePartition] = array(
        TxnOffsetCommitResponsePartition, "0+"
    )


class TxnOffsetCommitResponse(Response):
    """The outcome by partition."""

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, "0+")


class TxnOffsetCommitRequestPartition(Struct):
    """The position in one partition."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)  # KIP-320
    committed_metadata: str | None = string("0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """A topic to commit: by name, from v6 on by id."""

    name: str = string("0-5", ignorable=True)
    topic_id: bytes = uuid("6+", ignorable=True)  # KIP-1319
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, "0+")


class TxnOffsetCommitRequest(
    Request[TxnOffsetCommitResponse], key=28, versions="0-6", flexible="3+"
):
    """Store positions that count once the transaction commits."""

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id: int = int32("3+", default=-1)  # KIP-447
    member_id: str = string("3+")  # KIP-447
    group_instance_id: str | None = string("3+", nullable="3+", default=None)  # KIP-345
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, "0+")

    @property
    @override
    def usable_max_version(self) -> int:
        return _FIRST_TO_ADD_GROUP - 1
