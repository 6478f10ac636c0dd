"""TLS and SASL as a consumer meets them: mechanisms, refusals, sessions that end."""

from __future__ import annotations

import asyncio
import logging
import ssl

import pytest

from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    InsecureConfigError,
    KafkaConfigurationError,
    TLSError,
)
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.records import build_batch
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.for_each import for_each
from tests.support.reading import values
from tests.support.sasl_consumer import ALL_MECHANISMS, CANARY, Tokens, consumer_of, sasl_broker

TP = TopicPartition("t", 0)

pytestmark = pytest.mark.every_loop


def append(broker: Broker, *values: bytes) -> None:
    for value in values:
        broker.partition(*TP).append(build_batch([(1_000, None, value, ())]))


@pytest.mark.few_rows(7)
@pytest.mark.parametrize("mechanism", ALL_MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_group_consumes_by_each_mechanism(protocol: str, mechanism: str) -> None:
    async with sasl_broker(protocol) as broker:
        broker.create_topic("t")
        append(broker, b"a", b"b")
        context = broker.certificates.client_context() if protocol == "SASL_SSL" else None
        async with consumer_of(
            broker, mechanism, security_protocol=protocol, ssl_context=context, group_id="g"
        ) as consumer:
            assert await values(consumer, 2) == [b"a", b"b"]
            await consumer.commit()
        assert broker.failure is None


async def test_tls_alone_with_a_client_certificate() -> None:
    async with Broker(security_protocol="SSL") as broker:
        broker.create_topic("t")
        append(broker, b"a")
        context = create_ssl_context(cadata=broker.certificates.ca_pem)
        async with AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SSL",
            ssl_context=context,
            auto_offset_reset="earliest",
        ) as consumer:
            assert await values(consumer, 1) == [b"a"]


