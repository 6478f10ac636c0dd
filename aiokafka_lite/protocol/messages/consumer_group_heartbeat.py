"""ConsumerGroupHeartbeat (key 68): the membership protocol of KIP-848."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, int16, int32, nested, string, uuid
from aiokafka_lite.protocol.schema import Request, Response, Struct


class TopicPartitions(Struct):
    topic_id: bytes = uuid("0+")  # KIP-516
    partitions: list[int] = array(int32, "0+")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class ConsumerGroupHeartbeatResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: Assignment | None = nested(Assignment, "0+", nullable="0+", default=None)


class ConsumerGroupHeartbeatRequest(
    Request[ConsumerGroupHeartbeatResponse],
    key=68,
    versions="0-1",
    flexible="0+",
):
    """Join (epoch 0), stay, or leave (epoch -1, static members -2). Null means unchanged.

    From v1 on, the client generates the member id (KIP-1082).
    """

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array(string, "0+", nullable="0+", default=None)
    # KIP-848; RE2 syntax
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, "0+", nullable="0+", default=None
    )
