"""Records come from the replica in the executors' rack (KIP-392), and none is lost for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import (
    BrokerResponseError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.structs import TopicPartition
from tests.spark.reading.conftest import Clock, read
from tests.spark.reading.flights import (
    COUNT,
    TOPIC,
    assert_all,
    empty_answer,
    fill,
    several_fetches,
)
from tests.support.cluster import KafkaHandle
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable
from tests.support.threads import wait

RACKS = ("rack1", "rack2", "rack3")
LEADER, FOLLOWER = 1, 2
HALF = COUNT // 2
ALL = KafkaOffsetRange(TOPIC, 0, 0, COUNT)


@pytest.fixture
def racks() -> Iterator[BrokerThread]:
    """Three nodes in three racks, and a topic of a thousand records that the first one leads."""
    with BrokerThread(BrokerConfig(nodes=3, racks=RACKS)) as cluster:
        cluster.create_topic(TOPIC)
        cluster.move_leader(TopicPartition(TOPIC, 0), LEADER)
        fill(cluster)
        yield cluster
    cluster.raise_if_failed()


def in_rack(cluster: BrokerThread, node_id: int) -> SourceOptions:
    """Options of executors in the rack of a node."""
    return several_fetches(cluster, kafka__client__rack=RACKS[node_id - 1])


def asked(cluster: BrokerThread) -> list[int]:
    """Return the nodes that were asked for records, in order."""
    return [fetch.node_id for fetch in cluster.requests.of("Fetch")]


def is_later(context: object, request: object) -> bool:
    assert isinstance(request, FetchRequest)
    return request.topics[0].partitions[0].fetch_offset >= HALF


def names_a_rack(context: object, request: object) -> bool:
    assert isinstance(request, FetchRequest)
    return bool(request.rack_id)


def test_the_replica_of_the_rack_is_read_once_the_leader_has_named_it(racks: BrokerThread) -> None:
    assert_all(read(in_rack(racks, FOLLOWER), [ALL]))
    first, *others = asked(racks)
    assert first == LEADER
    assert len(others) > 1
    assert set(others) == {FOLLOWER}


@pytest.mark.parametrize("rack", [RACKS[LEADER - 1], "elsewhere"])
def test_the_leader_is_read_where_no_replica_is_nearer(racks: BrokerThread, rack: str) -> None:
    assert_all(read(several_fetches(racks, kafka__client__rack=rack), [ALL]))
    assert set(asked(racks)) == {LEADER}


@pytest.mark.parametrize(
    "error",
    [
        NotLeaderForPartitionError,
        OffsetOutOfRangeError,
        UnknownLeaderEpochError,
        UnknownTopicOrPartitionError,
    ],
)
def test_what_a_replica_does_not_have_comes_from_the_leader(
    racks: BrokerThread, error: type[BrokerResponseError]
) -> None:
    racks.on("Fetch", node=FOLLOWER, when=is_later).fail(error, times=None)
    assert_all(read(in_rack(racks, FOLLOWER), [ALL]))
    assert asked(racks)[-1] == LEADER


def test_a_replica_that_is_gone_is_replaced_by_the_leader(racks: BrokerThread) -> None:
    racks.on("Fetch", node=FOLLOWER, when=is_later).disconnect(times=None)
    assert_all(read(in_rack(racks, FOLLOWER), [ALL]))
    assert asked(racks)[-1] == LEADER


def test_nobody_waits_for_a_replica_that_lags_behind(racks: BrokerThread) -> None:
    lagging = racks.on("Fetch", node=FOLLOWER, when=is_later).answer(
        empty_answer(racks, high_watermark=HALF), times=None
    )
    clock = Clock()
    assert_all(read(in_rack(racks, FOLLOWER), [ALL], clock=clock, sleep=clock.sleep))
    assert lagging.hits == 1
    assert asked(racks)[-1] == LEADER


def test_a_replica_that_is_not_known_is_not_waited_for(racks: BrokerThread) -> None:
    unknown = empty_answer(racks, high_watermark=COUNT, preferred_read_replica=9)
    named = racks.on("Fetch", node=LEADER, when=names_a_rack).answer(unknown, times=None)
    clock = Clock()
    assert_all(read(in_rack(racks, FOLLOWER), [ALL], clock=clock, sleep=clock.sleep))
    assert named.hits == 1
    assert set(asked(racks)) == {LEADER}


@pytest.mark.slow
@pytest.mark.real_kafka
async def test_a_real_replica_of_the_rack_is_read_and_the_leader_when_it_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []
    connection = BlockingCluster.connection

    def noted(self: BlockingCluster, node: int | Node) -> Connection:
        used.append(node if isinstance(node, int) else node.id)
        return connection(self, node)

    try:
        cluster = RealKafka(nodes=3)
    except KafkaUnavailableError as error:
        unavailable(error)
    with cluster:
        kafka = KafkaHandle("real", cluster.bootstrap_servers)
        topic = await kafka.create_topic(replicas=(LEADER, FOLLOWER, 3))
        for first in range(0, COUNT, 50):
            numbers = range(first, first + 50)
            await kafka.produce(topic, 0, [(None, b"%d" % number) for number in numbers])
        options = several_fetches(cluster, kafka__client__rack=RACKS[FOLLOWER - 1])
        everything = [KafkaOffsetRange(topic, 0, 0, COUNT)]
        assert_all(await wait(read, options, everything))  # the followers have everything, too
        monkeypatch.setattr(BlockingCluster, "connection", noted)
        assert_all(await wait(read, options, everything))
        assert used[0] == LEADER
        assert set(used[1:]) == {FOLLOWER}

        await wait(cluster.kill_node, FOLLOWER)
        used.clear()
        assert_all(await wait(read, options, everything))
        assert used[-1] == LEADER
