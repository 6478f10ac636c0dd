"""TLS and SASL on blocking connections: mechanisms, refusals, sessions that end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking import BlockingConnection
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import Address, ClientConfig, parse_address
from aiokafka_lite.client.sasl import Mechanism, mechanism_of
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    TLSError,
)
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import TopicPartition
from tests.client.blocking.conftest import TIMEOUT_S, config_of, fetch, records_of

CANARY = "canary-51ad"  # a password that nothing may show
SASL_AUTHENTICATION_FAILED = 58
ALL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")


class Tokens(AbstractTokenProvider):
    """Hands out a broker's own tokens."""

    def __init__(self, broker: BrokerThread, wait_s: float = 0.01) -> None:
        self._broker = broker
        self._wait_s = wait_s

    async def token(self) -> str:
        await asyncio.sleep(self._wait_s)  # somebody has to be asked
        return self._broker.call(lambda broker: broker.oauth_token("alice", lifetime_s=60))


@contextmanager
def secured(protocol: str, **settings: object) -> Iterator[BrokerThread]:
    config = BrokerConfig(
        security_protocol=protocol,
        sasl_mechanisms=ALL_MECHANISMS,
        users={"alice": CANARY},
        connection_failed_authentication_delay_ms=1,
        **settings,  # type: ignore[arg-type]
    )
    with BrokerThread(config) as broker:
        broker.create_topic("t")
        yield broker


def config_for(broker: BrokerThread, protocol: str, **changes: object) -> ClientConfig:
    context = None
    if protocol.endswith("SSL"):
        context = create_ssl_context(cadata=broker.broker.certificates.ca_pem)
    return config_of(
        broker.bootstrap_servers, security_protocol=protocol, ssl_context=context, **changes
    )


def mechanism_for(broker: BrokerThread, name: str, password: str = CANARY) -> Mechanism:
    return mechanism_of(name, username="alice", password=password, token_provider=Tokens(broker))


def open_connection(
    broker: BrokerThread, protocol: str, mechanism: Mechanism, **arguments: object
) -> BlockingConnection:
    address = parse_address(broker.bootstrap_servers)
    config = config_for(broker, protocol)
    return BlockingConnection.open(address, config, mechanism=mechanism, **arguments)  # type: ignore[arg-type]


def ask(connection: BlockingConnection) -> int:
    request = MetadataRequest(topics=[])
    return len(connection.request(request, timeout_s=TIMEOUT_S).brokers)


# --- Mechanisms --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ALL_MECHANISMS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_records_are_read_by_each_mechanism(protocol: str, name: str) -> None:
    with secured(protocol) as broker:
        broker.produce("t", b"v" * 700_000)
        config = config_for(broker, protocol)
        cluster = BlockingCluster(config, mechanism=mechanism_for(broker, name))
        cluster.refresh(["t"])
        for _ in range(3):
            answer = cluster.request(1, fetch(cluster, TopicPartition("t", 0)))
            assert records_of(answer).count(b"v" * 700_000) == 1
        cluster.close()


@pytest.mark.parametrize("name", ALL_MECHANISMS[:3])
def test_wrong_password_is_refused_and_shown_nowhere(name: str) -> None:
    with secured("SASL_PLAINTEXT") as broker:
        mechanism = mechanism_for(broker, name, password="canary-other")
        with pytest.raises(AuthenticationFailedError, match=f"refuses {name}") as caught:
            open_connection(broker, "SASL_PLAINTEXT", mechanism)
        assert "canary" not in repr(caught.value)
        assert not caught.value.retriable


def test_refused_credentials_are_not_shown_again_at_once() -> None:
    slept: list[float] = []
    with secured("SASL_PLAINTEXT") as broker:
        config = config_for(broker, "SASL_PLAINTEXT", reconnect_backoff_max_s=30.0)
        mechanism = mechanism_for(broker, "PLAIN", password="wrong")
        cluster = BlockingCluster(config, mechanism=mechanism, sleep=slept.append)
        for _ in range(2):
            with pytest.raises(AuthenticationFailedError):
                cluster.refresh([])
        assert slept == [pytest.approx(30.0, abs=1)]
        cluster.close()


def test_mechanism_that_the_broker_lacks_is_named() -> None:
    with (
        BrokerThread(
            BrokerConfig(
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanisms=["PLAIN"],
                users={"alice": CANARY},
            )
        ) as broker,
        pytest.raises(
            AuthenticationMethodNotSupported, match=r"SCRAM-SHA-256, but .* offers PLAIN"
        ),
    ):
        open_connection(broker, "SASL_PLAINTEXT", mechanism_for(broker, "SCRAM-SHA-256"))


