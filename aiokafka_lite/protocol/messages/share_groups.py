"""Share groups, for operators: members, and where each partition's records start (KIP-932)."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, boolean, int16, int32, int64, nested, string, uuid
from aiokafka_lite.protocol.messages.consumer_group_describe import Assignment
from aiokafka_lite.protocol.schema import Request, Response, Struct


# --- ShareGroupDescribe (key 77) --------------------------------------------------------------
class Member(Struct):
    member_id: str = string("0+")
    rack_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    assignment: Assignment = nested(Assignment, "0+")


class DescribedGroup(Struct):
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[Member] = array(Member, "0+")
    authorized_operations: int = int32("0+", default=-(2**31))  # KIP-430


class ShareGroupDescribeResponse(Response):
    throttle_time_ms: int = int32("0+")
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")


class ShareGroupDescribeRequest(
    Request[ShareGroupDescribeResponse], key=77, versions="1", flexible="0+"
):
    group_ids: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("0+")  # KIP-430


# --- DescribeShareGroupOffsets (key 90) -------------------------------------------------------
class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = int32("0+")
    start_offset: int = int64("0+")
    leader_epoch: int = int32("0+")
    lag: int = int64("1+", default=-1, ignorable=True)  # KIP-1226
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = string("0+")
    topic_id: bytes = uuid("0+")
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = array(
        DescribeShareGroupOffsetsResponsePartition, "0+"
    )


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = string("0+")
    topics: list[DescribeShareGroupOffsetsResponseTopic] = array(
        DescribeShareGroupOffsetsResponseTopic, "0+"
    )
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Response):
    throttle_time_ms: int = int32("0+")
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array(
        DescribeShareGroupOffsetsResponseGroup, "0+"
    )


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class DescribeShareGroupOffsetsRequestGroup(Struct):
    """A group, and the topics to describe. Null: all that it has."""

    group_id: str = string("0+")
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = array(
        DescribeShareGroupOffsetsRequestTopic, "0+", nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(
    Request[DescribeShareGroupOffsetsResponse], key=90, versions="0-1", flexible="0+"
):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = array(
        DescribeShareGroupOffsetsRequestGroup, "0+"
    )


# --- AlterShareGroupOffsets (key 91) ----------------------------------------------------------
class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = string("0+")
    topic_id: bytes = uuid("0+")
    partitions: list[AlterShareGroupOffsetsResponsePartition] = array(
        AlterShareGroupOffsetsResponsePartition, "0+"
    )


class AlterShareGroupOffsetsResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = array(
        AlterShareGroupOffsetsResponseTopic, "0+"
    )


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: int = int32("0+")
    start_offset: int = int64("0+")


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = string("0+")
    partitions: list[AlterShareGroupOffsetsRequestPartition] = array(
        AlterShareGroupOffsetsRequestPartition, "0+"
    )


class AlterShareGroupOffsetsRequest(
    Request[AlterShareGroupOffsetsResponse], key=91, versions="0", flexible="0+"
):
    """Set where the records of an empty group start."""

    group_id: str = string("0+")
    topics: list[AlterShareGroupOffsetsRequestTopic] = array(
        AlterShareGroupOffsetsRequestTopic, "0+"
    )


# --- DeleteShareGroupOffsets (key 92) ---------------------------------------------------------
class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = string("0+")
    topic_id: bytes = uuid("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = array(
        DeleteShareGroupOffsetsResponseTopic, "0+"
    )


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = string("0+")


class DeleteShareGroupOffsetsRequest(
    Request[DeleteShareGroupOffsetsResponse], key=92, versions="0", flexible="0+"
):
    group_id: str = string("0+")
    topics: list[DeleteShareGroupOffsetsRequestTopic] = array(
        DeleteShareGroupOffsetsRequestTopic, "0+"
    )
