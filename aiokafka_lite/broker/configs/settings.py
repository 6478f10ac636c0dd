"""What was set at run time, for whom, and what follows for everybody: KIP-226's order of sources.

A value is looked for in what was set for the resource itself; then, by the name that brokers have
for it, in what was set for the node, for all nodes, in what the broker was started with, and in
Kafka's defaults. Topics keep what was set for them themselves (catalog.py).

Reference: kafka.server.ConfigHelper, org.apache.kafka.server.config.DynamicBrokerConfig.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypedDict

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

ALL_NODES: Final = ""


class ResourceType(enum.IntEnum):
    """What can have settings (org.apache.kafka.common.config.ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Synonym(NamedTuple):
    """A place where a value was found, by the name it has there."""

    name: str
    value: str | None
    source: ConfigSource


class Setting(NamedTuple):
    """A setting and where its value comes from: the first synonym."""

    definition: ConfigDef
    synonyms: list[Synonym]

    @property
    def value(self) -> str | None:
        """The value that counts; None where nobody says, and where nobody may know."""
        if self.synonyms:
            return self.synonyms[0].value
        return None if self.definition.is_sensitive else self.definition.default

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT


class StoredSettings(TypedDict):
    """What was set for one resource, as it is kept."""

    type: int
    name: str
    settings: dict[str, str]


class ClusterSettings:
    """The settings of everything but topics, and the defaults of topics.

    Args:
        config: What the cluster was started with.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._only_node = str(config.node_id) if config.nodes == 1 else None
        self._static = static_configs(config)
        self._overrides: dict[tuple[ResourceType, str], Mapping[str, str]] = {}

    # What was set

    def overrides(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        """Return what was set for a resource, empty when nothing was."""
        return MappingProxyType(self._overrides.get((kind, name), {}))

    def put(self, kind: ResourceType, name: str, settings: Mapping[str, str]) -> None:
        """Replace all that is set for a resource; nothing is checked."""
        if settings:
            self._overrides[kind, name] = dict(settings)
        else:
            self._overrides.pop((kind, name), None)

    def stored(self) -> list[StoredSettings]:
        """Return everything in the form in which it is kept."""
        return [
            StoredSettings(type=kind, name=name, settings=dict(settings))
            for (kind, name), settings in self._overrides.items()
        ]

    def restore(self, stored: list[StoredSettings]) -> None:
        """Take over what was kept, but for kinds of resources that are not known (any more)."""
        for resource in stored:
            if resource["type"] in tuple(ResourceType):
                self.put(ResourceType(resource["type"]), resource["name"], resource["settings"])

    # What follows

    def topic_defaults(self) -> Mapping[str, str]:
        """Return the defaults of topics that are not Kafka's, by the topics' names for them.

        Topics belong to all nodes: what was set for a node counts where there is one only.
        """
        found = {}
        for topic in TOPIC_CONFIGS.values():
            synonyms = self._of_broker(topic.broker_name, self._only_node)
            if synonyms and synonyms[0].source is not ConfigSource.DEFAULT:
                found[topic.name] = synonyms[0].value or ""
        return found

    def group_value(self, group_id: str, name: str) -> int:
        """Return a setting of a consumer group, e.g. "consumer.session.timeout.ms"."""
        override = self.overrides(ResourceType.GROUP, group_id).get(name)
        synonyms = self._of_broker(GROUP_CONFIGS[name].broker_name, self._only_node)
        return int(override or synonyms[0].value or "")

    # What is told about it

    def of_topic(self, overrides: Mapping[str, str]) -> Iterator[Setting]:
        """Yield every setting of a topic, given what was set for it."""
        return self._of_resource(TOPIC_CONFIGS, overrides, ConfigSource.TOPIC)

    def of_group(self, group_id: str) -> Iterator[Setting]:
        """Yield every setting of a group."""
        overrides = self.overrides(ResourceType.GROUP, group_id)
        return self._of_resource(GROUP_CONFIGS, overrides, ConfigSource.GROUP)

    def of_node(self, node: Node, listeners: Mapping[str, Node]) -> Iterator[Setting]:
        """Yield every setting of a node, which listens there by listeners' names."""
        static = {**self._static, **node_configs(node, listeners)}
        set_at_run_time = [
            *self.overrides(ResourceType.BROKER, str(node.id)),
            *self.overrides(ResourceType.BROKER, ALL_NODES),
        ]
        for name in sorted({*BROKER_CONFIGS, *set_at_run_time}):
            yield Setting(_broker_config(name), self._of_broker(name, str(node.id), static))

    def of_all_nodes(self) -> Iterator[Setting]:
        """Yield what was set for all nodes."""
        for name, value in sorted(self.overrides(ResourceType.BROKER, ALL_NODES).items()):
            definition = _broker_config(name)
            yield Setting(definition, [_told(definition, value, ConfigSource.CLUSTER)])

    def _of_resource(
        self, table: Mapping[str, ConfigDef], overrides: Mapping[str, str], source: ConfigSource
    ) -> Iterator[Setting]:
        for definition in table.values():
            synonyms = self._of_broker(definition.broker_name, self._only_node)
            if definition.name in overrides:
                synonyms.insert(0, Synonym(definition.name, overrides[definition.name], source))
            yield Setting(definition, synonyms)

    def _of_broker(
        self, name: str, node_id: str | None, static: Mapping[str, str] | None = None
    ) -> list[Synonym]:
        """Return where brokers have a value, the place that counts first."""
        definition = _broker_config(name)
        places = [
            (self.overrides(ResourceType.BROKER, ALL_NODES), ConfigSource.CLUSTER),
            (self._static if static is None else static, ConfigSource.STATIC),
        ]
        if node_id is not None:
            places.insert(0, (self.overrides(ResourceType.BROKER, node_id), ConfigSource.NODE))
        synonyms = [
            _told(definition, values[name], source) for values, source in places if name in values
        ]
        if definition.default is not None:
            synonyms.append(_told(definition, definition.default, ConfigSource.DEFAULT))
        return synonyms


def _broker_config(name: str) -> ConfigDef:
    """Return a setting of brokers; nobody is told the value of one that is not known."""
    return BROKER_CONFIGS.get(name) or ConfigDef(name, ConfigType.PASSWORD, None)


def _told(definition: ConfigDef, value: str, source: ConfigSource) -> Synonym:
    return Synonym(definition.name, None if definition.is_sensitive else value, source)
