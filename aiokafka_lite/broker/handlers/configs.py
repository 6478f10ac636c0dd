"""Handlers that describe and change settings of topics, nodes and groups.

References: kafka.server.ConfigAdminManager, which checks requests before
org.apache.kafka.controller.ConfigurationControlManager does.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar

from aiokafka_lite.broker.configs.broker_defs import BROKER_CONFIGS, GROUP_BOUNDS, GROUP_CONFIGS
from aiokafka_lite.broker.configs.definition import ConfigDef, ConfigType, split_list
from aiokafka_lite.broker.configs.settings import ALL_NODES, ResourceType, Setting
from aiokafka_lite.broker.configs.topic_config import TOPIC_CONFIGS
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import answered, refusing
from aiokafka_lite.broker.slices import counted_in_slices, in_slices
from aiokafka_lite.broker.topics import Topic, check_topic_name
from aiokafka_lite.errors import (
    InvalidConfigurationError,
    InvalidRequestError,
    UnknownError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages import alter_configs as replacing
from aiokafka_lite.protocol.messages import configs as incremental
from aiokafka_lite.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from aiokafka_lite.protocol.source import Steps


@handler(DescribeConfigsRequest)
def describe_configs(
    ctx: RequestContext, request: DescribeConfigsRequest
) -> Steps[DescribeConfigsResponse]:
    """Return settings with their sources. The empty broker name is for settings of all brokers."""
    return answered(ctx, request, partial(_describe, request=request))


def _describe(
    ctx: RequestContext,
    resource: DescribeConfigsResource,
    result: DescribeConfigsResult,
    request: DescribeConfigsRequest,
) -> None:
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
        documentation=definition.documentation if request.include_documentation else None,
    )


_TABLES: Final[Mapping[ResourceType, Mapping[str, ConfigDef]]] = {
    ResourceType.TOPIC: TOPIC_CONFIGS,
    ResourceType.BROKER: BROKER_CONFIGS,
    ResourceType.GROUP: GROUP_CONFIGS,
}


AnyConfig: TypeAlias = replacing.AlterableConfig | incremental.AlterableConfig
AnyResource: TypeAlias = replacing.AlterConfigsResource | incremental.AlterConfigsResource
AlterRequest: TypeAlias = replacing.AlterConfigsRequest | incremental.IncrementalAlterConfigsRequest
OutcomeT = TypeVar(
    "OutcomeT", replacing.AlterConfigsResourceResponse, incremental.AlterConfigsResourceResponse
)


class Operation(enum.IntEnum):
    """The change of a setting (org.apache.kafka.clients.admin.AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    operation: int
    value: str | None


def _change_resource(
    ctx: RequestContext, request: AlterRequest, kind: int, name: str, changes: Sequence[Change]
) -> None:
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


def _check_sense(changes: Sequence[Change]) -> None:
    if len({change.name for change in changes}) < len(changes):
        raise InvalidRequestError("Error due to duplicate config keys")
    without_value = [
        change.name
        for change in changes
        if change.value is None and change.operation != Operation.DELETE
    ]
    if without_value:
        raise InvalidRequestError(f"Null value not supported for : {','.join(without_value)}")


def _resource_type(kind: int) -> ResourceType:
    try:
        return ResourceType(kind)
    except ValueError:
        raise InvalidRequestError(f"Unknown resource type {kind}") from None


def _check_broker(ctx: RequestContext, name: str, changes: Sequence[Change]) -> None:
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
        if definition is None or change.value is None or change.operation == Operation.DELETE:
            continue
        try:
            definition.parse(change.value)
        except InvalidConfigurationError as error:
            raise InvalidRequestError(error.args[0]) from error


def _changed(
    before: Mapping[str, str], changes: Sequence[Change], table: Mapping[str, ConfigDef]
) -> dict[str, str]:
    after = dict(before)
    for name, operation, value in changes:
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
    for name in settings:
        if name not in GROUP_CONFIGS:
            raise InvalidConfigurationError(f"Unknown group config name: {name}")
    for name, text in settings.items():
        value = GROUP_CONFIGS[name].parse(text)
        plain_name = name.removeprefix("consumer.")
        lowest, highest = GROUP_BOUNDS[plain_name]
        if isinstance(value, int) and not lowest <= value <= highest:
            end, bound = ("greater", "min") if value < lowest else ("less", "max")
            raise InvalidConfigurationError(
                f"{name} must be {end} than or equal to group.consumer.{bound}.{plain_name}"
            )


@handler(replacing.AlterConfigsRequest)
async def alter_configs(
    ctx: RequestContext, request: replacing.AlterConfigsRequest
) -> replacing.AlterConfigsResponse:
    """Replace the settings of resources, each independently of the others."""
    return replacing.AlterConfigsResponse(
        responses=await _change_each(ctx, request, replacing.AlterConfigsResourceResponse)
    )


@handler(incremental.IncrementalAlterConfigsRequest)
async def incremental_alter_configs(
    ctx: RequestContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    return incremental.IncrementalAlterConfigsResponse(
        responses=await _change_each(ctx, request, incremental.AlterConfigsResourceResponse)
    )


async def _change_each(
    ctx: RequestContext, request: AlterRequest, outcome: type[OutcomeT]
) -> list[OutcomeT]:
    resources: Sequence[AnyResource] = [*request.resources]
    named = await counted_in_slices((each.resource_type, each.resource_name) for each in resources)
    outcomes = []
    async for resource in in_slices(resources):
        kind, name = resource.resource_type, resource.resource_name
        result = outcome(resource_type=kind, resource_name=name, error_message=None)
        with refusing(result):
            if named[kind, name] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            configs: Sequence[AnyConfig] = resource.configs
            changes = [_change(config) async for config in in_slices(configs)]
            _change_resource(ctx, request, kind, name, changes)
        outcomes.append(result)
    await ctx.cluster.disk.settled()
    return outcomes


def _change(config: AnyConfig) -> Change:
    if isinstance(config, incremental.AlterableConfig):
        return Change(config.name, config.config_operation, config.value)
    return Change(config.name, Operation.SET, config.value)
