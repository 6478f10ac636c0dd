"""Handlers that administer topics, and the settings of topics, nodes and groups.

Kafka: kafka.server.ConfigAdminManager, which checks requests before
org.apache.kafka.controller.ConfigurationControlManager does."""

from __future__ import annotations

import copy
import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from aiokafka_lite.broker.configs import (
    ALL_NODES,
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    ConfigDef,
    ConfigType,
    ResourceType,
    Setting,
    check_group_configs,
    split_list,
)
from aiokafka_lite.broker.handlers.base import RequestContext, answered_after, handler, handles_each
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.log.partition_log import TopicConfig
from aiokafka_lite.broker.slices import counted_in_slices, in_slices
from aiokafka_lite.broker.topics import NOT_HOSTED, NewTopic, Topic, check_topic_name
from aiokafka_lite.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    TopicAlreadyExistsError,
    UnknownError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages import alter_configs as replacing
from aiokafka_lite.protocol.messages import configs as incremental
from aiokafka_lite.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from aiokafka_lite.protocol.schema import ZERO_UUID, Response, Struct

DEFAULT: Final = -1

# The log of Kafka's controllers. The name is reserved, although there are no controllers here.
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"

TopicsRequest: TypeAlias = CreateTopicsRequest | CreatePartitionsRequest | DeleteTopicsRequest
AnyTopic: TypeAlias = CreatableTopic | CreatePartitionsTopic | DeleteTopicState


