"""ListPartitionReassignments (key 46): which partitions are being moved (KIP-455)."""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Route,
    Struct,
    array,
    int16,
    int32,
    string,
)


class OngoingPartitionReassignment(Struct):
    """A move: replicas as they are, and those that come and go."""

    partition_index: int = int32("0+")
    replicas: list[int] = array(int32, "0+")
    adding_replicas: list[int] = array(int32, "0+")
    removing_replicas: list[int] = array(int32, "0+")


class OngoingTopicReassignment(Struct):
    """Moves within one topic."""

    name: str = string("0+")
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment, "0+")


class ListPartitionReassignmentsResponse(Response):
    """Moves by topic."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment, "0+")


class ListPartitionReassignmentsTopics(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


class ListPartitionReassignmentsRequest(
    Request[ListPartitionReassignmentsResponse],
    key=46,
    versions="0",
    flexible="0+",
    route=Route.CONTROLLER,
):
    """Which of these partitions are being moved? Null asks for all."""

    timeout_ms: int = int32("0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, "0+", nullable="0+", default=None
    )
