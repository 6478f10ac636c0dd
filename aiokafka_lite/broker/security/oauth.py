"""OAUTHBEARER (RFC 7628, KIP-255): a bearer token instead of a password.

    n,a=authzid,^Aauth=Bearer token^Akey=value^A^A   →
                                                     ←   nothing, or {"status":"invalid_token"}
    ^A                                               →   (after that only)
                                                     ←   the failure

The messages are those of
org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerSaslServer. Unlike there, a client
has one attempt.

The broker issues and checks the JSON Web Tokens itself, signed with HMAC-SHA256 and a private key.
Unsecured tokens (RFC 7519 section 6: algorithm "none"), the default of Kafka and librdkafka, are
accepted only if that is allowed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from aiokafka_lite.broker.security.mechanisms import (
    Authenticated,
    Continue,
    InvalidCredentialsError,
    Step,
)
from aiokafka_lite.errors import KafkaConfigurationError, SaslAuthenticationFailed
from aiokafka_lite.sasl import Secret

try:
    import jwt
    from jwt.types import Options
except ImportError as error:
    raise KafkaConfigurationError(
        "OAUTHBEARER needs PyJWT: pip install 'aiokafka-lite[testing]'"
    ) from error

ALGORITHM: Final = "HS256"
UNSECURED: Final = "none"
KEY_BYTES: Final = 32
MAX_TOKEN_BYTES: Final = 16 << 10
MS_PER_S: Final = 1_000
# Later times do not fit into int64 milliseconds.
FAR_S: Final = 1 << 40
# PyJWT would use the system's clock. `TokenAuthority.check` uses the broker's.
_NO_CHECKS_OF_TIME: Final = Options(
    verify_exp=False, verify_iat=False, verify_nbf=False, verify_aud=False,
    verify_iss=False, verify_sub=False, verify_jti=False,
)  # fmt: skip


class InvalidTokenError(Exception):
    """A token is not accepted. The client does not get the reason."""


class ValidToken(NamedTuple):
    principal: str
    expires_at_ms: int


class TokenAuthority:
    """Issues and checks tokens."""

    def __init__(
        self, clock: Callable[[], int], *, allow_unsecured: bool, rng: random.Random
    ) -> None:
        self._clock = clock
        self._allow_unsecured = allow_unsecured
        self._key = Secret(rng.randbytes(KEY_BYTES))

    def issue(self, principal: str, *, lifetime_s: float = 3_600, scope: str = "") -> str:
        """Return a token. A negative lifetime creates an expired one."""
        now_s = self._clock() / MS_PER_S
        claims: dict[str, str | float] = {
            "sub": principal,
            "iat": min(now_s, now_s + lifetime_s),
            "exp": now_s + lifetime_s,
        }
        if scope:
            claims["scope"] = scope
        return jwt.encode(claims, self._key.reveal(), algorithm=ALGORITHM)

    def check(self, token: str) -> ValidToken:
        """Return the claims of a token, or raise InvalidTokenError."""
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidTokenError(f"the token has more than {MAX_TOKEN_BYTES} characters")
        claims = self._claims(token)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise InvalidTokenError("the token has no subject (sub)")
        expires_s = _seconds(claims.get("exp"))
        now_s = self._clock() / MS_PER_S
        begins = [_seconds(claims[name]) for name in ("iat", "nbf") if name in claims]
        if now_s >= expires_s:
            raise InvalidTokenError("the token has expired (exp)")
        if any(now_s < begins_s for begins_s in begins):
            raise InvalidTokenError("the token is not valid yet: iat or nbf is in the future")
        return ValidToken(subject, int(expires_s * MS_PER_S))

    def _claims(self, token: str) -> Mapping[str, object]:
        try:
            if self._allow_unsecured and jwt.get_unverified_header(token)["alg"] == UNSECURED:
                if not token.endswith("."):
                    raise InvalidTokenError(
                        f"a token with the algorithm {UNSECURED!r} must not have a signature"
                    )
                return _decode(token, None)
            return _decode(token, self._key)
        except (jwt.PyJWTError, ValueError, KeyError, RecursionError) as error:
            raise InvalidTokenError(f"the token is not valid: {type(error).__name__}") from None


def _decode(token: str, key: Secret | None) -> Mapping[str, object]:
    options: Options = {**_NO_CHECKS_OF_TIME, "verify_signature": key is not None}
    claims: Mapping[str, object] = jwt.decode(
        token, key.reveal() if key else b"", algorithms=[ALGORITHM], options=options
    )
    return claims


def _seconds(claim: object) -> float:
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not 0 <= claim < FAR_S:
        raise InvalidTokenError("a claim of the token (exp, iat or nbf) is not a number of seconds")
    return claim


SEPARATOR: Final = "\x01"
FAILURE: Final = '{"status":"invalid_token"}'
AUTH: Final = "auth"

_INITIAL: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?!,)[^\x00,=]*(?:=(?:2C|3D)[^\x00,=]*)*))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


class _Initial(NamedTuple):
    authzid: str
    token: str


class OAuthBearerServer:
    """One exchange: a single token, and a second one after a failure."""

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
