"""Options kafka.*: what Kafka's consumer is configured with."""

from __future__ import annotations

import pytest

from aiokafka_lite.client.config import parse_bootstrap_servers
from aiokafka_lite.errors import OptionError
from aiokafka_lite.spark.options import SourceOptions, parse_options
from tests.spark.options.cases import BROKER, TOPIC
from tests.spark.options.kafka_cases import KAFKA_ACCEPTED, KAFKA_REFUSED, KAFKA_STRICTER
from tests.support.for_each import for_each


def parse(options: dict[str, str]) -> SourceOptions:
    kafka = {f"kafka.{name}": value for name, value in options.items()}
    return parse_options({**BROKER, **TOPIC, **kafka}, is_streaming=False)


@for_each(KAFKA_ACCEPTED)
def test_settings_of_the_consumer_are_accepted(name: str, value: str) -> None:
    assert parse({name: value}).client.bootstrap_servers == "127.0.0.1:1"


@for_each([*KAFKA_REFUSED, *KAFKA_STRICTER])
def test_settings_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"option kafka.{name} "):
        parse({name: value})


def test_fetch_settings_come_through() -> None:
    options = parse(
        {
            "fetch.max.wait.ms": "1",
            "fetch.max.bytes": "3",
            "max.partition.fetch.bytes": "4",
            "receive.buffer.bytes": "5",
            "check.crcs": "false",
            "isolation.level": "read_committed",
            "client.rack": "a",
            "group.id": "mine",
        }
    )
    assert (options.max_wait_ms, options.max_bytes) == (1, 3)
    assert options.partition_max_bytes == 4
    assert options.receive_buffer_bytes == 5
    assert options.check_crcs is False
    assert options.isolation_level == "read_committed"
    assert options.client_rack == "a"


def test_client_settings_come_through_in_seconds() -> None:
    client = parse(
        {
            "client.id": "mine",
            "request.timeout.ms": "1000",
            "socket.connection.setup.timeout.ms": "2000",
            "retry.backoff.ms": "3000",
            "retry.backoff.max.ms": "4000",
            "reconnect.backoff.ms": "5000",
            "reconnect.backoff.max.ms": "6000",
            "metadata.max.age.ms": "7000",
            "connections.max.idle.ms": "8000",
        }
    ).client
    assert client.client_id == "mine"
    assert (client.request_timeout_s, client.connect_timeout_s) == (1, 2)
    assert (client.retry_backoff_s, client.retry_backoff_max_s) == (3, 4)
    assert (client.reconnect_backoff_s, client.reconnect_backoff_max_s) == (5, 6)
    assert (client.metadata_max_age_s, client.connections_max_idle_s) == (7, 8)


@pytest.mark.parametrize("name", ["client.id", "client.rack"])
def test_text_that_does_not_fit_into_requests_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=rf"option kafka\.{name} .* at most 32,767 bytes"):
        parse({name: "x" * 32_768})


def test_fetches_are_large_unless_told_otherwise() -> None:
    options = parse({})
    assert options.max_bytes == 64 << 20
    assert options.partition_max_bytes == 8 << 20
    assert options.receive_buffer_bytes == -1


def test_largest_backoff_is_never_below_the_first() -> None:
    assert parse({"retry.backoff.ms": "3000"}).client.retry_backoff_max_s == 3


def test_idle_connections_are_kept_where_kafka_keeps_them() -> None:
    assert parse({"connections.max.idle.ms": "-1"}).client.connections_max_idle_s is None


def test_reading_makes_no_topics() -> None:
    assert parse({"allow.auto.create.topics": "true"}).client.allow_auto_create_topics is False


def test_group_id_and_settings_of_producers_are_warned_of() -> None:
    (warning,) = parse({"group.id": "mine"}).warnings
    assert "commitOffsetsToGroup" in warning
    (warning,) = parse({"linger.ms": "5"}).warnings
    assert "kafka.linger.ms only applies to writing" in warning


@pytest.mark.parametrize(
    ("given", "meant"),
    [("fetch.min.byte", "fetch.min.bytes"), ("bootstrap.server", "bootstrap.servers")],
)
def test_unknown_name_is_told_with_the_nearest(given: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean kafka.{meant}\\?"):
        parse({given: "1"})


@pytest.mark.parametrize(
    ("servers", "addresses"),
    [
        ("a:1", ["a:1"]),
        (" a:1 , b:2,a:1", ["a:1", "b:2"]),
        ("PLAINTEXT://a:1,SASL_SSL://b:2", ["a:1", "b:2"]),
        ("[::1]:5", ["[::1]:5"]),
    ],
)
def test_bootstrap_servers_are_read_as_kafka_reads_them(servers: str, addresses: list[str]) -> None:
    client = parse({"bootstrap.servers": servers}).client
    assert list(map(str, parse_bootstrap_servers(client.bootstrap_servers))) == addresses


@for_each(["", " , ", "a:b", "a:0", ":9092", "a b:1"])
def test_bootstrap_servers_that_are_none_are_refused(servers: str) -> None:
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers"):
        parse({"bootstrap.servers": servers})


def test_password_among_the_bootstrap_servers_is_not_shown() -> None:
    with pytest.raises(OptionError, match=r"kafka.sasl.password") as caught:
        parse({"bootstrap.servers": "user:hunter2@a:1"})
    assert "hunter2" not in str(caught.value)


def test_bootstrap_servers_are_needed() -> None:
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers is missing"):
        parse_options(TOPIC, is_streaming=True)
