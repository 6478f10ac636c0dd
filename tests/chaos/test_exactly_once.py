"""An exactly-once copy between two topics, while three real brokers are killed in turn.

A consumer of a group and a transactional producer: what was read and what was written is committed
together, by a loop of polls or by handlers. Whatever fails, the copier begins anew, as a process
would that was restarted; the group's offsets and the producer's id say where.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.processing import Outputs
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing.coordinators import TRANSACTION
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.cluster import unique
from tests.support.committed import PATIENCE_S, read_java, read_librdkafka
from tests.support.failover.cluster import FailingCluster, until
from tests.support.java import JavaTools
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable

pytestmark = [pytest.mark.real_kafka, pytest.mark.java, pytest.mark.timeout(3000)]

PARTITIONS: Final = 3
BATCH: Final = 20
# A kill is missed after this; then leaders and coordinators move.
QUICK: Final = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "250"}


@pytest.fixture
def cluster() -> Iterator[FailingCluster]:
    try:
        kafka = RealKafka(3, properties=QUICK, heap_mib=256)
    except KafkaUnavailableError as error:
        unavailable(error)
    with kafka:
        yield FailingCluster(kafka)


class Copier:
    """Copies a topic to another one, a transaction for each poll."""

    def __init__(self, bootstrap_servers: str, source: str, target: str, protocol: str) -> None:
        self._where = bootstrap_servers
        self._source = source
        self._target = target
        self._protocol = protocol
        self._id = unique("copier")
        self.lives = 0

    async def run(self) -> None:
        """Copy without end; begin anew after whatever Kafka says."""
        while True:
            self.lives += 1
            try:
                await self._live()
            except KafkaError:
                await asyncio.sleep(0.2)

    async def _live(self) -> None:
        consumer = AIOKafkaConsumer(
            self._source,
            bootstrap_servers=self._where,
            group_id=f"{self._id}-group",
            group_protocol=self._protocol,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            request_timeout_ms=15_000,
            session_timeout_ms=10_000,
        )
        producer = AIOKafkaProducer(
            bootstrap_servers=self._where,
            transactional_id=self._id,
            transaction_timeout_ms=20_000,
            request_timeout_ms=15_000,
        )
        async with consumer, producer:
            await self._copy(consumer, producer)

    async def _copy(self, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer) -> None:
        while True:
            found = await consumer.poll(200, max_records=BATCH)
            if not found:
                continue
            async with producer.transaction() as tx:
                for records in found.values():
                    for record in records:
                        await tx.send(
                            self._target, record.value, key=record.key, partition=record.partition
                        )
                tx.commit_offsets(consumer)


class RunningCopier(Copier):
    """Copies by handlers, and whatever was handled meanwhile is a transaction."""

    async def _copy(self, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer) -> None:
        async def handle(record: ConsumerRecord[bytes | None, bytes | None], out: Outputs) -> None:
            await asyncio.sleep(0.01)
            out.send(self._target, record.value, key=record.key, partition=record.partition)

        await consumer.run(handle, transactions=producer, order="partition")


async def write(producer: AIOKafkaProducer, topic: str, written: list[int]) -> None:
    """Write numbers without end, a partition after the other."""
    for number in itertools.count():
        await producer.send_and_wait(
            topic, b"%d" % number, key=b"%d" % (number % 10), partition=number % PARTITIONS
        )
        written.append(number)
        await asyncio.sleep(0.01)


async def read_ours(where: str, topic: str, count: int) -> list[list[int]]:
    """What a read_committed consumer of ours finds, by partition."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    async with (
        timeout(PATIENCE_S),
        AIOKafkaConsumer(
            bootstrap_servers=where,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer,
    ):
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        quiet = 0
        while quiet < 3 or sum(map(len, found)) < count:
            records = await consumer.poll(1000)
            quiet = 0 if records else quiet + 1
            for tp, batch in records.items():
                found[tp.partition] += [int(record.value or b"-1") for record in batch]
    return found


