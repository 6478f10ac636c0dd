"""A real Kafka with one user, who may log in by every mechanism."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator

from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from aiokafka_lite.sasl import scram
from tests.support.real_kafka import KafkaUnavailableError
from tests.support.required import unavailable
from tests.support.sasl_client import scram_log_in, unsecured_jws
from tests.support.sasl_kafka import SaslKafka
from tests.support.wire import RawClient

USER = "alice"
PASSWORD = "wonderland"


class Tokens(AbstractTokenProvider):
    """Tokens as Kafka's validator for tests takes them: unsigned, for a minute."""

    async def token(self) -> str:
        await asyncio.sleep(0.05)  # somebody has to be asked
        return unsecured_jws(json.dumps({"sub": USER, "exp": time.time() + 60}))


async def add_scram_user(kafka: SaslKafka) -> None:
    async with RawClient(kafka.bootstrap_servers) as client:
        for mechanism in scram.ScramMechanism:
            salted = scram.salted_password(mechanism, PASSWORD.encode(), b"salt", 4096)
            upsertion = ScramCredentialUpsertion(
                name=USER,
                mechanism=mechanism.code,
                iterations=4096,
                salt=b"salt",
                salted_password=salted,
            )
            await client.request(AlterUserScramCredentialsRequest(upsertions=[upsertion]))
    for _ in range(100):  # brokers learn of users a little later
        async with RawClient(kafka.sasl_servers) as client:
            if not (await scram_log_in(client, USER, PASSWORD)).error_code:
                return
    raise TimeoutError("the user does not arrive")


def trusting(kafka: SaslKafka) -> ssl.SSLContext:
    return create_ssl_context(cadata=kafka.authority.pem)


def secured_kafka() -> Iterator[SaslKafka]:
    """What a fixture yields from; its test is skipped where there is no Kafka."""
    try:
        kafka = SaslKafka({USER: PASSWORD})
    except KafkaUnavailableError as error:
        unavailable(error)
    with kafka:
        asyncio.run(add_scram_user(kafka))
        yield kafka
