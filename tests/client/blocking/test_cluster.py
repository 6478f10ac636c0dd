"""A blocking cluster: metadata, nodes that come and go, connections used again, coordinators."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client import blocking_cluster
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offset_lookups import Lookups
from aiokafka_lite.client.offsets import LATEST
from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import (
    ClientClosedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    RebootstrapRequiredError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataResponse
from aiokafka_lite.structs import TopicPartition
from tests.client.blocking.conftest import (
    config_of,
    end_offset_request,
    fetch,
    records_of,
)
from tests.support.cluster import KafkaHandle, unique

NewCluster = Callable[..., BlockingCluster]


@pytest.fixture
def three() -> Iterator[BrokerThread]:
    with BrokerThread(BrokerConfig(nodes=3)) as broker:
        yield broker


# --- On both brokers ---------------------------------------------------------------------------
async def test_records_are_fetched_from_the_leader(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    for partition in (0, 1):
        await kafka.produce(topic, partition, [(b"k", b"v" * 300_000)] * 3)

    def read() -> None:
        cluster = BlockingCluster(config_of(kafka.bootstrap_servers))
        view = cluster.refresh([topic])
        assert view.partitions_for_topic(topic) == {0, 1}
        for partition in (0, 1):
            tp = TopicPartition(topic, partition)
            leader = view.leader(tp)
            assert leader is not None
            answer = cluster.request(leader.leader, end_offset_request(tp))
            assert answer.topics[0].partitions[0].offset == 3
            records = records_of(cluster.request(leader.leader, fetch(cluster, tp)))
            assert records.count(b"v" * 300_000) == 3
        cluster.close()

    await asyncio.to_thread(read)


async def test_all_topics_are_seen_and_none_is_created(kafka: KafkaHandle) -> None:
    topic, missing = await kafka.create_topic(), unique("missing")

    def look() -> None:
        cluster = BlockingCluster(config_of(kafka.bootstrap_servers))
        view = cluster.refresh(None)
        assert topic in view.topics
        assert view.is_of_all
        assert missing not in view.topics
        for _ in range(2):
            view = cluster.refresh([missing])
            assert view.topics[missing].error is UnknownTopicOrPartitionError
        assert missing not in cluster.refresh(None).topics
        cluster.close()

    await asyncio.to_thread(look)


async def test_coordinator_of_a_group_is_found_and_can_be_asked(kafka: KafkaHandle) -> None:
    def find() -> None:
        cluster = BlockingCluster(config_of(kafka.bootstrap_servers, request_timeout_s=30.0))
        node_id = cluster.coordinator(unique("group"))  # nothing was refreshed before
        assert node_id in cluster.view.nodes
        assert cluster.request(node_id, MetadataRequest(topics=[])).brokers
        cluster.close()

    await asyncio.to_thread(find)


# --- Several nodes -----------------------------------------------------------------------------
def test_other_nodes_are_asked_where_one_is_gone(
    three: BrokerThread, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(config_of(three.bootstrap_servers))
    first, *others = sorted(cluster.refresh([]).nodes)
    three.stop_node(first)  # the only bootstrap server
    for _ in range(5):
        assert sorted(cluster.refresh([]).nodes) == others
        assert cluster.request_any(MetadataRequest(topics=[])).brokers


def test_node_that_does_not_answer_is_asked_last_from_then_on(
    three: BrokerThread, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(config_of(three.bootstrap_servers, request_timeout_s=0.3))
    cluster.refresh([])
    (silent,) = {each.node_id for each in three.requests.of("Metadata")}  # it is connected to
    with three.on("Metadata", node=silent).silence(times=None) as rule:
        for _ in range(10):
            assert len(cluster.refresh([]).nodes) == 3
        assert rule.hits == 1


def test_bootstrap_servers_are_asked_again_when_no_known_node_answers(
    broker: BrokerThread, new_cluster: NewCluster
) -> None:
    with BrokerThread(BrokerConfig(node_id=5)) as other:
        cluster = new_cluster(config_of(f"{other.bootstrap_servers},{broker.bootstrap_servers}"))
        broker.stop_node(1)
        assert list(cluster.refresh([]).nodes) == [5]
        broker.start_node(1)
    assert list(cluster.refresh([]).nodes) == [1]


def test_broker_that_does_not_know_the_cluster_any_more_has_it_bootstrapped_again(
    broker: BrokerThread, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    cluster.refresh([])
    rebootstrap = MetadataResponse(error_code=RebootstrapRequiredError.errno)
    with broker.on("Metadata").answer(rebootstrap) as rule:
        assert cluster.refresh([]).nodes
        assert rule.hits == 1


def test_a_node_that_is_connected_is_asked_before_others(
    three: BrokerThread, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(config_of(three.bootstrap_servers))
    for _ in range(8):
        cluster.refresh([])
    assert len({seen.peer for seen in three.requests.of("Metadata")}) == 1


def test_silent_nodes_share_the_time_that_there_is(
    three: BrokerThread, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(config_of(three.bootstrap_servers))
    cluster.refresh([])
    with three.on("Metadata").silence(times=None) as rule:
        cluster.limit(0.3)
        assert 0.2 < cluster.left_s <= 0.3
        with pytest.raises(KafkaConnectionError, match="no answer"):
            cluster.request_any(MetadataRequest(topics=[]))
        assert rule.hits == 3


def test_a_silent_leader_leaves_time_to_look_for_another(
    three: BrokerThread, new_cluster: NewCluster
) -> None:
    three.create_topic("t", 3)
    cluster = new_cluster(config_of(three.bootstrap_servers))
    cluster.refresh(["t"])
    cluster.hang_up()
    wanted = {TopicPartition("t", number): LATEST for number in range(3)}
    with three.on("ApiVersions", node=1).hold():
        cluster.limit(1.0)
        asked = len(three.requests.of("Metadata"))
        lookups = Lookups(cluster, topics=["t"])
        with pytest.raises(KafkaTimeoutError, match=r"offsets of 1 partitions.*still being opened"):
            lookups.offsets(wanted)
        assert len(three.requests.of("Metadata")) > asked


def seconds_until_out_of_time(call: Callable[[], object], match: str) -> float:
    began_at = time.monotonic()
    with pytest.raises(KafkaError, match=match):
        call()
    return time.monotonic() - began_at


def test_limit_includes_the_time_to_connect(broker: BrokerThread, new_cluster: NewCluster) -> None:
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    cluster.refresh([])
    cluster.hang_up()
    request = MetadataRequest(topics=[])
    with broker.on("ApiVersions").hold():
        for ask in (partial(cluster.request, 1), cluster.request_any):
            asking = partial(ask, request, timeout_s=0.2)
            assert seconds_until_out_of_time(asking, "time limit") < 0.6
    with broker.on("ApiVersions").hold() as rule, broker.on("Metadata").silence(times=None):
        connecting = threading.Timer(0.5, rule.release)
        connecting.start()
        cluster.limit(0.8)
        assert seconds_until_out_of_time(lambda: cluster.request(1, request), "no answer") < 1.1
        connecting.join()


def test_limit_ends_the_lookup_of_a_coordinator(
    broker: BrokerThread, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    cluster.refresh([])
    with broker.on("FindCoordinator").silence(times=None):
        cluster.limit(0.4)
        assert seconds_until_out_of_time(lambda: cluster.coordinator("g"), "no answer") < 1


def test_limit_ends_the_wait_for_a_lost_node(broker: BrokerThread, new_cluster: NewCluster) -> None:
    pauses = {"reconnect_backoff_s": 5.0, "reconnect_backoff_max_s": 5.0}
    cluster = new_cluster(config_of(broker.bootstrap_servers, **pauses))
    cluster.refresh([])
    broker.stop_node(1)
    cluster.limit(0.4)
    assert seconds_until_out_of_time(lambda: cluster.connection(1), "time limit.*closed") < 1


def test_a_node_with_the_id_0_is_a_node_as_any_other(new_cluster: NewCluster) -> None:
    with BrokerThread(BrokerConfig(node_id=0)) as broker:
        cluster = new_cluster(config_of(broker.bootstrap_servers))
        cluster.refresh([])
        moved = cluster.view.nodes[0]._replace(host="localhost")
        assert cluster.connection(moved).peer == f"localhost:{moved.port} (node 0)"


# --- Trying again ------------------------------------------------------------------------------
def test_refresh_waits_for_a_cluster_that_starts(
    broker: BrokerThread, new_cluster: NewCluster
) -> None:
    broker.stop_node(1)
    starting = threading.Timer(0.3, broker.start_node, [1])
    starting.start()
    assert new_cluster(config_of(broker.bootstrap_servers)).refresh([]).nodes
    starting.join()


def failed_after_s(operation: Callable[[], object], servers: str) -> float:
    """Return how long an operation takes that fails because no server listens."""
    began_at = time.monotonic()
    with pytest.raises(KafkaConnectionError, match=f"{servers}.*refused"):
        operation()
    return time.monotonic() - began_at


def test_refresh_gives_up_at_its_time_and_servers_that_were_never_there_sooner(
    broker: BrokerThread, new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_cluster, "MAX_REFUSED_S", 0.3)
    servers = broker.bootstrap_servers
    config = config_of(servers, request_timeout_s=1.0)
    known, new = new_cluster(config), new_cluster(config)
    known.refresh([])
    broker.stop_node(1)
    assert 0.1 < failed_after_s(lambda: new.refresh([]), servers) < 0.9
    assert new.view.nodes == {}
    assert 0.8 < failed_after_s(lambda: known.refresh([]), servers) < 3
    assert 0.8 < failed_after_s(lambda: new.coordinator("g"), servers) < 3


def test_refusal_is_not_asked_again(broker: BrokerThread, new_cluster: NewCluster) -> None:
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    with broker.on("FindCoordinator").fail(GroupAuthorizationFailedError, times=None) as rule:
        with pytest.raises(
            GroupAuthorizationFailedError, match="the broker found no coordinator for 'g'"
        ):
            cluster.coordinator("g")
        assert rule.hits == 1


# --- Connections -------------------------------------------------------------------------------
def test_connection_is_used_again_and_replaced_when_idle_or_dead(
    broker: BrokerThread, new_cluster: NewCluster
) -> None:
    config = config_of(broker.bootstrap_servers, connections_max_idle_s=0.4)
    cluster = new_cluster(config)
    cluster.refresh([])
    first = cluster.connection(1)
    assert cluster.connection(1) is first
    time.sleep(0.5)  # no loop runs, whose timer would close it
    second = cluster.connection(1)
    assert second is not first
    assert first.is_closed
    broker.stop_node(1)
    broker.start_node(1)
    third = cluster.connection(1)
    assert third is not second
    assert second.is_closed
    assert cluster.request(1, MetadataRequest(topics=[])).brokers


def test_connection_to_where_a_node_was_is_closed(
    broker: BrokerThread, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    moved = cluster.refresh([]).nodes[1]._replace(host="localhost")
    connection = cluster.connection(moved)
    assert cluster.connection(moved) is connection
    cluster.refresh([])
    assert connection.is_closed


def test_leader_hint_is_taken_when_it_is_newer(
    three: BrokerThread, new_cluster: NewCluster
) -> None:
    three.create_topic("t")
    cluster = new_cluster(config_of(three.bootstrap_servers))
    tp = TopicPartition("t", 0)
    known = cluster.refresh(["t"]).leader(tp)
    assert known is not None
    other = next(node_id for node_id in cluster.view.nodes if node_id != known.leader)
    assert not cluster.apply_leader_hint(tp, other, known.leader_epoch)
    endpoint = Node(99, "127.0.0.1", 1)
    assert cluster.apply_leader_hint(tp, 99, known.leader_epoch + 1, [endpoint])
    leader = cluster.view.leader(tp)
    assert leader is not None
    assert (leader.leader, leader.leader_epoch) == (99, known.leader_epoch + 1)
    assert cluster.view.nodes[99] == endpoint


def test_closed_cluster_refuses_and_closes_its_connections(
    broker: BrokerThread, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    cluster.refresh([])
    connection = cluster.connection(1)
    cluster.close()
    cluster.close()
    assert connection.is_closed
    with pytest.raises(ClientClosedError):
        cluster.refresh([])
    with pytest.raises(ClientClosedError):
        cluster.request(1, MetadataRequest(topics=[]))
