"""WriteTxnMarkers (key 27): end transactions in partitions; from coordinators and administrators.

v1 is flexible; v2 the version of the transaction, which decides what epochs are right (KIP-1228).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
)


class WritableTxnMarkerPartitionResult(Struct):
    """The outcome for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class WritableTxnMarkerTopicResult(Struct):
    """The outcomes for one topic."""

    name: str = string("0+")
    partitions: list[WritableTxnMarkerPartitionResult] = array(
        WritableTxnMarkerPartitionResult, "0+"
    )


class WritableTxnMarkerResult(Struct):
    """The outcomes for one producer."""

    producer_id: int = int64("0+")
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, "0+")


class WriteTxnMarkersResponse(Response):
    """The outcomes by marker."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, "0+")


class WritableTxnMarkerTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


class WritableTxnMarker(Struct):
    """The end of one producer's transaction; a result of true commits it."""

    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    transaction_result: bool = boolean("0+")
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, "0+")
    coordinator_epoch: int = int32("0+")
    transaction_version: int = int8("2+", default=0, ignorable=True)  # KIP-1228


class WriteTxnMarkersRequest(
    Request[WriteTxnMarkersResponse], key=27, versions="1-2", flexible="1+"
):
    """Write markers to partitions that the broker leads."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "0+")
