from __future__ import annotations

import asyncio
import gc
import logging
import random
import re
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.pool import Pool
from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    ClientClosedError,
    ClusterAuthorizationFailedError,
    InsecureConfigError,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    ThrottlingQuotaExceededError,
)
from aiokafka_lite.protocol.messages.fetch import FetchRequest, FetchResponse
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from aiokafka_lite.protocol.schema import Request, Response
from tests.client.conftest import FIRST_BACKOFF_S, TIMEOUT_S, closed_port, quick_config
from tests.support.scripted_broker import Answer, Asked, Do, ScriptedBroker, offered

R = TypeVar("R", bound=Response)
NewPool = Callable[[ClientConfig], Pool]

HEARTBEAT = HeartbeatRequest()
FETCH = FetchRequest()


def nodes(*brokers: ScriptedBroker) -> dict[int, Node]:
    return {broker.node_id: Node(broker.node_id, broker.host, broker.port) for broker in brokers}


@pytest.fixture
async def pool(broker: ScriptedBroker, new_pool: NewPool) -> Pool:
    broker.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse()
    broker.scripts[FetchRequest] = lambda _: FetchResponse()
    pool = new_pool(quick_config())
    pool.update_nodes(nodes(broker))
    return pool


async def request(
    pool: Pool,
    node_id: int,
    request: Request[R],
    lane: Lane = Lane.GENERAL,
    timeout_s: float = TIMEOUT_S,
) -> R:
    """Send a request, as a cluster does."""
    connection = pool.ready_connection(node_id, lane) or await pool.connect(node_id, lane)
    return await connection.request(request, timeout_s=timeout_s)


async def beat(pool: Pool, node_id: int = 1) -> HeartbeatResponse:
    return await request(pool, node_id, HEARTBEAT)


# --- Opening ---------------------------------------------------------------------------------
@pytest.mark.every_loop
async def test_requests_share_one_connection_per_lane(broker: ScriptedBroker, pool: Pool) -> None:
    assert not broker.connections
    await asyncio.gather(*(beat(pool) for _ in range(10)))
    assert len(broker.connections) == 1
    await request(pool, 1, FETCH, lane=Lane.FETCH)
    assert len(broker.connections) == 2
    assert broker.asked[-1].peer is broker.connections[1]


async def test_versions_are_asked_for_once_as_long_as_a_connection_is_open(
    broker: ScriptedBroker, pool: Pool
) -> None:
    first = await pool.connect(1)
    await request(pool, 1, FETCH, lane=Lane.FETCH)
    await pool.connect(1, Lane.GROUP)
    assert len(broker.connections) == 3
    assert broker.count(ApiVersionsRequest) == 1
    broker.connections[0].transport.abort()
    await first.closed
    await beat(pool)
    assert broker.count(ApiVersionsRequest) == 1


async def test_versions_are_asked_for_again_when_every_connection_was_lost(
    broker: ScriptedBroker, pool: Pool
) -> None:
    both = [await pool.connect(1, lane) for lane in (Lane.GENERAL, Lane.FETCH)]
    await broker.stop()
    for connection in both:
        await connection.closed
    broker.scripts[ApiVersionsRequest] = lambda _: offered({HeartbeatRequest.api_key: (0, 2)})
    await broker.start()
    await beat(pool)
    assert broker.count(ApiVersionsRequest) == 2
    assert broker.asked[-1].version == 2


async def test_node_that_metadata_left_out_while_it_was_gone_is_told_of_when_it_is_back(
    broker: ScriptedBroker, pool: Pool
) -> None:
    told: list[tuple[int, bool]] = []
    downs_s: list[float] = []

    def tell(node_id: int, _: str, error: Exception | None, down_s: float) -> None:
        told.append((node_id, error is None))
        downs_s.append(down_s)

    pool.on_reachability = tell
    lost = await pool.connect(1)
    await broker.stop()
    await lost.closed
    assert pool.last_error(1)
    pool.update_nodes({})
    await broker.start()
    pool.update_nodes(nodes(broker))
    assert pool.last_error(1)
    await beat(pool)
    assert not pool.last_error(1)
    assert told == [(1, False), (1, True)]
    assert 0 <= downs_s[0] <= downs_s[1] < 5


