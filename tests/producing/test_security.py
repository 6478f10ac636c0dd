"""A producer shows credentials as a consumer does, and speaks TLS."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import AuthenticationFailedError
from aiokafka_lite.producing import AIOKafkaProducer
from tests.support.sasl_consumer import ALL_MECHANISMS, CANARY, Tokens, sasl_broker


def producer_of(broker: Broker, mechanism: str, **settings: object) -> AIOKafkaProducer:
    arguments: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": CANARY,
        "sasl_oauth_token_provider": Tokens(broker) if mechanism == "OAUTHBEARER" else None,
        **settings,
    }
    return AIOKafkaProducer(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", ALL_MECHANISMS)
async def test_records_are_written_by_whoever_says_who_it_is(mechanism: str) -> None:
    async with sasl_broker() as broker, producer_of(broker, mechanism) as producer:
        assert (await producer.send_and_wait("t", b"v")).offset == 0


async def test_records_are_written_over_tls() -> None:
    async with sasl_broker("SASL_SSL") as broker:
        settings: dict[str, object] = {
            "security_protocol": "SASL_SSL",
            "ssl_context": broker.certificates.client_context(),
        }
        async with producer_of(broker, "PLAIN", **settings) as producer:
            assert (await producer.send_and_wait("t", b"v")).offset == 0


async def test_a_wrong_password_fails_the_start_and_is_shown_nowhere() -> None:
    async with sasl_broker() as broker:
        producer = producer_of(broker, "PLAIN", sasl_plain_password="wrong-4711")
        with pytest.raises(AuthenticationFailedError) as caught:
            await producer.start()
        assert "wrong-4711" not in str(caught.value)
        await producer.stop()
