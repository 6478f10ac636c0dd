"""ConsumerGroupDescribe (key 69): state and members of groups of KIP-848."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, boolean, int8, int16, int32, nested, string, uuid
from aiokafka_lite.protocol.schema import Request, Response, Struct


class TopicPartitions(Struct):
    topic_id: bytes = uuid("0+")  # KIP-516
    topic_name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class Member(Struct):
    member_id: str = string("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+", default=None)
    assignment: Assignment = nested(Assignment, "0+")
    target_assignment: Assignment = nested(Assignment, "0+")
    member_type: int = int8("1+", default=-1, ignorable=True)  # KIP-1099; 0 classic, 1 consumer


class DescribedGroup(Struct):
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)  # KIP-1043
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[Member] = array(Member, "0+")
    authorized_operations: int = int32("0+", default=-(2**31))  # KIP-430


class ConsumerGroupDescribeResponse(Response):
    throttle_time_ms: int = int32("0+")
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")


class ConsumerGroupDescribeRequest(
    Request[ConsumerGroupDescribeResponse],
    key=69,
    versions="0-1",
    flexible="0+",
):
    group_ids: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("0+")  # KIP-430