async def copy_under_kills(
    cluster: FailingCluster,
    tools: JavaTools,
    protocol: str,
    kills: int,
    kind: type[Copier] = Copier,
) -> None:
    where = cluster.bootstrap_servers
    source, target = unique("source"), unique("target")
    for topic in (source, target):
        await cluster.create(topic, PARTITIONS)
    copier = kind(where, source, target, protocol)
    written: list[int] = []
    async with AIOKafkaProducer(bootstrap_servers=where, delivery_timeout_ms=120_000) as producer:
        writing = asyncio.ensure_future(write(producer, source, written))
        copying = asyncio.ensure_future(copier.run())
        for number in range(kills):
            node_id = sorted(cluster.kafka.nodes)[number % 3]
            await asyncio.sleep(1.0)
            await cluster.stop(node_id)
            await asyncio.sleep(2.5)
            await cluster.start(node_id)
            await cluster.whole(source, target)
            assert not writing.done(), writing
            assert not copying.done(), copying
        writing.cancel()
        await asyncio.wait([writing])
    # The one that was being written may be there or not.
    expected = len(written)
    try:
        ours = await read_ours(where, target, expected)
    finally:
        copying.cancel()
        await asyncio.wait([copying])
    found = Counter(itertools.chain(*ours))
    assert not [number for number, count in found.items() if count > 1], "copied twice"
    assert set(written) <= set(found), "lost"
    assert len(found) <= expected + 1
    assert all(numbers == sorted(numbers) for numbers in ours), "out of order"
    assert await asyncio.to_thread(read_librdkafka, where, target, len(found)) == found
    assert await read_java(tools, where, target) == found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Copier, RunningCopier])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_brokers_are_killed_and_the_copy_is_exact(
    cluster: FailingCluster, java_tools: JavaTools, protocol: str, kind: type[Copier]
) -> None:
    await copy_under_kills(cluster, java_tools, protocol, 2, kind)


@pytest.mark.slow
async def test_fifty_kills_and_the_copy_is_exact(
    cluster: FailingCluster, java_tools: JavaTools
) -> None:
    await copy_under_kills(cluster, java_tools, "consumer", 50)


@pytest.mark.slow
async def test_a_coordinator_that_was_suspended_ends_no_producer(cluster: FailingCluster) -> None:
    """A suspended coordinator gets the commit of a transaction that its successor knows of.

    The node that is the controller takes the longest until it knows that it was replaced.
    """
    await cluster.create(topic := unique("copy"), PARTITIONS)
    for number in range(4):
        controller, names = await cluster.controller(), (f"tx-{number}-{n}" for n in range(100))
        for name in names:
            async with AIOKafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers, transactional_id=name
            ) as producer:
                if await cluster.coordinator(name, TRANSACTION) == controller:
                    await commit_after_a_pause(cluster, producer, topic, name, controller)
                    break
    found = await read_ours(cluster.bootstrap_servers, topic, 8)
    assert sorted(itertools.chain(*found)) == list(range(8))


async def commit_after_a_pause(
    cluster: FailingCluster, producer: AIOKafkaProducer, topic: str, name: str, node_id: int
) -> None:
    round_ = int(name.split("-")[1])
    async with producer.transaction() as tx:
        await tx.send(topic, b"%d" % (2 * round_), partition=0)
    leaders = await cluster.leaders(topic)
    tx = producer.transaction()
    async with tx:
        cluster.pause(node_id)
        await until(lambda: cluster.coordinator(name, TRANSACTION), lambda new: new != node_id)
        other = next(index for index, leader in leaders.items() if leader != node_id)
        await tx.send_and_wait(topic, b"%d" % (2 * round_ + 1), partition=other)
        resuming = asyncio.get_running_loop().call_later(1.0, cluster.resume, node_id)
    assert tx.is_committed
    assert resuming.when() < asyncio.get_running_loop().time()
    await cluster.whole(topic, "__transaction_state")
    await cluster.elect_preferred()
