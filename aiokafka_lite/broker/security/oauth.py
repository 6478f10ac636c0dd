"""OAUTHBEARER (RFC 7628, KIP-255): a bearer token instead of a password.

    n,a=authzid,^Aauth=Bearer token^Akey=value^A^A   →
                                                     ←   nothing, or {"status":"invalid_token"}
    ^A                                               →   (after that only)
                                                     ←   the failure

The messages are those of
org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerSaslServer. Unlike there, a client
gets one attempt: whatever comes after the failure ends the exchange.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from aiokafka_lite.broker.security.mechanism import (
    Authenticated,
    Continue,
    InvalidCredentialsError,
    Step,
)
from aiokafka_lite.broker.security.tokens import InvalidTokenError, TokenAuthority
from aiokafka_lite.errors import SaslAuthenticationFailed

SEPARATOR: Final = "\x01"
FAILURE: Final = '{"status":"invalid_token"}'
AUTH: Final = "auth"

_INITIAL: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?:[^\x00,=]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


class _Initial(NamedTuple):
    authzid: str
    token: str


class OAuthBearerServer:
    """One exchange: a single token, and a second after a failure."""

    is_slow: Final = False

    def __init__(self, authority: TokenAuthority) -> None:
        self._authority = authority
        self._has_failed = False

    def evaluate(self, token: bytes) -> Step:
        if self._has_failed:
            raise SaslAuthenticationFailed(FAILURE)
        initial = _parse(token)
        try:
            valid = self._authority.check(initial.token)
        except InvalidTokenError:
            self._has_failed = True
            return Continue(FAILURE.encode())
        if initial.authzid not in ("", valid.principal):
            raise SaslAuthenticationFailed(
                f"Authentication failed: Client requested an authorization id "
                f"({initial.authzid}) that is different from the token's principal name "
                f"({valid.principal})"
            )
        return Authenticated(b"", valid.principal, valid.expires_at_ms)


def _parse(message: bytes) -> _Initial:
    match = _INITIAL.fullmatch(message.decode(errors="replace"))
    if match is None:
        raise InvalidCredentialsError
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split(SEPARATOR)[:-1])
    auth = _AUTH.fullmatch(pairs.get(AUTH, ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise InvalidCredentialsError
    authzid = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return _Initial(authzid, auth["token"])
