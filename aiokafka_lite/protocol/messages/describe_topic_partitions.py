"""DescribeTopicPartitions (key 75): topics, a page of partitions at a time (KIP-966)."""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    nested,
    string,
    uuid,
)


class DescribeTopicPartitionsResponsePartition(Struct):
    """A partition, its leader and its replicas."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1, ignorable=True)
    replica_nodes: list[int] = array(int32, "0+")
    isr_nodes: list[int] = array(int32, "0+")
    eligible_leader_replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None)
    last_known_elr: list[int] | None = array(int32, "0+", nullable="0+", default=None)
    offline_replicas: list[int] = array(int32, "0+", ignorable=True)


class DescribeTopicPartitionsResponseTopic(Struct):
    """A topic, or the part of it that fits the page."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="0+")
    topic_id: bytes = uuid("0+", ignorable=True)
    is_internal: bool = boolean("0+", ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition, "0+"
    )
    topic_authorized_operations: int = int32("0+", default=-(2**31))


class Cursor(Struct):
    """Where a page starts."""

    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsResponse(Response):
    """One page, and where the next one starts: null when there is none."""

    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(
        DescribeTopicPartitionsResponseTopic, "0+"
    )
    next_cursor: Cursor | None = nested(Cursor, "0+", nullable="0+", default=None)


class TopicRequest(Struct):
    """A topic by name."""

    name: str = string("0+")


class DescribeTopicPartitionsRequest(
    Request[DescribeTopicPartitionsResponse], key=75, versions="0", flexible="0+"
):
    """Describe topics from the cursor on; an empty list means all."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
    response_partition_limit: int = int32("0+", default=2000)
    cursor: Cursor | None = nested(Cursor, "0+", nullable="0+", default=None)
