"""Blocking connections to a real Kafka with TLS and SASL; long form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.sasl import mechanism_of
from aiokafka_lite.errors import AuthenticationFailedError
from aiokafka_lite.structs import TopicPartition
from tests.client.blocking.conftest import config_of, fetch, records_of
from tests.support.cluster import KafkaHandle
from tests.support.sasl_kafka import MECHANISMS, SESSION_MS, SaslKafka
from tests.support.secured_kafka import (
    PASSWORD,
    USER,
    Tokens,
    secured_kafka,
    trusting,
)

pytestmark = [pytest.mark.slow, pytest.mark.real_kafka]


@pytest.fixture(scope="module")
def secured() -> Iterator[SaslKafka]:
    yield from secured_kafka()


@pytest.fixture(scope="module")
def topic(secured: SaslKafka) -> str:
    """A topic with five large records."""

    async def make() -> str:
        handle = KafkaHandle("real", secured.bootstrap_servers)
        name = await handle.create_topic()
        await handle.produce(name, 0, [(None, b"v" * 150_000)] * 5)
        return name

    return asyncio.run(make())


def read(cluster: BlockingCluster, topic: str) -> int:
    """Fetch the topic and return how many of its records came."""
    tp = TopicPartition(topic, 0)
    leader = cluster.refresh([topic]).leader(tp)
    assert leader is not None
    return records_of(cluster.request(leader.leader, fetch(cluster, tp))).count(b"v" * 150_000)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_records_are_read_by_each_mechanism(
    secured: SaslKafka, topic: str, protocol: str, name: str
) -> None:
    uses_tls = protocol == "SASL_SSL"
    config = config_of(
        secured.sasl_tls_servers if uses_tls else secured.sasl_servers,
        security_protocol=protocol,
        ssl_context=trusting(secured) if uses_tls else None,
        request_timeout_s=30.0,
    )
    mechanism = mechanism_of(name, username=USER, password=PASSWORD, token_provider=Tokens())
    cluster = BlockingCluster(config, mechanism=mechanism)
    assert read(cluster, topic) == 5
    cluster.close()


def test_wrong_password_is_refused(secured: SaslKafka) -> None:
    config = config_of(secured.sasl_servers, security_protocol="SASL_PLAINTEXT")
    mechanism = mechanism_of("SCRAM-SHA-256", username=USER, password="wrong")
    cluster = BlockingCluster(config, mechanism=mechanism)
    with pytest.raises(AuthenticationFailedError, match="refuses SCRAM-SHA-256"):
        cluster.refresh([])
    cluster.close()


def test_one_connection_outlives_its_sessions(secured: SaslKafka, topic: str) -> None:
    config = config_of(secured.short_servers, security_protocol="SASL_PLAINTEXT")
    mechanism = mechanism_of("SCRAM-SHA-512", username=USER, password=PASSWORD)
    cluster = BlockingCluster(config, mechanism=mechanism)
    assert read(cluster, topic) == 5
    (node_id,) = cluster.view.nodes
    connection = cluster.connection(node_id)
    until = time.monotonic() + 3 * SESSION_MS / 1000
    while time.monotonic() < until:
        assert read(cluster, topic) == 5
        time.sleep(0.2)
    assert cluster.connection(node_id) is connection
    time.sleep(SESSION_MS / 1000 + 0.1)  # nobody asks for anything: it ends
    assert read(cluster, topic) == 5
    cluster.close()
