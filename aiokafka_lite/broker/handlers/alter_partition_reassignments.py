"""AlterPartitionReassignments (key 45), versions 0 to 1.

1 the number of replicas may be kept from changing (KIP-860).

All replicas are views of one log, so a partition is at its new nodes at once: no reassignment is
ever under way, and there is none to be cancelled.

Reference: org.apache.kafka.controller.ReplicationControlManager.alterPartitionReassignments.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.create_topics import check_replicas
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.errors import (
    InvalidReplicationFactorError,
    KafkaError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from aiokafka_lite.structs import TopicPartition


@handler(AlterPartitionReassignmentsRequest, is_by_element=True)
async def handle(
    ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Place partitions on other nodes."""
    may_resize = request.allow_replication_factor_change
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                _outcome(ctx, topic.name, wanted, may_resize=may_resize)
                for wanted in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    await ctx.broker.disk.settled()
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_resize, error_message=None, responses=responses
    )


def _outcome(
    ctx: RequestContext, topic: str, wanted: ReassignablePartition, *, may_resize: bool
) -> ReassignablePartitionResponse:
    result = ReassignablePartitionResponse(
        partition_index=wanted.partition_index, error_message=None
    )
    try:
        _reassign(ctx, topic, wanted, may_resize=may_resize)
    except NoReassignmentInProgressError as error:
        result.error_code = error.errno
    except KafkaError as error:
        result.error_code, result.error_message = code_of(error), text_of(error)
    return result


def _reassign(
    ctx: RequestContext, name: str, wanted: ReassignablePartition, *, may_resize: bool
) -> None:
    topic = ctx.broker.topic(name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"Unable to find a topic named {name}.")
    partition = topic.partition(wanted.partition_index)
    if partition is None:
        raise UnknownTopicOrPartitionError(
            f"Unable to find partition {name}:{wanted.partition_index}."
        )
    if wanted.replicas is None:
        raise NoReassignmentInProgressError
    check_replicas(ctx, [wanted.replicas])
    if not may_resize and len(wanted.replicas) != len(partition.replicas):
        raise InvalidReplicationFactorError(
            f"The replication factor is changed from {len(partition.replicas)} to "
            f"{len(wanted.replicas)}"
        )
    ctx.broker.reassign(TopicPartition(name, wanted.partition_index), wanted.replicas)
