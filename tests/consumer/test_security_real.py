"""TLS and SASL against a real Kafka with such listeners; long form."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    KafkaError,
    TLSError,
)
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle
from tests.support.sasl_client import unsecured_jws
from tests.support.sasl_kafka import MECHANISMS, SESSION_MS, SaslKafka
from tests.support.secured_kafka import (
    PASSWORD,
    USER,
    Tokens,
    secured_kafka,
    trusting,
)

pytestmark = [pytest.mark.every_loop, pytest.mark.slow, pytest.mark.real_kafka]


@pytest.fixture(scope="module")
def secured() -> Iterator[SaslKafka]:
    yield from secured_kafka()


@pytest.fixture
async def handle(secured: SaslKafka) -> KafkaHandle:
    return KafkaHandle("real", secured.bootstrap_servers)


def sasl_consumer(
    *topics: str, servers: str, mechanism: str, **settings: object
) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
        "auto_offset_reset": "earliest",
        **settings,
    }
    if mechanism == "OAUTHBEARER":
        arguments.setdefault("sasl_oauth_token_provider", Tokens())
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=servers,
        sasl_mechanism=mechanism,
        **arguments,  # type: ignore[arg-type]
    )


async def read_and_commit(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    async with consumer:
        values = [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(2)]
        assert values == [b"a", b"b"]
        await consumer.commit()
        assert await consumer.committed(tp) == 2


async def two_records(handle: KafkaHandle) -> TopicPartition:
    topic = await handle.create_topic()
    tp = TopicPartition(topic, 0)
    await handle.produce(*tp, [(None, b"a"), (None, b"b")])
    return tp


# --- What works --------------------------------------------------------------------------------
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_group_consumes_and_commits_by_each_mechanism(
    secured: SaslKafka, handle: KafkaHandle, protocol: str, mechanism: str
) -> None:
    tp = await two_records(handle)
    has_tls = protocol == "SASL_SSL"
    consumer = sasl_consumer(
        tp.topic,
        servers=secured.sasl_tls_servers if has_tls else secured.sasl_servers,
        mechanism=mechanism,
        security_protocol=protocol,
        ssl_context=trusting(secured) if has_tls else None,
        group_id=f"{tp.topic}-group",
    )
    await read_and_commit(consumer, tp)


@pytest.mark.parametrize("has_certificate", [False, True])
async def test_group_consumes_and_commits_by_tls(
    secured: SaslKafka, handle: KafkaHandle, tmp_path: Path, has_certificate: bool
) -> None:
    tp = await two_records(handle)
    client = secured.authority.issue("client").write(tmp_path / "client.pem")
    consumer = AIOKafkaConsumer(
        tp.topic,
        bootstrap_servers=secured.mutual_tls_servers if has_certificate else secured.tls_servers,
        security_protocol="SSL",
        ssl_context=create_ssl_context(
            cadata=secured.authority.pem, certfile=client if has_certificate else None
        ),
        auto_offset_reset="earliest",
        group_id=f"{tp.topic}-group",
    )
    await read_and_commit(consumer, tp)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_session_is_renewed_between_long_polls_and_nothing_is_lost(
    secured: SaslKafka, handle: KafkaHandle, mechanism: str
) -> None:
    topic = await handle.create_topic()
    tp = TopicPartition(topic, 0)
    loop = asyncio.get_running_loop()
    consumer = sasl_consumer(
        topic,
        servers=secured.short_servers,
        mechanism=mechanism,
        group_id=f"{topic}-group",
        fetch_max_wait_ms=1_500,
        heartbeat_interval_ms=200,
    )
    async with consumer:
        started, sent = loop.time(), 0
        while loop.time() - started < 3 * SESSION_MS / 1000:
            await handle.produce(*tp, [(None, b"%d" % sent)])
            sent += 1
            record = await asyncio.wait_for(consumer.getone(), 30)
            assert record.value == b"%d" % (sent - 1)
            await asyncio.sleep(0.7)
        await consumer.commit()
        assert await consumer.committed(tp) == sent
        metrics = consumer.metrics()
        # Kafka hangs up on whoever uses a session that is over.
        assert (metrics["reconnects_total"], metrics["assignments_total"]) == (0, 1)


# --- What does not ------------------------------------------------------------------------------
async def refused(consumer: AIOKafkaConsumer, error: type[KafkaError], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        await asyncio.wait_for(consumer.start(), 30)
    await consumer.stop()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_wrong_password_is_refused(secured: SaslKafka, mechanism: str) -> None:
    consumer = sasl_consumer(
        servers=secured.sasl_servers, mechanism=mechanism, sasl_plain_password="wrong"
    )
    await refused(consumer, AuthenticationFailedError, f"refuses {mechanism} authentication")


async def test_expired_token_is_refused(secured: SaslKafka) -> None:
    class Expired(AbstractTokenProvider):
        async def token(self) -> str:
            return unsecured_jws(json.dumps({"sub": USER, "exp": time.time() - 600}))

    consumer = sasl_consumer(
        servers=secured.sasl_servers,
        mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Expired(),
    )
    await refused(consumer, AuthenticationFailedError, "refuses OAUTHBEARER")


async def test_mechanism_that_is_not_enabled_is_told_with_those_that_are(
    secured: SaslKafka,
) -> None:
    consumer = sasl_consumer(servers=secured.plain_only_servers, mechanism="SCRAM-SHA-512")
    await refused(
        consumer, AuthenticationMethodNotSupported, r"SCRAM-SHA-512, but .* offers PLAIN(?!,)"
    )


async def test_missing_client_certificate_is_asked_for_by_name(secured: SaslKafka) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=secured.mutual_tls_servers,
        security_protocol="SSL",
        ssl_context=trusting(secured),
    )
    await refused(consumer, TLSError, r"certfile=.*create_ssl_context\(\)")


async def test_certificate_that_nobody_vouches_for_is_refused(secured: SaslKafka) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=secured.tls_servers,
        security_protocol="SSL",
        ssl_context=create_ssl_context(),
    )
    await refused(consumer, TLSError, r"not trusted.*create_ssl_context\(cafile=")


async def test_name_that_is_not_in_the_certificate_is_refused(secured: SaslKafka) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=secured.tls_servers.replace("127.0.0.1", "localhost"),
        security_protocol="SSL",
        ssl_context=trusting(secured),
    )
    await refused(consumer, TLSError, r"ostname mismatch.*subjectAltName")


async def test_listener_that_speaks_another_protocol_is_told(secured: SaslKafka) -> None:
    context = trusting(secured)
    for servers, protocol, advice in (
        (secured.bootstrap_servers, "SSL", r"does not speak TLS \(see security_protocol"),
        (secured.tls_servers, "PLAINTEXT", "security_protocol|TLS listener"),
        (secured.sasl_servers, "PLAINTEXT", "requires SASL, set security_protocol"),
        (secured.bootstrap_servers, "SASL_PLAINTEXT", "security_protocol"),
        (secured.tls_servers, "SASL_SSL", "security_protocol"),
    ):
        consumer = sasl_consumer(
            servers=servers,
            mechanism="PLAIN",
            security_protocol=protocol,
            ssl_context=context if protocol.endswith("SSL") else None,
            request_timeout_ms=3_000,
        )
        await refused(consumer, KafkaError, advice)
