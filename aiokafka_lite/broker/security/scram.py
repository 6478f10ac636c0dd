"""The broker's half of SCRAM; see aiokafka_lite/sasl/scram.py for the exchange.

What a client's final message must show, all of it: the whole nonce of this exchange (its end is not
enough: CVE-2024-56128), the channel binding that it began with, and a proof that signs just the
messages that were exchanged.
"""

from __future__ import annotations

import hmac
import random
from base64 import b64encode
from typing import Final

from aiokafka_lite.broker.security.credentials import CredentialStore, Lookup
from aiokafka_lite.broker.security.mechanism import (
    Authenticated,
    Continue,
    InvalidCredentialsError,
    Step,
)
from aiokafka_lite.errors import SaslAuthenticationFailed
from aiokafka_lite.sasl import scram
from aiokafka_lite.sasl.scram import ClientFinal, ClientFirst, ScramMechanism, ServerFinal

NONCE_BYTES: Final = 24


class ScramServer:
    """One exchange: two tokens of the client.

    Args:
        rng: Where the nonce comes from; one that can be foreseen is for tests only.
    """

    is_slow: Final = False  # it hashes a handful of times: the client does the slow work

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
        if first.authzid not in ("", first.username):
            raise SaslAuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            )
        self._first = first
        self._known = self._credentials.scram(self._mechanism, first.username)
        credential = self._known.credential
        self._server_first = scram.ServerFirst(
            first.nonce + self._own_nonce, credential.salt, credential.iterations
        )
        return Continue(self._server_first.encode())

    def _finish(self, first: ClientFirst, final: ClientFinal) -> Step:
        credential = self._known.credential
        signed = scram.auth_message(first, self._server_first.encode(), final)
        # All are worked out whichever fails: no answer comes sooner than another.
        checks = (
            hmac.compare_digest(final.nonce, self._server_first.nonce),
            hmac.compare_digest(final.channel, first.header),
            scram.is_proof(self._mechanism, credential, signed, final.proof),
            self._known.is_known,
        )
        if not all(checks):
            raise InvalidCredentialsError
        signature = scram.server_signature(self._mechanism, credential.server_key, signed)
        return Authenticated(ServerFinal(signature).encode(), first.username)
