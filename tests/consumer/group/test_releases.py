"""Groups on other releases of Kafka: "auto" takes what there is, and commits do not fail there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from aiokafka_lite._compat import override, timeout
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import CommitFailedError
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import unique
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable
from tests.support.rows import tps
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.real_kafka]

PARTITIONS: Final = 4
RECORDS: Final = 300
TURNS: Final = 6


class Release(NamedTuple):
    """A release of Kafka that runs, and by what "auto" joins its groups."""

    version: str
    protocol: str
    bootstrap_servers: str


RELEASES: Final = (("3.9.1", "classic"), ("4.0.0", "consumer"), ("4.4.0", "consumer"))


@pytest.fixture(scope="module", params=RELEASES, ids="-".join)
def release(request: pytest.FixtureRequest) -> Iterator[Release]:
    """One node of another release than the one that all else is tested with."""
    version, protocol = request.param
    try:
        kafka = RealKafka(version=version)
    except KafkaUnavailableError as error:
        unavailable(error)
    with kafka:
        yield Release(version, protocol, kafka.bootstrap_servers)


def written_topic(release: Release) -> str:
    """Make a topic with records in each partition, by a client that speaks to old brokers."""
    name = unique("t")
    admin = AdminClient({"bootstrap.servers": release.bootstrap_servers})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": release.bootstrap_servers})
    for n in range(PARTITIONS * RECORDS):
        producer.produce(name, b"x", partition=n % PARTITIONS)
    producer.flush(PATIENCE_S)
    return name


def member(release: Release, topic: str, group: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=release.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_protocol="auto",
        heartbeat_interval_ms=200,
    )


async def test_auto_takes_the_protocol_that_the_release_offers(release: Release) -> None:
    topic, group = await asyncio.to_thread(written_topic, release), unique("g")
    async with member(release, topic, group) as one, member(release, topic, group) as two:
        await until(lambda: len(one.assignment()) == len(two.assignment()) == PARTITIONS // 2)
        assert one.assignment() | two.assignment() == tps(topic, *range(PARTITIONS))
        assert {each.metrics()["group_protocol"] for each in (one, two)} == {release.protocol}


class Forgetting(ConsumerRebalanceListener):
    """Forgets the offsets of what goes: another member may go on from there."""

    def __init__(self, known: dict[TopicPartition, int]) -> None:
        self._known = known

    @override
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        for tp in revoked:
            self._known.pop(tp, None)

    @override
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        pass


async def test_a_commit_while_others_come_and_go_does_not_fail(release: Release) -> None:
    """Before KIP-1251 a commit under an epoch that has moved is refused (STALE_MEMBER_EPOCH)."""
    topic, group = await asyncio.to_thread(written_topic, release), unique("g")
    known: dict[TopicPartition, int] = {}
    is_over = False

    async def commit_again_and_again(consumer: AIOKafkaConsumer) -> int:
        count = 0
        while not is_over:
            found = await consumer.getmany(timeout_ms=5, max_records=5)
            known.update({tp: records[-1].offset + 1 for tp, records in found.items()})
            offsets = {tp: known[tp] for tp in consumer.assignment() & known.keys()}
            try:
                await consumer.commit(offsets or None)
            except CommitFailedError:
                # An eager member has given all back; others what is another's now.
                assert release.protocol == "classic" or not offsets.keys() <= consumer.assignment()
            else:
                count += 1
        return count

    stays = member(release, topic, group)
    stays.subscribe([topic], listener=Forgetting(known))
    async with stays:
        committing = asyncio.ensure_future(commit_again_and_again(stays))
        for _ in range(TURNS):
            async with member(release, topic, group) as passing:
                await until(lambda each=passing: each.assignment())  # type: ignore[misc]
            await until(lambda: len(stays.assignment()) == PARTITIONS)
        is_over = True
        async with timeout(PATIENCE_S):
            assert await committing > TURNS
        for tp in stays.assignment():
            assert await stays.committed(tp) is not None
