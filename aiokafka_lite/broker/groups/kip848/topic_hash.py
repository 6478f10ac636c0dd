"""The topics as the group coordinator sees them, and a hash that detects changes.

A group needs a new assignment when the hash changes (KIP-1101). Kafka's hash is XXH3, but
coordinators compare only their own hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, KeysView, Sequence
from typing import NamedTuple, Protocol


class TopicFacts(NamedTuple):
    """An existing topic, with the known racks of each partition's replicas."""

    name: str
    topic_id: bytes
    racks: Sequence[Sequence[str]]

    @property
    def partition_count(self) -> int:
        return len(self.racks)


class Topics(Protocol):
    """The topics of the cluster.

    Attributes:
        version: Changes when a topic is created, grows or is deleted.
        created_version: The version in which the latest topic was created.
    """

    @property
    def version(self) -> int: ...
    @property
    def created_version(self) -> int: ...

    def names(self) -> KeysView[str]: ...

    def by_name(self, name: str) -> TopicFacts | None: ...

    def by_id(self, topic_id: bytes) -> TopicFacts | None: ...

    def id_of(self, name: str) -> bytes | None:
        """Return a topic's id, faster than `by_name`."""


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
