"""The topics that a coordinator reads, and the hash that shows whether they have changed.

A group stores the hash of the topics that it consumes. If the hash changes, partitions or racks
have changed, and the group needs a new assignment (KIP-1101). Kafka's hash is XXH3. The embedded
broker may use another function, because coordinators compare only their own hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, KeysView, Sequence
from typing import NamedTuple, Protocol


class TopicFacts(NamedTuple):
    """A topic that exists.

    Attributes:
        racks: For each partition the racks of its replicas, as far as these have one.
    """

    name: str
    topic_id: bytes
    racks: Sequence[Sequence[str]]

    @property
    def partition_count(self) -> int:
        return len(self.racks)


class Topics(Protocol):
    """The topics of the cluster.

    Attributes:
        version: Another one whenever a topic is made, grows or is deleted.
        created_version: The version in which the latest topic was made.
    """

    @property
    def version(self) -> int: ...
    @property
    def created_version(self) -> int: ...

    def names(self) -> KeysView[str]: ...

    def by_name(self, name: str) -> TopicFacts | None: ...

    def by_id(self, topic_id: bytes) -> TopicFacts | None: ...

    def id_of(self, name: str) -> bytes | None:
        """Return a topic's id without its facts, which cost time by its partitions."""


def topic_ids(topics: Topics, names: Collection[str]) -> frozenset[bytes]:
    """Return the ids of those of the topics that exist."""
    found = (topics.id_of(name) for name in _existing(topics, names))
    return frozenset(topic_id for topic_id in found if topic_id is not None)


def metadata_hash(topics: Topics, names: Collection[str]) -> int:
    """Return a hash of the topics that exist, 64 bits with a sign. 0: none exists."""
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
    """Return those of the topics that exist; goes over the fewer of both."""
    existing = topics.names()
    if len(names) <= len(existing):
        return existing & names
    return frozenset(names).intersection(existing)
