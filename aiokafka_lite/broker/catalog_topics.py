"""The cluster's topics for the group coordinator."""

from __future__ import annotations

from collections.abc import KeysView, Mapping

from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.groups.kip848.topic_hash import TopicFacts
from aiokafka_lite.broker.topics import ServingNode, Topic


class CatalogTopics:
    """Implements `groups.kip848.topic_hash.Topics`.

    Args:
        catalog: The topics.
        nodes: The nodes by id; some may have a rack.
    """

    def __init__(self, catalog: TopicCatalog, nodes: Mapping[int, ServingNode]) -> None:
        self._catalog = catalog
        self._nodes = nodes

    @property
    def version(self) -> int:
        return self._catalog.version

    @property
    def created_version(self) -> int:
        return self._catalog.created_version

    def names(self) -> KeysView[str]:
        return self._catalog.topics.keys()

    def by_name(self, name: str) -> TopicFacts | None:
        topic = self._catalog.by_name(name)
        return None if topic is None else self._facts(topic)

    def by_id(self, topic_id: bytes) -> TopicFacts | None:
        topic = self._catalog.by_id(topic_id)
        return None if topic is None else self._facts(topic)

    def id_of(self, name: str) -> bytes | None:
        topic = self._catalog.by_name(name)
        return None if topic is None else topic.topic_id

    def _facts(self, topic: Topic) -> TopicFacts:
        named = {
            node_id: node.address.rack
            for node_id, node in self._nodes.items()
            if node.address.rack is not None
        }
        racks = [
            tuple(named[node_id] for node_id in partition.replicas if node_id in named)
            for partition in topic.partitions
        ]
        return TopicFacts(topic.name, topic.topic_id, racks)
