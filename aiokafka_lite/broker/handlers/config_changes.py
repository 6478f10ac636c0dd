"""Changing settings: what AlterConfigs and IncrementalAlterConfigs have in common.

Reference: kafka.server.ConfigAdminManager, which looks at requests before
org.apache.kafka.controller.ConfigurationControlManager changes anything.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka_lite.broker.configs.broker_defs import (
    BROKER_CONFIGS,
    GROUP_BOUNDS,
    GROUP_CONFIGS,
)
from aiokafka_lite.broker.configs.definition import ConfigDef, ConfigType, split_list
from aiokafka_lite.broker.configs.settings import ALL_NODES, ResourceType
from aiokafka_lite.broker.configs.topic_config import TOPIC_CONFIGS
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.topics import Topic, check_topic_name
from aiokafka_lite.errors import (
    InvalidConfigurationError,
    InvalidRequestError,
    UnknownError,
    UnknownTopicOrPartitionError,
)

_TABLES: Final[Mapping[ResourceType, Mapping[str, ConfigDef]]] = {
    ResourceType.TOPIC: TOPIC_CONFIGS,
    ResourceType.BROKER: BROKER_CONFIGS,
    ResourceType.GROUP: GROUP_CONFIGS,
}


class Operation(enum.IntEnum):
    """What is to be done to a setting (org.apache.kafka.clients.admin.AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One setting's change."""

    name: str
    operation: int
    value: str | None


def change_configs(
    ctx: RequestContext,
    kind: int,
    name: str,
    changes: Sequence[Change],
    *,
    replaces_all: bool,
    validate_only: bool,
) -> None:
    """Make all changes to one resource, or none.

    Args:
        ctx: Where the request came to.
        kind: The resource's type, see `ResourceType`.
        name: The resource's name.
        changes: What to do to which setting.
        replaces_all: Settings that are not named go back to their defaults.
        validate_only: Change nothing.

    Raises:
        InvalidRequestError: The request contradicts itself, or there can be no such resource.
        InvalidConfigurationError: There is no such setting, or it cannot have the value.
        InvalidTopicError: There can be no such topic.
        UnknownTopicOrPartitionError: There is no such topic.
    """
    _check_sense(changes)
    resource = _resource_type(kind)
    if resource is ResourceType.BROKER:
        _check_broker(ctx, name, changes)
    catalog = ctx.cluster.catalog
    topic = catalog.by_name(name) if resource is ResourceType.TOPIC else None
    before = catalog.settings.overrides(resource, name) if topic is None else topic.config.overrides
    after = _changed({} if replaces_all else before, changes, _TABLES[resource])
    if resource is ResourceType.TOPIC:
        config = catalog.parse_config(after) if topic is not None else None
        topic = _existing(topic, name)
        if config is not None and not validate_only:
            catalog.configure_topic(topic, config)
        return
    if resource is ResourceType.GROUP:
        _check_group(name, after)
    catalog.configure(resource, name, after, validate_only=validate_only)


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
    """Check changes for one node or all: names that are not known are taken as they are."""
    if name != ALL_NODES:
        _check_node_id(ctx, name)
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


def _check_node_id(ctx: RequestContext, name: str) -> None:
    try:
        node_id = int(name)
    except ValueError:
        raise InvalidRequestError(f"Node id must be an integer, but it is: {name}") from None
    if node_id != ctx.node.id:
        raise InvalidRequestError(
            f"Unexpected broker id, expected {ctx.node.id}, but received {name}"
        )


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