def test_token_provider_that_takes_too_long_is_given_up() -> None:
    with secured("SASL_PLAINTEXT") as broker:
        mechanism = mechanism_of("OAUTHBEARER", token_provider=Tokens(broker, wait_s=60.0))
        config = config_for(broker, "SASL_PLAINTEXT", connect_timeout_s=0.3)
        address = parse_address(broker.bootstrap_servers)
        begun = time.monotonic()
        with pytest.raises(KafkaConnectionError, match=r"not finish authentication within 0\.3 s"):
            BlockingConnection.open(address, config, mechanism=mechanism)
        assert time.monotonic() - begun < 5


async def test_token_provider_is_asked_where_an_event_loop_runs_already() -> None:
    with secured("SASL_PLAINTEXT") as broker:  # a notebook's thread
        connection = open_connection(broker, "SASL_PLAINTEXT", mechanism_for(broker, "OAUTHBEARER"))
        assert ask(connection) == 1
        connection.close()


def test_broker_that_falls_silent_while_authenticating_is_given_up() -> None:
    with secured("SASL_PLAINTEXT") as broker:
        broker.on("SaslAuthenticate").silence()
        config = config_for(broker, "SASL_PLAINTEXT", connect_timeout_s=0.3)
        address = parse_address(broker.bootstrap_servers)
        with pytest.raises(KafkaConnectionError, match="did not finish authentication"):
            BlockingConnection.open(
                address, config, mechanism=mechanism_for(broker, "SCRAM-SHA-256")
            )


def test_listener_that_asks_for_sasl_is_told_by_its_hanging_up() -> None:
    with secured("SASL_PLAINTEXT") as broker:
        cluster = BlockingCluster(config_of(broker.bootstrap_servers, request_timeout_s=0.2))
        with pytest.raises(KafkaConnectionError, match="requires SASL, set security_protocol"):
            cluster.refresh([])
        cluster.close()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_mechanism_and_protocol_must_agree(protocol: str) -> None:
    mechanism = mechanism_of("PLAIN", username="alice", password=CANARY)
    config = config_of("unused", security_protocol=protocol)
    with pytest.raises(KafkaConfigurationError, match=f"security_protocol={protocol} "):
        BlockingConnection.open(
            Address("127.0.0.1", 1), config, mechanism=None if config.uses_sasl else mechanism
        )


def test_answers_stay_small_until_the_broker_is_trusted() -> None:
    with secured("SASL_PLAINTEXT") as broker:
        broker.on("SaslHandshake").on_frame(
            lambda _, frame: (65_537).to_bytes(4, "big") + frame[4:8] + bytes(65_533)
        )
        with pytest.raises(KafkaError, match="announces a response of 65537 bytes, but the limit"):
            open_connection(broker, "SASL_PLAINTEXT", mechanism_for(broker, "PLAIN"))


