"""AlterReplicaLogDirs (key 34), versions 1 to 2.

2 flexible. A node has one folder: a replica that is to be there is there already.
"""

from __future__ import annotations

from aiokafka_lite.broker.configs.broker_defs import log_dir
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import LogDirNotFound, NoError, ReplicaNotAvailableError
from aiokafka_lite.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


@handler(AlterReplicaLogDirsRequest)
async def handle(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Say of each replica whether it is where it is to be."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    async for folder in in_slices(request.dirs):
        async for topic in in_slices(folder.topics):
            result = results.setdefault(topic.name, [])
            async for index in in_slices(topic.partitions):
                code = _error_code(ctx, folder.path, topic.name, index)
                result.append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            async for name, partitions in in_slices(results.items())
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
