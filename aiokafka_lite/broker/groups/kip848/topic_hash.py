"""What the coordinator needs to know about topics, and the hash that tells when that changed.

A group stores the hash of the topics that it consumes; when another comes out, partitions or
racks have changed, and the group needs a new assignment (KIP-1101, Kafka: Utils.java).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, KeysView, Sequence
from typing import Final, NamedTuple, Protocol

from aiokafka_lite.broker.groups.kip848.xxh3 import xxh3_64

_HASH_FORMAT: Final = 0
_TOPIC: Final = struct.Struct("<bQQ")
_INT32: Final = struct.Struct("<i")
_INT64: Final = struct.Struct("<q")


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
    """Return the hash of the topics that exist, signed as Java has it; 0 for none."""
    found = (topics.by_name(name) for name in in_java_order(_existing(topics, names)))
    hashes = [_topic_hash(topic) for topic in found if topic is not None]
    if not hashes:
        return 0
    return _signed(xxh3_64(b"".join(value.to_bytes(8, "little") for value in hashes)))


def _existing(topics: Topics, names: Collection[str]) -> Collection[str]:
    """Return those of the topics that exist; goes over the fewer of both."""
    existing = topics.names()
    if len(names) <= len(existing):
        return existing & names
    return frozenset(names).intersection(existing)


def in_java_order(texts: Collection[str]) -> list[str]:
    """Return texts as Java's String.compareTo sorts them, by UTF-16 units."""
    if "".join(texts).isascii():  # they sort by their characters then, which takes a fifth
        return sorted(texts)
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))


def _topic_hash(topic: TopicFacts) -> int:
    high, low = struct.unpack(">QQ", topic.topic_id)
    parts = [
        _TOPIC.pack(_HASH_FORMAT, high, low),
        _java_string(topic.name),
        _INT32.pack(topic.partition_count),
    ]
    for partition, racks in enumerate(topic.racks):
        parts.append(_INT32.pack(partition))
        for rack in in_java_order(racks):
            hashed = _java_string(rack)  # ends with its length, which goes ahead of it, too
            parts += [hashed[-_INT32.size :], hashed]
    return xxh3_64(b"".join(parts))


def _java_string(text: str) -> bytes:
    """Return what hash4j hashes of a string: its UTF-16 units, then how many there are."""
    units = text.encode("utf-16-le", "surrogatepass")
    return units + _INT32.pack(len(units) // 2)


def _signed(value: int) -> int:
    (signed,) = _INT64.unpack(value.to_bytes(8, "little"))
    return int(signed)
