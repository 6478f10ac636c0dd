"""Three nodes, simulated and real: the same is done to both, and both answer the same.

For the long form: three real nodes take a quarter of a minute to start and some seconds to notice
that one is gone.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    NoError,
    NotCoordinatorError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest
from aiokafka_lite.protocol.messages.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from aiokafka_lite.protocol.messages.topics import CreatableReplicaAssignment as Assignment
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.broker.cluster.conftest import TP, get, only, put, values_in
from tests.broker.wire import topic_metadata
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable
from tests.support.wire import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.java]

T = TypeVar("T")
PATIENCE_S = 30.0


class ThreeNodes(ABC):
    """Nodes 1 to 3 in racks rack1 to rack3."""

    @abstractmethod
    def address(self, node_id: int) -> str: ...

    @abstractmethod
    async def kill(self, node_id: int) -> None: ...

    @abstractmethod
    async def start(self, node_id: int) -> None: ...

    def client(self, node_id: int) -> RawClient:
        return RawClient(self.address(node_id))


class Simulated(ThreeNodes):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def address(self, node_id: int) -> str:
        return self._broker.nodes[node_id].bootstrap_servers

    async def kill(self, node_id: int) -> None:
        await self._broker.stop_node(node_id, clean=False)

    async def start(self, node_id: int) -> None:
        await self._broker.start_node(node_id)


class Real(ThreeNodes):
    def __init__(self, kafka: RealKafka) -> None:
        self._kafka = kafka

    def address(self, node_id: int) -> str:
        return f"127.0.0.1:{self._kafka.nodes[node_id].port}"

    async def kill(self, node_id: int) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._kafka.kill_node, node_id)

    async def start(self, node_id: int) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._kafka.start_node, node_id)


@pytest.fixture(params=["simulated", "real"])
async def nodes(request: pytest.FixtureRequest) -> AsyncIterator[ThreeNodes]:
    if request.param == "simulated":
        async with Broker(nodes=3, racks=("rack1", "rack2", "rack3")) as broker:
            yield Simulated(broker)
        return
    try:
        kafka = RealKafka(nodes=3)
    except KafkaUnavailableError as error:
        unavailable(error)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, kafka.__enter__)
    try:
        yield Real(kafka)
    finally:
        await loop.run_in_executor(None, kafka.close)


async def until(attempt: Callable[[], Awaitable[T]], is_so: Callable[[T], bool]) -> T:
    """Ask until the answer is as wanted; real nodes need a while."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not is_so(answer := await attempt()):
        assert asyncio.get_running_loop().time() < deadline, f"still {answer}"
        await asyncio.sleep(0.1)
    return answer


async def create(
    nodes: ThreeNodes,
    *replicas: int,
    name: str = TP.topic,
    running: Sequence[int] = (),
    **configs: str,
) -> MetadataResponseTopic:
    """Create a topic with one partition on these nodes. The first of the running ones leads."""
    running = running or replicas
    topic = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[Assignment(partition_index=0, broker_ids=[*replicas])],
        configs=[
            CreatableTopicConfig(name=config.replace("_", "."), value=value)
            for config, value in configs.items()
        ],
    )
    async with nodes.client(running[0]) as client:
        answer = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert answer.topics[0].error_code == NoError.errno
        return await until(
            lambda: topic_metadata(client, name),
            lambda t: bool(t.partitions) and len(t.partitions[0].isr_nodes) == len(running),
        )


async def described(nodes: ThreeNodes, node_id: int) -> MetadataResponsePartition:
    async with nodes.client(node_id) as client:
        (partition,) = (await topic_metadata(client, TP.topic)).partitions
    return partition


async def put_settled(client: RawClient, *values: bytes) -> int:
    """Produce a batch and return its offset, once the leader knows that it leads."""

    async def attempt() -> tuple[int, int]:
        ((result,),) = (t.partition_responses for t in (await put(client, *values)).responses)
        return result.error_code, result.base_offset

    return (await until(attempt, lambda answer: answer[0] == NoError.errno))[1]


