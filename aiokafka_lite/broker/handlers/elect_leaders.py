"""ElectLeaders (key 43), versions 0 to 2.

1 unclean elections, an error of the whole (KIP-460); 2 flexible.

Reference: org.apache.kafka.controller.ReplicationControlManager.electLeaders.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.broker.topics import NO_LEADER, Partition
from aiokafka_lite.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidRequestError,
    KafkaError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from aiokafka_lite.structs import TopicPartition


class ElectionType(enum.IntEnum):
    """Which replica is to lead."""

    PREFERRED = 0
    UNCLEAN = 1


@handler(ElectLeadersRequest, is_by_element=True)
async def handle(ctx: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect a leader for each partition that needs one; of all, only outcomes of these are told."""
    is_unknown = request.election_type not in tuple(ElectionType)
    asked_for_all = request.topic_partitions is None
    results = []
    for topic, indexes in _wanted(ctx, request):
        outcomes = (
            _outcome(ctx, TopicPartition(topic, index), request.election_type) for index in indexes
        )
        results.append(
            ReplicaElectionResult(
                topic=topic,
                partition_result=[
                    outcome
                    for outcome in outcomes
                    if not (asked_for_all and outcome.error_code == ElectionNotNeededError.errno)
                ],
            )
        )
    await ctx.broker.disk.settled()
    return ElectLeadersResponse(
        error_code=InvalidRequestError.errno if is_unknown else 0, replica_election_results=results
    )


def _wanted(
    ctx: RequestContext, request: ElectLeadersRequest
) -> Iterable[tuple[str, Iterable[int]]]:
    if request.topic_partitions is not None:
        return [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    return [(topic.name, range(topic.partition_count)) for topic in ctx.broker.topics.values()]


def _outcome(ctx: RequestContext, tp: TopicPartition, election: int) -> PartitionResult:
    result = PartitionResult(partition_id=tp.partition, error_message=None)
    try:
        _elect(ctx, tp, election)
    except KafkaError as error:
        result.error_code, result.error_message = code_of(error), text_of(error)
    return result


def _elect(ctx: RequestContext, tp: TopicPartition, election: int) -> None:
    topic = ctx.broker.topic(tp.topic)
    partition = None if topic is None else topic.partition(tp.partition)
    if election not in tuple(ElectionType):
        raise InvalidRequestError(f"Unknown election type {election}")
    if topic is None:
        raise UnknownTopicOrPartitionError(f"No such topic as {tp.topic}")
    if partition is None:
        raise UnknownTopicOrPartitionError(f"No such partition as {tp.topic}-{tp.partition}")
    if election == ElectionType.PREFERRED:
        _elect_preferred(ctx, tp, partition)
    else:
        _elect_any(ctx, tp, partition)


def _elect_preferred(ctx: RequestContext, tp: TopicPartition, partition: Partition) -> None:
    preferred = partition.replicas[0]
    if partition.leader_id == preferred:
        raise ElectionNotNeededError("Leader election not needed for topic partition.")
    if preferred not in partition.isr or not ctx.broker.nodes[preferred].is_up:
        raise PreferredLeaderNotAvailableError("The preferred leader was not available.")
    ctx.broker.move_leader(tp, preferred)


def _elect_any(ctx: RequestContext, tp: TopicPartition, partition: Partition) -> None:
    if partition.leader_id != NO_LEADER:
        raise ElectionNotNeededError("Leader election not needed for topic partition.")
    alive = next((node for node in partition.replicas if ctx.broker.nodes[node].is_up), None)
    if alive is None:
        raise EligibleLeadersNotAvailableError(
            "Eligible topic partition leaders are not available."
        )
    ctx.broker.move_leader(tp, alive)
