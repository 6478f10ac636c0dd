from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.config import ClientConfig, parse_address
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.pool import Pool
from aiokafka_lite.client.versions import FirstVersions, MisroutedError
from tests.support.connecting import connect_to
from tests.support.scripted_broker import ScriptedBroker

#: Everything that waits in these tests waits this long at most.
TIMEOUT_S = 5.0
FIRST_BACKOFF_S = 0.01


def quick_config(*brokers: ScriptedBroker, **changes: object) -> ClientConfig:
    """Return a config with short delays that bootstraps from the brokers."""
    settings: dict[str, object] = {
        "bootstrap_servers": [broker.address for broker in brokers] or "127.0.0.1:1",
        "client_id": "tests",
        "request_timeout_s": TIMEOUT_S,
        "connect_timeout_s": TIMEOUT_S,
        "retry_backoff_s": FIRST_BACKOFF_S,
        "retry_backoff_max_s": 0.1,
        "reconnect_backoff_s": FIRST_BACKOFF_S,
        "reconnect_backoff_max_s": 0.1,
    }
    return ClientConfig(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
async def connection(broker: ScriptedBroker) -> AsyncIterator[Connection]:
    connection = await connect_to(broker.host, broker.port)
    yield connection
    connection.close()
    await connection.wait_closed()


@pytest.fixture
async def scope() -> AsyncIterator[TaskScope]:
    scope = TaskScope("tests")
    yield scope
    await scope.close()
    scope.raise_if_failed()


@pytest.fixture
async def new_pool(scope: TaskScope) -> AsyncIterator[Callable[[ClientConfig], Pool]]:
    pools: list[Pool] = []

    def build(config: ClientConfig) -> Pool:
        pools.append(Pool(config, scope=scope, rng=random.Random(1)))
        return pools[-1]

    yield build
    for pool in pools:
        await pool.close()


async def closed_port() -> int:
    """Return a port that nobody listens on."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def reach_none_but(bootstrap_servers: str, cluster_id: str, node_id: int) -> None:
    """Connect to the broker that is there, and be refused by it if another is meant."""
    host, port = parse_address(bootstrap_servers)
    first_versions = FirstVersions(asyncio.get_running_loop().time)

    async def reach(cluster_id: str | None, node_id: int | None) -> None:
        connection = await connect_to(
            host,
            port,
            first_versions=first_versions,
            cluster_id=cluster_id,
            node_id=node_id,
        )
        connection.close()
        await connection.wait_closed()

    await reach(None, None)
    await reach(cluster_id, node_id)
    for others in ((cluster_id, node_id + 1), ("another", node_id)):
        with pytest.raises(MisroutedError, match=f"node {others[1]} of cluster {others[0]}"):
            await reach(*others)
