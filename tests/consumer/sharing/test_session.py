"""What a share session tells its node."""

from __future__ import annotations

from aiokafka_lite.consumer.sharing.leases import SharePartition
from aiokafka_lite.consumer.sharing.session import ShareSession
from aiokafka_lite.protocol.messages.share import ShareFetchRequest
from aiokafka_lite.structs import TopicPartition


def partition() -> SharePartition:
    return SharePartition(bytes(16), TopicPartition("t", 0), 1)


def fetch(session: ShareSession, *partitions: SharePartition) -> ShareFetchRequest:
    return session.fetch(partitions, {}, max_records=1, max_wait_ms=0, max_bytes=1, is_exact=False)


def test_partition_that_has_moved_away_and_back_is_not_forgotten() -> None:
    session = ShareSession("group", "member")
    assert fetch(session, partition()).topics
    request = fetch(session, partition())
    assert request.topics == []
    assert request.forgotten_topics_data == []


def test_partition_that_is_fetched_no_longer_is_forgotten() -> None:
    session = ShareSession("group", "member")
    fetch(session, partition())
    (forgotten,) = fetch(session).forgotten_topics_data
    assert forgotten.partitions == [0]
