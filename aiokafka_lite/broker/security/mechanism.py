"""What the mechanisms have in common: a token of the client in, a step out."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from aiokafka_lite._compat import StrEnum


class SaslMechanism(StrEnum):
    """The mechanisms that a broker can offer, by their SASL names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class Continue(NamedTuple):
    """The exchange goes on."""

    token: bytes


class Authenticated(NamedTuple):
    """The client is who it says.

    Attributes:
        token: The last one for the client.
        username: Who it is.
        expires_at_ms: When the credential ends, in milliseconds since 1970; None for never.
    """

    token: bytes
    username: str
    expires_at_ms: int | None = None


Step: TypeAlias = Continue | Authenticated


class InvalidCredentialsError(Exception):
    """The client is not who it says; it is told no more than that.

    What else would be said (no such user, wrong password, a proof that is no base64) helps
    only somebody who guesses.
    """


class SaslServer(Protocol):
    """The broker's half of one exchange.

    `evaluate` is called with the client's tokens in turn and owns no state but the exchange's. It
    raises `SaslAuthenticationFailed` with what the client is to be told, or
    `InvalidCredentialsError` or `KafkaProtocolError`, of which it is told nothing.
    """

    @property
    def is_slow(self) -> bool:
        """`evaluate` takes milliseconds: it belongs in an executor."""

    def evaluate(self, token: bytes) -> Step: ...
