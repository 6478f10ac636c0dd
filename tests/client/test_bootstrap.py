"""Bootstrap servers tried side by side, and what is said when none of them answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.client.connection import Authenticate, Connection
from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import AuthenticationFailedError, ClientClosedError, KafkaConnectionError
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersionsRequest,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from aiokafka_lite.structs import TopicPartition
from tests.client.conftest import closed_port, quick_config
from tests.support.scripted_broker import Do, ScriptedBroker, silence, topic

T = TypeVar("T")
NewCluster = Callable[..., Cluster]


class InOrder(random.Random):
    """Takes the first of everything, and changes no order."""

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[0]

    def shuffle(self, x: object) -> None:  # type: ignore[override]
        """Leave it."""


@pytest.fixture
async def brokers() -> AsyncIterator[list[ScriptedBroker]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedBroker()) for _ in range(3)]


@pytest.fixture
async def new_cluster(scope: TaskScope) -> AsyncIterator[NewCluster]:
    clusters: list[Cluster] = []

    def build(config: ClientConfig, authenticate: Authenticate | None = None) -> Cluster:
        rng = InOrder()
        clusters.append(Cluster(config, scope=scope, rng=rng, authenticate=authenticate))
        return clusters[-1]

    yield build
    for cluster in clusters:
        await cluster.close()


@pytest.mark.every_loop
async def test_silent_servers_are_named_with_what_they_were_asked(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    silence(*brokers)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with pytest.raises(KafkaConnectionError) as caught:
        await new_cluster(quick_config(*brokers, request_timeout_s=1.0)).start()
    assert loop.time() - began_at < 1.5
    for broker in brokers:
        assert f"connected to {broker.address}" in str(caught.value)
        assert broker.count(ApiVersionsRequest) == 1
    assert "no answer" in str(caught.value)
    assert "ApiVersions" in str(caught.value)
    assert "security_protocol" in str(caught.value)


@pytest.mark.virtual_time
async def test_a_server_silent_to_metadata_is_named_with_that(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    broker = brokers[0]
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    with pytest.raises(KafkaConnectionError, match=f"{broker.address} to Metadata"):
        await new_cluster(quick_config(broker, request_timeout_s=0.4)).start()


@pytest.mark.every_loop
async def test_servers_that_stay_silent_hold_nobody_up(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    first, second, good = brokers
    silence(first, second)
    cluster = new_cluster(quick_config(*brokers, request_timeout_s=30.0, connect_timeout_s=10.0))
    async with timeout(2):
        await cluster.start()
        assert next(iter(cluster.view.nodes.values())).port == good.port
        # Those that were left behind are closed.
        await first.until(lambda: first.connections[0].is_closed)
        await second.until(lambda: second.connections[0].is_closed)
    assert cluster.pool.node_ids() == [1]


async def test_the_next_server_is_asked_at_once_when_one_refuses(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    servers = [f"127.0.0.1:{await closed_port()}" for _ in range(10)]
    config = quick_config(bootstrap_servers=[*servers, brokers[0].address])
    async with timeout(1):  # less than ten pauses
        await new_cluster(config).start()


async def test_a_server_that_answers_is_the_only_one_that_is_connected_to(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    await new_cluster(quick_config(*brokers)).start()
    assert [len(broker.connections) for broker in brokers] == [1, 0, 0]


async def test_a_server_that_answers_nothing_but_versions_makes_way_for_the_next(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    first, second, _ = brokers
    first.scripts[MetadataRequest] = lambda _: Do.CLOSE
    cluster = new_cluster(quick_config(*brokers))
    await cluster.start()
    assert next(iter(cluster.view.nodes.values())).port == second.port


# --- Meanwhile ------------------------------------------------------------------------------
@pytest.mark.virtual_time
@pytest.mark.parametrize("change", ["coordinator", "leader"])
async def test_the_view_may_change_while_servers_are_asked_again(
    brokers: list[ScriptedBroker], new_cluster: NewCluster, change: str
) -> None:
    silent, second, _ = brokers
    async with ScriptedBroker(5) as old, ScriptedBroker(6) as new:
        silent.brokers = [old.as_broker]
        silent.topics["t"] = topic("t", [5], leader_epoch=1)
        old.scripts[MetadataRequest] = lambda _: MetadataResponse(error_code=129)
        old.scripts[FindCoordinatorRequest] = lambda _: FindCoordinatorResponse(
            coordinators=[Coordinator(key="g", node_id=6, host=new.host, port=new.port)]
        )
        second.brokers = [new.as_broker]
        cluster = new_cluster(quick_config(silent, second))
        cluster.watch("test", ["t"])
        await cluster.start()
        assert list(cluster.view.nodes) == [5]
        asked = silent.count(ApiVersionsRequest)
        silence(silent)
        refreshing = asyncio.ensure_future(cluster.refresh())
        await silent.until(lambda: silent.count(ApiVersionsRequest) > asked)
        if change == "coordinator":
            assert await cluster.find_coordinator("g") == 6
        else:
            node = Node(6, new.host, new.port)
            assert cluster.apply_leader_hints({TopicPartition("t", 0): (6, 2)}, [node])
        assert list(cluster.view.nodes) == [5, 6]
        assert cluster.pool.node_ids() == [5, -1, -2, 6]  # the servers as well, until one answers
        view = await refreshing
        assert list(view.nodes) == cluster.pool.node_ids() == [6]
        await cluster.close()


async def test_a_client_that_is_closed_while_it_starts_says_so(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    silence(*brokers)
    cluster = new_cluster(quick_config(*brokers))
    starting = asyncio.ensure_future(cluster.start())
    await brokers[0].until_asked(ApiVersionsRequest)
    await cluster.close()
    with pytest.raises(ClientClosedError):
        await starting
    assert not brokers[1].connections


# --- Credentials ----------------------------------------------------------------------------
async def test_credentials_that_one_server_refuses_are_not_shown_to_the_others(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    shown: list[str] = []
    has_time_passed = asyncio.Event()

    async def refuse(connection: Connection) -> float | None:
        shown.append(connection.peer)
        await has_time_passed.wait()
        raise AuthenticationFailedError("wrong password")

    cluster = new_cluster(quick_config(*brokers, request_timeout_s=10.0), refuse)
    starting = asyncio.ensure_future(cluster.start())
    # All have been connected to by then, and wait for what becomes of the first.
    await brokers[2].until_asked(ApiVersionsRequest)
    has_time_passed.set()
    with pytest.raises(AuthenticationFailedError):
        await starting
    await cluster.close()
    assert shown == [brokers[0].address]


async def test_a_server_that_is_silent_to_credentials_does_not_use_up_the_others_time(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    first, second, _ = brokers

    async def authenticate(connection: Connection) -> float:
        if connection.peer == first.address:
            await asyncio.Event().wait()
        return 0.0

    config = quick_config(first, second, request_timeout_s=10.0, connect_timeout_s=0.5)
    cluster = new_cluster(config, authenticate)
    async with timeout(3):
        await cluster.start()
    assert next(iter(cluster.view.nodes.values())).port == second.port


@pytest.mark.virtual_time
async def test_time_that_a_server_does_not_use_is_that_of_the_next(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    first, *others = brokers
    first.scripts[MetadataRequest] = lambda _: Do.CLOSE
    for each in others:
        each.scripts[MetadataRequest] = lambda _: Do.NOTHING
    began_at = asyncio.get_running_loop().time()
    with pytest.raises(KafkaConnectionError, match="no answer") as caught:
        await new_cluster(quick_config(*brokers, request_timeout_s=10.0)).start()
    assert str(caught.value).count("in 4.5 s") == 2
    assert asyncio.get_running_loop().time() - began_at == pytest.approx(9.0, abs=0.5)


@pytest.mark.virtual_time
async def test_start_that_is_aborted_between_two_tries_ends_as_closed(
    brokers: list[ScriptedBroker], new_cluster: NewCluster
) -> None:
    broker = brokers[0]
    broker.scripts[MetadataRequest] = lambda _: Do.CLOSE
    pauses = {"retry_backoff_s": 2.0, "retry_backoff_max_s": 2.0}
    cluster = new_cluster(quick_config(broker, request_timeout_s=30.0, **pauses))
    starting = asyncio.ensure_future(cluster.start())
    await broker.until(lambda: broker.count(MetadataRequest) == 1)
    await asyncio.sleep(0.5)
    cluster.abort()
    with pytest.raises(ClientClosedError):
        await starting
