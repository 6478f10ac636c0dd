"""DeleteRecords (key 21): move the log start offset (KIP-107).

v2 is flexible.
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
)


class DeleteRecordsPartitionResult(Struct):
    """The new start of one partition."""

    partition_index: int = int32("0+")
    low_watermark: int = int64("0+")
    error_code: int = int16("0+")


class DeleteRecordsTopicResult(Struct):
    """A topic that was deleted from."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult, "0+")


class DeleteRecordsResponse(Response):
    """The new starts of the logs."""

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, "0+")


class DeleteRecordsPartition(Struct):
    """A partition and its new start."""

    partition_index: int = int32("0+")
    offset: int = int64("0+")


class DeleteRecordsTopic(Struct):
    """A topic to delete from."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, "0+")


class DeleteRecordsRequest(Request[DeleteRecordsResponse], key=21, versions="0-2", flexible="2+"):
    """Delete what is before an offset; -1 is the high watermark."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "0+")
    timeout_ms: int = int32("0+")
