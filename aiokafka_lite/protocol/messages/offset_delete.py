"""OffsetDelete (key 47): remove some of a group's offsets (KIP-496)."""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    string,
)


class OffsetDeleteResponsePartition(Struct):
    """The outcome for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetDeleteResponseTopic(Struct):
    """A topic that was deleted from."""

    name: str = string("0+")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition, "0+")


class OffsetDeleteResponse(Response):
    """The outcome by partition."""

    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, "0+")


class OffsetDeleteRequestPartition(Struct):
    """A partition to delete."""

    partition_index: int = int32("0+")


class OffsetDeleteRequestTopic(Struct):
    """A topic to delete from."""

    name: str = string("0+")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, "0+")


class OffsetDeleteRequest(Request[OffsetDeleteResponse], key=47, versions="0"):
    """Delete offsets of topics that nobody in the group subscribes to."""

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, "0+")
