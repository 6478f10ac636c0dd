"""The tokens of OAUTHBEARER: JSON Web Tokens that the broker makes and checks itself.

They are signed with HMAC-SHA256 and a key that nobody else has, so a test needs no identity
provider. Unsecured ones (RFC 7519 section 6: algorithm "none"), as Kafka's default handlers and
librdkafka make them, are taken only if that is allowed: everybody can make them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from aiokafka_lite.errors import KafkaConfigurationError
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
# Times from here on would not fit where they are going.
FAR_S: Final = 1 << 40
# PyJWT would ask the system's clock: times are checked here, with the broker's.
_NO_CHECKS_OF_TIME: Final = Options(
    verify_exp=False, verify_iat=False, verify_nbf=False, verify_aud=False,
    verify_iss=False, verify_sub=False, verify_jti=False,
)  # fmt: skip


class InvalidTokenError(Exception):
    """A token does not let anybody in; the reason is not told to the client."""


class ValidToken(NamedTuple):
    """What a token says."""

    principal: str
    expires_at_ms: int
    scope: str


class TokenAuthority:
    """Makes tokens and checks them.

    Args:
        clock: Returns the wall-clock time in milliseconds.
        allow_unsecured: Take tokens that nobody signed.
        rng: Where the key comes from; one that can be foreseen is for tests only.
    """

    def __init__(
        self, clock: Callable[[], int], *, allow_unsecured: bool, rng: random.Random
    ) -> None:
        self._clock = clock
        self._allow_unsecured = allow_unsecured
        self._key = Secret(rng.randbytes(KEY_BYTES))

    def issue(self, principal: str, *, lifetime_s: float = 3_600, scope: str = "") -> str:
        """Return a token for somebody; a lifetime below zero makes one that has expired."""
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
        """Return what a token says.

        Raises:
            InvalidTokenError: It is not signed by this authority, not valid now, or malformed.
        """
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
        return ValidToken(subject, int(expires_s * MS_PER_S), _scope(claims.get("scope")))

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
    """Return a time in seconds since 1970, checked for what JSON allows besides."""
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not 0 <= claim < FAR_S:
        raise InvalidTokenError("a claim of the token (exp, iat or nbf) is not a number of seconds")
    return claim


def _scope(claim: object) -> str:
    """Return a scope as text with blanks between; some write it as a list."""
    return " ".join(map(str, claim)) if isinstance(claim, list) else str(claim or "")