async def test_a_node_with_the_id_0_is_a_node_as_any_other(
    broker: ScriptedBroker, new_pool: NewPool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = new_pool(quick_config())
    known = {0: Node(0, broker.host, broker.port)}
    pool.update_nodes(known)
    lost = await pool.connect(0)
    assert lost.wire.node_id == 0
    await broker.stop()
    await lost.closed
    pool.update_nodes({})
    await broker.start()
    pool.update_nodes(known)
    assert pool.last_error(0)
    await pool.connect(0)
    assert "reachable again: connected to node 0 at" in caplog.messages[-1]


async def test_connections_are_counted_with_those_that_replace_others(
    broker: ScriptedBroker, pool: Pool
) -> None:
    counts = []
    for _ in range(3):
        counts.append((pool.opened_count, pool.reconnect_count))
        connection = await pool.connect(1)
        broker.connections[-1].transport.abort()
        await connection.closed
    assert counts == [(0, 0), (1, 0), (2, 1)]


async def test_neither_attempts_nor_connections_are_kept_when_they_are_over(
    broker: ScriptedBroker, pool: Pool
) -> None:
    attempt = weakref.ref(pool.attempt(1))
    connection = await pool.connect(1)
    closed = weakref.ref(connection)
    pool.update_nodes({})
    await connection.wait_closed()
    del connection
    await asyncio.sleep(0)
    gc.collect()
    assert attempt() is closed() is None


async def test_it_is_told_whether_a_connection_is_being_opened_and_what_is_waited_for(
    broker: ScriptedBroker, pool: Pool
) -> None:
    assert not pool.is_connecting(1)
    assert not pool.is_connecting(7)
    assert pool.why_not_ready(7, Lane.FETCH) is None
    pool.attempt(1)
    assert pool.is_connecting(1)
    assert "still being opened" in str(pool.why_not_ready(1, Lane.GENERAL))
    connection = await pool.connect(1)
    assert not pool.is_connecting(1)
    assert pool.why_not_ready(1, Lane.GENERAL) is None
    broker.scripts[FetchRequest] = lambda _: FetchResponse(throttle_time_ms=900)
    await request(pool, 1, FETCH, lane=Lane.FETCH)
    assert isinstance(pool.why_not_ready(1, Lane.FETCH), ThrottlingQuotaExceededError)
    await broker.stop()
    await connection.closed
    assert pool.why_not_ready(1, Lane.GENERAL) is pool.last_error(1) is not None


async def test_a_node_is_lost_when_no_connection_to_it_is_open(
    broker: ScriptedBroker, pool: Pool
) -> None:
    loop = asyncio.get_running_loop()
    assert pool.lost_at(7) is pool.lost_at(1) is None
    began_at = loop.time()
    for lane in (Lane.GENERAL, Lane.FETCH):
        connection = await pool.connect(1, lane)
        assert pool.lost_at(1) is None
    broker.connections[1].transport.abort()
    await connection.closed
    assert pool.last_error(1)
    assert pool.lost_at(1) is None
    general = pool.usable(1)
    assert general is not None
    general.close()
    assert not pool.is_ready(1)  # at once
    lost_at = pool.lost_at(1)
    assert lost_at is not None
    assert began_at <= lost_at <= loop.time()


async def test_nothing_is_sent_while_a_session_is_renewed(
    broker: ScriptedBroker, pool: Pool
) -> None:
    is_renewed = asyncio.Event()

    async def authenticate(_: Connection) -> float:
        await is_renewed.wait()
        return 0.0

    connection = await pool.connect(1)
    renewing = asyncio.ensure_future(connection.renew(authenticate, TIMEOUT_S))
    await asyncio.sleep(0)
    assert not pool.is_ready(1)
    assert not pool.send_nowait(1, HEARTBEAT, Lane.GENERAL)
    waiting = asyncio.ensure_future(beat(pool))
    await asyncio.sleep(0.01)
    assert broker.count(HeartbeatRequest) == 0
    is_renewed.set()
    await waiting
    await renewing
    assert len(broker.connections) == 1


@pytest.mark.every_loop
async def test_long_poll_does_not_hold_up_the_other_lanes(
    broker: ScriptedBroker, pool: Pool
) -> None:
    broker.scripts[FetchRequest] = lambda _: Do.NOTHING
    fetch = asyncio.ensure_future(request(pool, 1, FETCH, lane=Lane.FETCH))
    await broker.until_asked(FetchRequest)
    await beat(pool)
    assert not fetch.done()
    assert pool.in_flight_request_count(1) == 1
    fetch.cancel()


async def test_ready_starts_connecting_and_tells_when_done(
    broker: ScriptedBroker, pool: Pool
) -> None:
    assert not pool.is_ready(1)
    assert not pool.ready(1)
    await broker.until_asked(ApiVersionsRequest)
    await pool.connect(1)
    assert pool.is_ready(1)
    assert pool.ready(1)
    assert not pool.is_ready(1, Lane.FETCH)
    assert pool.connection_delay(1) == 0
    assert not pool.last_error(1)
    assert len(broker.connections) == 1


async def test_request_on_an_open_connection_is_sent_before_the_first_suspension(
    broker: ScriptedBroker, pool: Pool
) -> None:
    await pool.connect(1)
    asking = request(pool, 1, HEARTBEAT)
    asking.send(None)
    await broker.until_asked(HeartbeatRequest)
    asking.close()


async def test_unknown_node_is_not_ready(pool: Pool) -> None:
    with pytest.raises(NodeNotReadyError, match="node 7 is not in the client's metadata"):
        await beat(pool, 7)
    assert not pool.ready(7)
    assert pool.connection_delay(7) == 0
    assert not pool.last_error(7)
    assert pool.in_flight_request_count(7) == 0


async def test_cancelled_waiter_leaves_the_attempt_going_on(
    broker: ScriptedBroker, pool: Pool
) -> None:
    held: list[Asked] = []
    answer = broker.scripts[ApiVersionsRequest]

    def hold_back(asked: Asked) -> Answer:
        held.append(asked)
        return Do.NOTHING

    broker.scripts[ApiVersionsRequest] = hold_back
    first, second = (asyncio.ensure_future(beat(pool)) for _ in range(2))
    await broker.until_asked(ApiVersionsRequest)
    first.cancel()
    await asyncio.wait([first])
    response = answer(held[0])
    assert not isinstance(response, (bytes, Do))
    held[0].peer.transport.write(held[0].encode(response))
    await second
    assert len(broker.connections) == 1


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "gone from the metadata"])
async def test_nobody_waits_for_a_node_that_was_given_up(
    broker: ScriptedBroker, pool: Pool, *, is_known: bool
) -> None:
    await request(pool, 1, FETCH, lane=Lane.FETCH)
    asked = asyncio.Event()

    def silence(_: Asked) -> Do:
        asked.set()
        return Do.NOTHING

    broker.scripts[HeartbeatRequest] = silence
    waiting = asyncio.ensure_future(beat(pool))
    await asyncio.wait_for(asked.wait(), TIMEOUT_S)
    if not is_known:
        pool.update_nodes({})  # its connections are to get their answers before they close
    pool.give_up(1, Lane.GENERAL, KafkaConnectionError("it hangs"))
    assert not pool.is_ready(1)
    with pytest.raises(KafkaConnectionError, match="it hangs"):
        await asyncio.wait_for(waiting, 1)
    pool.give_up(1, Lane.GENERAL, KafkaConnectionError("nothing is left to be given up"))
    if is_known:
        await request(pool, 1, FETCH, lane=Lane.FETCH)
        assert len(broker.connections) == 2


