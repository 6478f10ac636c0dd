"""A broker that asks who is there, and consumers that say so."""

from __future__ import annotations

from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer

CANARY = "canary-9b1f"  # a password that nothing may show
ALL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class Tokens(AbstractTokenProvider):
    """Hands out a broker's own tokens; counts them."""

    def __init__(self, broker: Broker, lifetime_s: float = 60.0) -> None:
        self._broker = broker
        self._lifetime_s = lifetime_s
        self.count = 0

    async def token(self) -> str:
        self.count += 1
        return self._broker.oauth_token("alice", lifetime_s=self._lifetime_s)


def sasl_broker(protocol: str = "SASL_PLAINTEXT", **settings: object) -> Broker:
    """A broker with one user, "alice"."""
    return Broker(
        security_protocol=protocol,
        sasl_mechanisms=ALL_MECHANISMS,
        users={"alice": CANARY},
        **settings,  # type: ignore[arg-type]
    )


def consumer_of(broker: Broker, mechanism: str, **settings: object) -> AIOKafkaConsumer:
    """A consumer of "t" that is alice's."""
    arguments: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": CANARY,
        "auto_offset_reset": "earliest",
        "retry_backoff_ms": 10,
        **settings,
    }
    if mechanism == "OAUTHBEARER" and "sasl_oauth_token_provider" not in settings:
        arguments["sasl_oauth_token_provider"] = Tokens(broker)
    return AIOKafkaConsumer("t", **arguments)  # type: ignore[arg-type]
