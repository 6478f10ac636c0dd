"""Handlers that create, enlarge and delete topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import refusing
from aiokafka_lite.broker.log.partition_log import TopicConfig
from aiokafka_lite.broker.slices import counted_in_slices, in_slices
from aiokafka_lite.broker.topics import NewTopic, Topic
from aiokafka_lite.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    KafkaStorageError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from aiokafka_lite.protocol.schema import ZERO_UUID

DEFAULT: Final = -1

# The log of Kafka's controllers. The name is reserved, although there are no controllers here.
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"


@handler(CreateTopicsRequest)
async def create_topics(ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    named = await counted_in_slices(topic.name for topic in request.topics)
    asked = {topic.name: topic async for topic in in_slices(request.topics)}
    results = []
    async for wanted in in_slices(asked.values()):
        result = CreatableTopicResult(name=wanted.name)
        results.append(result)
        with refusing(result, but=KafkaStorageError):
            if named[wanted.name] > 1:
                raise InvalidRequestError("Duplicate topic name.")
            new = _validated(ctx, wanted)
            if request.validate_only:
                result.topic_id = ctx.cluster.rng.randbytes(16)  # Kafka, too, returns an unused id
            else:
                result.topic_id = ctx.cluster.catalog.create(new).topic_id
            _describe(ctx, new, result)
    await ctx.cluster.disk.settled()
    return CreateTopicsResponse(topics=results)


def _validated(ctx: RequestContext, wanted: CreatableTopic) -> NewTopic:
    catalog = ctx.cluster.catalog
    catalog.check_name(wanted.name)
    if wanted.name == CLUSTER_METADATA_TOPIC:
        raise InvalidRequestError(f"Creation of internal topic {wanted.name} is prohibited.")
    if ctx.cluster.has_topic(wanted.name):
        raise TopicAlreadyExistsError(f"Topic '{wanted.name}' already exists.")
    replicas = _assigned(ctx, wanted) if wanted.assignments else _spread(ctx, wanted)
    catalog.check_growth(len(replicas))
    return NewTopic(wanted.name, replicas, _config(ctx, wanted))


def _config(ctx: RequestContext, wanted: CreatableTopic) -> TopicConfig:
    without_value = [setting.name for setting in wanted.configs if setting.value is None]
    if without_value:
        raise InvalidConfigurationError(
            f"Null value not supported for topic configs: {', '.join(without_value)}"
        )
    overrides = {setting.name: setting.value or "" for setting in wanted.configs}
    return ctx.cluster.catalog.parse_config(overrides)


def _spread(ctx: RequestContext, wanted: CreatableTopic) -> Sequence[Sequence[int]]:
    count, replication = wanted.num_partitions, wanted.replication_factor
    if replication != DEFAULT and replication < 1:
        raise InvalidReplicationFactorError(
            "Replication factor must be larger than 0, or -1 to use the default value."
        )
    return ctx.cluster.place_replicas(
        ctx.cluster.config.num_partitions if count == DEFAULT else count,
        None if replication == DEFAULT else replication,
    )


def _assigned(ctx: RequestContext, wanted: CreatableTopic) -> Sequence[Sequence[int]]:
    for what, value in (
        ("replication factor", wanted.replication_factor),
        ("numPartitions", wanted.num_partitions),
    ):
        if value != DEFAULT:
            raise InvalidRequestError(
                f"A manual partition assignment was specified, but {what} was not set to -1."
            )
    by_partition: dict[int, list[int]] = {}
    for item in wanted.assignments:
        if item.partition_index in by_partition:
            raise InvalidReplicationAssignmentError(
                f"Found multiple manual partition assignments for partition {item.partition_index}"
            )
        by_partition[item.partition_index] = item.broker_ids
        _check_replicas(ctx, [item.broker_ids])
    if sorted(by_partition) != list(range(len(by_partition))):
        raise InvalidReplicationAssignmentError(
            "partitions should be a consecutive 0-based integer sequence"
        )
    replicas = [by_partition[partition] for partition in range(len(by_partition))]
    _check_as_many(replicas, len(replicas[0]))
    return replicas


def _check_replicas(ctx: RequestContext, replicas: Sequence[Sequence[int]]) -> None:
    for nodes in replicas:
        if not nodes:
            raise InvalidReplicationAssignmentError(
                "The manual partition assignment includes an empty replica list."
            )
        for node in nodes:
            if node not in ctx.cluster.nodes:
                raise InvalidReplicationAssignmentError(
                    f"The manual partition assignment includes broker {node}, "
                    "but no such broker is registered."
                )
            if nodes.count(node) > 1:
                raise InvalidReplicationAssignmentError(
                    f"The manual partition assignment includes the broker {node} more than once."
                )


def _check_as_many(replicas: Sequence[Sequence[int]], replication: int) -> None:
    for nodes in replicas:
        if len(nodes) != replication:
            raise InvalidReplicationAssignmentError(
                "The manual partition assignment includes a partition with "
                f"{len(nodes)} replica(s), but this is not consistent with previous partitions, "
                f"which have {replication} replica(s)."
            )


def _describe(ctx: RequestContext, new: NewTopic, result: CreatableTopicResult) -> None:
    result.error_message = None
    result.num_partitions = len(new.replicas)
    result.replication_factor = len(new.replicas[0])
    result.configs = [
        CreatableTopicConfigs(
            name=setting.definition.name, value=setting.value, config_source=setting.source
        )
        for setting in ctx.cluster.catalog.settings.of_topic(new.config.overrides)
    ]


@handler(CreatePartitionsRequest)
async def create_partitions(
    ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    named = await counted_in_slices(topic.name for topic in request.topics)
    asked = {topic.name: topic async for topic in in_slices(request.topics)}
    results = []
    async for wanted in in_slices(asked.values()):
        result = CreatePartitionsTopicResult(name=wanted.name)
        results.append(result)
        with refusing(result, but=KafkaStorageError):
            if named[wanted.name] > 1:
                raise InvalidRequestError("Duplicate topic name.")
            _add_partitions(ctx, wanted, validate_only=request.validate_only)
        if result.error_code == UnknownTopicOrPartitionError.errno:
            result.error_message = None  # as in Kafka
    await ctx.cluster.disk.settled()
    return CreatePartitionsResponse(results=results)


def _add_partitions(
    ctx: RequestContext, wanted: CreatePartitionsTopic, *, validate_only: bool
) -> None:
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
    replicas = _new_replicas(ctx, wanted, more, len(topic.partitions[0].replicas))
    if not validate_only:
        ctx.cluster.catalog.add_partitions(topic, replicas)


def _new_replicas(
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
    _check_replicas(ctx, replicas)
    _check_as_many(replicas, replication)
    return replicas


@handler(DeleteTopicsRequest)
async def delete_topics(ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    asked = await counted_in_slices((state.name, state.topic_id) for state in request.topics)
    results = []
    async for (name, topic_id), times in in_slices(asked.items()):
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        results.append(result)
        with refusing(result, but=KafkaStorageError):
            if times > 1:
                raise InvalidRequestError(f"Duplicate topic {'id' if name is None else 'name'}.")
            topic = _named(ctx, name, topic_id)
            ctx.cluster.delete_topic(topic)
            result.name, result.topic_id = topic.name, topic.topic_id
    await ctx.cluster.disk.settled()
    return DeleteTopicsResponse(responses=results)


def _named(ctx: RequestContext, name: str | None, topic_id: bytes) -> Topic:
    if name is not None and topic_id != ZERO_UUID:
        raise InvalidRequestError("You may not specify both topic name and topic id.")
    if name is None and topic_id == ZERO_UUID:
        raise InvalidRequestError("Neither topic name nor id were specified.")
    topic = ctx.cluster.topic_by_id(topic_id) if name is None else ctx.cluster.topic(name)
    if topic is None and name is None:
        raise UnknownTopicIdError("This server does not host this topic ID.")
    if topic is None:
        raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
    return topic
