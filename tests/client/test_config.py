from __future__ import annotations

import pytest

from aiokafka_lite.client.config import Address, parse_bootstrap_servers
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
    ]
)
def test_bad_bootstrap_servers_are_named(servers: str | list[str], complaint: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=complaint):
        parse_bootstrap_servers(servers)


def test_address_prints_ipv6_in_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address("host", 9092)) == "host:9092"
