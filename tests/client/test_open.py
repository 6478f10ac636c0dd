"""Opening a connection: names and addresses, versions, authentication, strangers."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import cast

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.client.config import Address
from aiokafka_lite.client.connection import Connection, StepLimit, dial
from aiokafka_lite.client.versions import (
    FIRST_VERSION,
    MAX_TRIES,
    OLDEST_FOR_S,
    OLDEST_VERSION,
    FirstVersions,
)
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    FrameTooLargeError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaProtocolError,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from aiokafka_lite.protocol.prepared import UpTo
from tests.client.conftest import TIMEOUT_S, closed_port, reach_none_but
from tests.support.connecting import connect_to
from tests.support.scripted_broker import Answer, Asked, Do, ScriptedBroker, all_versions, offered

KEY = ApiVersionsRequest.api_key


async def open_connection(broker: ScriptedBroker, **arguments: object) -> Connection:
    return await connect_to(broker.host, broker.port, **arguments)  # type: ignore[arg-type]


async def close(connection: Connection) -> None:
    connection.close()
    await connection.wait_closed()


# --- Versions --------------------------------------------------------------------------------
@pytest.mark.every_loop
async def test_versions_are_negotiated_once_on_opening(broker: ScriptedBroker) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: offered({KEY: (0, 4), 3: (0, 9), 32_000: (0, 1)})
    connection = await open_connection(broker)
    assert [type(asked.request) for asked in broker.asked] == [ApiVersionsRequest]
    assert dict(connection.api_versions) == {KEY: (0, 4), 3: (0, 9), 32_000: (0, 1)}
    assert connection.api_versions.choose(MetadataRequest) == 9
    assert connection.api_versions.choose(MetadataRequest, 4) == 4
    with pytest.raises(IncompatibleBrokerVersion, match=f"{broker.address}.*HeartbeatRequest"):
        await connection.request(HeartbeatRequest(), timeout_s=TIMEOUT_S)
    with pytest.raises(IncompatibleBrokerVersion, match=broker.address):
        await connection.request(UpTo(MetadataRequest(), -1), timeout_s=TIMEOUT_S)
    await close(connection)


async def test_connections_share_what_brokers_of_one_release_offer(broker: ScriptedBroker) -> None:
    connections = [await open_connection(broker) for _ in range(2)]
    broker.scripts[ApiVersionsRequest] = lambda _: offered({KEY: (0, 4), 3: (0, 9)})
    connections.append(await open_connection(broker))
    first, second, other = connections
    assert first.api_versions is second.api_versions
    assert other.api_versions is not first.api_versions
    for connection in connections:
        await close(connection)


async def test_the_client_names_itself(broker: ScriptedBroker) -> None:
    await close(await open_connection(broker))
    request = broker.asked[0].request
    assert isinstance(request, ApiVersionsRequest)
    assert request.client_software_name == "aiokafka-lite"
    assert request.client_software_version


@pytest.mark.parametrize(("range_named", "next_version"), [({KEY: (0, 2)}, 2), ({}, 0)])
async def test_refused_version_falls_back_to_what_the_broker_names(
    broker: ScriptedBroker, range_named: dict[int, tuple[int, int]], next_version: int
) -> None:
    def script(asked: Asked) -> Answer:
        if asked.version <= next_version:
            return all_versions()
        body = offered(range_named, error_code=35)
        asked_as_v0 = Asked(asked.request, 0, asked.correlation_id, None, asked.peer)
        return asked_as_v0.encode(body)

    broker.scripts[ApiVersionsRequest] = script
    connection = await open_connection(broker)
    assert [asked.version for asked in broker.asked] == [FIRST_VERSION, next_version]
    assert len(connection.api_versions) > 1
    await close(connection)


async def test_refusal_counts_whatever_follows_its_error_code(broker: ScriptedBroker) -> None:
    def script(asked: Asked) -> Answer:
        if asked.version == OLDEST_VERSION:
            return all_versions()
        frame = struct.pack(">ih", asked.correlation_id, 35) + b"\1\0\x12\0\0\0\2" + bytes(4)
        return struct.pack(">i", len(frame)) + frame

    broker.scripts[ApiVersionsRequest] = script
    connection = await open_connection(broker)
    assert [asked.version for asked in broker.asked] == [FIRST_VERSION, OLDEST_VERSION]
    await close(connection)


async def test_broker_that_refuses_even_version_0_is_too_old(broker: ScriptedBroker) -> None:
    def refuse(asked: Asked) -> Answer:
        as_v0 = Asked(asked.request, 0, asked.correlation_id, None, asked.peer)
        return as_v0.encode(offered({}, error_code=35))

    broker.scripts[ApiVersionsRequest] = refuse
    with pytest.raises(KafkaProtocolError, match=r"Kafka 0.10 or newer"):
        await open_connection(broker)
    assert [asked.version for asked in broker.asked] == [FIRST_VERSION, 0]


async def test_endless_refusal_ends_after_a_few_tries(broker: ScriptedBroker) -> None:
    def refuse(asked: Asked) -> Answer:
        newest_again = offered({KEY: (0, ApiVersionsRequest.max_version)}, error_code=35)
        return Asked(asked.request, 0, asked.correlation_id, None, asked.peer).encode(newest_again)

    broker.scripts[ApiVersionsRequest] = refuse
    with pytest.raises(KafkaProtocolError, match="refuses every version"):
        await open_connection(broker)
    assert 1 < len(broker.asked) <= MAX_TRIES
    await broker.until(lambda: broker.connections[0].is_closed)


async def test_empty_version_range_is_a_protocol_error(broker: ScriptedBroker) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: offered({KEY: (0, 4), 3: (5, 2)})
    connection = await open_connection(broker)
    with pytest.raises(KafkaProtocolError, match=f"{broker.address}.* 5 to 2 of MetadataRequest"):
        await connection.request(MetadataRequest(topics=[]), timeout_s=TIMEOUT_S)
    await close(connection)


async def test_hundred_thousand_apis_are_too_many(broker: ScriptedBroker) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: offered(
        {key % 32_000: (0, 1) for key in range(32_000)}
    )
    with pytest.raises(FrameTooLargeError):
        await open_connection(broker)


async def test_other_error_code_is_raised(broker: ScriptedBroker) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: offered({}, error_code=31)
    with pytest.raises(ClusterAuthorizationFailedError, match=broker.address):
        await open_connection(broker)


# --- Peers that hang up on a version -----------------------------------------------------------
@pytest.mark.every_loop
@pytest.mark.parametrize("ending", [Do.CLOSE, Do.RESET])
async def test_peer_that_hangs_up_on_a_version_is_asked_in_the_oldest_for_a_while(
    broker: ScriptedBroker, ending: Do
) -> None:
    now = 0.0
    first_versions = FirstVersions(lambda: now)

    async def versions_asked() -> list[int]:
        broker.asked.clear()
        await close(await open_connection(broker, first_versions=first_versions))
        return [asked.version for asked in broker.asked]

    broker.scripts[ApiVersionsRequest] = lambda asked: (
        ending if asked.version >= FIRST_VERSION else all_versions()
    )
    assert await versions_asked() == [FIRST_VERSION, OLDEST_VERSION]
    now = OLDEST_FOR_S - 1
    assert await versions_asked() == [OLDEST_VERSION]
    now = OLDEST_FOR_S  # another release may listen there
    broker.scripts[ApiVersionsRequest] = lambda _: all_versions()
    assert await versions_asked() == [FIRST_VERSION]
    assert await versions_asked() == [FIRST_VERSION]


async def test_peer_that_hangs_up_on_every_version_is_not_remembered(
    broker: ScriptedBroker,
) -> None:
    first_versions = FirstVersions(lambda: 0.0)
    broker.scripts[ApiVersionsRequest] = lambda _: Do.RESET
    with pytest.raises(KafkaConnectionError, match="security_protocol"):
        await open_connection(broker, first_versions=first_versions)
    assert [asked.version for asked in broker.asked] == [FIRST_VERSION, OLDEST_VERSION]
    broker.scripts[ApiVersionsRequest] = lambda _: all_versions()
    await close(await open_connection(broker, first_versions=first_versions))
    assert broker.asked[-1].version == FIRST_VERSION


async def test_silent_peer_is_asked_once(broker: ScriptedBroker) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
    with pytest.raises(KafkaConnectionError, match=r"no answer"):
        await open_connection(broker, connect_timeout_s=0.05)
    assert len(broker.asked) == 1


# --- Other brokers than the one meant (KIP-1242) -------------------------------------------------
async def test_another_broker_than_the_one_meant_is_refused() -> None:
    async with Broker() as embedded:
        await reach_none_but(embedded.bootstrap_servers, embedded.cluster_id, 1)


async def test_who_is_meant_is_said_only_to_brokers_that_have_offered_it(
    broker: ScriptedBroker,
) -> None:
    first_versions = FirstVersions(lambda: 0.0)
    newest = 0
    broker.scripts[ApiVersionsRequest] = lambda _: offered({KEY: (0, newest)})
    for newest_now, expected in ((4, 3), (5, 3), (5, 5), (4, 5), (4, 3)):
        newest = newest_now
        connection = await open_connection(
            broker, first_versions=first_versions, cluster_id="c", node_id=1
        )
        assert broker.asked[-1].version == expected
        await close(connection)
    await close(await open_connection(broker, first_versions=first_versions))
    assert broker.asked[-1].version == FIRST_VERSION


# --- Strangers -------------------------------------------------------------------------------
@pytest.mark.every_loop
@pytest.mark.parametrize(
    ("greeting", "guess"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP server"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "TLS listener.*ssl_context"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH server"),
        (struct.pack(">i", -1), "too short for Kafka's protocol"),
    ],
)
async def test_stranger_is_recognised(broker: ScriptedBroker, greeting: bytes, guess: str) -> None:
    broker.greeting = greeting
    with pytest.raises(KafkaProtocolError, match=f"{broker.address}.*{guess}"):
        await open_connection(broker)
    await broker.until(lambda: broker.connections[0].is_closed)


@pytest.mark.every_loop
@pytest.mark.parametrize("ending", [Do.CLOSE, Do.RESET])
async def test_peer_that_hangs_up_on_opening_is_named(broker: ScriptedBroker, ending: Do) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: ending
    with pytest.raises(KafkaConnectionError, match=f"{broker.address}.*security_protocol"):
        await open_connection(broker)


async def test_peer_that_says_nothing_is_given_up(broker: ScriptedBroker) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
    with pytest.raises(KafkaConnectionError, match=r"no answer.*in 0.05 s"):
        await open_connection(broker, connect_timeout_s=0.05)
    await broker.until(lambda: broker.connections[0].is_closed)


async def test_cancelled_opening_leaves_nothing_open(broker: ScriptedBroker) -> None:
    broker.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
    opening = asyncio.ensure_future(open_connection(broker))
    await broker.until_asked(ApiVersionsRequest)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await broker.until(lambda: broker.connections[0].is_closed)


# --- Authentication --------------------------------------------------------------------------
async def test_authentication_runs_after_negotiation_and_before_use(
    broker: ScriptedBroker,
) -> None:
    broker.scripts[HeartbeatRequest] = lambda _: HeartbeatResponse()

    async def authenticate(connection: Connection) -> float:
        await connection.request(HeartbeatRequest(member_id="me"), timeout_s=TIMEOUT_S)
        return 0.0

    await close(await open_connection(broker, authenticate=authenticate))
    assert [type(asked.request) for asked in broker.asked] == [ApiVersionsRequest, HeartbeatRequest]


async def test_failed_authentication_closes_the_connection(broker: ScriptedBroker) -> None:
    async def refuse(_: Connection) -> None:
        raise AuthenticationFailedError("wrong password")

    with pytest.raises(AuthenticationFailedError, match="wrong password"):
        await open_connection(broker, authenticate=refuse)
    await broker.until(lambda: broker.connections[0].is_closed)


async def test_endless_authentication_is_given_up(broker: ScriptedBroker) -> None:
    async def wait(_: Connection) -> None:
        await asyncio.Event().wait()

    with pytest.raises(KafkaConnectionError, match=r"authentication within 0.05 s"):
        await open_connection(broker, authenticate=wait, connect_timeout_s=0.05)


async def test_answers_are_small_until_authenticated(broker: ScriptedBroker) -> None:
    broker.scripts[MetadataRequest] = lambda _: struct.pack(">i", 64 * 1024 + 1)

    async def authenticate(connection: Connection) -> None:
        await connection.request(MetadataRequest(topics=[]), timeout_s=TIMEOUT_S)

    with pytest.raises(FrameTooLargeError, match=f"the limit is {64 * 1024}"):
        await open_connection(broker, authenticate=authenticate)


# --- Names and addresses ---------------------------------------------------------------------
@pytest.mark.every_loop
async def test_a_connection_that_is_lost_while_it_is_opened_is_an_error_that_passes(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Connection.connection_made

    def lose(self: Connection, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        assert isinstance(transport, asyncio.Transport)
        transport.abort()  # as the end of a TLS handshake may

    monkeypatch.setattr(Connection, "connection_made", lose)
    with pytest.raises(KafkaConnectionError) as raised:
        await open_connection(broker)
    assert raised.value.retriable


async def test_refused_connection_says_where_and_what_to_do() -> None:
    port = await closed_port()
    with pytest.raises(KafkaConnectionError, match=f"127.0.0.1:{port}.*refused.*broker") as caught:
        await connect_to("127.0.0.1", port)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@pytest.mark.every_loop
@pytest.mark.parametrize(
    ("host", "port"),
    [("127.0.0.1", 70_000), ("127.0.0.1", -1), ("", 9092), (".test", 9092), ("a\0b", 9092)],
)
async def test_address_that_is_none_is_no_broker(host: str, port: int) -> None:
    """As metadata and coordinators may name one."""
    with pytest.raises(KafkaConnectionError, match=r"cannot (connect to|resolve)"):
        await connect_to(host, port)


class Resolver:
    """Stands in for the system's resolver; works like a hosts file that can be edited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: dict[str, list[str]] = {}
        self.calls = 0
        self._of_the_system = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)

    def resolve(self, host: str | bytes, port: int | None, **how: int) -> object:
        if how.get("flags"):  # is it an address?
            return self._of_the_system(host, port, **how)
        self.calls += 1
        if not isinstance(host, str) or host not in self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in self.hosts[host]
        ]


