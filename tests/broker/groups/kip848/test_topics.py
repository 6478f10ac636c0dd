"""What groups know of topics, and the hash of it."""

from __future__ import annotations

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.groups.kip848.topic_hash import metadata_hash, topic_ids
from tests.broker.groups.fakes import FakeTopics

D_ID = b"d" * 16


def test_hash_tells_topics_partitions_and_racks_apart() -> None:
    topics = FakeTopics()
    assert metadata_hash(topics.catalog, ["a"]) == 0
    topics.create("a", 2)
    seen = {0, metadata_hash(topics.catalog, ["a"])}
    assert metadata_hash(topics.catalog, ["a", "missing"]) in seen
    topics.create("b", 2)
    seen.add(metadata_hash(topics.catalog, ["b"]))
    seen.add(metadata_hash(topics.catalog, ["a", "b"]))
    assert metadata_hash(topics.catalog, ["b", "a"]) == metadata_hash(topics.catalog, ["a", "b"])
    topics.grow("a", 3)
    seen.add(metadata_hash(topics.catalog, ["a"]))
    topics.create("a", 3)
    seen.add(metadata_hash(topics.catalog, ["a"]))
    topics.create("c", 1, "r1", "r2")
    seen.add(metadata_hash(topics.catalog, ["c"]))
    for racks in ([("r1",), ()], [(), ("r1",)], [("r1", "r2"), ()]):
        topics.add("d", racks, D_ID)
        seen.add(metadata_hash(topics.catalog, ["d"]))
    topics.add("d", [("r2", "r1"), ()], D_ID)
    assert metadata_hash(topics.catalog, ["d"]) in seen
    assert len(seen) == 10
    assert all(-(1 << 63) <= value < 1 << 63 for value in seen)


def test_hash_is_the_same_in_every_process_because_logs_hold_it() -> None:
    topics = FakeTopics()
    topics.add("orders", [("r2", "r1"), (), ("r1",)], bytes(range(16)))
    topics.add("a-1", [()], bytes(range(16, 32)))
    assert metadata_hash(topics.catalog, ["orders"]) == 8623740126971684898
    assert metadata_hash(topics.catalog, ["orders", "a-1"]) == 5331108726980532291


async def test_cluster_tells_ids_and_the_racks_of_every_replica() -> None:
    async with Broker(nodes=3, racks=("a", "b", "c")) as broker:
        broker.create_topic("small", 1)
        broker.create_topic("large", 2_000)
        ids = {broker.topics[topic].topic_id for topic in ("small", "large")}
        assert topic_ids(broker.catalog, ["none", "small", "large"]) == ids
        assert metadata_hash(broker.catalog, ["none"]) == 0
        racks = broker.catalog.racks
        found = [
            map(racks.__getitem__, each.replicas) for each in broker.topics["large"].partitions
        ]
        assert {frozenset(names) for names in found} == {frozenset("abc")}
