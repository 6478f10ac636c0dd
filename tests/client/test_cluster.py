from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import AsyncIterator, Callable

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client import cluster as cluster_module
from aiokafka_lite.client import view as view_module
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.sasl import TokenUnavailableError
from aiokafka_lite.client.versions import MisroutedError
from aiokafka_lite.client.view import ClusterView, Node
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    ClientClosedError,
    ClusterAuthorizationFailedError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition
from tests.client.conftest import TIMEOUT_S, closed_port, quick_config
from tests.support.scripted_broker import (
    Answer,
    Asked,
    Do,
    ScriptedBroker,
    all_versions,
    offered,
    topic,
)
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import until

NewCluster = Callable[[ClientConfig], Cluster]

TP = TopicPartition("t", 0)
TOPIC_ID = b"t" * 16


@pytest.fixture
async def new_cluster(scope: TaskScope) -> AsyncIterator[NewCluster]:
    clusters: list[Cluster] = []

    def build(config: ClientConfig) -> Cluster:
        clusters.append(Cluster(config, scope=scope, rng=random.Random(1)))
        return clusters[-1]

    yield build
    for cluster in clusters:
        await cluster.close()


@pytest.fixture
async def cluster(broker: ScriptedBroker, new_cluster: NewCluster) -> Cluster:
    cluster = new_cluster(quick_config(broker))
    await cluster.start()
    return cluster


def asked_topics(broker: ScriptedBroker) -> list[list[str | None] | None]:
    """Return what each Metadata request asked for."""
    requests = [a.request for a in broker.asked if isinstance(a.request, MetadataRequest)]
    return [None if r.topics is None else [topic.name for topic in r.topics] for r in requests]


# --- Starting --------------------------------------------------------------------------------
@pytest.mark.every_loop
async def test_start_finds_the_cluster(broker: ScriptedBroker, new_cluster: NewCluster) -> None:
    broker.topics["t"] = topic("t", [1], leader_epoch=3, topic_id=TOPIC_ID)
    # By a name under which it is no node.
    cluster = new_cluster(quick_config(bootstrap_servers=f"localhost:{broker.port}"))
    cluster.watch("test", ["t"])
    assert cluster.view == ClusterView()
    await cluster.start()
    assert cluster.view.nodes == {1: Node(1, broker.host, broker.port)}
    assert cluster.view.cluster_id == "scripted"
    assert cluster.view.topic_names == {TOPIC_ID: "t"}
    assert cluster.view.leader(TP) is not None
    assert asked_topics(broker) == [["t"]]
    assert cluster.pool.node_ids() == [1]
    await broker.until(lambda: broker.connections[0].is_closed)  # the bootstrap connection


@pytest.mark.every_loop
async def test_connection_to_a_bootstrap_server_becomes_that_of_its_node(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker))
    await cluster.start()
    assert cluster.pool.node_ids() == [1]
    assert cluster.pool.is_ready(1)
    broker.scripts[HeartbeatRequest] = lambda _: Do.CLOSE
    with pytest.raises(KafkaConnectionError, match=rf"{broker.address} \(node 1\)"):
        await cluster.request(1, HeartbeatRequest(), timeout_s=TIMEOUT_S)
    first, second, third = broker.asked[:3]
    assert isinstance(third.request, HeartbeatRequest)
    assert first.peer is second.peer is third.peer


