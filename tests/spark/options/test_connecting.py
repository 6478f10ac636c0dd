"""Options that name credentials and certificates connect to brokers that ask for them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.errors import AuthenticationFailedError, KafkaError
from aiokafka_lite.spark.options import parse_options
from tests.support.certificates import Authority

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def broker(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerThread]:
    """A broker that asks for a certificate and a password."""
    folder = tmp_path_factory.mktemp("broker")
    context = authority.issue("127.0.0.1").server_context(folder)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority.pem)
    config = BrokerConfig(
        security_protocol="SASL_SSL", ssl_context=context, users={"reader": 'a"b\\c;='}
    )
    with BrokerThread(config) as running:
        running.create_topic("flights", 3)
        yield running


@pytest.fixture
def options(broker: BrokerThread, authority: Authority, tmp_path: Path) -> dict[str, str]:
    client = authority.issue("reader")
    (tmp_path / "ca.pem").write_text(authority.pem)
    store = pkcs12.serialize_key_and_certificates(
        b"reader", client.key, client.certificate, None, BestAvailableEncryption(b"store")
    )
    (tmp_path / "reader.p12").write_bytes(store)
    return {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "flights",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{SCRAM} required username=reader password="a\\"b\\\\c;=";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(tmp_path / "ca.pem"),
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.keystore.location": str(tmp_path / "reader.p12"),
        "kafka.ssl.keystore.password": "store",
    }


def partitions_seen(options: dict[str, str]) -> int:
    parsed = parse_options(options, is_streaming=False)
    cluster = BlockingCluster(parsed.client, mechanism=parsed.mechanism)
    try:
        topic = cluster.refresh(["flights"]).topics["flights"]
        return len(topic.partitions)
    finally:
        cluster.close()


def test_java_options_connect_with_certificate_and_password(options: dict[str, str]) -> None:
    assert partitions_seen(options) == 3


def test_librdkafkas_options_connect(options: dict[str, str]) -> None:
    del options["kafka.sasl.jaas.config"], options["kafka.sasl.mechanism"]
    options["kafka.ssl.ca.location"] = options.pop("kafka.ssl.truststore.location")
    options |= {
        "kafka.sasl.mechanisms": "PLAIN",
        "kafka.sasl.username": "reader",
        "kafka.sasl.password": 'a"b\\c;=',
    }
    assert partitions_seen(options) == 3


def test_wrong_password_is_told(options: dict[str, str]) -> None:
    options["kafka.sasl.jaas.config"] = f"{SCRAM} required username=reader password=wrong;"
    with pytest.raises(AuthenticationFailedError):
        partitions_seen(options)


def test_missing_certificate_is_an_error(options: dict[str, str]) -> None:
    for name in ("location", "type", "password"):
        del options[f"kafka.ssl.keystore.{name}"]
    options["kafka.request.timeout.ms"] = "2000"
    with pytest.raises(KafkaError):
        partitions_seen(options)