@pytest.fixture
async def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    return Resolver(monkeypatch)


async def test_every_address_of_a_name_is_tried(broker: ScriptedBroker, resolver: Resolver) -> None:
    resolver.hosts["kafka.test"] = ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
    await close(await connect_to("kafka.test", broker.port))
    assert len(broker.connections) == 1


async def test_name_is_resolved_again_for_each_connection(
    broker: ScriptedBroker, resolver: Resolver
) -> None:
    resolver.hosts["kafka.test"] = ["127.0.0.2"]
    with pytest.raises(KafkaConnectionError, match=r"kafka.test.*127.0.0.2: connection refused"):
        await connect_to("kafka.test", broker.port)
    resolver.hosts["kafka.test"] = ["127.0.0.1"]
    await close(await connect_to("kafka.test", broker.port))


async def test_all_addresses_failing_are_all_named(resolver: Resolver) -> None:
    resolver.hosts["kafka.test"] = ["127.0.0.2", "127.0.0.1"]
    port = await closed_port()
    with pytest.raises(KafkaConnectionError, match=r"127.0.0.2: .*; 127.0.0.1: "):
        await connect_to("kafka.test", port)


async def test_unknown_name_is_retriable_and_says_what_to_check(resolver: Resolver) -> None:
    with pytest.raises(KafkaConnectionError, match=r"no-such.test:9092.*not known.*bootstrap_serv"):
        await connect_to("no-such.test", 9092)
    assert KafkaConnectionError.retriable


