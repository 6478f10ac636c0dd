"""The client's half of SASL by hand, for tests of what a broker answers."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable

from aiokafka_lite.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from aiokafka_lite.sasl import scram
from aiokafka_lite.sasl.scram import (
    ClientFinal,
    ClientFirst,
    ScramMechanism,
    ServerFinal,
    ServerFirst,
)
from tests.support.wire import RawClient

ChangeFinal = Callable[[ClientFinal], ClientFinal]


async def handshake(client: RawClient, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
    """Choose a mechanism."""
    return await client.request(SaslHandshakeRequest(mechanism=mechanism), version)


async def send_token(client: RawClient, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
    """Send one token."""
    return await client.request(SaslAuthenticateRequest(auth_bytes=token), version)


def plain_token(username: str, password: str) -> bytes:
    """The token of PLAIN."""
    return f"\0{username}\0{password}".encode()


def oauth_token(token: str) -> bytes:
    """The first token of OAUTHBEARER."""
    return f"n,,\1auth=Bearer {token}\1\1".encode()


def unsecured_jws(claims: str) -> str:
    """A token that nobody signed."""
    parts = (b'{"alg":"none"}', claims.encode())
    encoded = [b64encode(part, b"-_").rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, ""])


async def log_in(client: RawClient, username: str, password: str) -> SaslAuthenticateResponse:
    """Authenticate by PLAIN."""
    assert (await handshake(client, "PLAIN")).error_code == 0
    return await send_token(client, plain_token(username, password))


async def scram_log_in(
    client: RawClient,
    username: str,
    password: str,
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
    change: ChangeFinal = lambda final: final,
) -> SaslAuthenticateResponse:
    """Authenticate by SCRAM, and check that the broker knows the credential.

    `change` gets the final message before it is sent.
    """
    assert (await handshake(client, mechanism.mechanism_name)).error_code == 0
    first = ClientFirst(username, b64encode(os.urandom(18)))
    answer = await send_token(client, first.encode())
    if answer.error_code:
        return answer
    told = ServerFirst.parse(bytes(answer.auth_bytes))
    assert told.nonce.startswith(first.nonce)
    assert len(told.nonce) >= len(first.nonce) + 18
    final = ClientFinal.unproven(first.header, told.nonce)
    signed = scram.auth_message(first, told.encode(), final)
    salted = scram.salted_password(mechanism, password.encode(), told.salt, told.iterations)
    final = final._replace(proof=scram.client_proof(mechanism, salted, signed))
    answer = await send_token(client, change(final).encode())
    if not answer.error_code:
        expected = scram.signature(mechanism, scram.server_key(mechanism, salted), signed)
        assert ServerFinal.parse(bytes(answer.auth_bytes)) == ServerFinal(expected)
    return answer