# --- Connecting to one of several ----------------------------------------------------------
@asynccontextmanager
async def a_second_node_to_try(
    broker: ScriptedBroker, pool: Pool
) -> AsyncIterator[tuple[ScriptedBroker, asyncio.Future[frozenset[int]]]]:
    """Start to connect one of two nodes, of which the first one is silent."""
    broker.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
    async with ScriptedBroker(2) as second:
        pool.update_nodes(nodes(broker, second))
        connecting = asyncio.ensure_future(pool.connect_one([1, 2], []))
        await broker.until_asked(ApiVersionsRequest)
        yield second, connecting


@pytest.mark.virtual_time
async def test_a_node_that_leaves_before_its_turn_is_passed_over(
    broker: ScriptedBroker, pool: Pool
) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
    failures: list[KafkaError] = []
    async with ScriptedBroker(2) as gone, ScriptedBroker(3) as last:
        pool.update_nodes(nodes(broker, gone, last))
        connecting = asyncio.ensure_future(pool.connect_one([1, 2, 3], failures))
        await broker.until_asked(ApiVersionsRequest)
        pool.update_nodes(nodes(broker, last))
        assert await connecting == {2}
        assert pool.is_ready(3)
        assert not gone.connections
        await pool.close()
    assert [type(error) for error in failures] == [NodeNotReadyError]
    assert "node 2 is not in the client's metadata" in str(failures[0])


@pytest.mark.virtual_time
async def test_a_node_that_another_caller_has_connected_is_not_connected_again(
    broker: ScriptedBroker, pool: Pool
) -> None:
    async with a_second_node_to_try(broker, pool) as (second, connecting):
        connection = await pool.connect(2)
        assert await connecting == frozenset()
        assert pool.usable(2) is connection
        assert len(second.connections) == 1
        await pool.close()


@pytest.mark.virtual_time
async def test_no_other_node_is_tried_once_the_client_is_closed(
    broker: ScriptedBroker, pool: Pool
) -> None:
    async with a_second_node_to_try(broker, pool) as (second, connecting):
        await pool.close()
        with pytest.raises(ClientClosedError, match="the client is closed"):
            await connecting
        assert not second.connections


