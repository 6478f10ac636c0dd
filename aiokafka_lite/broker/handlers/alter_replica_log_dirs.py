"""AlterReplicaLogDirs (key 34), versions 1 to 2.

2 flexible. A node has one folder: a replica that is to be there is there already.
"""

from __future__ import annotations

from aiokafka_lite.broker.configs.broker_defs import log_dir
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import LogDirNotFound, NoError, ReplicaNotAvailableError
from aiokafka_lite.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


@handler(AlterReplicaLogDirsRequest)
def handle(ctx: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """Say of each replica whether it is where it is to be."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            results.setdefault(topic.name, []).extend(
                AlterReplicaLogDirPartitionResult(
                    partition_index=index,
                    error_code=_error_code(ctx, folder.path, topic.name, index),
                )
                for index in topic.partitions
            )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in results.items()
        ]
    )


def _error_code(ctx: RequestContext, path: str, name: str, index: int) -> int:
    if path != log_dir(ctx.broker.config.data_dir):
        return LogDirNotFound.errno
    topic = ctx.broker.topic(name)
    partition = None if topic is None else topic.partition(index)
    if partition is None or ctx.node.id not in partition.replicas:
        return ReplicaNotAvailableError.errno
    return NoError.errno