async def test_one_working_address_is_enough(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    port = await closed_port()
    config = quick_config(bootstrap_servers=[f"127.0.0.1:{port}", broker.address])
    cluster = new_cluster(config)
    await cluster.start()
    assert 1 in cluster.view.nodes
    assert cluster.pool.is_ready(1)  # over the connection that it was asked on
    assert len(broker.connections) == 1


@pytest.mark.every_loop
async def test_start_names_every_address_and_why(new_cluster: NewCluster) -> None:
    ports = [await closed_port(), await closed_port()]
    config = quick_config(bootstrap_servers=[f"127.0.0.1:{port}" for port in ports])
    cluster = new_cluster(config)
    with pytest.raises(KafkaConnectionError) as caught:
        await cluster.start()
    for port in ports:
        assert f"127.0.0.1:{port}: connection refused" in str(caught.value)
    assert caught.value.args[0].startswith("no broker can be used")  # nothing was waited for
    with pytest.raises(KafkaConnectionError, match="not started"):
        await cluster.refresh()


async def test_start_ends_within_its_timeout(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
    cluster = new_cluster(quick_config(broker, request_timeout_s=0.05))
    with pytest.raises(KafkaConnectionError, match=f"within 0.05 s.*{broker.address}"):
        await cluster.start()


@pytest.mark.virtual_time
async def test_start_names_the_latest_reason_only(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.CLOSE
    cluster = new_cluster(quick_config(broker, request_timeout_s=2.0))
    with pytest.raises(KafkaConnectionError, match="cannot bootstrap within 2 s") as caught:
        await cluster.start()
    assert str(caught.value).count("lost the connection") == 1
    assert len(asked_topics(broker)) > 2


@pytest.mark.virtual_time
async def test_start_on_a_blocked_loop_names_the_reason_before_the_block(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)

    def block(_: Asked) -> Answer:
        loop.call_later(0.001, loop.pass_time, 1.95)
        return Do.CLOSE

    broker.scripts[MetadataRequest] = block
    cluster = new_cluster(quick_config(broker, request_timeout_s=2.0))
    with pytest.raises(KafkaConnectionError, match=r"cannot bootstrap within 2 s.*lost the conn"):
        await cluster.start()


@pytest.mark.parametrize("loss", [Do.CLOSE, Do.NOTHING, MetadataResponse()])
async def test_start_asks_again_when_the_first_answer_is_lost_or_empty(
    broker: ScriptedBroker,
    new_cluster: NewCluster,
    monkeypatch: pytest.MonkeyPatch,
    loss: Answer,
) -> None:
    monkeypatch.setattr(cluster_module, "MAX_METADATA_WAIT_S", 0.05)
    answers: list[Answer] = [loss, loss]

    def lose_two(asked: Asked) -> Answer:
        return answers.pop() if answers else broker.metadata(asked)

    broker.scripts[MetadataRequest] = lose_two
    cluster = new_cluster(quick_config(broker))
    await cluster.start()
    assert 1 in cluster.view.nodes
    assert len(asked_topics(broker)) == 3


async def test_bad_address_is_refused_before_anything_is_opened(new_cluster: NewCluster) -> None:
    with pytest.raises(KafkaConfigurationError, match="not a port"):
        new_cluster(ClientConfig(bootstrap_servers="host:port"))


async def test_cluster_is_started_once(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="started only once"):
        await cluster.start()


async def test_close_fails_those_who_wait_for_a_refresh(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    waiting = asyncio.ensure_future(cluster.refresh())
    await broker.until_asked(MetadataRequest, 2)
    await cluster.close()
    await cluster.close()
    with pytest.raises(KafkaConnectionError, match="client is closed"):
        await waiting
    with pytest.raises(KafkaConnectionError, match="closed"):
        await cluster.refresh()
    with pytest.raises(KafkaConnectionError, match="closed"):
        await cluster.request(1, HeartbeatRequest())
    with pytest.raises(ClientClosedError):
        await cluster.request_any(HeartbeatRequest())
    with pytest.raises(RuntimeError, match="started only once"):
        await cluster.start()


async def test_the_end_of_a_close_is_that_of_its_task(
    broker: ScriptedBroker, cluster: Cluster, scope: TaskScope
) -> None:
    await broker.stop()
    await until(lambda: cluster.pool.last_error(1) is not None)
    await cluster.close()
    assert scope.task_names == []


async def test_refused_metadata_is_raised(broker: ScriptedBroker, new_cluster: NewCluster) -> None:
    broker.scripts[MetadataRequest] = lambda _: MetadataResponse(error_code=31)
    with pytest.raises(ClusterAuthorizationFailedError):
        await new_cluster(quick_config(broker)).start()


async def test_cluster_whose_tasks_have_ended_cannot_be_used(
    broker: ScriptedBroker, scope: TaskScope, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker))
    await scope.close()
    with pytest.raises(KafkaConnectionError, match="client is closed"):
        await cluster.start()


# --- Keeping the view fresh ------------------------------------------------------------------
@pytest.mark.every_loop
async def test_refresh_returns_a_view_asked_for_after_the_call(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    before = cluster.view
    view = await cluster.refresh()
    assert view is cluster.view
    assert view.fetched_at > before.fetched_at
    assert broker.count(MetadataRequest) == 2


async def test_refresh_does_not_settle_for_a_request_already_under_way(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    held: list[Asked] = []

    def hold_back(asked: Asked) -> Answer:
        held.append(asked)
        return Do.NOTHING

    broker.scripts[MetadataRequest] = hold_back
    cluster.invalidate()
    await broker.until_asked(MetadataRequest, 2)
    waiting = asyncio.ensure_future(cluster.refresh())
    await asyncio.sleep(0)
    broker.scripts[MetadataRequest] = broker.metadata
    held[0].peer.transport.write(held[0].encode(broker.metadata(held[0])))
    await waiting
    assert broker.count(MetadataRequest) == 3


async def test_many_invalidations_make_one_request(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    # All ask before the refresh task has its turn: of later ones it would ask again.
    refreshes = [asyncio.ensure_future(cluster.refresh()) for _ in range(10)]
    await asyncio.sleep(0)
    for _ in range(100):
        cluster.invalidate()
    views = await asyncio.gather(*refreshes)
    assert len({id(view) for view in views}) == 1
    assert broker.count(MetadataRequest) == 2


async def test_storm_of_invalidations_is_spaced_by_a_growing_backoff(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker, retry_backoff_max_s=0.05))
    cluster.add_listener(lambda _: cluster.invalidate())
    times: list[float] = []
    cluster.add_listener(lambda view: times.append(view.fetched_at))
    await cluster.start()
    await broker.until_asked(MetadataRequest, 6)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 0.008
    assert gaps[-1] >= 0.04


@pytest.mark.virtual_time
@pytest.mark.parametrize(("quiet_s", "is_short"), [(2.9, False), (3.1, True)])
async def test_pauses_between_refreshes_are_short_again_after_a_quiet_time(
    broker: ScriptedBroker, new_cluster: NewCluster, quiet_s: float, is_short: bool
) -> None:
    cluster = new_cluster(quick_config(broker, retry_backoff_s=0.1, retry_backoff_max_s=1.5))
    await cluster.start()
    for _ in range(6):
        await cluster.refresh()
    await asyncio.sleep(quiet_s)
    before = await cluster.refresh()
    pause_s = (await cluster.refresh()).fetched_at - before.fetched_at
    assert pause_s == pytest.approx(0.1 if is_short else 1.5, rel=0.25)


@pytest.mark.virtual_time
@pytest.mark.parametrize("topics", [[], ["topic-0"]], ids=["new topics", "certain topics"])
async def test_what_is_asked_for_some_topics_makes_no_pause_longer(
    broker: ScriptedBroker, new_cluster: NewCluster, topics: list[str]
) -> None:
    cluster = new_cluster(quick_config(broker, retry_backoff_s=0.1, retry_backoff_max_s=60.0))
    await cluster.start()
    for number in range(10):
        name = f"topic-{number}"
        broker.topics[name] = topic(name, [1])
        if number == 0 or not topics:
            cluster.watch_another("test", name)
        if topics:
            await cluster.refresh(topics)
        await broker.until_asked(MetadataRequest, number + 2)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await cluster.refresh()
    assert loop.time() - began_at < 0.15


@pytest.mark.virtual_time
async def test_a_leader_is_looked_for_soon_however_long_the_pauses_are(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker, retry_backoff_s=1.0, retry_backoff_max_s=60.0))
    await cluster.start()
    for _ in range(3):
        cluster.look_for_leader()
        before = cluster.view
        await asyncio.sleep(0.21)
        assert cluster.view.fetched_at > before.fetched_at


@pytest.mark.virtual_time
async def test_refresh_that_is_cancelled_before_it_is_sent_asks_for_nothing(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    waiting = asyncio.ensure_future(cluster.refresh())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0.05)
    assert broker.count(MetadataRequest) == 1


async def test_view_is_refreshed_when_it_is_too_old(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker, metadata_max_age_s=0.03))
    await cluster.start()
    await broker.until_asked(MetadataRequest, 3)


async def test_fresh_view_is_left_alone(broker: ScriptedBroker, cluster: Cluster) -> None:
    broker.topics["t"] = topic("t", [1])
    await asyncio.sleep(0.05)
    assert broker.count(MetadataRequest) == 1


async def test_unknown_topic_is_asked_for_until_it_is_there(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    cluster.watch("test", ["t"])
    view = await cluster.refresh()
    assert view.topics["t"].error is UnknownTopicOrPartitionError
    broker.topics["t"] = topic("t", [1])
    seen = asyncio.get_running_loop().create_future()
    cluster.add_listener(lambda view: seen.set_result(0) if view.leader(TP) else None)
    await seen
    asked = broker.count(MetadataRequest)
    await asyncio.sleep(0.05)
    assert broker.count(MetadataRequest) == asked


async def test_topic_that_may_not_be_read_is_not_asked_for_again(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics["t"] = topic("t", [], error_code=29)
    cluster.watch("test", ["t"])
    await cluster.refresh()
    asked = broker.count(MetadataRequest)
    await asyncio.sleep(0.05)
    assert broker.count(MetadataRequest) == asked


async def test_newly_watched_topic_is_asked_for_at_once_and_alone(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics = {name: topic(name, [1]) for name in "ab"}
    cluster.watch("test", ["a"])
    await broker.until_asked(MetadataRequest, 2)
    cluster.watch("test", ["b", "a"])
    await broker.until_asked(MetadataRequest, 3)
    cluster.watch("test", ["b"])  # nothing new: no request
    cluster.watch("test", None)
    await cluster.refresh()
    assert asked_topics(broker)[1:4] == [["a"], ["b"], None]
    assert set(cluster.view.topics) == {"a", "b"}


async def test_metadata_cover_what_all_owners_watch_together(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics = {name: topic(name, [1]) for name in "abc"}
    cluster.watch("one", ["a"])
    cluster.watch("two", ["b"])
    await cluster.refresh()
    with cluster.watching(["c"]):
        await cluster.refresh()
    cluster.watch("one", ["b"])  # instead of what it watched before
    await cluster.refresh()
    cluster.watch("two", None)
    await cluster.refresh()
    cluster.watch("two", ())
    await cluster.refresh()
    assert asked_topics(broker)[1:] == [["a", "b"], ["a", "b", "c"], ["b"], None, ["b"]]


async def test_what_is_watched_while_metadata_are_asked_for_is_fetched_after_that(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics = {name: topic(name, [1]) for name in "ab"}

    def watch_meanwhile(asked: Asked) -> MetadataResponse:
        cluster.watch("late", ["b"])
        return broker.metadata(asked)

    broker.scripts[MetadataRequest] = watch_meanwhile
    cluster.watch("early", ["a"])
    await broker.until_asked(MetadataRequest, 3)
    assert asked_topics(broker)[1:] == [["a"], ["b"]]


async def test_an_answer_about_one_topic_leaves_the_others_as_they_were(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    ids = {name: name.encode() * 16 for name in "ab"}
    broker.topics = {name: topic(name, [1], topic_id=ids[name]) for name in "ab"}
    cluster.watch_another("test", "a")
    await until(lambda: cluster.view.topics)
    before = cluster.view
    cluster.watch_another("test", "b")
    view = await cluster.refresh(["b"])
    assert asked_topics(broker)[1:] == [["a"], ["b"]]
    assert view.topics["a"] is before.topics["a"]
    assert view.topic_names == {topic_id: name for name, topic_id in ids.items()}
    assert view.fetched_at == before.fetched_at
    # Made anew meanwhile.
    broker.topics["b"] = topic("b", [1, 1], topic_id=b"c" * 16)
    view = await cluster.refresh(["b"])
    assert view.partitions_for_topic("b") == {0, 1}
    assert view.topic_names == {ids["a"]: "a", b"c" * 16: "b"}


@pytest.mark.parametrize("why", ["invalidate", "look_for_leader", "refresh"])
async def test_all_that_is_watched_is_asked_for_where_any_of_it_may_be_out_of_date(
    broker: ScriptedBroker, cluster: Cluster, why: str
) -> None:
    broker.topics = {name: topic(name, [1]) for name in "abc"}
    for name in "ab":
        cluster.watch_another("test", name)
        await cluster.refresh([name])
    asked = broker.count(MetadataRequest)
    if why == "refresh":
        waiting = [asyncio.ensure_future(cluster.refresh(each)) for each in (["c"], None)]
        await asyncio.sleep(0)
        cluster.watch_another("test", "c")
        await asyncio.gather(*waiting)
    else:
        getattr(cluster, why)()
        cluster.watch_another("test", "c")
        await cluster.refresh(["c"])
    assert asked_topics(broker)[asked:] == [["a", "b", "c"]]


async def test_new_topics_do_not_put_off_the_refresh_of_all(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker, metadata_max_age_s=0.1))
    await cluster.start()
    latest: list[str | None] | None = []
    for number in itertools.count():
        name = f"topic-{number}"
        broker.topics[name] = topic(name, [1])
        cluster.watch_another("test", name)
        await cluster.refresh([name])
        latest = asked_topics(broker)[-1]
        if latest != [name]:
            break
    assert number > 1
    assert latest == sorted(broker.topics)


@pytest.mark.virtual_time
async def test_a_wait_for_certain_topics_is_as_short_however_many_there_were(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker, retry_backoff_s=0.1, retry_backoff_max_s=60.0))
    await cluster.start()
    loop = asyncio.get_running_loop()
    for number in range(10):
        name = f"topic-{number}"
        cluster.watch_another("test", name)
        began = loop.time()
        view = await cluster.refresh([name])
        assert view.partitions_for_topic(name) is None
        broker.topics[name] = topic(name, [1])  # brokers have made it now
        view = await cluster.refresh([name])
        assert view.partitions_for_topic(name) == {0}
        assert 0.08 <= loop.time() - began <= 0.13
    # Whoever comes again at once waits as long.
    asked, began = broker.count(MetadataRequest), loop.time()
    while loop.time() < began + 1.0:
        await cluster.refresh(["topic-1"])
    assert broker.count(MetadataRequest) - asked <= 13


async def test_only_topics_that_are_not_complete_are_asked_for_again(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics = {"a": topic("a", [1]), "b": topic("b", [-1])}
    cluster.watch("test", ["a", "b"])
    await broker.until_asked(MetadataRequest, 4)
    broker.topics["b"] = topic("b", [1])
    await until(lambda: cluster.view.leader(TopicPartition("b", 0)))
    asked = broker.count(MetadataRequest)
    await asyncio.sleep(0.05)
    assert asked_topics(broker)[1:3] == [["a", "b"], ["b"]]
    assert broker.count(MetadataRequest) == asked


async def test_a_deleted_topic_is_asked_for_alone_until_it_is_gone(
    broker: ScriptedBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "GONE_AFTER_S", 0.05)
    broker.topics = {name: topic(name, [1]) for name in "ab"}
    cluster.watch("test", ["a", "b"])
    await cluster.refresh()
    del broker.topics["b"]
    cluster.invalidate()
    await until(lambda: not cluster.view.topics["b"].partitions)
    assert cluster.view.partitions_for_topic("a") == {0}
    assert asked_topics(broker)[1:4] == [["a", "b"], ["a", "b"], ["b"]]


async def test_what_is_watched_no_more_is_dropped_by_the_next_refresh_of_all(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics = {name: topic(name, [1]) for name in "abc"}
    for name in "abc":
        cluster.watch_another("test", name)
        await cluster.refresh([name])
    cluster.watch("other", ["c"])
    for name in "bc":
        cluster.unwatch("test", name)
    assert cluster.view.topics.keys() == {"a", "b", "c"}
    await cluster.refresh()
    assert cluster.view.topics.keys() == {"a", "c"}
    assert asked_topics(broker)[-1] == ["a", "c"]
    cluster.watch_another("test", "b")
    await cluster.refresh(["b"])
    assert asked_topics(broker)[-1] == ["b"]


async def test_an_unknown_topic_is_dropped_when_nobody_watches_it_any_more(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics["a"] = topic("a", [1])
    for name in ("a", "unknown"):
        cluster.watch_another("test", name)
        await cluster.refresh([name])
    cluster.unwatch("test", "unknown")
    await until(lambda: cluster.view.topics.keys() == {"a"})
    asked = broker.count(MetadataRequest)
    await asyncio.sleep(0.05)
    assert broker.count(MetadataRequest) == asked


async def test_another_cluster_under_the_same_names_is_asked_for_everything(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics = {name: topic(name, [1]) for name in "ab"}
    cluster.watch("test", ["a"])
    await cluster.refresh()
    broker.cluster_id = "another"
    broker.topics["a"] = topic("a", [1, 1])
    cluster.watch("test", ["a", "b"])
    await until(lambda: cluster.view.partitions_for_topic("a") == {0, 1})
    assert cluster.view.topics.keys() == {"a", "b"}
    assert cluster.view.cluster_id == "another"


async def test_a_topic_is_asked_for_alone_while_all_are_covered(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics = {name: topic(name, [1]) for name in "ab"}
    cluster.watch("pattern", None)
    await cluster.refresh()
    cluster.watch_another("test", "a")
    await cluster.refresh(["a"])
    cluster.unwatch("test", "a")
    assert asked_topics(broker)[1:] == [None, None]
    cluster.watch("pattern", ())
    cluster.watch_another("test", "b")
    view = await cluster.refresh(["b"])
    assert asked_topics(broker)[3:] == [["b"]]
    assert view.topics.keys() == {"a", "b"}


async def test_watching_again_what_is_known_asks_for_nothing(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics = {name: topic(name, [1]) for name in "ab"}
    cluster.watch("one", ["a", "b"])
    await cluster.refresh()
    asked = broker.count(MetadataRequest)
    cluster.watch("one", ["a"])
    with cluster.watching(["b"]):
        await asyncio.sleep(0.05)
    assert broker.count(MetadataRequest) == asked


async def test_a_topic_may_be_created_by_asking_until_it_has_been_there(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    def may_create() -> bool:
        request = broker.asked[-1].request
        assert isinstance(request, MetadataRequest)
        return request.allow_auto_topic_creation

    for allowed in (True, False):
        broker.topics.clear()
        cluster = new_cluster(quick_config(broker, allow_auto_create_topics=allowed))
        cluster.watch("test", ["a"])
        await cluster.start()
        assert may_create() is allowed
        broker.topics["a"] = topic("a", [broker.node_id])
        await cluster.refresh()
        await cluster.refresh()
        assert not may_create()
        # Deleted while it is read: it is not made anew by that.
        del broker.topics["a"]
        await cluster.refresh()
        assert not may_create()
        cluster.watch("test", ["a", "b"])
        await cluster.refresh()
        assert may_create() is allowed
        # Nor does it count as known any more when nobody has watched it.
        cluster.watch("test", ())
        cluster.watch("test", ["a"])
        await cluster.refresh()
        assert may_create() is allowed
        await cluster.close()  # or else it may be the one that was last to ask


async def test_a_deleted_topic_is_not_created_with_another(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    def asked() -> list[tuple[list[str | None], bool]]:
        requests = [a.request for a in broker.asked if isinstance(a.request, MetadataRequest)]
        return [
            ([each.name for each in r.topics or ()], r.allow_auto_topic_creation) for r in requests
        ]

    broker.topics = {name: topic(name, [broker.node_id]) for name in "ab"}
    cluster = new_cluster(quick_config(broker, allow_auto_create_topics=True))
    cluster.watch("test", ["a"])
    await cluster.start()
    assert asked() == [(["a"], True)]
    del broker.topics["a"]
    cluster.watch("test", ["a", "b"])
    await cluster.refresh()
    assert asked()[1:] == [(["a", "b"], False)]  # what exists takes one request
    cluster.watch("test", ["a", "b", "c"])
    view = await cluster.refresh()
    assert asked()[-2:] == [(["a", "b", "c"], False), (["c"], True)]
    assert set(view.topics) == {"a", "b", "c"}


async def test_listener_hears_every_view_until_removed(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    views: list[ClusterView] = []
    cluster.add_listener(views.append)
    assert views == []
    view = await cluster.refresh()
    cluster.remove_listener(views.append)
    cluster.remove_listener(views.append)
    await cluster.refresh()
    assert views == [view]


async def test_listener_hears_which_topics_have_changed(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    heard: list[frozenset[str] | None] = []
    cluster.add_listener(
        lambda _: heard.append(None), on_topics=lambda _, topics: heard.append(frozenset(topics))
    )
    views: list[ClusterView] = []
    cluster.add_listener(views.append)
    broker.topics = {name: topic(name, [1], leader_epoch=1) for name in "abc"}
    cluster.watch("test", ["a"])
    await broker.until_asked(MetadataRequest, 2)
    await until(lambda: cluster.view.topics)
    cluster.watch("test", ["a", "b", "c"])
    await until(lambda: len(cluster.view.topics) == 3)
    moves: list[set[TopicPartition]] = []
    cluster.add_listener(ignore_all, on_moves=lambda _, moved: moves.append(set(moved)))
    assert cluster.apply_leader_hints({TopicPartition("c", 0): (1, 2)})
    assert not cluster.apply_leader_hints({TopicPartition("c", 0): (1, 2)})  # known by now
    assert moves == [{TopicPartition("c", 0)}]
    await cluster.refresh()
    assert heard == [{"a"}, {"b", "c"}, {"c"}, None]
    # Another node may lead partitions of any topic.
    cluster.apply_leader_hints({TopicPartition("c", 0): (9, 3)}, [Node(9, "elsewhere", 9)])
    assert heard[-1] is None
    assert len(views) == len(heard) == 5


def ignore_all(view: ClusterView) -> None:
    """Is the listener of whoever looks at some changes only."""


async def test_failing_listener_is_the_scope_s_failure(broker: ScriptedBroker) -> None:
    failures: list[BaseException] = []
    scope = TaskScope("listener", on_failure=failures.append)
    cluster = Cluster(quick_config(broker), scope=scope, rng=random.Random(1))
    await cluster.start()

    def fail(_: ClusterView) -> None:
        raise ValueError("listener")

    cluster.add_listener(fail)
    with pytest.raises(KafkaConnectionError) as caught:
        await cluster.refresh()
    assert isinstance(caught.value.__cause__, ValueError)
    assert [type(failure) for failure in failures] == [ValueError]
    await cluster.close()
    await scope.close()


async def test_empty_broker_list_is_not_believed(broker: ScriptedBroker, cluster: Cluster) -> None:
    answers = iter([MetadataResponse(cluster_id="lost")] * 2)
    broker.scripts[MetadataRequest] = lambda asked: next(answers, None) or broker.metadata(asked)
    view = await cluster.refresh()
    assert view.cluster_id == "scripted"
    assert broker.count(MetadataRequest) == 4


async def test_metadata_that_a_broker_refuses_are_asked_for_again(
    broker: ScriptedBroker, cluster: Cluster, scope: TaskScope
) -> None:
    answers = iter([MetadataResponse(error_code=31)] * 2)
    broker.scripts[MetadataRequest] = lambda asked: next(answers, None) or broker.metadata(asked)
    assert 1 in (await cluster.refresh()).nodes
    assert scope.failure is None


async def test_credentials_that_are_refused_later_are_the_scope_s_failure(
    broker: ScriptedBroker,
) -> None:
    async def authenticate(_: Connection) -> float:
        if len(broker.connections) > 1:
            raise AuthenticationFailedError("wrong password")
        return 0.0

    scope = TaskScope("credentials")
    cluster = Cluster(
        quick_config(broker), scope=scope, rng=random.Random(1), authenticate=authenticate
    )
    await cluster.start()
    broker.connections[0].transport.abort()
    await until(lambda: cluster.pool.last_error(1) is not None)
    with pytest.raises(ClientClosedError) as caught:
        await cluster.refresh()
    assert isinstance(caught.value.__cause__, AuthenticationFailedError)
    assert isinstance(scope.failure, AuthenticationFailedError)
    await cluster.close()
    await scope.close()


async def test_a_wrong_name_is_reported_with_the_topic_that_it_resembles(
    broker: ScriptedBroker, new_cluster: NewCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def add(*topics: MetadataResponseTopic) -> None:
        broker.topics.update({each.name or "": each for each in topics})

    internal = topic("__orders", [1])
    internal.is_internal = True
    add(topic("orders", [1]), internal, topic("gone", [1]), topic("secret", [], error_code=29))
    cluster = new_cluster(quick_config(broker, allow_auto_create_topics=False))
    cluster.watch("test", ["order", "__order", "gone", "secret"])
    await cluster.start()
    await cluster.refresh()
    del broker.topics["gone"]
    await cluster.refresh()
    assert caplog.messages == [
        "topic '__order' does not exist; did you mean 'orders'?",
        "topic 'order' does not exist; did you mean 'orders'?",
    ]
    assert cluster.unknown_topics.names == {"order", "__order"}


@pytest.mark.parametrize(("newest", "has_ids"), [(9, False), (10, True), (12, True)])
async def test_topics_have_ids_where_metadata_may_name_them(
    broker: ScriptedBroker, new_cluster: NewCluster, newest: int, has_ids: bool
) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: offered({3: (0, newest), 18: (0, 3)})
    cluster = new_cluster(quick_config(broker))
    await cluster.start()
    assert cluster.has_topic_ids is has_ids


async def test_refresh_that_gets_no_answer_says_why(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker, request_timeout_s=0.1))
    await cluster.start()
    await broker.stop()
    with pytest.raises(KafkaTimeoutError, match=f"within 0.1 s.*{broker.address}"):
        await cluster.refresh()


# --- Leaders ---------------------------------------------------------------------------------
async def test_stale_metadata_does_not_bring_an_old_leader_back(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics["t"] = topic("t", [1], leader_epoch=5, topic_id=TOPIC_ID)
    cluster.watch("test", ["t"])
    await cluster.refresh()
    broker.topics["t"] = topic("t", [2], leader_epoch=4, topic_id=TOPIC_ID)
    view = await cluster.refresh()
    assert view.topics["t"].partitions[0].leader == 1


async def test_leader_hint_is_taken_at_once_and_outlives_stale_metadata(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.topics["t"] = topic("t", [1], leader_epoch=5, topic_id=TOPIC_ID)
    cluster.watch("test", ["t"])
    await cluster.refresh()
    async with ScriptedBroker(2) as other:
        other.topics = broker.topics  # as stale as the first node's
        other.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse()
        assert cluster.apply_leader_hints({TP: (2, 6)}, [Node(2, other.host, other.port)]) == {TP}
        assert not cluster.apply_leader_hints({TP: (1, 6)})
        leader = cluster.view.leader(TP)
        assert leader is not None
        assert leader.leader == 2
        await cluster.request(2, HeartbeatRequest())
        broker.brokers = other.brokers = [broker.as_broker, other.as_broker]
        view = await cluster.refresh()
        assert view.topics["t"].partitions[0].leader_epoch == 6
        await cluster.close()


async def test_nodes_with_older_leader_epochs_are_asked_last(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    async with ScriptedBroker(2) as other:
        broker.brokers = other.brokers = [broker.as_broker, other.as_broker]
        for each, leader_epoch in ((broker, 4), (other, 5)):
            each.topics["t"] = topic("t", [1], leader_epoch=leader_epoch, topic_id=TOPIC_ID)
        cluster.watch("test", ["t"])
        await cluster.refresh()
        cluster.apply_leader_hints({TP: (2, 5)})
        await cluster.refresh()  # contradicted, unless the other was asked already
        asked = other.count(MetadataRequest)
        view = await cluster.refresh()
        assert other.count(MetadataRequest) == asked + 1
        assert not view.was_contradicted
        await cluster.close()


async def test_a_node_with_an_older_leader_epoch_of_one_topic_is_asked_last(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    async with ScriptedBroker(2) as other:
        broker.brokers = other.brokers = [broker.as_broker, other.as_broker]
        for each, leader_epoch in ((broker, 4), (other, 5)):
            each.topics["t"] = topic("t", [1], leader_epoch=leader_epoch, topic_id=TOPIC_ID)
        cluster.watch("test", ["t"])
        await cluster.refresh()
        cluster.apply_leader_hints({TP: (2, 5)})
        while not (await cluster.refresh(["t"])).was_contradicted:
            pass
        asked = other.count(MetadataRequest)
        view = await cluster.refresh(["t"])
        assert other.count(MetadataRequest) == asked + 1
        assert not view.was_contradicted
        await cluster.close()


# --- Requests --------------------------------------------------------------------------------
async def test_unreachable_node_makes_the_view_stale(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    with pytest.raises(NodeNotReadyError):
        await cluster.request(9, HeartbeatRequest())
    await broker.until_asked(MetadataRequest, 2)
    broker.scripts[HeartbeatRequest] = lambda _: Do.CLOSE
    with pytest.raises(KafkaConnectionError):
        await cluster.request(1, HeartbeatRequest())
    await broker.until_asked(MetadataRequest, 3)


async def test_untargeted_request_goes_to_the_next_node_when_one_is_dead(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    async with ScriptedBroker(2) as other:
        broker.brokers = other.brokers = [broker.as_broker, other.as_broker]
        for node in (broker, other):
            node.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse(throttle_time_ms=1)
        await cluster.refresh()
        await broker.stop()
        for _ in range(3):
            await cluster.request_any(HeartbeatRequest())
        assert other.count(HeartbeatRequest) == 3
        await other.stop()
        with pytest.raises(KafkaConnectionError, match="no broker can be used") as caught:
            await cluster.request_any(HeartbeatRequest())
        assert other.address in str(caught.value)
        assert broker.address in str(caught.value)
        await cluster.close()


@pytest.mark.every_loop
async def test_cluster_replaced_behind_its_bootstrap_server_is_found(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    async with ScriptedBroker(5) as old, ScriptedBroker(6) as new:
        broker.brokers = [old.as_broker]
        cluster = new_cluster(quick_config(broker))
        await cluster.start()
        assert list(cluster.view.nodes) == [5]
        broker.brokers = [new.as_broker]
        await old.stop()
        view = await cluster.refresh()
        assert list(view.nodes) == cluster.pool.node_ids() == [6]
        await cluster.close()


async def test_broker_may_demand_to_bootstrap_again(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    async with ScriptedBroker(5) as old, ScriptedBroker(6) as new:
        broker.brokers = [old.as_broker]
        cluster = new_cluster(quick_config(broker))
        await cluster.start()
        broker.brokers = [new.as_broker]
        old.scripts[MetadataRequest] = lambda _: MetadataResponse(error_code=129)
        view = await cluster.refresh()
        assert list(view.nodes) == [6]
        await cluster.close()


async def test_cluster_that_comes_back_is_found_again(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    await broker.stop()
    waiting = asyncio.ensure_future(cluster.refresh())
    await asyncio.sleep(0.03)
    await broker.start()
    assert 1 in (await waiting).nodes


async def test_node_whose_address_leads_to_another_is_looked_up_again(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    def check_identity(asked: Asked) -> Answer:
        assert isinstance(asked.request, ApiVersionsRequest)
        is_meant = asked.request.node_id in (-1, broker.node_id)
        return all_versions() if is_meant else ApiVersionsResponse(error_code=129)

    broker.scripts[ApiVersionsRequest] = check_identity
    async with ScriptedBroker(2) as other:
        other.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse()
        broker.brokers = other.brokers = [broker.as_broker, other.as_broker]
        there = other.as_broker
        there.port = broker.port  # where another listens by now
        broker.brokers = [broker.as_broker, there]
        view = await cluster.refresh()
        broker.brokers = other.brokers
        with pytest.raises(MisroutedError, match="is not node 2"):
            await cluster.request(2, HeartbeatRequest())
        await until(lambda: cluster.view is not view)  # though nobody has called for it
        await cluster.request(2, HeartbeatRequest())
        assert other.count(HeartbeatRequest) == 1
        await cluster.close()


# --- Brokers that do not offer what they should ------------------------------------------------
def versions_without(missing: type[Request[Response]]) -> ApiVersionsResponse:
    answer = all_versions()
    answer.api_keys = [each for each in answer.api_keys if each.api_key != missing.api_key]
    return answer


async def connect_anew(broker: ScriptedBroker, cluster: Cluster) -> None:
    """Lose every connection, and open two, the second by what the first was told."""
    for connection in broker.connections:
        connection.transport.abort()
    await until(lambda: cluster.pool.last_error(1) is not None)
    await cluster.pool.connect(1)
    await cluster.pool.connect(1, Lane.FETCH)


async def test_a_broker_that_did_not_offer_metadata_is_asked_again_what_it_offers(
    broker: ScriptedBroker, cluster: Cluster, scope: TaskScope
) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: versions_without(MetadataRequest)
    await connect_anew(broker, cluster)
    before = broker.count(ApiVersionsRequest)
    waiting = asyncio.ensure_future(cluster.refresh())
    await until(lambda: broker.count(ApiVersionsRequest) >= before + 4)
    assert scope.degraded
    broker.scripts[ApiVersionsRequest] = lambda _: all_versions()
    assert 1 in (await waiting).nodes
    assert not scope.degraded


@pytest.mark.virtual_time
async def test_a_broker_that_never_offers_metadata_is_not_asked_in_a_hurry(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: versions_without(MetadataRequest)
    await connect_anew(broker, cluster)
    before = broker.count(ApiVersionsRequest)
    with pytest.raises(KafkaTimeoutError, match="does not support MetadataRequest"):
        await cluster.refresh()
    # In 5 s, with pauses of up to 0.1 s.
    assert 10 < broker.count(ApiVersionsRequest) - before < 120


@pytest.mark.parametrize("is_offered_by_then", [True, False])
async def test_a_broker_that_did_not_offer_find_coordinator_is_asked_once_more(
    broker: ScriptedBroker, cluster: Cluster, is_offered_by_then: bool
) -> None:
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker)
    broker.scripts[ApiVersionsRequest] = lambda _: versions_without(FindCoordinatorRequest)
    await connect_anew(broker, cluster)
    before = broker.count(ApiVersionsRequest)
    if is_offered_by_then:
        broker.scripts[ApiVersionsRequest] = lambda _: all_versions()
        assert await cluster.find_coordinator("g") == 1
    else:
        with pytest.raises(IncompatibleBrokerVersion, match="does not support FindCoordinator"):
            await cluster.find_coordinator("g")
    assert broker.count(ApiVersionsRequest) == before + 1


async def test_a_request_that_brokers_need_not_offer_fails_and_closes_no_connection(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: versions_without(HeartbeatRequest)
    await connect_anew(broker, cluster)
    before = broker.count(ApiVersionsRequest)
    with pytest.raises(IncompatibleBrokerVersion, match="does not support Heartbeat"):
        await cluster.request_any(HeartbeatRequest())
    await cluster.refresh()
    assert broker.count(ApiVersionsRequest) == before


async def test_another_broker_is_asked_for_what_one_does_not_offer(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: versions_without(MetadataRequest)
    async with ScriptedBroker(2) as other:
        broker.brokers = other.brokers = [broker.as_broker, other.as_broker]
        for brokers in ((broker, other), (other, broker)):
            cluster = new_cluster(quick_config(*brokers))
            await cluster.start()
            assert set(cluster.view.nodes) == {1, 2}
            await cluster.close()


# --- Coordinators ----------------------------------------------------------------------------
def coordinator(node: ScriptedBroker, error_code: int = 0) -> FindCoordinatorResponse:
    """Return the answer about the group "g"."""
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key="g",
                node_id=node.node_id,
                host=node.host,
                port=node.port,
                error_code=error_code,
                error_message="because" if error_code else None,
            )
        ]
    )


async def test_coordinator_is_found(broker: ScriptedBroker, cluster: Cluster) -> None:
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker)
    assert await cluster.find_coordinator("g") == 1
    request = broker.asked[-1].request
    assert isinstance(request, FindCoordinatorRequest)
    assert (request.coordinator_keys, request.key_type) == (["g"], 0)


@pytest.mark.parametrize("version", [0, 1, 3])
async def test_coordinator_is_found_with_older_versions(
    broker: ScriptedBroker, new_cluster: NewCluster, version: int
) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: offered(
        {3: (0, 9), 10: (0, version), 18: (0, 3)}
    )
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker)
    cluster = new_cluster(quick_config(broker))
    await cluster.start()
    assert await cluster.find_coordinator("g") == 1
    request = broker.asked[-1].request
    assert isinstance(request, FindCoordinatorRequest)
    assert (request.coordinator_keys, broker.asked[-1].version) == (["g"], version)


async def test_first_coordinator_is_asked_for_right_behind_the_first_metadata(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    broker.scripts[MetadataRequest] = broker.scripts[FindCoordinatorRequest] = lambda _: Do.NOTHING
    cluster = new_cluster(quick_config(broker))
    starting = asyncio.ensure_future(cluster.start(group_id="g"))
    await broker.until_asked(FindCoordinatorRequest)
    asked = [type(each.request) for each in broker.asked]
    assert asked == [ApiVersionsRequest, MetadataRequest, FindCoordinatorRequest]
    assert len(broker.connections) == 1
    for each in broker.asked[1:]:
        is_metadata = isinstance(each.request, MetadataRequest)
        answer = broker.metadata(each) if is_metadata else coordinator(broker)
        each.peer.transport.write(each.encode(answer))
    await starting
    assert await cluster.find_coordinator("g") == 1
    assert broker.count(FindCoordinatorRequest) == 1
    # Once: what was true at the start need not be so for ever, nor of other groups.
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker)
    assert await cluster.find_coordinator("g") == 1
    assert broker.count(FindCoordinatorRequest) == 2


async def test_first_coordinator_is_asked_of_the_server_that_is_connected(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker)
    config = quick_config(broker, bootstrap_servers=[broker.address, "127.0.0.1:1"])
    cluster = new_cluster(config)
    await cluster.start(group_id="g")
    assert await cluster.find_coordinator("g") == 1
    assert broker.count(FindCoordinatorRequest) == 1
    assert len(broker.connections) == 1


async def test_first_coordinator_is_asked_for_again_where_that_failed(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    async with ScriptedBroker(2) as server:
        server.brokers = [broker.as_broker]
        server.scripts[FindCoordinatorRequest] = lambda _: Do.CLOSE
        broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker)
        cluster = new_cluster(quick_config(server))
        await cluster.start(group_id="g")
        assert await cluster.find_coordinator("g") == 1
        assert [each.count(FindCoordinatorRequest) for each in (server, broker)] == [1, 1]
        await cluster.close()


async def test_the_answer_about_the_first_coordinator_is_waited_for(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    broker.scripts[FindCoordinatorRequest] = lambda _: Do.NOTHING
    cluster = new_cluster(quick_config(broker))
    await cluster.start(group_id="g")
    finding = asyncio.ensure_future(cluster.find_coordinator("g"))
    await broker.until_asked(FindCoordinatorRequest)
    await asyncio.sleep(0)
    assert not finding.done()
    asked = broker.asked[-1]
    asked.peer.transport.write(asked.encode(coordinator(broker)))
    assert await finding == 1
    assert broker.count(FindCoordinatorRequest) == 1


async def test_another_group_than_the_first_is_asked_for(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker, 30)
    cluster = new_cluster(quick_config(broker))
    await cluster.start(group_id="other")
    with pytest.raises(GroupAuthorizationFailedError):
        await cluster.find_coordinator("g")
    assert broker.count(FindCoordinatorRequest) == 2


async def test_coordinator_that_metadata_does_not_name_yet_can_be_used(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    async with ScriptedBroker(2) as other:
        other.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse()
        broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(other)
        node_id = await cluster.find_coordinator("g")
        await cluster.request(node_id, HeartbeatRequest())
        assert other.count(HeartbeatRequest) == 1
        await cluster.close()


async def test_coordinator_is_asked_where_the_answer_says_that_it_listens(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    """A node that was replaced elsewhere under its id, of which metadata do not tell yet."""
    async with ScriptedBroker(1) as replacement:
        replacement.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse()
        broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(replacement)
        assert await cluster.find_coordinator("g") == 1
        await cluster.request(1, HeartbeatRequest())
        assert replacement.count(HeartbeatRequest) == 1
        await cluster.close()


async def test_coordinator_not_available_yet_is_asked_for_again(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    codes = iter([15, 14])
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker, next(codes, 0))
    assert await cluster.find_coordinator("g") == 1
    assert broker.count(FindCoordinatorRequest) == 3


async def test_coordinator_that_never_comes_is_given_up(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker, 15)
    with pytest.raises(CoordinatorNotAvailableError, match="'g': because"):
        await cluster.find_coordinator("g", timeout_s=0.05)


@pytest.mark.virtual_time
async def test_no_coordinator_is_asked_for_after_the_time(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker, retry_backoff_s=0.4, retry_backoff_max_s=60.0))
    await cluster.start()
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker, 15)
    with pytest.raises(CoordinatorNotAvailableError):
        await cluster.find_coordinator("g", timeout_s=1.0)  # after 0.4 and 1.2 s
    assert broker.count(FindCoordinatorRequest) == 2


async def test_forbidden_group_is_told_at_once(broker: ScriptedBroker, cluster: Cluster) -> None:
    broker.scripts[FindCoordinatorRequest] = lambda _: coordinator(broker, 30)
    with pytest.raises(GroupAuthorizationFailedError):
        await cluster.find_coordinator("g")
    assert broker.count(FindCoordinatorRequest) == 1


async def test_answer_about_another_group_is_not_taken(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.scripts[FindCoordinatorRequest] = lambda _: FindCoordinatorResponse()
    with pytest.raises(KafkaError, match="does not contain 'g'"):
        await cluster.find_coordinator("g", timeout_s=0.02)


@pytest.mark.virtual_time
async def test_other_nodes_confirm_a_coordinator_or_name_another(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    loop = asyncio.get_running_loop()
    answers: list[int | Do] = []

    def find(_: Asked) -> Answer:
        answer = answers.pop(0)
        if isinstance(answer, Do):
            return answer
        return coordinator(nodes[answer - 1]) if answer > 0 else coordinator(broker, -answer)

    async with ScriptedBroker(2) as two, ScriptedBroker(3) as three, ScriptedBroker(4) as four:
        nodes = [broker, two, three, four]
        for node in nodes[1:]:
            node.scripts[FindCoordinatorRequest] = find
        broker.brokers = [each.as_broker for each in nodes]
        cluster = new_cluster(quick_config(broker, request_timeout_s=40.0))
        await cluster.start()

        async def elsewhere(*script: int | Do, left_s: float = math.inf) -> int | None:
            answers[:] = script
            return await cluster.find_coordinator_elsewhere(1, "g", 0, loop.time() + left_s)

        began_at = loop.time()
        for script, expected, left in (
            ([1, 9], 1, 1),
            ([2, 1], 1, 0),
            ([-15, 3, 1], 1, 0),
            ([Do.CLOSE, 1], 1, 0),
            ([2, 3, -15], 2, 0),
            ([-15, -15, -14], None, 0),
            ([-15, Do.CLOSE, Do.CLOSE], None, 0),
            ([Do.CLOSE, Do.CLOSE, Do.CLOSE], 1, 0),
        ):
            assert (await elsewhere(*script), len(answers)) == (expected, left), script
        assert loop.time() - began_at < 1.0
        with pytest.raises(GroupAuthorizationFailedError):
            await elsewhere(-30)
        assert broker.count(FindCoordinatorRequest) == 0

        # Silent nodes share the time.
        began_at = loop.time()
        assert await elsewhere(Do.NOTHING, Do.NOTHING, 4) == 4
        assert await elsewhere(Do.NOTHING, Do.NOTHING, Do.NOTHING) == 1
        assert 5.0 < loop.time() - began_at < 10.1
        began_at = loop.time()
        assert await elsewhere(Do.NOTHING, 1, left_s=0.3) == 1
        assert await elsewhere(left_s=0.0) == 1
        assert loop.time() - began_at <= 0.31
        for node in nodes[1:]:  # and those whose packets are dropped
            await node.stop()
            node.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
            await node.start()
        began_at = loop.time()
        assert await elsewhere() == 1
        assert 4.0 < loop.time() - began_at < 5.1
        await broker.stop()
        broker.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
        await broker.start()
        began_at = loop.time()
        with pytest.raises(RequestTimedOutError, match="coordinator of 'g' in time"):
            await cluster.find_coordinator("g", timeout_s=3.0)
        assert loop.time() - began_at < 3.1
        await cluster.close()
        with pytest.raises(ClientClosedError):
            await elsewhere()


async def test_a_name_of_a_coordinator_counts_if_a_third_node_gets_no_token(
    broker: ScriptedBroker, scope: TaskScope
) -> None:
    tokens = [True, True]

    async def authenticate(_: Connection) -> float:
        if not tokens:
            raise TokenUnavailableError("no token")
        tokens.pop()
        return 0.0

    async with ScriptedBroker(2) as two, ScriptedBroker(3) as three:
        for node in (two, three):
            node.scripts[FindCoordinatorRequest] = lambda _: coordinator(two)
        broker.brokers = [each.as_broker for each in (broker, two, three)]
        config, rng = quick_config(broker), random.Random(1)
        cluster = Cluster(config, scope=scope, rng=rng, authenticate=authenticate)
        await cluster.start()
        assert await cluster.find_coordinator_elsewhere(1, "g", 0, math.inf) == 2
        assert not tokens
        await cluster.close()


@pytest.mark.virtual_time
async def test_a_try_without_an_answer_doubles_the_time_of_the_next(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    loop = asyncio.get_running_loop()
    cluster = new_cluster(quick_config(broker, request_timeout_s=40.0))
    await cluster.start()

    async def try_s(timeout_s: float | None = None, left_s: float = math.inf) -> float:
        began_at = loop.time()
        with pytest.raises(RequestTimedOutError):
            await cluster.request(1, HeartbeatRequest(), timeout_s=timeout_s, left_s=left_s)
        return loop.time() - began_at

    broker.scripts[HeartbeatRequest] = lambda _: Do.NOTHING
    tries_s = [await try_s() for _ in range(4)]
    assert tries_s == pytest.approx([10.0, 20.0, 40.0, 40.0], abs=0.3)
    broker.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse()
    await cluster.request(1, HeartbeatRequest())
    broker.scripts[HeartbeatRequest] = lambda _: Do.NOTHING
    tries_s = [await try_s(left_s=20.0), await try_s(timeout_s=1.0), await try_s(left_s=1.0)]
    assert tries_s == pytest.approx([5.0, 1.0, 4.0], abs=0.3)


@pytest.mark.virtual_time
async def test_silent_nodes_are_asked_again_unless_the_caller_limits_the_time(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(quick_config(broker, request_timeout_s=40.0))
    await cluster.start()
    answers: list[Answer] = [Do.NOTHING]
    broker.scripts[HeartbeatRequest] = lambda _: answers.pop() if answers else HeartbeatResponse()
    await cluster.request_any(HeartbeatRequest())
    assert broker.count(HeartbeatRequest) == 2
    answers.append(Do.NOTHING)
    with pytest.raises(KafkaConnectionError, match="no broker can be used"):
        await cluster.request_any(HeartbeatRequest(), timeout_s=1.0)
    assert broker.count(HeartbeatRequest) == 3


@pytest.mark.virtual_time
async def test_nodes_that_stay_silent_are_given_up(
    broker: ScriptedBroker, new_cluster: NewCluster
) -> None:
    loop = asyncio.get_running_loop()
    cluster = new_cluster(quick_config(broker, request_timeout_s=8.0))
    await cluster.start()
    began_at = loop.time()
    broker.scripts[HeartbeatRequest] = lambda _: Do.NOTHING
    with pytest.raises(KafkaConnectionError, match="no broker can be used"):
        await cluster.request_any(HeartbeatRequest())
    assert 8.0 <= loop.time() - began_at < 20.0


async def test_answers_come_within_the_timeout_of_the_request(
    broker: ScriptedBroker, cluster: Cluster
) -> None:
    broker.scripts[HeartbeatRequest] = lambda _: Do.NOTHING
    started = asyncio.get_running_loop().time()
    with pytest.raises(KafkaError):
        await cluster.request(1, HeartbeatRequest(), timeout_s=0.05)
    assert asyncio.get_running_loop().time() - started < TIMEOUT_S / 2
