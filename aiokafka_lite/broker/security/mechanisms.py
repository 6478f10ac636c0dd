"""The broker's half of SASL mechanisms, and of PLAIN (RFC 4616) and SCRAM.

The messages of PLAIN are those of org.apache.kafka.common.security.plain.internals.PlainSaslServer.
See aiokafka_lite/sasl/scram.py for the exchange of SCRAM.
"""

from __future__ import annotations

import hmac
import random
from base64 import b64encode
from typing import Final, NamedTuple, Protocol, TypeAlias

from aiokafka_lite._compat import StrEnum
from aiokafka_lite.broker.security.credentials import CredentialStore, Lookup
from aiokafka_lite.errors import SaslAuthenticationFailed
from aiokafka_lite.sasl import scram
from aiokafka_lite.sasl.scram import ClientFinal, ClientFirst, ScramMechanism, ServerFinal


class SaslMechanism(StrEnum):
    """The mechanisms that a broker can offer, by their SASL names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class Continue(NamedTuple):
    token: bytes


class Authenticated(NamedTuple):
    """The client is authenticated. `token` is the last one for the client."""

    token: bytes
    username: str
    expires_at_ms: int | None = None


Step: TypeAlias = Continue | Authenticated


class InvalidCredentialsError(Exception):
    """The credentials are wrong. The client does not get the reason, which would help guessing."""


class SaslServer(Protocol):
    """The broker's half of one exchange.

    `evaluate` gets the client's tokens in turn. The client gets the message of a
    `SaslAuthenticationFailed`, but not of an `InvalidCredentialsError` or a `KafkaProtocolError`.
    """

    @property
    def is_slow(self) -> bool:
        """Whether `evaluate` takes milliseconds, so that it needs an executor."""

    def evaluate(self, token: bytes) -> Step: ...


PARTS: Final = 3


class PlainServer:
    is_slow: Final = True  # it hashes thousands of times

    def __init__(self, credentials: CredentialStore) -> None:
        self._credentials = credentials

    def evaluate(self, token: bytes) -> Step:
        # As in Kafka, a name or password that is not UTF-8 matches no user.
        parts = token.decode(errors="replace").split("\0")
        if len(parts) != PARTS:
            counted = min(len(parts), PARTS + 1)
            raise SaslAuthenticationFailed(
                f"Invalid SASL/PLAIN response: expected {PARTS} tokens, got {counted}"
            )
        authzid, username, password = parts
        if not username:
            raise SaslAuthenticationFailed("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationFailed("Authentication failed: password not specified")
        if not self._credentials.is_password(username, password.encode()):
            raise SaslAuthenticationFailed("Authentication failed: Invalid username or password")
        _check_authzid(authzid, username)
        return Authenticated(b"", username)


def _check_authzid(authzid: str, username: str) -> None:
    if authzid not in ("", username):
        raise SaslAuthenticationFailed(
            "Authentication failed: Client requested an authorization id that is different "
            "from username"
        )


NONCE_BYTES: Final = 24


class ScramServer:
    """The exchange of SCRAM: two tokens of the client."""

    is_slow: Final = False  # the client does the slow hashing

    def __init__(
        self, mechanism: ScramMechanism, credentials: CredentialStore, rng: random.Random
    ) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._own_nonce = b64encode(rng.randbytes(NONCE_BYTES))
        self._first: ClientFirst | None = None
        # Set with the first token.
        self._known: Lookup
        self._server_first: scram.ServerFirst

    def evaluate(self, token: bytes) -> Step:
        if self._first is None:
            return self._begin(ClientFirst.parse(token))
        return self._finish(self._first, ClientFinal.parse(token))

    def _begin(self, first: ClientFirst) -> Step:
        _check_authzid(first.authzid, first.username)
        self._first = first
        self._known = self._credentials.scram(self._mechanism, first.username)
        credential = self._known.credential
        self._server_first = scram.ServerFirst(
            first.nonce + self._own_nonce, credential.salt, credential.iterations
        )
        return Continue(self._server_first.encode())

    def _finish(self, first: ClientFirst, final: ClientFinal) -> Step:
        """Check the client's final message. The complete nonce must be equal (CVE-2024-56128)."""
        credential = self._known.credential
        signed = scram.auth_message(first, self._server_first.encode(), final)
        # All checks run, so that the time of the response does not depend on the failed one.
        checks = (
            hmac.compare_digest(final.nonce, self._server_first.nonce),
            hmac.compare_digest(final.channel, first.header),
            scram.is_proof(self._mechanism, credential, signed, final.proof),
            self._known.is_known,
        )
        if not all(checks):
            raise InvalidCredentialsError
        signature = scram.signature(self._mechanism, credential.server_key, signed)
        return Authenticated(ServerFinal(signature).encode(), first.username)
