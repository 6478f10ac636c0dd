"""Groups of KIP-848 outlive a broker that keeps its data, and a node of a cluster."""

from __future__ import annotations

from pathlib import Path

from aiokafka_lite import errors
from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from tests.broker.groups.kip848.requests import ConsumerGroupRequests
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator

NONE = 0


async def test_members_go_on_after_a_restart(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_coordinator(kafka)
        topic = await kafka.create_topic("t", partitions=4)
        group = ConsumerGroupRequests(kafka, "g")
        static = group.of("a", topics=[topic], instance_id="one")
        by_regex = group.of("b", regex="t.*")
        await static.join()
        await by_regex.join()
        await group.until(lambda described: described.group_epoch == 3)
        await group.settle(static, by_regex)
        assert (static.count, by_regex.count) == (2, 2)
        await static.leave(-2)
    async with Broker(data_dir=tmp_path) as broker:
        await broker.node.groups.until_loaded()
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        by_regex.group = group = ConsumerGroupRequests(kafka, "g")
        epoch, held = by_regex.epoch, by_regex.held
        answer = await by_regex.beat()
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (NONE, epoch, None)
        heir = group.of("c", topics=[topic], instance_id="one")
        assert (await heir.join()).error_code == NONE
        assert (heir.epoch, heir.held) == (epoch, static.held)
        assert by_regex.held == held
        assert (await group.described()).group_state == "Stable"
    assert broker.failure is None


async def test_deleted_group_stays_deleted(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_coordinator(kafka)
        group = ConsumerGroupRequests(kafka, "g")
        member = group.of("a", topics=["t"])
        await member.join()
        await member.leave()
        assert await group.delete() == NONE
    async with Broker(data_dir=tmp_path) as broker:
        await broker.node.groups.until_loaded()
        group = ConsumerGroupRequests(KafkaHandle("embedded", broker.bootstrap_servers), "g")
        assert await group.listed() is None


async def test_another_node_takes_the_group_over() -> None:
    async with Broker(nodes=2, racks=("r1", "r2")) as broker:
        nodes = {
            node_id: ConsumerGroupRequests(KafkaHandle("embedded", node.bootstrap_servers), "g")
            for node_id, node in broker.nodes.items()
        }
        async with nodes[1].kafka.raw() as client:
            await client.request(FindCoordinatorRequest(coordinator_keys=["g"]))
        topic = broker.create_topic("t", 4).name
        first, second = broker.coordinator_of("g"), 3 - broker.coordinator_of("g")
        member = nodes[first].of("a", topics=[topic])
        await member.join()
        refused = await nodes[second].beat("a", 2)
        assert refused.error_code == errors.NotCoordinatorError.errno
        assert broker.move_coordinator("g") == second
        assert (await member.beat()).error_code == errors.NotCoordinatorError.errno
        await broker.nodes[second].groups.until_loaded()
        member.group = nodes[second]
        answer = await member.beat()
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (NONE, 2, None)
        await broker.stop_node(second, clean=False)
        await broker.nodes[first].groups.until_loaded()
        member.group = nodes[first]
        assert (await member.beat()).member_epoch == 2
        assert member.count == 4
    assert broker.failure is None