# --- Failing and backing off -----------------------------------------------------------------
@pytest.mark.every_loop
async def test_failed_attempt_starts_a_backoff(new_pool: NewPool) -> None:
    pool = new_pool(quick_config(reconnect_backoff_s=60.0))
    pool.update_nodes({1: Node(1, "127.0.0.1", await closed_port())})
    with pytest.raises(KafkaConnectionError, match="refused"):
        await beat(pool)
    assert pool.last_error(1)
    assert 40 < pool.connection_delay(1) <= 72
    assert not pool.ready(1)
    assert pool.least_loaded_node() is None
    waiting = asyncio.ensure_future(beat(pool))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_waiters_share_one_attempt_and_get_an_error_each(new_pool: NewPool) -> None:
    pool = new_pool(quick_config(reconnect_backoff_s=60.0, reconnect_backoff_max_s=600.0))
    pool.update_nodes({1: Node(1, "127.0.0.1", await closed_port())})
    errors = await asyncio.gather(*(beat(pool) for _ in range(5)), return_exceptions=True)
    assert {type(error) for error in errors} == {KafkaConnectionError}
    assert len({id(error) for error in errors}) == 5
    first_delay_s = pool.connection_delay(1)
    assert 40 < first_delay_s <= 72


async def test_delays_grow_while_attempts_fail(new_pool: NewPool) -> None:
    pool = new_pool(quick_config())
    pool.update_nodes({1: Node(1, "127.0.0.1", await closed_port())})
    delays: list[float] = []
    for _ in range(4):
        with pytest.raises(KafkaConnectionError):
            await beat(pool)
        delays.append(pool.connection_delay(1))
    assert delays == sorted(delays)
    assert delays[-1] > 4 * FIRST_BACKOFF_S


@pytest.mark.every_loop
async def test_lost_connection_is_replaced_by_the_next_request(
    broker: ScriptedBroker, pool: Pool
) -> None:
    await beat(pool)
    broker.connections[0].transport.abort()
    connection = pool.usable(1)
    assert connection is not None
    await connection.wait_closed()
    assert not pool.is_ready(1)
    assert pool.last_error(1)
    await beat(pool)
    assert len(broker.connections) == 2
    assert not pool.last_error(1)


async def test_node_that_hangs_up_soon_is_connected_to_ever_more_slowly(
    broker: ScriptedBroker, pool: Pool
) -> None:
    broker.scripts[HeartbeatRequest] = lambda _: Do.CLOSE
    delays: list[float] = []
    for _ in range(4):
        with pytest.raises(KafkaConnectionError):
            await beat(pool)
        delays.append(pool.connection_delay(1))
    assert delays[-1] > 4 * FIRST_BACKOFF_S


async def test_connection_that_lived_long_starts_the_backoff_over(
    broker: ScriptedBroker, new_pool: NewPool
) -> None:
    broker.scripts[HeartbeatRequest] = lambda _: Do.CLOSE
    pool = new_pool(quick_config(reconnect_backoff_max_s=FIRST_BACKOFF_S))
    pool.update_nodes(nodes(broker))
    for _ in range(3):
        connection = await pool.connect(1)
        await asyncio.sleep(FIRST_BACKOFF_S * 1.5)  # real time: how long a connection lived
        with pytest.raises(KafkaConnectionError):
            await connection.request(HEARTBEAT, timeout_s=TIMEOUT_S)
        assert pool.connection_delay(1) <= FIRST_BACKOFF_S * 1.2