async def test_ip_address_is_not_resolved(broker: ScriptedBroker, resolver: Resolver) -> None:
    await close(await open_connection(broker))
    assert resolver.calls == 0


# --- Time --------------------------------------------------------------------------------------
@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("step_s", "deadline", "left_s"),
    [(10.0, None, 10.0), (10.0, 1.23456, 1.235), (1.0, 5.0, 1.0), (1.0, -5.0, 0.0)],
)
async def test_a_step_ends_by_the_deadline_of_all(
    step_s: float, deadline: float | None, left_s: float
) -> None:
    assert asyncio.get_running_loop().time() == 0.0
    assert StepLimit(step_s, deadline).left_s() == left_s


# --- The receive buffer ----------------------------------------------------------------------
@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not report the window")
@pytest.mark.every_loop
async def test_size_of_the_receive_buffer_is_known_to_the_peer_from_the_handshake(
    broker: ScriptedBroker,
) -> None:
    scales = {size: await scale_of_window(broker, size) for size in (None, 4096)}
    assert scales[4096] == 0
    assert scales[None] > 0


async def scale_of_window(broker: ScriptedBroker, receive_buffer_bytes: int | None) -> int:
    protocol = await dial(
        Kept,
        Address(broker.host, broker.port),
        ssl_context=None,
        limit=StepLimit(TIMEOUT_S),
        receive_buffer_bytes=receive_buffer_bytes,
    )
    sock = protocol.transport.get_extra_info("socket")
    if receive_buffer_bytes is not None:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= receive_buffer_bytes
    report: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
    protocol.transport.abort()
    return report[6] >> 4  # tcpi_rcv_wscale


class Kept(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass


@pytest.mark.every_loop
@pytest.mark.parametrize("is_known", [True, False])
async def test_failures_with_a_receive_buffer_are_those_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    port = await closed_port()
    if not is_known:
        monkeypatch.setattr(socket, "SO_RCVBUF", 12_345)
    with pytest.raises(KafkaConnectionError, match="refused" if is_known else "not available"):
        await dial(
            Kept,
            Address("127.0.0.1", port),
            ssl_context=None,
            limit=StepLimit(TIMEOUT_S),
            receive_buffer_bytes=4096,
        )