# --- Sessions that end (KIP-368) ---------------------------------------------------------------
class Clock:
    """The machine's time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "OAUTHBEARER"])
def test_session_is_renewed_before_it_ends_and_no_answer_is_lost(name: str) -> None:
    clock = Clock()
    with (
        secured("SASL_PLAINTEXT", connections_max_reauth_ms=60_000) as broker,
        broker.on("SaslHandshake").delay(0.0, times=None) as shaken,
    ):
        mechanism = mechanism_for(broker, name)
        connection = open_connection(broker, "SASL_PLAINTEXT", mechanism, clock=clock)
        for count in (1, 2):
            assert ask(connection) == 1
            assert shaken.hits == count
            in_flight = connection.send(MetadataRequest(topics=[]), timeout_s=TIMEOUT_S)
            time.sleep(1.01)  # sooner, and a broker takes it for a mistake
            clock.ahead_s += 58
            assert ask(connection) == 1
            assert connection.receive(in_flight).brokers
        connection.close()


def test_connection_whose_session_is_over_is_replaced() -> None:
    clock = Clock()
    with secured("SASL_PLAINTEXT", connections_max_reauth_ms=60_000) as broker:
        config = config_for(broker, "SASL_PLAINTEXT")
        cluster = BlockingCluster(
            config, mechanism=mechanism_for(broker, "SCRAM-SHA-512"), clock=clock
        )
        cluster.refresh([])
        first = cluster.connection(1)
        clock.ahead_s += 61
        second = cluster.connection(1)
        assert second is not first
        assert first.is_closed
        assert ask(second) == 1
        cluster.close()


def test_renewal_that_is_refused_closes_the_connection() -> None:
    clock = Clock()
    with secured("SASL_PLAINTEXT", connections_max_reauth_ms=60_000) as broker:
        connection = open_connection(
            broker, "SASL_PLAINTEXT", mechanism_for(broker, "PLAIN"), clock=clock
        )
        time.sleep(1.01)
        clock.ahead_s += 58
        broker.on("SaslAuthenticate").fail(SASL_AUTHENTICATION_FAILED)
        with pytest.raises(AuthenticationFailedError, match="refuses PLAIN"):
            ask(connection)
        assert connection.is_closed


def test_session_that_would_end_while_the_client_holds_back_is_renewed_behind_that() -> None:
    clock = Clock()

    def sleep(duration_s: float) -> None:
        time.sleep(1.01)  # sooner, and a broker takes it for a mistake
        clock.ahead_s += duration_s

    with (
        secured("SASL_PLAINTEXT", connections_max_reauth_ms=60_000) as broker,
        broker.on("SaslHandshake").delay(0.0, times=None) as shaken,
    ):
        mechanism = mechanism_for(broker, "PLAIN")
        connection = open_connection(broker, "SASL_PLAINTEXT", mechanism, clock=clock, sleep=sleep)
        broker.on("Metadata").throttle(58.0)
        assert ask(connection) == 1
        assert shaken.hits == 1
        assert ask(connection) == 1
        assert shaken.hits == 2
        connection.close()


def test_threads_that_send_at_once_renew_a_session_once() -> None:
    clock = Clock()
    with (
        secured("SASL_SSL", connections_max_reauth_ms=60_000) as broker,
        broker.on("SaslHandshake").delay(0.0, times=None) as shaken,
    ):
        mechanism = mechanism_for(broker, "SCRAM-SHA-256")
        connection = open_connection(broker, "SASL_SSL", mechanism, clock=clock)
        time.sleep(1.01)
        clock.ahead_s += 58
        with ThreadPoolExecutor(4) as executor:
            answers = list(executor.map(lambda _: ask(connection), range(40)))
        assert answers == [1] * 40
        assert shaken.hits == 2
        connection.close()


# --- TLS ---------------------------------------------------------------------------------------
def test_certificate_that_nobody_vouches_for_is_refused() -> None:
    with BrokerThread(BrokerConfig(security_protocol="SSL")) as broker:
        config = config_of(
            broker.bootstrap_servers, security_protocol="SSL", ssl_context=create_ssl_context()
        )
        with pytest.raises(TLSError, match=r"not trusted .* create_ssl_context\(cafile="):
            BlockingConnection.open(parse_address(broker.bootstrap_servers), config)


def test_tls_where_nobody_speaks_it_says_so(broker: BrokerThread) -> None:
    config = config_of(
        broker.bootstrap_servers,
        security_protocol="SSL",
        ssl_context=create_ssl_context(),
        connect_timeout_s=2.0,
    )
    with pytest.raises(KafkaConnectionError, match=r"security_protocol|no answer within"):
        BlockingConnection.open(parse_address(broker.bootstrap_servers), config)


def test_peer_that_stalls_in_the_handshake_is_given_up() -> None:
    config = config_of(
        "unused", security_protocol="SSL", ssl_context=create_ssl_context(), connect_timeout_s=0.3
    )
    with socket.create_server(("127.0.0.1", 0)) as server:  # which accepts nobody
        begun = time.monotonic()
        with pytest.raises(KafkaConnectionError, match=r"no answer within 0\.3 s"):
            BlockingConnection.open(Address("127.0.0.1", server.getsockname()[1]), config)
        assert time.monotonic() - begun < 3


def test_clear_text_where_tls_is_spoken_says_so() -> None:
    with BrokerThread(BrokerConfig(security_protocol="SSL")) as broker:
        config = config_of(broker.bootstrap_servers, connect_timeout_s=2.0)
        with pytest.raises(KafkaError, match="security_protocol"):
            BlockingConnection.open(parse_address(broker.bootstrap_servers), config)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda broker: broker.on("Metadata").silence(),
        lambda broker: broker.on("Metadata").trickle(20),
    ],
)
def test_deadlines_hold_within_tls(spoil: Callable[[BrokerThread], object]) -> None:
    with BrokerThread(BrokerConfig(security_protocol="SSL")) as broker:
        address = parse_address(broker.bootstrap_servers)
        connection = BlockingConnection.open(address, config_for(broker, "SSL"))
        assert connection.is_usable()
        spoil(broker)
        begun = time.monotonic()
        with pytest.raises(KafkaError, match=r"in 0\.3 s"):
            connection.request(MetadataRequest(topics=None), timeout_s=0.3)
        assert time.monotonic() - begun < 3
        assert connection.is_closed


def test_connection_that_tls_has_something_to_say_on_at_rest_is_usable() -> None:
    with BrokerThread(BrokerConfig(security_protocol="SSL")) as broker:
        address = parse_address(broker.bootstrap_servers)
        connection = BlockingConnection.open(address, config_for(broker, "SSL"))
        time.sleep(0.05)  # session tickets may come now
        assert connection.is_usable()
        assert ask(connection) == 1
        broker.stop_node(1)
        assert not connection.is_usable()


def test_threads_share_a_connection_with_tls() -> None:
    with BrokerThread(BrokerConfig(security_protocol="SSL")) as broker:
        address = parse_address(broker.bootstrap_servers)
        connection = BlockingConnection.open(address, config_for(broker, "SSL"))
        with ThreadPoolExecutor(4) as executor:
            assert list(executor.map(lambda _: ask(connection), range(100))) == [1] * 100
        connection.close()
