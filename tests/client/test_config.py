from __future__ import annotations

import pytest

from aiokafka_lite.client.config import Address, ClientConfig, parse_bootstrap_servers
from aiokafka_lite.errors import KafkaConfigurationError
from tests.support.for_each import for_each


@for_each(
    [
        ("localhost", [("localhost", 9092)]),
        ("h1:1, h2 ,h3:65535", [("h1", 1), ("h2", 9092), ("h3", 65535)]),
        (["h1:1", "h2:2,h3:3"], [("h1", 1), ("h2", 2), ("h3", 3)]),
        (("h1:1", "h1:1"), [("h1", 1)]),
        ("[::1]:9093,[fe80::1]", [("::1", 9093), ("fe80::1", 9092)]),
        ("::1", [("::1", 9092)]),
        ("kafka.example.com.:9094,", [("kafka.example.com.", 9094)]),
    ]
)
def test_bootstrap_servers_are_parsed(
    servers: str | list[str], addresses: list[tuple[str, int]]
) -> None:
    assert parse_bootstrap_servers(servers) == [Address(*address) for address in addresses]


@for_each(
    [
        ("", "empty"),
        ([], "empty"),
        (" , ", "empty"),
        ("host:", "not a port"),
        ("host:0", "not a port"),
        ("host:65536", "not a port"),
        ("host:kafka", "not a port"),
        ("host:-1", "not a port"),
        ("host:٣", "not a port"),
        (":9092", "host name is missing"),
        ("my host:9092", "host name is missing"),
        ("kafka://host:9092", "leave out the scheme"),
        ("[::1:9092", "write an IPv6 address as"),
        ("[::1]9092", "write an IPv6 address as"),
        ([9092], "each entry must be a str"),
    ]
)
def test_bad_bootstrap_servers_are_named(servers: str | list[str], complaint: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=complaint):
        parse_bootstrap_servers(servers)


def test_address_prints_ipv6_in_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address("host", 9092)) == "host:9092"


def test_tls_without_context_is_refused() -> None:
    with pytest.raises(KafkaConfigurationError, match="ssl_context"):
        ClientConfig(security_protocol="SASL_SSL")


def test_unknown_security_protocol_is_refused() -> None:
    with pytest.raises(KafkaConfigurationError, match="PLAINTEXT"):
        ClientConfig(security_protocol="TLS")


@pytest.mark.parametrize("client_id", ["x" * 32_768, "ä" * 16_384, "\ud800"])
def test_client_id_that_does_not_fit_into_requests_is_refused(client_id: str) -> None:
    with pytest.raises(KafkaConfigurationError, match="client_id must"):
        ClientConfig(client_id=client_id)
    assert len(ClientConfig(client_id="x" * 32_767).client_id) == 32_767
