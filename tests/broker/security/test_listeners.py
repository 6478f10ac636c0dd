"""Which listeners may be opened, and what clients of each are told."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest

from aiokafka_lite.broker import Broker, BrokerConfig, Listener
from aiokafka_lite.errors import InsecureConfigError, KafkaConfigurationError
from aiokafka_lite.protocol.messages.cluster import DescribeClusterRequest
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from tests.support.for_each import for_each
from tests.support.sasl_client import log_in
from tests.support.wire import RawClient

EVERYWHERE = "0.0.0.0"  # noqa: S104 -- never opened


async def endpoints_told(client: RawClient) -> list[set[str]]:
    """Return where the nodes are, by Metadata, DescribeCluster and FindCoordinator."""
    metadata = await client.request(MetadataRequest(topics=[]))
    described = await client.request(DescribeClusterRequest())
    keys = [f"g{number}" for number in range(20)]
    found = await client.request(FindCoordinatorRequest(key_type=0, coordinator_keys=keys))
    return [
        {f"{node.host}:{node.port}" for node in nodes}
        for nodes in (metadata.brokers, described.brokers, found.coordinators)
    ]


async def test_clients_are_told_the_endpoints_of_the_listener_they_came_by() -> None:
    listeners = [
        Listener("PLAINTEXT", name="INTERNAL"),
        Listener("SASL_PLAINTEXT", name="EXTERNAL", sasl_mechanisms=["PLAIN"]),
        Listener("SSL"),
    ]
    async with Broker(nodes=2, listeners=listeners, users={"alice": "secret"}) as broker:
        told = {}
        async with RawClient(broker.bootstrap_servers) as client:
            told["INTERNAL"] = await endpoints_told(client)
        async with RawClient(broker.bootstrap_servers_of("EXTERNAL")) as client:
            assert (await log_in(client, "alice", "secret")).error_code == 0
            told["EXTERNAL"] = await endpoints_told(client)
        tls = broker.certificates.client_context()
        async with RawClient(broker.bootstrap_servers_of("SSL"), ssl_context=tls) as client:
            told["SSL"] = await endpoints_told(client)
        for name, answers in told.items():
            expected = set(broker.bootstrap_servers_of(name).split(","))
            assert len(expected) == 2
            assert answers == [expected] * 3
        assert broker.bootstrap_servers == broker.bootstrap_servers_of("INTERNAL")
        with pytest.raises(ValueError, match="INTERNAL, EXTERNAL, SSL"):
            broker.bootstrap_servers_of("MISSING")


async def test_each_listener_keeps_its_port_when_the_node_starts_again() -> None:
    listeners = [Listener("PLAINTEXT"), Listener("SSL")]
    async with Broker(listeners=listeners) as broker:
        before = [broker.bootstrap_servers_of(name) for name in ("PLAINTEXT", "SSL")]
        assert len(set(before)) == 2
        await broker.stop_node(1)
        await broker.start_node(1)
        assert [broker.bootstrap_servers_of(name) for name in ("PLAINTEXT", "SSL")] == before


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_listener_that_others_can_reach_must_be_allowed(protocol: str) -> None:
    with pytest.raises(InsecureConfigError, match="allow_remote"):
        BrokerConfig(host=EVERYWHERE, security_protocol=protocol)
    listeners = [Listener("PLAINTEXT"), Listener(protocol, name="other", host=EVERYWHERE)]
    with pytest.raises(InsecureConfigError, match="allow_remote"):
        BrokerConfig(listeners=listeners)


def test_credentials_cross_the_network_without_tls_only_if_that_is_allowed() -> None:
    for protocol in ("PLAINTEXT", "SSL", "SASL_SSL"):
        BrokerConfig(host=EVERYWHERE, security_protocol=protocol, allow_remote=True)
    with pytest.raises(InsecureConfigError, match="allow_cleartext_credentials"):
        BrokerConfig(host=EVERYWHERE, security_protocol="SASL_PLAINTEXT", allow_remote=True)
    BrokerConfig(
        host=EVERYWHERE,
        security_protocol="SASL_PLAINTEXT",
        allow_remote=True,
        allow_cleartext_credentials=True,
    )


def test_ports_of_all_nodes_must_exist() -> None:
    config = BrokerConfig(nodes=2, listeners=[Listener(port=65534)])
    assert [listener.port for listener in config.all_listeners] == [65534]


def old_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    return context


IMPOSSIBLE: dict[str, Callable[[], object]] = {
    "must be one of PLAINTEXT, SSL": lambda: Listener("TLS"),
    "must be one of PLAIN, SCRAM": lambda: Listener("SASL_SSL", sasl_mechanisms=["GSSAPI"]),
    "needs a SASL mechanism": lambda: Listener("SASL_SSL", sasl_mechanisms=[]),
    "does not use TLS": lambda: Listener("PLAINTEXT", ssl_context=old_tls()),
    "must be a server context": lambda: Listener("SSL", ssl_context=ssl.create_default_context()),
    "the same name": lambda: BrokerConfig(listeners=[Listener("SSL"), Listener("SSL")]),
    "port must be 0 to 65534": lambda: BrokerConfig(nodes=2, listeners=[Listener(port=65535)]),
    "users has an entry with an empty": lambda: BrokerConfig(users={"alice": ""}),
    "ssl_client_auth must be one of": lambda: BrokerConfig(ssl_client_auth="maybe"),
}


@for_each(IMPOSSIBLE)
def test_impossible_setting_is_refused_with_what_is_possible(problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        IMPOSSIBLE[problem]()


def test_old_tls_is_refused() -> None:
    with pytest.raises(InsecureConfigError, match=r"TLSv1_2 or newer"):
        Listener("SSL", ssl_context=old_tls())


def test_tokens_need_a_listener_that_takes_them() -> None:
    with pytest.raises(KafkaConfigurationError, match="OAUTHBEARER"):
        Broker().oauth_token("alice")


def test_passwords_are_hidden_as_soon_as_they_are_given() -> None:
    config = BrokerConfig(security_protocol="SASL_PLAINTEXT", users={"alice": "hunter2"})
    assert "hunter2" not in repr(config) + repr(vars(config))