async def test_certificate_that_nobody_vouches_for_is_refused() -> None:
    async with Broker(security_protocol="SSL") as broker:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SSL",
            ssl_context=create_ssl_context(),
        )
        with pytest.raises(TLSError, match="not trusted"):
            await consumer.start()
        await consumer.stop()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_wrong_password_fails_the_start_at_once_and_is_shown_nowhere(
    mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = f"{CANARY}-wrong"
    async with sasl_broker() as broker:
        consumer = consumer_of(broker, mechanism, sasl_plain_password=wrong)
        with pytest.raises(AuthenticationFailedError, match=f"refuses {mechanism}") as caught:
            await consumer.start()
        await consumer.stop()
        assert not caught.value.retriable
        shown = [repr(consumer), repr(inside.config(consumer)), repr(caught.value), caplog.text]
        assert not any(wrong in text for text in shown)
        attempts = [seen for seen in broker.requests if seen.api == "SaslHandshake"]
        assert len(attempts) == 1


async def test_mechanism_that_is_not_on_offer_is_told_with_those_that_are() -> None:
    async with Broker(
        security_protocol="SASL_PLAINTEXT", sasl_mechanisms=["PLAIN"], users={"alice": CANARY}
    ) as broker:
        consumer = consumer_of(broker, "SCRAM-SHA-512")
        with pytest.raises(
            AuthenticationMethodNotSupported, match=r"SCRAM-SHA-512, but .* offers PLAIN"
        ):
            await consumer.start()
        await consumer.stop()


async def test_token_that_is_no_good_is_refused() -> None:
    async with sasl_broker() as broker:
        for provider in (Tokens(broker, lifetime_s=-10), _Raising(), _Odd()):
            consumer = consumer_of(broker, "OAUTHBEARER", sasl_oauth_token_provider=provider)
            with pytest.raises(AuthenticationFailedError) as caught:
                await consumer.start()
            assert "secret" not in str(caught.value)
            await consumer.stop()


class _Raising(AbstractTokenProvider):
    async def token(self) -> str:
        raise RuntimeError("the secret is 1234")


class _Odd(AbstractTokenProvider):
    async def token(self) -> str:
        return "no token\x01auth=Bearer other"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
async def test_session_is_renewed_on_the_live_connection(mechanism: str) -> None:
    async with sasl_broker(connections_max_reauth_ms=1_500) as broker:
        broker.create_topic("t")
        async with consumer_of(
            broker,
            mechanism,
            group_id="g",
            group_protocol="classic",  # it has a connection of its own for JoinGroup
            fetch_max_wait_ms=50,
            heartbeat_interval_ms=100,
        ) as consumer:
            deadline = asyncio.get_running_loop().time() + 2.0
            number = 0
            while asyncio.get_running_loop().time() < deadline:
                append(broker, b"%d" % number)
                assert await values(consumer, 1) == [b"%d" % number]
                number += 1
                await asyncio.sleep(0.02)
            connections = {seen.peer for seen in broker.requests}
            renewals = [seen for seen in broker.requests if seen.api == "SaslHandshake"]
            # One for each lane, the first of them to the bootstrap server; none was lost.
            assert len(connections) == 3
            assert len(renewals) > len(connections)
        assert broker.failure is None


async def test_renewal_that_is_refused_ends_the_connection_with_the_reason() -> None:
    async with sasl_broker(connections_max_reauth_ms=1_300) as broker:
        broker.create_topic("t")
        consumer = consumer_of(broker, "PLAIN", fetch_max_wait_ms=50)
        await consumer.start()
        broker.on("SaslAuthenticate").fail(58, times=None)
        try:
            with pytest.raises(AuthenticationFailedError, match="refuses PLAIN"):
                await values(consumer, 1)
        finally:
            await consumer.stop()


@for_each(
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("[::1]", True),
        ("broker.example", False),
        ("10.0.0.1", False),
        ("127.0.0.1.example", False),
    ]
)
def test_credentials_leave_this_machine_only_with_tls_or_on_request(
    host: str, is_safe: bool
) -> None:
    def make(**settings: object) -> ConsumerConfig:
        return ConsumerConfig(
            bootstrap_servers=f"{host}:9092",
            sasl_plain_username="alice",
            sasl_plain_password=CANARY,
            **settings,  # type: ignore[arg-type]
        )

    if is_safe:
        make(security_protocol="SASL_PLAINTEXT")
    else:
        with pytest.raises(InsecureConfigError, match="SASL_SSL"):
            make(security_protocol="SASL_PLAINTEXT")
    make(security_protocol="SASL_PLAINTEXT", allow_plaintext_credentials=True)
    context = ssl.create_default_context()
    make(security_protocol="SASL_SSL", ssl_context=context)
    # TLS was meant, and is not used.
    if is_safe:
        make(security_protocol="PLAINTEXT", ssl_context=context)
    else:
        with pytest.raises(InsecureConfigError, match="ssl_context is given"):
            make(security_protocol="PLAINTEXT", ssl_context=context)


def test_ssl_context_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match=r"not an object of type str.*create_ssl_context"):
        ConsumerConfig(security_protocol="SSL", ssl_context="ca.pem")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"sasl_mechanism": "PLAIN"}, ValueError),
        ({"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "a"}, ValueError),
        ({"sasl_mechanism": "OAUTHBEARER"}, ValueError),
        ({"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": "t"}, ValueError),
        ({"sasl_mechanism": "GSSAPI"}, NotImplementedError),
        ({"sasl_mechanism": "MAGIC"}, ValueError),
    ],
)
async def test_credentials_that_are_missing_are_found_when_the_consumer_is_made(
    settings: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        AIOKafkaConsumer(security_protocol="SASL_PLAINTEXT", **settings)  # type: ignore[arg-type]


async def test_nul_in_a_password_cannot_be_sent_by_plain() -> None:
    async with sasl_broker() as broker:
        consumer = consumer_of(broker, "PLAIN", sasl_plain_password="a\0b")
        with pytest.raises(KafkaConfigurationError, match="NUL"):
            await consumer.start()
        await consumer.stop()
