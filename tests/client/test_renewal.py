"""Sessions that are renewed before they end, on the connections of a pool."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from itertools import pairwise

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.pool import Pool
from aiokafka_lite.client.view import Node
from aiokafka_lite.client.wire import RENEWED_AT
from aiokafka_lite.errors import AuthenticationFailedError
from tests.client.conftest import quick_config
from tests.support.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.virtual_time

LIFETIME_S = 100.0


class Authenticating:
    """Notes when credentials are shown; each session lasts for so long."""

    def __init__(self, lifetime_s: float) -> None:
        self.shown_at: list[float] = []
        self.is_refused = False
        self._lifetime_s = lifetime_s

    async def __call__(self, _: Connection) -> float:
        self.shown_at.append(asyncio.get_running_loop().time())
        if self.is_refused:
            raise AuthenticationFailedError("wrong password")
        return self._lifetime_s


def pool_of(broker: ScriptedBroker, scope: TaskScope, authenticate: Authenticating) -> Pool:
    pool = Pool(quick_config(), scope=scope, rng=random.Random(1), authenticate=authenticate)
    pool.update_nodes({1: Node(1, broker.host, broker.port)})
    return pool


async def test_each_session_is_renewed_in_time_until_the_connection_is_lost(
    broker: ScriptedBroker, scope: TaskScope
) -> None:
    authenticate = Authenticating(LIFETIME_S)
    pool = pool_of(broker, scope, authenticate)
    connection = await pool.connect(1)
    await asyncio.sleep(3 * LIFETIME_S)
    assert pool.usable(1) is connection
    pauses_s = [later - earlier for earlier, later in pairwise(authenticate.shown_at)]
    assert len(pauses_s) == 3
    least, most = RENEWED_AT
    assert all(least * LIFETIME_S <= pause_s <= most * LIFETIME_S for pause_s in pauses_s)
    broker.connections[0].transport.abort()
    await connection.wait_closed()
    kept = weakref.ref(connection)
    del connection
    await asyncio.sleep(0)
    gc.collect()
    assert kept() is None  # no timer waits for the next renewal
    await asyncio.sleep(LIFETIME_S)
    assert len(authenticate.shown_at) == 4
    await pool.close()


async def test_a_renewal_that_is_refused_ends_the_connection_and_nothing_else(
    broker: ScriptedBroker, scope: TaskScope
) -> None:
    authenticate = Authenticating(LIFETIME_S)
    pool = pool_of(broker, scope, authenticate)
    connection = await pool.connect(1)
    authenticate.is_refused = True
    assert isinstance(await connection.closed, AuthenticationFailedError)
    await asyncio.sleep(2 * LIFETIME_S)
    assert len(authenticate.shown_at) == 2
    assert scope.failure is None
    await pool.close()


async def test_a_session_without_an_end_is_not_renewed(
    broker: ScriptedBroker, scope: TaskScope
) -> None:
    authenticate = Authenticating(0.0)
    pool = pool_of(broker, scope, authenticate)
    await pool.connect(1)
    await asyncio.sleep(5 * LIFETIME_S)
    assert len(authenticate.shown_at) == 1
    await pool.close()
