"""PLAIN (RFC 4616): authorisation id, user name and password, NUL between them.

The messages are those of org.apache.kafka.common.security.plain.internals.PlainSaslServer.
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite.broker.security.credentials import CredentialStore
from aiokafka_lite.broker.security.mechanism import Authenticated, Step
from aiokafka_lite.errors import SaslAuthenticationFailed

PARTS: Final = 3


class PlainServer:
    """One exchange: a single token."""

    is_slow: Final = True  # a password is hashed as often as SCRAM's

    def __init__(self, credentials: CredentialStore) -> None:
        self._credentials = credentials

    def evaluate(self, token: bytes) -> Step:
        # Like Kafka: what is no UTF-8 is no user's name or password, and ends there.
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
        if authzid not in ("", username):
            raise SaslAuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            )
        return Authenticated(b"", username)