async def test_one_log_line_per_change_of_state(
    broker: ScriptedBroker, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiokafka_lite.client")
    await broker.stop()
    for _ in range(4):
        with pytest.raises(KafkaConnectionError):
            await beat(pool)
    await broker.start()
    await beat(pool)
    await beat(pool)
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert f"node 1 at {broker.address} is not reachable" in messages[0]
    assert f"connected to node 1 at {broker.address}" in messages[1]


async def test_one_log_line_says_that_all_nodes_are_back(
    broker: ScriptedBroker, new_pool: NewPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aiokafka_lite.client")
    async with ScriptedBroker(2) as second:
        pool = new_pool(quick_config())
        pool.update_nodes(nodes(broker, second))
        brokers = {1: broker, 2: second}
        for node_id, each in brokers.items():
            await pool.connect(node_id)
            await each.stop()
        for node_id in brokers:
            with pytest.raises(KafkaConnectionError):
                await pool.connect(node_id)
        caplog.clear()
        await second.start()
        await pool.connect(2)
        assert not caplog.records
        await broker.start()
        await pool.connect(1)
        pool.update_nodes(nodes(broker, second))
        (record,) = caplog.records
        assert "brokers are reachable again: connected to node 2 at " in record.message
        assert re.search(rf", node 1 at {broker.address} after \d\.\d s$", record.message)
        await pool.close()


async def test_nodes_that_were_lost_are_told_to_be_back_when_the_others_left_the_cluster(
    broker: ScriptedBroker, new_pool: NewPool, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedBroker(2) as second:
        pool = new_pool(quick_config())
        pool.update_nodes(nodes(broker, second))
        for node_id, each in {1: broker, 2: second}.items():
            await each.stop()
            with pytest.raises(KafkaConnectionError):
                await pool.connect(node_id)
        await broker.start()
        await pool.connect(1)
        caplog.set_level(logging.WARNING, "aiokafka_lite.client")
        caplog.clear()
        pool.update_nodes(nodes(broker))
        (record,) = caplog.records
        assert f"connected to node 1 at {broker.address} after " in record.message
        await pool.close()


async def test_nodes_that_are_back_after_a_new_bootstrap_are_told_of_in_one_line(
    broker: ScriptedBroker, new_pool: NewPool, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedBroker(2) as second:
        pool = new_pool(quick_config())
        known = nodes(broker, second)
        pool.update_nodes(known)
        for node_id, each in {1: broker, 2: second}.items():
            await each.stop()
            with pytest.raises(KafkaConnectionError):
                await pool.connect(node_id)
        pool.update_nodes({-1: known[1]._replace(id=-1)})
        with pytest.raises(KafkaConnectionError):
            await pool.connect(-1)
        caplog.set_level(logging.WARNING, "aiokafka_lite.client")
        caplog.clear()
        await broker.start()
        await pool.connect(-1)
        pool.update_nodes(known)
        assert not caplog.records
        await second.start()
        await pool.connect(2)
        (record,) = caplog.records
        assert f"node 1 at {broker.address}, node 2 at {second.address}" in record.message
        await pool.close()


async def test_request_to_a_node_that_was_lost_and_left_the_cluster_says_why_it_was_lost(
    broker: ScriptedBroker, pool: Pool
) -> None:
    await broker.stop()
    with pytest.raises(KafkaConnectionError):
        await pool.connect(1)
    pool.update_nodes({})
    with pytest.raises(NodeNotReadyError, match=r"metadata: .* refused"):
        await pool.connect(1)


async def test_lost_nodes_are_tried_unless_they_refused_credentials(
    broker: ScriptedBroker, new_pool: NewPool
) -> None:
    pool = new_pool(quick_config(reconnect_backoff_max_s=FIRST_BACKOFF_S))
    pool.update_nodes(nodes(broker))
    versions = broker.scripts[ApiVersionsRequest]
    for answer, is_tried in ((Do.CLOSE, True), (offered({}, error_code=31), False)):
        pool.try_lost()  # nothing is lost yet, or what was is back
        assert not pool.is_connecting(1)
        broker.scripts[ApiVersionsRequest] = lambda _, answer=answer: answer  # type: ignore[misc]
        for connection in broker.connections:
            connection.transport.abort()
        with pytest.raises((KafkaConnectionError, ClusterAuthorizationFailedError)):
            await until_failed(pool)
        await asyncio.sleep(pool.connection_delay(1) + 0.001)
        pool.try_lost()
        assert pool.is_connecting(1) is is_tried
        broker.scripts[ApiVersionsRequest] = versions
        await pool.connect(1)


async def until_failed(pool: Pool) -> None:
    """Connect again until that fails: the loss of a connection may not be noticed yet."""
    while True:
        await pool.connect(1)
        await asyncio.sleep(0)


async def test_an_address_that_refused_is_left_alone_under_another_name(
    broker: ScriptedBroker, new_pool: NewPool
) -> None:
    pool = new_pool(quick_config(reconnect_backoff_max_s=30.0))
    pool.update_nodes(nodes(broker))
    broker.scripts[ApiVersionsRequest] = lambda _: offered({}, error_code=31)
    with pytest.raises(ClusterAuthorizationFailedError):
        await beat(pool)
    pool.update_nodes({2: Node(2, broker.host, broker.port), 3: Node(3, "127.0.0.2", broker.port)})
    assert pool.connection_delay(2) > 20
    assert pool.connection_delay(3) == 0


@pytest.mark.virtual_time
async def test_credentials_that_failed_are_shown_by_one_attempt_at_a_time(
    broker: ScriptedBroker, scope: TaskScope
) -> None:
    shown = 0
    is_right = False

    async def authenticate(_: Connection) -> float:
        nonlocal shown
        shown += 1
        await asyncio.sleep(0.01)
        if not is_right:
            raise AuthenticationFailedError("wrong password")
        return 0.0

    pool = Pool(quick_config(), scope=scope, rng=random.Random(1), authenticate=authenticate)
    pool.update_nodes(nodes(broker))
    lanes = (Lane.GENERAL, Lane.FETCH, Lane.GROUP)

    async def connect_all() -> list[object]:
        connecting = (pool.connect(1, lane) for lane in lanes)
        return await asyncio.gather(*connecting, return_exceptions=True)

    with pytest.raises(AuthenticationFailedError):
        await pool.connect(1)
    for tries in (2, 3):
        errors = await connect_all()
        assert [type(error) for error in errors] == [AuthenticationFailedError] * 3
        assert shown == tries
    is_right = True
    connections = await connect_all()
    assert all(isinstance(connection, Connection) for connection in connections)
    await pool.close()


async def test_credentials_are_sent_in_clear_to_no_host_that_only_metadata_name(
    new_pool: NewPool,
) -> None:
    pool = new_pool(quick_config(security_protocol="SASL_PLAINTEXT"))
    pool.update_nodes({1: Node(1, "192.0.2.1", 9092)})
    with pytest.raises(InsecureConfigError):
        await pool.connect(1)


# --- Choosing a node -------------------------------------------------------------------------
async def test_least_loaded_node_is_connected_and_has_least_in_flight(
    broker: ScriptedBroker, new_pool: NewPool
) -> None:
    async with ScriptedBroker(2) as second, ScriptedBroker(3) as third:
        pool = new_pool(quick_config())
        pool.update_nodes(nodes(broker, second, third))
        assert pool.least_loaded_node() in (1, 2, 3)
        await pool.connect(1)
        assert pool.least_loaded_node() == 1
        await pool.connect(2)
        broker.scripts[HeartbeatRequest] = lambda _: Do.NOTHING
        waiting = asyncio.ensure_future(beat(pool, 1))
        await broker.until_asked(HeartbeatRequest)
        assert pool.least_loaded_node() == 2
        assert pool.least_loaded_node(exclude=frozenset({2})) == 1
        assert pool.least_loaded_node(exclude=frozenset({1, 2, 3})) is None
        waiting.cancel()
        await pool.close()


async def test_nodes_whose_answers_are_overdue_for_anybody_are_chosen_last(
    new_pool: NewPool,
) -> None:
    pool = new_pool(quick_config())
    pool.update_nodes({number: Node(number, "127.0.0.1", 1) for number in (1, 2, 3)})
    fetching, asking = object(), object()
    pool.suspect(fetching, frozenset({1}))
    pool.suspect(asking, frozenset({1, 2}))
    assert {pool.least_loaded_node() for _ in range(20)} == {3}
    pool.suspect(asking, frozenset())
    assert {pool.least_loaded_node() for _ in range(50)} == {2, 3}
    pool.suspect(fetching, frozenset({1, 2, 3}))
    assert {pool.least_loaded_node() for _ in range(80)} == {1, 2, 3}


# --- Throttling ------------------------------------------------------------------------------
async def test_throttle_mutes_fetching_not_heartbeats(broker: ScriptedBroker, pool: Pool) -> None:
    broker.scripts[FetchRequest] = lambda _: FetchResponse(throttle_time_ms=5_000)
    broker.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse(throttle_time_ms=5_000)
    await request(pool, 1, FETCH, lane=Lane.FETCH)
    assert not pool.is_ready(1, Lane.FETCH)
    assert 4 < pool.connection_delay(1, Lane.FETCH) <= 5
    muted = asyncio.ensure_future(request(pool, 1, FETCH, lane=Lane.FETCH))
    await beat(pool)
    await beat(pool)
    assert pool.is_ready(1)
    assert broker.count(FetchRequest) == 1
    muted.cancel()


async def test_a_throttle_of_any_lane_is_told_and_holds_back_that_lane_alone(
    broker: ScriptedBroker, pool: Pool
) -> None:
    broker.scripts[FetchRequest] = lambda _: FetchResponse(throttle_time_ms=5_000)
    second = Lane("fetch 2", waits_for_throttled=True)
    assert pool.throttle_s(1) == 0.0
    await request(pool, 1, FETCH, lane=second, timeout_s=5.0)
    assert 0.0 < pool.throttle_s(1) <= 5.0
    assert pool.connection_delay(1, second) > 0.0
    assert pool.connection_delay(1, Lane.FETCH) == 0.0


async def test_request_goes_out_when_the_throttle_is_over(
    broker: ScriptedBroker, pool: Pool
) -> None:
    broker.scripts[FetchRequest] = lambda _: FetchResponse(throttle_time_ms=20)
    started = asyncio.get_running_loop().time()
    for _ in range(2):
        await request(pool, 1, FETCH, lane=Lane.FETCH)
    assert asyncio.get_running_loop().time() - started >= 0.019


async def test_throttle_outlives_the_connection(broker: ScriptedBroker, pool: Pool) -> None:
    broker.scripts[FetchRequest] = lambda _: FetchResponse(throttle_time_ms=60_000)
    await request(pool, 1, FETCH, lane=Lane.FETCH)
    connection = pool.usable(1, Lane.FETCH)
    assert connection is not None
    broker.connections[0].transport.abort()
    await connection.closed
    assert 50 < pool.connection_delay(1, Lane.FETCH) <= 60
    assert pool.connection_delay(1, Lane.GENERAL) < 50
    muted = asyncio.ensure_future(request(pool, 1, FETCH, lane=Lane.FETCH))
    while pool.usable(1, Lane.FETCH) is None:  # noqa: ASYNC110 -- the pool tells nobody
        await asyncio.sleep(0.001)
    assert 50 < pool.connection_delay(1, Lane.FETCH) <= 60
    assert broker.count(FetchRequest) == 1
    muted.cancel()


# --- Sending in passing ----------------------------------------------------------------------
async def test_sent_in_passing_on_an_idle_connection(broker: ScriptedBroker, pool: Pool) -> None:
    broker.scripts[FetchRequest] = lambda _: FetchResponse()
    assert not pool.send_nowait(1, FETCH)
    await pool.connect(1, Lane.FETCH)
    assert pool.send_nowait(1, FETCH)
    await request(pool, 1, FETCH, lane=Lane.FETCH)
    assert broker.count(FetchRequest) == 2
    assert pool.in_flight_request_count(1) == 0  # its answer was taken off the connection too


async def test_sent_in_passing_never_behind_a_long_poll(broker: ScriptedBroker, pool: Pool) -> None:
    broker.scripts[FetchRequest] = lambda _: Do.NOTHING
    polling = asyncio.ensure_future(request(pool, 1, FETCH, lane=Lane.FETCH))
    await broker.until_asked(FetchRequest)
    assert not pool.send_nowait(1, FETCH)
    await pool.connect(1, Lane.GENERAL)
    assert pool.send_nowait(1, FETCH)
    await broker.until_asked(FetchRequest, times=2)
    assert broker.asked[-1].peer is not broker.asked[-3].peer
    assert pool.send_nowait(1, FETCH)  # behind what is answered at once
    polling.cancel()


async def test_nothing_is_sent_in_passing_to_a_broker_that_mutes(
    broker: ScriptedBroker, pool: Pool
) -> None:
    broker.scripts[FetchRequest] = lambda _: FetchResponse(throttle_time_ms=5_000)
    await request(pool, 1, FETCH, lane=Lane.FETCH)
    assert not pool.send_nowait(1, FETCH)


# --- Nodes that move, connections that idle --------------------------------------------------
async def test_node_that_moved_is_followed_and_the_old_connection_drained(
    broker: ScriptedBroker, pool: Pool
) -> None:
    broker.scripts[HeartbeatRequest] = lambda _: Do.NOTHING
    old = asyncio.ensure_future(beat(pool))
    await broker.until_asked(HeartbeatRequest)
    async with ScriptedBroker(1) as moved:
        moved.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse()
        pool.update_nodes(nodes(moved))
        await beat(pool)
        assert moved.count(HeartbeatRequest) == 1
        assert not old.done()
        asked = broker.asked[-1]
        asked.peer.transport.write(asked.encode(HeartbeatResponse()))
        await old
        await broker.until(lambda: broker.connections[0].is_closed)
        await pool.close()


async def test_node_that_left_is_closed_and_unknown(broker: ScriptedBroker, pool: Pool) -> None:
    await beat(pool)
    pool.update_nodes({})
    await broker.until(lambda: broker.connections[0].is_closed)
    with pytest.raises(
        NodeNotReadyError, match="the broker left the cluster, or has just joined it"
    ):
        await beat(pool)
    pool.renegotiate_versions(1)  # of nobody


async def test_node_that_moved_to_another_host_is_not_used_at_the_old_one(
    broker: ScriptedBroker, pool: Pool
) -> None:
    await beat(pool)
    pool.update_nodes({1: Node(1, "127.0.0.2", broker.port)})
    assert pool.usable(1) is None


async def test_bootstrap_server_that_is_no_node_is_closed(
    broker: ScriptedBroker, pool: Pool
) -> None:
    pool.update_nodes({-1: Node(-1, broker.host, broker.port)})
    await pool.connect(-1)
    pool.update_nodes({1: Node(1, "127.0.0.2", broker.port)})
    await broker.until(lambda: broker.connections[0].is_closed)
    pool.update_nodes({number: Node(number, "127.0.0.2", broker.port) for number in (1, 2)})
    assert pool.node_ids() == [1, 2]


async def test_node_that_moved_while_connecting_is_not_used_at_the_old_place(
    broker: ScriptedBroker, pool: Pool
) -> None:
    waiting = asyncio.ensure_future(pool.connect(1))
    await broker.until_asked(ApiVersionsRequest)
    pool.update_nodes({})
    with pytest.raises((KafkaConnectionError, NodeNotReadyError)):
        await waiting
    await broker.until(lambda: broker.connections[0].is_closed)


async def test_same_endpoint_keeps_its_connection(broker: ScriptedBroker, pool: Pool) -> None:
    await beat(pool)
    pool.update_nodes({1: Node(1, broker.host, broker.port, "rack")})
    await beat(pool)
    assert len(broker.connections) == 1


async def test_idle_connection_is_closed_and_opened_again_when_needed(
    broker: ScriptedBroker, new_pool: NewPool
) -> None:
    broker.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse()
    pool = new_pool(quick_config(connections_max_idle_s=0.03))
    pool.update_nodes(nodes(broker))
    await beat(pool)
    await broker.until(lambda: broker.connections[0].is_closed)
    assert not pool.last_error(1)
    assert pool.connection_delay(1) == 0
    await beat(pool)
    assert len(broker.connections) == 2


async def test_connection_that_waits_for_an_answer_is_not_idle(
    broker: ScriptedBroker, new_pool: NewPool
) -> None:
    loop = asyncio.get_running_loop()

    def answer_later(asked: Asked) -> Answer:
        loop.call_later(0.08, asked.peer.transport.write, asked.encode(HeartbeatResponse()))
        return Do.NOTHING

    broker.scripts[HeartbeatRequest] = answer_later
    pool = new_pool(quick_config(connections_max_idle_s=0.02))
    pool.update_nodes(nodes(broker))
    await beat(pool)
    await broker.until(lambda: broker.connections[0].is_closed)  # when it is idle at last


# --- Closing ---------------------------------------------------------------------------------
@pytest.mark.every_loop
async def test_close_fails_waiters_and_stays_closed(
    broker: ScriptedBroker,
    pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost: list[Connection] = []
    note_loss = Connection.connection_lost

    def connection_lost(self: Connection, exc: Exception | None) -> None:
        lost.append(self)
        note_loss(self, exc)

    monkeypatch.setattr(Connection, "connection_lost", connection_lost)
    broker.scripts[HeartbeatRequest] = lambda _: Do.NOTHING
    waiting = asyncio.ensure_future(beat(pool))
    await broker.until_asked(HeartbeatRequest)
    caplog.clear()
    await pool.close()
    assert len(lost) == 1
    await pool.close()
    assert not caplog.records
    with pytest.raises(KafkaConnectionError):
        await waiting
    with pytest.raises(KafkaConnectionError, match="client is closed"):
        await beat(pool)


@pytest.mark.virtual_time  # of asyncio's own loops, whose sockets outlive them
async def test_peers_hear_of_the_end_though_the_loop_is_closed(
    broker: ScriptedBroker, pool: Pool
) -> None:
    broker.scripts[HeartbeatRequest] = lambda _: Do.NOTHING
    waiting = asyncio.ensure_future(beat(pool))
    await broker.until_asked(HeartbeatRequest)
    async with ScriptedBroker(2) as second:
        pool.update_nodes(nodes(second))  # the connection to the first waits for an answer
        await pool.connect(2)
        pool.hang_up()
        for each in (broker, second):
            await each.until(lambda each=each: each.connections[0].is_closed)  # type: ignore[misc]
        with pytest.raises(KafkaConnectionError):
            await waiting
        await pool.close()


async def test_close_ends_attempts_to_connect(
    broker: ScriptedBroker, pool: Pool, scope: TaskScope
) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
    waiting = asyncio.ensure_future(beat(pool))
    await broker.until_asked(ApiVersionsRequest)
    await pool.close()
    assert scope.task_names == []
    with pytest.raises(KafkaConnectionError, match="client is closed"):
        await waiting
    await broker.until(lambda: broker.connections[0].is_closed)


async def test_refused_credentials_are_not_tried_again_in_a_hurry(
    broker: ScriptedBroker, new_pool: NewPool
) -> None:
    pool = new_pool(quick_config(reconnect_backoff_max_s=30.0))
    pool.update_nodes(nodes(broker))
    broker.scripts[ApiVersionsRequest] = lambda _: offered({}, error_code=31)
    with pytest.raises(ClusterAuthorizationFailedError):
        await beat(pool)
    assert pool.connection_delay(1) > 20
