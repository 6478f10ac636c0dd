"""What groups know of topics, and the hash of it; Kafka's own are compared in test_records.py."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.groups.kip848.topic_hash import TopicFacts, metadata_hash
from aiokafka_lite.broker.groups.kip848.xxh3 import xxh3_64
from tests.broker.groups.fakes import FakeTopics


# From the reference implementation (xxhash 0.8), for the first bytes of 00 01 02 ... ff 00 ...
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 0x2D06800538D394C2),
        (1, 0xC44BDFF4074EECDB),
        (3, 0x5F4299FC161C9CBB),
        (4, 0x60DAB036A58211F2),
        (8, 0x3A1C2D7C85AF88F8),
        (9, 0xE9612598145BB9DC),
        (16, 0x8355E3A6F61770DB),
        (17, 0x9EF341A99DE37328),
        (32, 0x3523581FE96E4C05),
        (33, 0xE68C56BA88991E58),
        (128, 0x85C6174C7FF4C46B),
        (129, 0xEC7642B431BA3E5A),
        (240, 0x375A384D957FE865),
        (241, 0x02E8CD95421C6D02),
        (1024, 0xA870F92984398D22),
        (1025, 0x78C86E91EE939852),
        (4096, 0xEB4B7C3707879151),
    ],
)
def test_xxh3_is_that_of_the_reference(size: int, expected: int) -> None:
    assert xxh3_64((bytes(range(256)) * 17)[:size]) == expected


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
    assert len(seen) == 7
    assert all(-(1 << 63) <= value < 1 << 63 for value in seen)


def test_hash_is_that_of_earlier_releases_which_logs_hold() -> None:
    topics = FakeTopics()
    topics.add(TopicFacts("orders", bytes(range(16)), [("r2", "r1"), (), ("r1",)]))
    topics.add(TopicFacts("a-1", bytes(range(16, 32)), [()]))
    assert metadata_hash(topics, ["orders"]) == -6791492315684216290
    assert metadata_hash(topics, ["orders", "a-1"]) == -6255018664811140269


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
