"""What groups know of topics, and the hash of it."""

from __future__ import annotations

from aiokafka_lite.broker import Broker
from tests.broker.groups.fakes import FakeTopics

D_ID = b"d" * 16


def test_hash_tells_topics_partitions_and_racks_apart() -> None:
    topics = FakeTopics()
    assert topics.catalog.metadata_hash(["a"]) == 0
    topics.create("a", 2)
    seen = {0, topics.catalog.metadata_hash(["a"])}
    assert topics.catalog.metadata_hash(["a", "missing"]) in seen
    topics.create("b", 2)
    seen.add(topics.catalog.metadata_hash(["b"]))
    seen.add(topics.catalog.metadata_hash(["a", "b"]))
    assert topics.catalog.metadata_hash(["b", "a"]) == topics.catalog.metadata_hash(["a", "b"])
    topics.grow("a", 3)
    seen.add(topics.catalog.metadata_hash(["a"]))
    topics.create("a", 3)
    seen.add(topics.catalog.metadata_hash(["a"]))
    topics.create("c", 1, "r1", "r2")
    seen.add(topics.catalog.metadata_hash(["c"]))
    for racks in ([("r1",), ()], [(), ("r1",)], [("r1", "r2"), ()]):
        topics.add("d", racks, D_ID)
        seen.add(topics.catalog.metadata_hash(["d"]))
    topics.add("d", [("r2", "r1"), ()], D_ID)
    assert topics.catalog.metadata_hash(["d"]) in seen
    assert len(seen) == 10
    assert all(-(1 << 63) <= value < 1 << 63 for value in seen)


def test_hash_is_the_same_in_every_process_because_logs_hold_it() -> None:
    topics = FakeTopics()
    topics.add("orders", [("r2", "r1"), (), ("r1",)], bytes(range(16)))
    topics.add("a-1", [()], bytes(range(16, 32)))
    assert topics.catalog.metadata_hash(["orders"]) == 8623740126971684898
    assert topics.catalog.metadata_hash(["orders", "a-1"]) == 5331108726980532291


async def test_cluster_tells_ids_and_the_racks_of_every_replica() -> None:
    async with Broker(nodes=3, racks=("a", "b", "c")) as broker:
        broker.create_topic("small", 1)
        broker.create_topic("large", 2_000)
        ids = {broker.topics[topic].topic_id for topic in ("small", "large")}
        assert broker.catalog.topic_ids(["none", "small", "large"]) == ids
        assert broker.catalog.metadata_hash(["none"]) == 0
        racks = broker.catalog.racks
        found = [
            map(racks.__getitem__, each.replicas) for each in broker.topics["large"].partitions
        ]
        assert {frozenset(names) for names in found} == {frozenset("abc")}
