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
from aiokafka_lite.broker.topic_config import TopicConfig
from aiokafka_lite.broker.topics import NewTopic
from aiokafka_lite.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    KafkaError,
    NoError,
    TopicAlreadyExistsError,
)
from aiokafka_lite.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from aiokafka_lite.protocol.schema import ZERO_UUID

DEFAULT: Final = -1

# org.apache.kafka.common.requests.DescribeConfigsResponse.ConfigSource
TOPIC_CONFIG: Final = 1
DEFAULT_CONFIG: Final = 5


@handler(CreateTopicsRequest)
async def handle(ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create each topic that may be, and say why the others may not."""
    named = Counter(topic.name for topic in request.topics)
    results = []
    for wanted in {topic.name: topic for topic in request.topics}.values():
        try:
            if named[wanted.name] > 1:
                raise InvalidRequestError(f"topic {wanted.name!r} is in the request twice")
            new = _validated(ctx, wanted)
        except KafkaError as error:
            results.append(_refused(wanted.name, error))
            continue
        topic_id = ZERO_UUID
        if not request.validate_only:
            topic_id = ctx.broker.catalog.create(new).topic_id
        results.append(_created(new, topic_id))
    await ctx.broker.disk.settled()
    return CreateTopicsResponse(topics=results)


def _validated(ctx: RequestContext, wanted: CreatableTopic) -> NewTopic:
    """Decide everything about a new topic.

    Raises:
        KafkaError: It may not be created like that.
    """
    catalog = ctx.broker.catalog
    catalog.check_name(wanted.name)
    if ctx.broker.has_topic(wanted.name):
        raise TopicAlreadyExistsError(f"topic {wanted.name!r} exists")
    replicas = _assigned(ctx, wanted) if wanted.assignments else _spread(ctx, wanted)
    catalog.check_growth(len(replicas))
    return NewTopic(wanted.name, replicas, _config(ctx, wanted))


def _config(ctx: RequestContext, wanted: CreatableTopic) -> TopicConfig:
    overrides = {}
    for setting in wanted.configs:
        if setting.value is None:
            raise InvalidConfigurationError(f"{setting.name} has no value")
        overrides[setting.name] = setting.value
    return ctx.broker.catalog.parse_config(overrides)


def _spread(ctx: RequestContext, wanted: CreatableTopic) -> Sequence[Sequence[int]]:
    """Put the replicas of each partition on nodes, one after the other."""
    count, replication = wanted.num_partitions, wanted.replication_factor
    if replication != DEFAULT and replication < 1:
        raise InvalidReplicationFactorError(f"there cannot be {replication} replicas")
    if count != DEFAULT and count < 1:
        raise InvalidPartitionsError(f"a topic needs at least 1 partition, not {count}")
    return ctx.broker.place_replicas(
        ctx.broker.config.num_partitions if count == DEFAULT else count,
        None if replication == DEFAULT else replication,
    )


def _assigned(ctx: RequestContext, wanted: CreatableTopic) -> Sequence[Sequence[int]]:
    """Check replicas that were chosen by hand."""
    if wanted.replication_factor != DEFAULT:
        raise InvalidRequestError("with assignments, the replication factor must be -1")
    if wanted.num_partitions != DEFAULT:
        raise InvalidRequestError("with assignments, the number of partitions must be -1")
    by_partition = {item.partition_index: item.broker_ids for item in wanted.assignments}
    if len(by_partition) < len(wanted.assignments) or sorted(by_partition) != list(
        range(len(by_partition))
    ):
        raise InvalidReplicationAssignmentError("partitions must be numbered from 0, each once")
    replicas = [by_partition[partition] for partition in range(len(by_partition))]
    check_replicas(ctx, replicas)
    if len({len(nodes) for nodes in replicas}) > 1:
        raise InvalidReplicationAssignmentError("all partitions must have as many replicas")
    return replicas


def check_replicas(ctx: RequestContext, replicas: Sequence[Sequence[int]]) -> None:
    """Check lists of nodes that were chosen by hand.

    Raises:
        InvalidReplicationAssignmentError: One is empty, repeats a node or names an unknown one.
    """
    for nodes in replicas:
        if not nodes:
            raise InvalidReplicationAssignmentError("a partition needs at least one replica")
        if len(set(nodes)) < len(nodes):
            raise InvalidReplicationAssignmentError(f"replicas {nodes} name a broker twice")
        unknown = [node for node in nodes if node not in ctx.broker.nodes]
        if unknown:
            raise InvalidReplicationAssignmentError(f"there are no brokers {unknown}")


def _refused(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code_of(error), error_message=text_of(error))


def _created(new: NewTopic, topic_id: bytes) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=new.name,
        topic_id=topic_id,
        error_code=NoError.errno,
        error_message=None,
        num_partitions=len(new.replicas),
        replication_factor=len(new.replicas[0]),
        configs=[
            CreatableTopicConfigs(
                name=name,
                value=value,
                config_source=TOPIC_CONFIG if is_override else DEFAULT_CONFIG,
            )
            for name, value, is_override in new.config.effective()
        ],
    )
