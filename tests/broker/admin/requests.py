"""Requests about settings, by hand."""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka_lite.broker.configs import ResourceType
from aiokafka_lite.broker.handlers.topics import Operation
from aiokafka_lite.protocol.messages import alter_configs, configs

# What there is of a request and its answer: one resource, one result.
Described = configs.DescribeConfigsResourceResult


def describing(
    kind: int,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    synonyms: bool = True,
) -> configs.DescribeConfigsRequest:
    """Ask for the settings of one resource."""
    resource = configs.DescribeConfigsResource(
        resource_type=kind,
        resource_name=name,
        configuration_keys=None if keys is None else list(keys),
    )
    return configs.DescribeConfigsRequest(resources=[resource], include_synonyms=synonyms)


def changing(
    kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> configs.IncrementalAlterConfigsRequest:
    """Change settings of one resource: (name, operation, value)."""
    resource = configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            configs.AlterableConfig(name=config, config_operation=operation, value=value)
            for config, operation, value in changes
        ],
    )
    return configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def setting(kind: int, name: str, **values: str) -> configs.IncrementalAlterConfigsRequest:
    """Set values: underscores in names stand for dots."""
    changes = [(key.replace("_", "."), int(Operation.SET), value) for key, value in values.items()]
    return changing(kind, name, *changes)


def replacing(
    kind: int, name: str, *settings: tuple[str, str | None], validate_only: bool = False
) -> alter_configs.AlterConfigsRequest:
    """Replace all settings of one resource."""
    resource = alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name=key, value=value) for key, value in settings],
    )
    return alter_configs.AlterConfigsRequest(resources=[resource], validate_only=validate_only)


TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
