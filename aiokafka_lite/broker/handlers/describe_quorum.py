"""DescribeQuorum (key 55), versions 0 to 2.

1 times (KIP-836); 2 messages, nodes, directory ids (KIP-853).

The cluster is its own controller, and there is no log of metadata: one voter is described, the
controller that Metadata names, and its log is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import UnknownTopicOrPartitionError
from aiokafka_lite.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0
LEADER_EPOCH: Final = 1
FIRST_WITH_NODES: Final = 2


@handler(DescribeQuorumRequest)
async def handle(ctx: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Describe the quorum of the metadata's log; there is no other."""
    if not request.topics:
        return DescribeQuorumResponse()
    if not _is_known(request.topics):
        return DescribeQuorumResponse(
            topics=[await _unknown(topic) async for topic in in_slices(request.topics)]
        )
    controller = ctx.address_of(ctx.broker.nodes[ctx.broker.controller_id])
    now_ms = ctx.broker.clock()
    voter = ReplicaState(
        replica_id=controller.id, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
    )
    partition = PartitionData(
        leader_id=controller.id, leader_epoch=LEADER_EPOCH, current_voters=[voter]
    )
    listener = Listener(name="CONTROLLER", host=controller.host, port=controller.port)
    node = Node(node_id=controller.id, listeners=[listener])
    return DescribeQuorumResponse(
        topics=[TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=[node] if ctx.api_version >= FIRST_WITH_NODES else [],
    )


def _is_known(topics: Sequence[DescribeQuorumRequest.TopicData]) -> bool:
    wanted = [
        (topic.topic_name, partition.partition_index)
        for topic in topics[:2]
        for partition in topic.partitions[:2]
    ]
    return len(topics) == 1 and wanted == [(METADATA_TOPIC, METADATA_PARTITION)]


async def _unknown(topic: DescribeQuorumRequest.TopicData) -> TopicData:
    return TopicData(
        topic_name=topic.topic_name,
        partitions=[
            PartitionData(
                partition_index=partition.partition_index,
                error_code=UnknownTopicOrPartitionError.errno,
                error_message="This server does not host this topic-partition.",
            )
            async for partition in in_slices(topic.partitions)
        ],
    )
