"""A hash of topics, which detects changes.

A group needs a new assignment when the hash changes (KIP-1101). Kafka's hash is XXH3, but
coordinators compare only their own hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from aiokafka_lite.broker.catalog import TopicCatalog


def topic_ids(catalog: TopicCatalog, names: Collection[str]) -> frozenset[bytes]:
    return frozenset(catalog.topics[name].topic_id for name in _existing(catalog, names))


def metadata_hash(catalog: TopicCatalog, names: Collection[str]) -> int:
    """Return a signed 64-bit hash of the topics that exist, 0 without any."""
    racks, topics = catalog.racks, catalog.topics
    hashed = []
    for name in sorted(_existing(catalog, names)):
        topic_id, partitions = topics[name].topic_id, topics[name].partitions
        known = [[node for node in partition.replicas if node in racks] for partition in partitions]
        hashed.append((name, topic_id.hex(), [sorted(racks[n] for n in nodes) for nodes in known]))
    if not hashed:
        return 0
    digest = hashlib.blake2b(ascii(hashed).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _existing(catalog: TopicCatalog, names: Collection[str]) -> Collection[str]:
    existing = catalog.topics.keys()
    if len(names) <= len(existing):
        return existing & names
    return frozenset(names).intersection(existing)
