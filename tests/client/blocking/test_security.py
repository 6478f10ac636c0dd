"""TLS and SASL on blocking connections: mechanisms, refusals, sessions that end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import product

import pytest

from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.offset_lookups import Lookups
from aiokafka_lite.client.pool import Pool
from aiokafka_lite.client.sasl import Mechanism, mechanism_of
from aiokafka_lite.client.wire import WireState
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
)
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.messages.offsets import ListOffsetsRequest
from aiokafka_lite.protocol.prepared import AnyRequest
from aiokafka_lite.protocol.schema import Response
from aiokafka_lite.structs import TopicPartition
from tests.client.blocking.conftest import LATEST, TIMEOUT_S, config_of, fetch, records_of
from tests.support import inside
from tests.support.for_each import for_each

CANARY = "canary-51ad"  # a password that nothing may show
ALL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
NewCluster = Callable[..., BlockingCluster]


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
def test_wrong_password_is_refused_and_shown_nowhere(name: str, new_cluster: NewCluster) -> None:
    with secured("SASL_PLAINTEXT") as broker:
        mechanism = mechanism_for(broker, name, password="canary-other")
        cluster = new_cluster(config_for(broker, "SASL_PLAINTEXT"), mechanism=mechanism)
        with pytest.raises(AuthenticationFailedError, match=f"refuses {name}") as caught:
            cluster.refresh([])
        assert "canary" not in repr(caught.value)
        assert not caught.value.retriable


@for_each(
    [
        (60.0, "", "this client"),
        (0.01, "SaslHandshake", r"127\.0\.0\.1:\d+"),
        (0.01, "SaslAuthenticate", r"127\.0\.0\.1:\d+"),
    ]
)
def test_token_provider_or_broker_that_takes_too_long_is_given_up(
    wait_s: float, silent: str, who: str, new_cluster: NewCluster
) -> None:
    with secured("SASL_PLAINTEXT") as broker, contextlib.ExitStack() as rules:
        if silent:
            rules.enter_context(broker.on(silent).silence(times=None))
        mechanism = mechanism_of("OAUTHBEARER", token_provider=Tokens(broker, wait_s=wait_s))
        config = config_for(broker, "SASL_PLAINTEXT", connect_timeout_s=0.3)
        begun = time.monotonic()
        text = rf": {who} did not finish authentication within 0\.3 s"
        with pytest.raises(KafkaConnectionError, match=text):
            new_cluster(config, mechanism=mechanism).look([])
        assert time.monotonic() - begun < 5


def test_listener_that_asks_for_sasl_is_told_by_its_hanging_up(new_cluster: NewCluster) -> None:
    with secured("SASL_PLAINTEXT") as broker:
        cluster = new_cluster(config_of(broker.bootstrap_servers, request_timeout_s=0.2))
        with pytest.raises(KafkaConnectionError, match="requires SASL, set security_protocol"):
            cluster.refresh([])


# --- Sessions that end (KIP-368) ---------------------------------------------------------------
@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "OAUTHBEARER"])
def test_session_is_renewed_although_no_loop_has_run(name: str, new_cluster: NewCluster) -> None:
    with (
        secured("SASL_PLAINTEXT", connections_max_reauth_ms=1_500) as broker,
        broker.on("SaslHandshake").delay(0.0, times=None) as shaken,
    ):
        config = config_for(broker, "SASL_PLAINTEXT")
        cluster = new_cluster(config, mechanism=mechanism_for(broker, name))
        cluster.refresh([])
        connection = cluster.connection(1)
        in_flight = connection.send(MetadataRequest(topics=[]), timeout_s=TIMEOUT_S)
        time.sleep(1.4)  # it is to be renewed by now
        assert cluster.request(1, MetadataRequest(topics=[])).brokers
        assert cluster.receive(in_flight).brokers
        assert cluster.connection(1) is connection
        assert shaken.hits == 2
        time.sleep(1.6)  # it is over
        assert cluster.request(1, MetadataRequest(topics=[])).brokers


def test_renewal_that_a_call_has_begun_is_finished_in_it(new_cluster: NewCluster) -> None:
    with (
        secured("SASL_PLAINTEXT", connections_max_reauth_ms=1_500) as broker,
        broker.on("SaslHandshake").delay(0.0, times=None) as shaken,
    ):
        config = config_for(broker, "SASL_PLAINTEXT", connect_timeout_s=0.5)
        cluster = new_cluster(config, mechanism=mechanism_for(broker, "PLAIN"))
        cluster.refresh([])
        connection = cluster.connection(1)
        in_flight = connection.send(MetadataRequest(topics=[]), timeout_s=TIMEOUT_S)
        time.sleep(1.4)  # it is to be renewed by now
        with broker.on("SaslAuthenticate").delay(0.1):
            assert cluster.receive(in_flight).brokers
        assert shaken.hits == 2
        time.sleep(0.6)  # longer than a renewal may take
        assert cluster.connection(1) is connection
        assert cluster.request(1, MetadataRequest(topics=[])).brokers


@for_each(product((KeyboardInterrupt(), RuntimeError("a bug")), (False, True)))
def test_failure_while_a_renewal_is_finished_costs_the_loop(
    failure: BaseException, is_task: bool, new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise failure

    async def renew(_: Pool) -> None:
        if is_task:
            await asyncio.wait([inside.scope(cluster).spawn(fail(), name="renewal")])
        await fail()

    with secured("SASL_PLAINTEXT") as broker:
        mechanism = mechanism_for(broker, "PLAIN")
        cluster = new_cluster(config_for(broker, "SASL_PLAINTEXT"), mechanism=mechanism)
        cluster.refresh([])
        connection = cluster.connection(1)
        with monkeypatch.context() as patched:
            patched.setattr(Pool, "is_renewing", True)
            patched.setattr(Pool, "until_renewed", renew)
            is_raised = not (is_task and isinstance(failure, Exception))
            with pytest.raises(type(failure)) if is_raised else nullcontext():
                assert cluster.request(1, MetadataRequest(topics=[])).brokers
        assert connection.is_closed
        assert cluster.request(1, MetadataRequest(topics=[])).brokers


def test_no_offset_is_asked_for_while_a_session_is_renewed(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[WireState] = []
    send = Connection.send

    def noted(self: Connection, request: AnyRequest[Response], **arguments: object) -> object:
        if request.request_class is ListOffsetsRequest:
            states.append(self.wire.state)
        return send(self, request, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "send", noted)
    with secured("SASL_PLAINTEXT", connections_max_reauth_ms=1_500, nodes=2) as broker:
        broker.create_topic("two", 2)
        first, _ = broker.bootstrap_servers.split(",")
        config = config_of(first, security_protocol="SASL_PLAINTEXT")
        cluster = new_cluster(config, mechanism=mechanism_for(broker, "PLAIN"))
        view = cluster.refresh(["two"])
        tps = [TopicPartition("two", number) for number in (0, 1)]
        assert {view.partition(tp).leader for tp in tps} == {1, 2}  # type: ignore[union-attr]
        connection = cluster.connection(1)
        time.sleep(1.0)
        with (
            broker.on("ApiVersions", node=2).delay(0.4),  # the session with node 1 is renewed
            broker.on("SaslAuthenticate", node=1).delay(0.4) as renewed,
        ):
            lookups = Lookups(cluster, topics=["two"])
            assert lookups.offsets(dict.fromkeys(tps, LATEST)) == [dict.fromkeys(tps, 0)]
            assert renewed.hits == 1
        assert states == [WireState.OPEN] * 2
        assert cluster.connection(1) is connection


# --- TLS ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "spoil",
    [
        lambda broker: broker.on("Metadata").silence(),
        lambda broker: broker.on("Metadata").trickle(20),
    ],
)
def test_deadlines_hold_within_tls(
    spoil: Callable[[BrokerThread], object], new_cluster: NewCluster
) -> None:
    with BrokerThread(BrokerConfig(security_protocol="SSL")) as broker:
        cluster = new_cluster(config_for(broker, "SSL"))
        cluster.refresh([])
        spoil(broker)
        begun = time.monotonic()
        with pytest.raises(KafkaError, match=r"in 0\.3 s"):
            cluster.request(1, MetadataRequest(topics=None), timeout_s=0.3)
        assert time.monotonic() - begun < 3


def test_connection_that_tls_has_ended_at_rest_is_replaced(new_cluster: NewCluster) -> None:
    with BrokerThread(BrokerConfig(security_protocol="SSL")) as broker:
        cluster = new_cluster(config_for(broker, "SSL"))
        cluster.refresh([])
        connection = cluster.connection(1)
        time.sleep(0.05)  # session tickets may come now
        assert cluster.connection(1) is connection
        broker.stop_node(1)
        broker.start_node(1)
        assert cluster.request(1, MetadataRequest(topics=[])).brokers
