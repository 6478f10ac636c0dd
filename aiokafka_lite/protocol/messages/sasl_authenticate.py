"""SaslAuthenticate (key 36): exchange the tokens of a SASL mechanism (KIP-152).

v1 the lifetime of the session (KIP-368); v2 is flexible.
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import Request, Response, blob, int16, int64, string


class SaslAuthenticateResponse(Response):
    """A token from the broker."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: bytes = blob("0+")
    session_lifetime_ms: int = int64("1+", ignorable=True)  # KIP-368


class SaslAuthenticateRequest(
    Request[SaslAuthenticateResponse], key=36, versions="0-2", flexible="2+"
):
    """A token from the client."""

    auth_bytes: bytes = blob("0+")
