"""Closest replicas (KIP-392) and quotas (KIP-219) of a real cluster: three nodes in three racks.

Only in the long form: it starts a cluster of its own, and stops one of its nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle
from tests.support.java import JavaTools
from tests.support.reading import offsets_read, reading
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, until
from tests.support.wire import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.real_kafka]

REPLICAS = LEADER, FOLLOWER, _ = 1, 2, 3


@pytest.fixture(scope="module")
def racks() -> Iterator[RealKafka]:
    """Three nodes in the racks rack1 to rack3, whose leaders name followers by rack."""
    try:
        cluster = RealKafka(nodes=3)
    except KafkaUnavailableError as error:
        unavailable(error)
    with cluster:
        yield cluster


async def test_records_come_from_our_rack_and_from_the_leader_while_it_is_down(
    racks: RealKafka,
) -> None:
    kafka = KafkaHandle("real", racks.bootstrap_servers)
    topic = await kafka.create_topic(replicas=REPLICAS)
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic, client_rack=f"rack{FOLLOWER}") as consumer:
        assert await offsets_read(consumer, 3) == {0: [0, 1, 2]}
        tp = TopicPartition(topic, 0)
        await until(lambda: inside.nodes_read_from(consumer) == [FOLLOWER])  # nobody else is asked
        preferred = inside.cursor(consumer, tp).preferred_replica
        assert preferred is not None
        assert preferred.leader == LEADER
        await kafka.produce(topic, 0, rows(3, 3))
        assert await offsets_read(consumer, 3) == {0: [3, 4, 5]}
        assert inside.nodes_read_from(consumer) == [FOLLOWER]

        racks.kill_node(FOLLOWER)
        await kafka.produce(topic, 0, rows(6, 3))
        assert await offsets_read(consumer, 3) == {0: [6, 7, 8]}
        assert inside.node_read_from(consumer, tp) == LEADER

        await asyncio.to_thread(racks.start_node, FOLLOWER)
        await until(lambda: inside.node_read_from(consumer, tp) == FOLLOWER)
        await kafka.produce(topic, 0, rows(9, 3))
        assert await offsets_read(consumer, 3) == {0: [9, 10, 11]}
        assert inside.node_read_from(consumer, tp) == FOLLOWER


async def test_a_node_that_hangs_keeps_no_other_node_s_partitions_from_having_a_position(
    racks: RealKafka,
) -> None:
    kafka = KafkaHandle("real", racks.bootstrap_servers)
    # By the node that leads it.
    led_by = {
        node: TopicPartition(
            await kafka.create_topic(replicas=(node, *(n for n in REPLICAS if n != node))), 0
        )
        for node in REPLICAS
    }
    hung, *others = led_by.values()
    for node, tp in led_by.items():
        leader = KafkaHandle("real", f"127.0.0.1:{racks.nodes[node].port}")
        await leader.produce(tp.topic, 0, rows(0, 3))
    async with reading(kafka, request_timeout_ms=30_000) as consumer:
        consumer.assign(led_by.values())
        assert await offsets_of(consumer, *led_by.values()) == [0, 0, 0]
        racks.pause_node(LEADER)
        try:
            stuck = asyncio.ensure_future(consumer.seek_to_end(hung))
            await asyncio.sleep(0)
            assert await asyncio.wait_for(consumer.seek_to_end(*others), 2)
            assert await offsets_of(consumer, *others) == [3, 3]
            # Another node leads it in some 9 s: it is asked then, though the first never answers.
            assert await asyncio.wait_for(stuck, 25)
            assert await consumer.end_offsets([hung]) == {hung: 3}
        finally:
            racks.resume_node(LEADER)
            await until_taken_back(racks, LEADER)


async def until_taken_back(racks: RealKafka, node_id: int) -> None:
    """Wait until a node that was fenced may lead again.

    A topic that is made before is led by another node, whatever its replicas' order. The node
    itself may not know yet that it was fenced, so another one is asked.
    """
    other = next(node for node in racks.nodes if node != node_id)
    async with timeout(PATIENCE_S), RawClient(f"127.0.0.1:{racks.nodes[other].port}") as client:
        while True:
            listed = (await client.request(MetadataRequest(topics=[]))).brokers
            if node_id in {broker.node_id for broker in listed}:
                return
            await asyncio.sleep(0.05)


async def offsets_of(consumer: AIOKafkaConsumer, *partitions: TopicPartition) -> list[int]:
    return [await consumer.position(tp) for tp in partitions]


async def test_a_consumer_over_its_quota_reads_on_when_it_may(
    racks: RealKafka, java_tools: JavaTools
) -> None:
    kafka = KafkaHandle("real", racks.bootstrap_servers)
    topic = await kafka.create_topic(replicas=REPLICAS)
    for first in range(0, 1_000, 100):
        await kafka.produce(topic, 0, [(None, b"%01000d" % i) for i in range(first, first + 100)])
    quota = await java_tools.run(
        "kafka.admin.ConfigCommand", "--bootstrap-server", kafka.bootstrap_servers, "--alter",
        "--add-config", "consumer_byte_rate=90000", "--entity-type", "clients",
        "--entity-name", topic,
    )  # fmt: skip
    assert quota.returncode == 0, quota.stderr
    longest_mute_s = 0.0
    async with reading(
        kafka, topic, client_id=topic, max_partition_fetch_bytes=200_000
    ) as consumer:
        pool = inside.cluster(consumer).pool
        offsets: list[int] = []
        deadline = asyncio.get_running_loop().time() + 120
        while len(offsets) < 1_000 and asyncio.get_running_loop().time() < deadline:
            for batch in (await consumer.poll(timeout_ms=50)).values():
                offsets += [record.offset for record in batch]
            mute_s = pool.connection_delay(LEADER, Lane.FETCH)
            longest_mute_s = max(longest_mute_s, mute_s)
    assert offsets == list(range(1_000))
    assert longest_mute_s > 0


async def test_without_a_rack_records_come_from_the_leader(racks: RealKafka) -> None:
    kafka = KafkaHandle("real", racks.bootstrap_servers)
    topic = await kafka.create_topic(replicas=REPLICAS)
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic) as consumer:
        assert await offsets_read(consumer, 3) == {0: [0, 1, 2]}
        await kafka.produce(topic, 0, rows(3, 3))
        assert await offsets_read(consumer, 3) == {0: [3, 4, 5]}
        assert inside.nodes_read_from(consumer) == [LEADER]
