"""DescribeProducers (key 61): who writes to a partition, and in which transaction (KIP-664)."""

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


class ProducerState(Struct):
    """A producer, and where its open transaction starts: -1 without one."""

    producer_id: int = int64("0+")
    producer_epoch: int = int32("0+")
    last_sequence: int = int32("0+", default=-1)
    last_timestamp: int = int64("0+", default=-1)
    coordinator_epoch: int = int32("0+")
    current_txn_start_offset: int = int64("0+", default=-1)


class PartitionResponse(Struct):
    """The producers of a partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState, "0+")


class TopicResponse(Struct):
    """The partitions of a topic."""

    name: str = string("0+")
    partitions: list[PartitionResponse] = array(PartitionResponse, "0+")


class DescribeProducersResponse(Response):
    """The producers by partition."""

    throttle_time_ms: int = int32("0+")
    topics: list[TopicResponse] = array(TopicResponse, "0+")


class TopicRequest(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


class DescribeProducersRequest(
    Request[DescribeProducersResponse], key=61, versions="0", flexible="0+"
):
    """Ask the leaders of partitions who writes to them."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
