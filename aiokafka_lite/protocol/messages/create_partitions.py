"""CreatePartitions (key 37): add partitions to topics (KIP-195).

v2 is flexible; v3 quotas (KIP-599).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    string,
)


class CreatePartitionsTopicResult(Struct):
    """The outcome for one topic."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class CreatePartitionsResponse(Response):
    """The outcome by topic."""

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, "0+")


class CreatePartitionsAssignment(Struct):
    """Replicas of one new partition, chosen by hand."""

    broker_ids: list[int] = array(int32, "0+")


class CreatePartitionsTopic(Struct):
    """A topic and how many partitions it is to have in all."""

    name: str = string("0+")
    count: int = int32("0+")
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, "0+", nullable="0+"
    )


class CreatePartitionsRequest(
    Request[CreatePartitionsResponse], key=37, versions="0-3", flexible="2+"
):
    """Raise the number of partitions of topics."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")
