"""DescribeLogDirs (key 35), versions 1 to 5.

2 flexible; 3 an error of the whole; 4 the volume's size (KIP-827); 5 cordoned folders (KIP-1066).

A node has one folder, the cluster's, in which it finds the partitions that it has a replica of.
Logs in memory lie in a folder called "memory", whose volume has no size.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

from aiokafka_lite.broker.configs.broker_defs import log_dir
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.broker.topics import Partition
from aiokafka_lite.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handler(DescribeLogDirsRequest)
async def handle(ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Tell how large the node's replicas are."""
    topics: dict[str, list[Partition]] = {}
    async for partition in _partitions(ctx, request):
        if ctx.node.id in partition.replicas:
            topics.setdefault(partition.topic, []).append(partition)
    result = DescribeLogDirsResult(
        log_dir=log_dir(ctx.broker.config.data_dir),
        topics=[
            DescribeLogDirsTopic(
                name=name, partitions=[_told(ctx, partition) for partition in partitions]
            )
            async for name, partitions in in_slices(topics.items())
        ],
    )
    data_dir = ctx.broker.config.data_dir
    if data_dir is not None:
        usage = await ctx.broker.loop.run_in_executor(None, shutil.disk_usage, data_dir)
        result.total_bytes, result.usable_bytes = usage.total, usage.free
    return DescribeLogDirsResponse(results=[result])


async def _partitions(
    ctx: RequestContext, request: DescribeLogDirsRequest
) -> AsyncIterator[Partition]:
    """Yield the partitions asked for that there are."""
    if request.topics is None:
        async for topic in in_slices(tuple(ctx.broker.topics.values())):
            for partition in topic.partitions:
                yield partition
        return
    wanted: dict[tuple[str, int], None] = {}
    async for asked in in_slices(request.topics):
        async for index in in_slices(asked.partitions):
            wanted[asked.topic, index] = None
    async for name, index in in_slices(wanted):
        known = ctx.broker.topic(name)
        found = None if known is None else known.partition(index)
        if found is not None:
            yield found


def _told(ctx: RequestContext, partition: Partition) -> DescribeLogDirsPartition:
    held_at = partition.held.get(ctx.node.id)
    lag = 0 if held_at is None else max(partition.high_watermark - held_at, 0)
    return DescribeLogDirsPartition(
        partition_index=partition.index, partition_size=partition.log.size, offset_lag=lag
    )
