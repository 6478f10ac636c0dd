"""What groups know of topics, and the hash of it."""

from __future__ import annotations

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.groups.kip848.topic_hash import TopicFacts, metadata_hash
from tests.broker.groups.fakes import FakeTopics


def test_hash_tells_topics_partitions_and_racks_apart() -> None:
    topics = FakeTopics()
    assert metadata_hash(topics, ["a"]) == 0
    topics.create("a", 2)
    seen = {0, metadata_hash(topics, ["a"])}
    assert metadata_hash(topics, ["a", "missing"]) in seen
    topics.create("b", 2)
    seen.add(metadata_hash(topics, ["b"]))
    seen.add(metadata_hash(topics, ["a", "b"]))
    assert metadata_hash(topics, ["b", "a"]) == metadata_hash(topics, ["a", "b"])
    topics.grow("a", 3)
    seen.add(metadata_hash(topics, ["a"]))
    topics.create("a", 3)
    seen.add(metadata_hash(topics, ["a"]))
    topics.create("c", 1, "r1", "r2")
    seen.add(metadata_hash(topics, ["c"]))
    for racks in ([("r1",), ()], [(), ("r1",)], [("r1", "r2"), ()]):
        topics.add(TopicFacts("d", bytes(16), racks))
        seen.add(metadata_hash(topics, ["d"]))
    topics.add(TopicFacts("d", bytes(16), [("r2", "r1"), ()]))
    assert metadata_hash(topics, ["d"]) in seen
    assert len(seen) == 10
    assert all(-(1 << 63) <= value < 1 << 63 for value in seen)


def test_hash_is_the_same_in_every_process_because_logs_hold_it() -> None:
    topics = FakeTopics()
    topics.add(TopicFacts("orders", bytes(range(16)), [("r2", "r1"), (), ("r1",)]))
    topics.add(TopicFacts("a-1", bytes(range(16, 32)), [()]))
    assert metadata_hash(topics, ["orders"]) == 8623740126971684898
    assert metadata_hash(topics, ["orders", "a-1"]) == 5331108726980532291


async def test_cluster_tells_ids_and_the_racks_of_every_replica() -> None:
    async with Broker(nodes=3, racks=("a", "b", "c")) as broker:
        broker.create_topic("small", 1)
        broker.create_topic("large", 2_000)
        for topic in ("small", "large"):
            assert broker.group_topics.id_of(topic) == broker.topics[topic].topic_id
        assert broker.group_topics.id_of("none") is None
        found = broker.group_topics.by_name("large")
        assert found is not None
        assert {frozenset(racks) for racks in found.racks} == {frozenset("abc")}