def handles_each_topic(
    request: type[TopicsRequest],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the `fill` of `answered` for each topic, once. Repeated topics are refused."""

    def register(fill: Callable[..., None]) -> Callable[..., None]:
        async def handle(ctx: RequestContext, asked: TopicsRequest) -> Response:
            topics: Sequence[AnyTopic] = asked.topics
            times = await counted_in_slices(_identity(topic) for topic in topics)

            def fill_once(_: object, __: object, topic: AnyTopic, result: Struct) -> None:
                if times[_identity(topic)] > 1:
                    what = "id" if topic.name is None else "name"
                    raise InvalidRequestError(f"Duplicate topic {what}.")
                fill(ctx, asked, topic, result)

            once = copy.copy(asked)
            by_identity = {_identity(topic): topic async for topic in in_slices(topics)}
            once.topics = [*by_identity.values()]  # type: ignore[assignment]
            return await answered_after(ctx, once, fill_once, DiskQueue.settled)

        handler(request)(handle)
        return fill

    return register


def _identity(topic: AnyTopic) -> tuple[str | None, bytes]:
    return topic.name, topic.topic_id if isinstance(topic, DeleteTopicState) else ZERO_UUID


@handles_each_topic(CreateTopicsRequest)
def create_topic(
    ctx: RequestContext,
    request: CreateTopicsRequest,
    wanted: CreatableTopic,
    result: CreatableTopicResult,
) -> None:
    new = _validated(ctx, wanted)
    if request.validate_only:
        result.topic_id = ctx.cluster.rng.randbytes(16)  # Kafka, too, returns an unused id
    else:
        result.topic_id = ctx.cluster.catalog.create(new).topic_id
    _describe(ctx, new, result)


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


@handles_each_topic(CreatePartitionsRequest)
def create_partitions(
    ctx: RequestContext,
    request: CreatePartitionsRequest,
    wanted: CreatePartitionsTopic,
    result: CreatePartitionsTopicResult,
) -> None:
    topic = ctx.cluster.topic(wanted.name)
    if topic is None:
        result.error_code = UnknownTopicOrPartitionError.errno  # as in Kafka, without a message
        return
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
    if not request.validate_only:
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


@handles_each_topic(DeleteTopicsRequest)
def delete_topic(
    ctx: RequestContext, request: object, wanted: DeleteTopicState, result: DeletableTopicResult
) -> None:
    topic = _named(ctx, wanted.name, wanted.topic_id)
    ctx.cluster.delete_topic(topic)
    result.name, result.topic_id = topic.name, topic.topic_id


def _named(ctx: RequestContext, name: str | None, topic_id: bytes) -> Topic:
    if name is not None and topic_id != ZERO_UUID:
        raise InvalidRequestError("You may not specify both topic name and topic id.")
    if name is None and topic_id == ZERO_UUID:
        raise InvalidRequestError("Neither topic name nor id were specified.")
    topic = ctx.cluster.topic_by_id(topic_id) if name is None else ctx.cluster.topic(name)
    if topic is None and name is None:
        raise UnknownTopicIdError("This server does not host this topic ID.")
    if topic is None:
        raise UnknownTopicOrPartitionError(NOT_HOSTED)
    return topic


@handles_each(DescribeConfigsRequest)
def describe_configs(
    ctx: RequestContext,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    result: DescribeConfigsResult,
) -> None:
    """Return settings with their sources. The empty broker name is for settings of all brokers."""
    is_broker = resource.resource_type == ResourceType.BROKER
    wanted = resource.configuration_keys
    result.configs = [
        _described(setting, request, is_broker=is_broker)
        for setting in _settings(ctx, resource.resource_type, resource.resource_name)
        if not wanted or setting.definition.name in wanted
    ]


def _settings(ctx: RequestContext, kind: int, name: str) -> Iterator[Setting]:
    settings = ctx.cluster.catalog.settings
    match kind:
        case ResourceType.TOPIC:
            check_topic_name(name)
            topic = ctx.cluster.topic(name)
            if topic is None:
                raise UnknownTopicOrPartitionError("")
            return settings.of_topic(topic.config.overrides)
        case ResourceType.BROKER:
            if name == ALL_NODES:
                return settings.of_all_nodes()
            if _node_id("Broker", name) != ctx.node.id:
                raise InvalidRequestError(
                    f"Unexpected broker id, expected {ctx.node.id} or empty string, "
                    f"but received {name}"
                )
            names = [listener.name for listener in ctx.cluster.config.all_listeners]
            listeners = {each: ctx.node.address_on(each) for each in names}
            return settings.of_node(ctx.node.address, listeners)
        case ResourceType.GROUP:
            if not name:
                raise InvalidRequestError("Group name must not be empty")
            return settings.of_group(name)
        case _:
            raise InvalidRequestError(f"Unsupported resource type: {kind}")


def _node_id(kind: str, name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise InvalidRequestError(f"{kind} id must be an integer, but it is: {name}") from None


def _described(
    setting: Setting, request: DescribeConfigsRequest, *, is_broker: bool
) -> DescribeConfigsResourceResult:
    definition = setting.definition
    return DescribeConfigsResourceResult(
        name=definition.name,
        value=setting.value,
        read_only=is_broker and not definition.is_dynamic,
        config_source=setting.source,
        is_sensitive=definition.is_sensitive,
        synonyms=setting.synonyms if request.include_synonyms else [],
        config_type=ConfigType(definition.kind),
        documentation=None,
    )


_TABLES: Final[Mapping[ResourceType, Mapping[str, ConfigDef]]] = {
    ResourceType.TOPIC: TOPIC_CONFIGS,
    ResourceType.BROKER: BROKER_CONFIGS,
    ResourceType.GROUP: GROUP_CONFIGS,
}


AnyConfig: TypeAlias = replacing.AlterableConfig | incremental.AlterableConfig
AnyResource: TypeAlias = replacing.AlterConfigsResource | incremental.AlterConfigsResource
AlterRequest: TypeAlias = replacing.AlterConfigsRequest | incremental.IncrementalAlterConfigsRequest


class Operation(enum.IntEnum):
    """The change of a setting (org.apache.kafka.clients.admin.AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@handler(replacing.AlterConfigsRequest)
@handler(incremental.IncrementalAlterConfigsRequest)
async def alter_configs(ctx: RequestContext, request: AlterRequest) -> Response:
    """Change or replace the settings of resources, each independently of the others."""
    resources: Sequence[AnyResource] = request.resources
    times = await counted_in_slices((each.resource_type, each.resource_name) for each in resources)
    return await answered_after(ctx, request, partial(_alter, times=times), DiskQueue.settled)


def _alter(
    ctx: RequestContext,
    request: AlterRequest,
    asked: AnyResource,
    result: incremental.AlterConfigsResourceResponse,
    *,
    times: Counter[tuple[int, str]],
) -> None:
    kind, name = asked.resource_type, asked.resource_name
    changes: Sequence[AnyConfig] = asked.configs
    result.error_message = None
    if times[kind, name] > 1:
        raise InvalidRequestError("Each resource must appear at most once.")
    _check_sense(changes)
    resource = _resource_type(kind)
    if resource is ResourceType.BROKER:
        _check_broker(ctx, name, changes)
    catalog = ctx.cluster.catalog
    topic = catalog.by_name(name) if resource is ResourceType.TOPIC else None
    before = catalog.settings.overrides(resource, name) if topic is None else topic.config.overrides
    if isinstance(request, replacing.AlterConfigsRequest):
        before = {}
    after = _changed(before, changes, _TABLES[resource])
    if resource is ResourceType.TOPIC:
        config = catalog.parse_config(after) if topic is not None else None
        topic = _existing(topic, name)
        if config is not None and not request.validate_only:
            catalog.configure_topic(topic, config)
        return
    if resource is ResourceType.GROUP:
        _check_group(name, after)
    catalog.configure(resource, name, after, validate_only=request.validate_only)


def _check_sense(changes: Sequence[AnyConfig]) -> None:
    if len({change.name for change in changes}) < len(changes):
        raise InvalidRequestError("Error due to duplicate config keys")
    without_value = [
        change.name
        for change in changes
        if change.value is None and _operation(change) != Operation.DELETE
    ]
    if without_value:
        raise InvalidRequestError(f"Null value not supported for : {','.join(without_value)}")


def _resource_type(kind: int) -> ResourceType:
    try:
        return ResourceType(kind)
    except ValueError:
        raise InvalidRequestError(f"Unknown resource type {kind}") from None


def _check_broker(ctx: RequestContext, name: str, changes: Sequence[AnyConfig]) -> None:
    """Check changes of one node or of all. Unknown names are accepted, as in Kafka."""
    if name != ALL_NODES and _node_id("Node", name) != ctx.node.id:
        raise InvalidRequestError(
            f"Unexpected broker id, expected {ctx.node.id}, but received {name}"
        )
    known = [BROKER_CONFIGS[change.name] for change in changes if change.name in BROKER_CONFIGS]
    fixed = [each.name for each in known if not each.is_dynamic]
    if fixed:
        raise InvalidRequestError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    for change in changes:
        definition = BROKER_CONFIGS.get(change.name)
        if definition is None or change.value is None or _operation(change) == Operation.DELETE:
            continue
        try:
            definition.parse(change.value)
        except InvalidConfigurationError as error:
            raise InvalidRequestError(error.args[0]) from error


def _changed(
    before: Mapping[str, str], changes: Sequence[AnyConfig], table: Mapping[str, ConfigDef]
) -> dict[str, str]:
    after = dict(before)
    for change in changes:
        name, operation, value = change.name, _operation(change), change.value
        if operation == Operation.DELETE:
            after.pop(name, None)
        elif operation == Operation.SET:
            after[name] = value or ""
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            after[name] = _changed_list(Operation(operation), name, value or "", after, table)
        else:
            raise UnknownError(
                f"unknown operation {operation} in an IncrementalAlterConfigs request"
            )
    return after


def _changed_list(
    operation: Operation,
    name: str,
    value: str,
    settings: Mapping[str, str],
    table: Mapping[str, ConfigDef],
) -> str:
    definition = table.get(name)
    if definition is None or definition.kind is not ConfigType.LIST:
        raise InvalidConfigurationError(
            f"Can't {operation.name} to key {name} because its type is not LIST."
        )
    items = split_list(settings.get(name, definition.default or ""))
    named = split_list(value)
    if operation is Operation.APPEND:
        items += [item for item in dict.fromkeys(named) if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)


def _existing(topic: Topic | None, name: str) -> Topic:
    if not name:
        raise InvalidRequestError("Default topic resources are not allowed.")
    check_topic_name(name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"The topic '{name}' does not exist.")
    return topic


def _check_group(group_id: str, settings: Mapping[str, str]) -> None:
    if not group_id:
        raise InvalidRequestError("Default group resources are not allowed.")
    check_group_configs(settings)


def _operation(config: AnyConfig) -> int:
    return getattr(config, "config_operation", Operation.SET)
