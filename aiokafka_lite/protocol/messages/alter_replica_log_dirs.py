"""AlterReplicaLogDirs (key 34): move replicas between the folders of a broker (KIP-113).

v2 is flexible.
"""

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


class AlterReplicaLogDirPartitionResult(Struct):
    """The outcome for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class AlterReplicaLogDirTopicResult(Struct):
    """The outcome for one topic."""

    topic_name: str = string("0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = array(
        AlterReplicaLogDirPartitionResult, "0+"
    )


class AlterReplicaLogDirsResponse(Response):
    """The outcome by topic."""

    throttle_time_ms: int = int32("0+")
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult, "0+")


class AlterReplicaLogDirTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class AlterReplicaLogDir(Struct):
    """A folder, and what is to move there."""

    path: str = string("0+")
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic, "0+")


class AlterReplicaLogDirsRequest(
    Request[AlterReplicaLogDirsResponse], key=34, versions="1-2", flexible="2+", route=Route.ANY
):
    """Move replicas to folders."""

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir, "0+")
