"""CreateTopics (key 19), versions 2 to 7.

4 -1 asks for the broker's default number of partitions and replicas (KIP-464); 5 flexible, the
answer holds the topic's configuration (KIP-525); 6 THROTTLING_QUOTA_EXCEEDED; 7 topic ids
(KIP-516).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.broker.log.topic_config import TopicConfig
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.broker.topics import NewTopic
from aiokafka_lite.errors import (
    InvalidConfigurationError,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    KafkaError,
    NoError,
    TopicAlreadyExistsError,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

DEFAULT: Final = -1

# The topic of a controller's log: there is none here, and the name stays reserved.
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"


@handler(CreateTopicsRequest)
async def handle(ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create each topic that may be, and say why the others may not."""
    named: Counter[str] = Counter()
    asked: dict[str, CreatableTopic] = {}
    async for topic in in_slices(request.topics):
        named[topic.name] += 1
        asked[topic.name] = topic
    results = []
    async for wanted in in_slices(asked.values()):
        try:
            if named[wanted.name] > 1:
                raise InvalidRequestError("Duplicate topic name.")
            new = _validated(ctx, wanted)
        except KafkaError as error:
            results.append(_refused(wanted.name, error))
            continue
        if request.validate_only:
            topic_id = ctx.cluster.rng.randbytes(16)  # Kafka tells one that nobody gets, too
        else:
            topic_id = ctx.cluster.catalog.create(new).topic_id
        results.append(_created(ctx, new, topic_id))
    await ctx.cluster.disk.settled()
    return CreateTopicsResponse(topics=results)


def _validated(ctx: RequestContext, wanted: CreatableTopic) -> NewTopic:
    """Decide everything about a new topic.

    Raises:
        KafkaError: It may not be created like that.
    """
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
    overrides = {}
    without_value = [setting.name for setting in wanted.configs if setting.value is None]
    if without_value:
        raise InvalidConfigurationError(
            f"Null value not supported for topic configs: {', '.join(without_value)}"
        )
    for setting in wanted.configs:
        overrides[setting.name] = setting.value or ""
    return ctx.cluster.catalog.parse_config(overrides)


def _spread(ctx: RequestContext, wanted: CreatableTopic) -> Sequence[Sequence[int]]:
    """Place the replicas of each partition on nodes."""
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
    """Check replicas that were chosen by hand."""
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
        check_replicas(ctx, [item.broker_ids])
    if sorted(by_partition) != list(range(len(by_partition))):
        raise InvalidReplicationAssignmentError(
            "partitions should be a consecutive 0-based integer sequence"
        )
    replicas = [by_partition[partition] for partition in range(len(by_partition))]
    check_as_many(replicas, len(replicas[0]))
    return replicas


def check_replicas(ctx: RequestContext, replicas: Sequence[Sequence[int]]) -> None:
    """Check lists of nodes that were chosen by hand.

    Raises:
        InvalidReplicationAssignmentError: One is empty, repeats a node or names an unknown one.
    """
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


def check_as_many(replicas: Sequence[Sequence[int]], replication: int) -> None:
    """Check that all partitions have so many replicas.

    Raises:
        InvalidReplicationAssignmentError: One has not.
    """
    for nodes in replicas:
        if len(nodes) != replication:
            raise InvalidReplicationAssignmentError(
                "The manual partition assignment includes a partition with "
                f"{len(nodes)} replica(s), but this is not consistent with previous partitions, "
                f"which have {replication} replica(s)."
            )


def _refused(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code_of(error), error_message=text_of(error))


def _created(ctx: RequestContext, new: NewTopic, topic_id: bytes) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=new.name,
        topic_id=topic_id,
        error_code=NoError.errno,
        error_message=None,
        num_partitions=len(new.replicas),
        replication_factor=len(new.replicas[0]),
        configs=[
            CreatableTopicConfigs(
                name=setting.definition.name, value=setting.value, config_source=setting.source
            )
            for setting in ctx.cluster.catalog.settings.of_topic(new.config.overrides)
        ],
    )
