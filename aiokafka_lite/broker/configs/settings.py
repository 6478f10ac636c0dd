"""Settings that changed at run time, and the effective values (KIP-226).

A value comes from the resource's own setting, then from the broker setting that is its default: for
the node, for all nodes, at the start, in Kafka. Kafka: kafka.server.ConfigHelper.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypedDict, TypeVar, cast

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.configs.broker_defs import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    node_configs,
    static_configs,
)
from aiokafka_lite.broker.configs.definition import ConfigDef, ConfigSource, ConfigType
from aiokafka_lite.broker.configs.topic_config import TOPIC_CONFIGS
from aiokafka_lite.broker.topics import Node
from aiokafka_lite.protocol.messages.configs import DescribeConfigsSynonym

ALL_NODES: Final = ""

T = TypeVar("T")


class ResourceType(enum.IntEnum):
    """Resources with settings (org.apache.kafka.common.config.ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Setting(NamedTuple):
    """A setting and its sources. The first synonym counts."""

    definition: ConfigDef
    synonyms: list[DescribeConfigsSynonym]

    @property
    def value(self) -> str | None:
        """The effective value, None if not set or sensitive."""
        if self.synonyms:
            return self.synonyms[0].value
        return None if self.definition.is_sensitive else self.definition.default

    @property
    def source(self) -> ConfigSource:
        source = self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT
        return ConfigSource(source)


class StoredSettings(TypedDict):
    type: int
    name: str
    settings: dict[str, str]


class ClusterSettings:
    """All settings except topics' own, and the defaults of topics."""

    def __init__(self, config: BrokerConfig) -> None:
        self._only_node = str(config.node_id) if config.nodes == 1 else None
        self._static = static_configs(config)
        self._overrides: dict[tuple[ResourceType, str], Mapping[str, str]] = {}
        # Cached results of `of_groups`, "" for groups without settings of their own.
        self._of_groups: dict[str, object] = {}

    # Settings at run time

    def overrides(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        return MappingProxyType(self._overrides.get((kind, name), {}))

    def put(self, kind: ResourceType, name: str, settings: Mapping[str, str]) -> None:
        """Replace a resource's own settings, unchecked."""
        self._of_groups.clear()
        if settings:
            self._overrides[kind, name] = dict(settings)
        else:
            self._overrides.pop((kind, name), None)

    def stored(self) -> list[StoredSettings]:
        return [
            StoredSettings(type=kind, name=name, settings=dict(settings))
            for (kind, name), settings in self._overrides.items()
        ]

    def restore(self, stored: list[StoredSettings]) -> None:
        """Restore stored settings, except of unknown resource types."""
        for resource in stored:
            if resource["type"] in tuple(ResourceType):
                self.put(ResourceType(resource["type"]), resource["name"], resource["settings"])

    # Effective values

    def topic_defaults(self) -> Mapping[str, str]:
        """Return the topic defaults that differ from Kafka's, by topic setting.

        Settings of a single node count only if the cluster has one node.
        """
        found = {}
        for topic in TOPIC_CONFIGS.values():
            synonyms = self._of_broker(topic.broker_name, self._only_node)
            if synonyms and synonyms[0].source != ConfigSource.DEFAULT:
                found[topic.name] = synonyms[0].value or ""
        return found

    def group_value(self, group_id: str, name: str) -> int:
        """Return a setting of a consumer group, e.g. "consumer.session.timeout.ms"."""
        if override := self.overrides(ResourceType.GROUP, group_id).get(name):
            return int(override)
        synonyms = self._of_broker(GROUP_CONFIGS[name].broker_name, self._only_node)
        return int(synonyms[0].value or "")

    def of_groups(self, group_id: str, make: Callable[[str], T]) -> T:
        """Return the function's result for a group, until a setting changes."""
        key = group_id if (ResourceType.GROUP, group_id) in self._overrides else ""
        if key not in self._of_groups:
            self._of_groups[key] = make(group_id)
        return cast("T", self._of_groups[key])

    # Descriptions

    def of_topic(self, overrides: Mapping[str, str]) -> Iterator[Setting]:
        return self._of_resource(TOPIC_CONFIGS, overrides, ConfigSource.TOPIC)

    def of_group(self, group_id: str) -> Iterator[Setting]:
        overrides = self.overrides(ResourceType.GROUP, group_id)
        return self._of_resource(GROUP_CONFIGS, overrides, ConfigSource.GROUP)

    def of_node(self, node: Node, listeners: Mapping[str, Node]) -> Iterator[Setting]:
        static = {**self._static, **node_configs(node, listeners)}
        changed = [
            *self.overrides(ResourceType.BROKER, str(node.id)),
            *self.overrides(ResourceType.BROKER, ALL_NODES),
        ]
        for name in sorted({*BROKER_CONFIGS, *changed}):
            yield Setting(_broker_config(name), self._of_broker(name, str(node.id), static))

    def of_all_nodes(self) -> Iterator[Setting]:
        for name, value in sorted(self.overrides(ResourceType.BROKER, ALL_NODES).items()):
            definition = _broker_config(name)
            yield Setting(definition, [_synonym(definition, value, ConfigSource.CLUSTER)])

    def _of_resource(
        self, table: Mapping[str, ConfigDef], overrides: Mapping[str, str], source: ConfigSource
    ) -> Iterator[Setting]:
        for definition in table.values():
            synonyms = self._of_broker(definition.broker_name, self._only_node)
            if definition.name in overrides:
                synonyms.insert(0, _synonym(definition, overrides[definition.name], source))
            yield Setting(definition, synonyms)

    def _of_broker(
        self, name: str, node_id: str | None, static: Mapping[str, str] | None = None
    ) -> list[DescribeConfigsSynonym]:
        """Return a broker setting's values, the effective one first."""
        definition = _broker_config(name)
        places = [
            (self.overrides(ResourceType.BROKER, ALL_NODES), ConfigSource.CLUSTER),
            (self._static if static is None else static, ConfigSource.STATIC),
        ]
        if node_id is not None:
            places.insert(0, (self.overrides(ResourceType.BROKER, node_id), ConfigSource.NODE))
        synonyms = [
            _synonym(definition, values[name], source)
            for values, source in places
            if name in values
        ]
        if definition.default is not None:
            synonyms.append(_synonym(definition, definition.default, ConfigSource.DEFAULT))
        return synonyms


def _broker_config(name: str) -> ConfigDef:
    return BROKER_CONFIGS.get(name) or ConfigDef(name, ConfigType.PASSWORD, None)


def _synonym(definition: ConfigDef, value: str, source: ConfigSource) -> DescribeConfigsSynonym:
    shown = None if definition.is_sensitive else value
    return DescribeConfigsSynonym(name=definition.name, value=shown, source=source)
