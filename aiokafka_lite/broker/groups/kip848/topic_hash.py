"""The topics as the group coordinator sees them, and a hash that detects changes.

A group needs a new assignment when the hash changes (KIP-1101). Kafka's hash is XXH3, but
coordinators compare only their own hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, KeysView, Mapping, Sequence
from typing import NamedTuple

from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.topics import ServingNode, Topic


class TopicFacts(NamedTuple):
    """An existing topic, with the known racks of each partition's replicas."""

    name: str
    topic_id: bytes
    racks: Sequence[Sequence[str]]

    @property
    def partition_count(self) -> int:
        return len(self.racks)


class Topics:
    def __init__(self, catalog: TopicCatalog, nodes: Mapping[int, ServingNode]) -> None:
        self._catalog = catalog
        self._nodes = nodes

    @property
    def version(self) -> int:
        """Changes when a topic is created, grows or is deleted."""
        return self._catalog.version

    @property
    def created_version(self) -> int:
        """The version in which the latest topic was created."""
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
        """Return a topic's id, faster than `by_name`."""
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


def topic_ids(topics: Topics, names: Collection[str]) -> frozenset[bytes]:
    found = (topics.id_of(name) for name in _existing(topics, names))
    return frozenset(topic_id for topic_id in found if topic_id is not None)


def metadata_hash(topics: Topics, names: Collection[str]) -> int:
    """Return a signed 64-bit hash of the topics that exist, 0 without any."""
    found = [topics.by_name(name) for name in sorted(_existing(topics, names))]
    hashed = [
        (topic.name, topic.topic_id.hex(), [sorted(racks) for racks in topic.racks])
        for topic in found
        if topic is not None
    ]
    if not hashed:
        return 0
    digest = hashlib.blake2b(ascii(hashed).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _existing(topics: Topics, names: Collection[str]) -> Collection[str]:
    existing = topics.names()
    if len(names) <= len(existing):
        return existing & names
    return frozenset(names).intersection(existing)
