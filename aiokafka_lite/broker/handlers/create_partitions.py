"""CreatePartitions (key 37), versions 0 to 3.

2 flexible; 3 THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.create_topics import check_as_many, check_replicas
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import (
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    InvalidRequestError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


@handler(CreatePartitionsRequest)
async def handle(ctx: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Add partitions until each topic has as many as asked for."""
    named: Counter[str] = Counter()
    asked: dict[str, CreatePartitionsTopic] = {}
    async for topic in in_slices(request.topics):
        named[topic.name] += 1
        asked[topic.name] = topic
    results = []
    async for wanted in in_slices(asked.values()):
        result = CreatePartitionsTopicResult(name=wanted.name, error_message=None)
        try:
            if named[wanted.name] > 1:
                raise InvalidRequestError("Duplicate topic name.")
            _add(ctx, wanted, validate_only=request.validate_only)
        except UnknownTopicOrPartitionError as error:
            result.error_code = error.errno  # Kafka says no more, either
        except KafkaError as error:
            result.error_code, result.error_message = code_of(error), text_of(error)
        results.append(result)
    await ctx.cluster.disk.settled()
    return CreatePartitionsResponse(results=results)


def _add(ctx: RequestContext, wanted: CreatePartitionsTopic, *, validate_only: bool) -> None:
    topic = ctx.cluster.topic(wanted.name)
    if topic is None:
        raise UnknownTopicOrPartitionError
    count = topic.partition_count
    more = wanted.count - count
    if more < 1:
        raise InvalidPartitionsError(
            f"The topic {wanted.name} currently has {count} partition(s); "
            f"{wanted.count} would not be an increase."
            if more
            else f"Topic already has {count} partition(s)."
        )
    ctx.cluster.catalog.check_growth(more)
    replicas = _replicas(ctx, wanted, more, len(topic.partitions[0].replicas))
    if not validate_only:
        ctx.cluster.catalog.add_partitions(topic, replicas)


def _replicas(
    ctx: RequestContext, wanted: CreatePartitionsTopic, more: int, replication: int
) -> Sequence[Sequence[int]]:
    if wanted.assignments is None:
        return ctx.cluster.place_replicas(more, replication)
    replicas = [assignment.broker_ids for assignment in wanted.assignments]
    if len(replicas) != more:
        raise InvalidReplicationAssignmentError(
            f"Attempted to add {more} additional partition(s), but only {len(replicas)} "
            "assignment(s) were specified."
        )
    check_replicas(ctx, replicas)
    check_as_many(replicas, replication)
    return replicas