async def test_a_leader_that_dies_is_followed_by_a_replica_in_a_new_epoch(
    nodes: ThreeNodes,
) -> None:
    topic = await create(nodes, 1, 2, 3)
    async with nodes.client(1) as client:
        assert await put_settled(client, b"a", b"b") == 0
    before = await described(nodes, 2)
    assert (before.leader_id, before.leader_epoch) == (1, 0)
    assert (sorted(before.replica_nodes), before.offline_replicas) == ([1, 2, 3], [])
    await nodes.kill(1)
    after = await until(
        lambda: described(nodes, 2), lambda p: p.leader_id != 1 and 1 in p.offline_replicas
    )
    assert (after.error_code, after.leader_id, after.leader_epoch) == (0, 2, 1)
    assert (sorted(after.isr_nodes), after.offline_replicas) == ([2, 3], [1])
    async with nodes.client(2) as leader:
        brokers = (await leader.request(MetadataRequest(topics=[]))).brokers
        assert sorted(broker.node_id for broker in brokers) == [2, 3]
        assert await put_settled(leader, b"c") == 2
        old = only(await get(leader, topic.topic_id, epoch=0))
        assert old.error_code == FencedLeaderEpochError.errno
        assert (old.current_leader.leader_id, old.current_leader.leader_epoch) == (2, 1)
        early = only(await get(leader, topic.topic_id, epoch=2))
        assert early.error_code == UnknownLeaderEpochError.errno
        read = only(await get(leader, topic.topic_id, epoch=1, last_epoch=0))
        assert values_in(read) == [b"a", b"b", b"c"]
        diverged = only(await get(leader, topic.topic_id, offset=3, epoch=1, last_epoch=0))
        assert (diverged.diverging_epoch.epoch, diverged.diverging_epoch.end_offset) == (0, 2)
        wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=1, leader_epoch=0)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[OffsetForLeaderTopic(topic=TP.topic, partitions=[wanted])],
        )
        ((end,),) = (t.partitions for t in (await leader.request(request)).topics)
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, 0, 2)
    (new,) = (await create(nodes, 1, 2, 3, name="new", running=(2, 3))).partitions
    assert (new.leader_id, new.leader_epoch, sorted(new.isr_nodes)) == (2, 0, [2, 3])
    await nodes.start(1)
    back = await until(lambda: described(nodes, 2), lambda p: len(p.isr_nodes) == 3)
    assert (back.leader_id, back.leader_epoch, back.offline_replicas) == (2, 1, [])


async def test_others_than_the_leader_name_it_and_followers_serve_readers(
    nodes: ThreeNodes,
) -> None:
    topic = await create(nodes, 1, 2)
    async with nodes.client(1) as leader, nodes.client(2) as follower, nodes.client(3) as other:
        await put_settled(leader, b"a")
        ((refused,),) = (t.partition_responses for t in (await put(follower, b"b")).responses)
        assert refused.error_code == NotLeaderForPartitionError.errno
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (1, 0)
        answer = await get(other, topic.topic_id)
        nothing = only(answer)
        assert nothing.error_code == NotLeaderForPartitionError.errno
        assert (nothing.current_leader.leader_id, nothing.current_leader.leader_epoch) == (1, 0)
        (endpoint,) = answer.node_endpoints
        assert (endpoint.node_id, endpoint.rack) == (1, "rack1")
        assert f"{endpoint.host}:{endpoint.port}" == nodes.address(1)

        near = await until(
            lambda: get(leader, topic.topic_id, rack="rack2"),
            lambda a: only(a).preferred_read_replica == 2,
        )
        assert not only(near).records
        here = only(await get(leader, topic.topic_id, rack="rack3"))
        assert (here.preferred_read_replica, values_in(here)) == (-1, [b"a"])
        read = await until(
            lambda: get(follower, topic.topic_id, rack="rack2"),
            lambda a: values_in(only(a)) == [b"a"],
        )
        assert only(read).preferred_read_replica == -1
        behind = only(await get(follower, topic.topic_id, offset=9, rack="rack2"))
        assert behind.error_code == OffsetOutOfRangeError.errno


async def test_a_partition_on_one_node_has_no_leader_while_that_is_down(nodes: ThreeNodes) -> None:
    await create(nodes, 3, min_insync_replicas="1")
    async with nodes.client(3) as client:
        await put_settled(client, b"a")
    await nodes.kill(3)
    down = await until(lambda: described(nodes, 1), lambda p: p.leader_id == -1)
    assert down.error_code == LeaderNotAvailableError.errno
    assert (down.replica_nodes, down.isr_nodes, down.offline_replicas) == ([3], [], [3])
    await nodes.start(3)
    up = await until(lambda: described(nodes, 1), lambda p: p.leader_id == 3)
    assert (up.error_code, up.leader_epoch) == (NoError.errno, down.leader_epoch + 1)
    assert down.leader_epoch == 1


async def test_groups_are_served_by_their_coordinator_only(nodes: ThreeNodes) -> None:
    async def find(node_id: int) -> tuple[int, int]:
        async with nodes.client(node_id) as client:
            (found,) = (
                await client.request(FindCoordinatorRequest(coordinator_keys=["g"]))
            ).coordinators
        return found.error_code, found.node_id

    seen = [
        await until(functools.partial(find, node_id), lambda answer: answer[0] == NoError.errno)
        for node_id in (1, 2, 3)
    ]
    assert seen[0] == seen[1] == seen[2]
    coordinator = seen[0][1]
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    for node_id in {1, 2, 3} - {coordinator}:
        async with nodes.client(node_id) as client:
            assert (await client.request(request)).error_code == NotCoordinatorError.errno
