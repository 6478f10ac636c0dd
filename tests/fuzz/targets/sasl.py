"""SASL conversations, of which one half is real and the other half are bytes."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, Final, TypeVar
from unittest.mock import patch

from aiokafka_lite import _threads
from aiokafka_lite._compat import override
from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.broker.security.mechanisms import (
    Authenticated,
    CredentialStore,
    InvalidCredentialsError,
    PlainServer,
    SaslServer,
    ScramServer,
)
from aiokafka_lite.broker.security.oauth import OAuthBearerServer, TokenAuthority
from aiokafka_lite.client.sasl import Authenticator, mechanism_of
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    KafkaConnectionError,
    KafkaProtocolError,
    SaslAuthenticationFailed,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from aiokafka_lite.protocol.schema import Request
from aiokafka_lite.sasl import Secret, scram
from aiokafka_lite.sasl.scram import ClientFinal, ClientFirst, ScramMechanism, ServerFirst
from tests.fuzz import mutations
from tests.fuzz.engine import Broken, Target
from tests.fuzz.packing import pack, unpack_bytes

T = TypeVar("T")
USER: Final = "alice"
PASSWORD: Final = "a-secret-password"
NOW_MS: Final = 1_704_067_200_000
NONCE: Final = b"n" * 18
SALT: Final = b"s" * 16
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "OAUTHBEARER")
WORDS: Final = (
    *("n,,", "n=", "r=", "a=", ",p=", "c=biws", "v=", "e=", "i=4096", "i=1000001", "=2C", "=3D"),
    *("\x00", "\x01", "auth=Bearer ", "alice", PASSWORD, '"alg":"none"', '"exp":', "eyJ", "."),
)


def without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise Broken("the coroutine waits")


@cache
def store() -> CredentialStore:
    found = CredentialStore(None, lambda work: work(), random.Random(1))
    found.add_users({USER: Secret(PASSWORD)})
    return found


@cache
def authority(allow_unsecured: bool) -> TokenAuthority:
    return TokenAuthority(lambda: NOW_MS, allow_unsecured=allow_unsecured, rng=random.Random(1))


def server(kind: int) -> SaslServer:
    """Return the broker's half, with the same nonce each time."""
    if kind == 0:
        return PlainServer(store())
    if kind in (1, 2):
        mechanism = (ScramMechanism.SHA_256, ScramMechanism.SHA_512)[kind - 1]
        return ScramServer(mechanism, store(), random.Random(1))
    return OAuthBearerServer(authority(kind == 3))


def unsecured(claims: object, header: object = None) -> str:
    """Make a JSON Web Token without a signature."""
    parts = (header or {"alg": "none", "typ": "JWT"}, claims)
    return ".".join([*map(_base64url, map(json.dumps, parts)), ""])


def _base64url(text: str) -> str:
    encoded = base64.urlsafe_b64encode(text.encode(errors="surrogatepass"))
    return encoded.rstrip(b"=").decode()


def _bearer(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


OAUTHBEARER_TOKEN: Final = _bearer(unsecured({"sub": USER, "exp": NOW_MS // 1000 + 60}))


class SaslServers(Target):
    """The tokens of a client, after the number of the mechanism. Only real credentials may pass."""

    name = "sasl-server"
    allowed = (SaslAuthenticationFailed, InvalidCredentialsError, KafkaProtocolError)

    @override
    def seeds(self) -> Sequence[bytes]:
        found = [b"\0" + pack([f"\0{USER}\0{PASSWORD}".encode()])]
        found += [bytes([kind]) + pack(_scram_tokens(kind)) for kind in (1, 2)]
        claims = {"sub": USER, "exp": NOW_MS // 1000 + 60, "iat": 0, "scope": ["a", "b"]}
        found.append(b"\3" + pack([_bearer(unsecured(claims)), b"\1"]))
        signed = authority(False).issue(USER)
        found.append(b"\4" + pack([_bearer(signed), b"\1"]))
        return found

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        kind, parts = content[:1] or b"\0", unpack_bytes(content[1:]) or [b""]
        if rng.random() < 0.03:
            kind = bytes([rng.randrange(len(MECHANISMS))])
        at = rng.randrange(len(parts))
        if rng.random() < 0.01:
            parts[at] = _grown(rng, parts[at])
        elif kind[0] >= 3 and rng.random() < 0.7:
            parts[at] = _other_token(rng, parts[at])
        elif rng.random() < 0.5:
            text = mutations.changed_text(rng, parts[at].decode(errors="replace"), WORDS)
            parts[at] = text.encode(errors="surrogatepass")
        else:
            parts[at] = mutations.changed(rng, parts[at], unpack_bytes(rng.choice(pool)[1:]))
        return kind + pack(parts)

    @override
    def run(self, content: bytes) -> str:
        kind = (content[0] if content else 0) % len(MECHANISMS)
        half = server(kind)
        steps = []
        for token in unpack_bytes(content[1:])[:4]:
            with nullcontext() if half.is_slow else self.on_loop():
                step = half.evaluate(token)
            steps.append(type(step).__name__)
            if isinstance(step, Authenticated):
                if kind != 3 and step.username != USER:
                    raise Broken(f"authenticated as {step.username!r}")
                break
        return f"{kind} {steps}"


def _scram_tokens(kind: int) -> list[bytes]:
    """Return the client's messages to the broker's half, which always has the same nonce."""
    mechanism = (ScramMechanism.SHA_256, ScramMechanism.SHA_512)[kind - 1]
    first = ClientFirst(USER, b"clientnonce")
    step = server(kind).evaluate(first.encode())
    asked = ServerFirst.parse(step.token)
    salted = scram.salted_password(mechanism, PASSWORD.encode(), asked.salt, asked.iterations)
    final = ClientFinal.unproven(first.header, asked.nonce)
    message = scram.auth_message(first, step.token, final)
    final = final._replace(proof=scram.client_proof(mechanism, salted, message))
    return [first.encode(), final.encode()]


_VALUES: Final[tuple[object, ...]] = (
    *(
        None,
        True,
        0,
        -1,
        1e308,
        float("nan"),
        float("inf"),
        2**63,
        2**70,
        "x",
        "",
        [],
        {},
        ["none"],
    ),
    *(["HS256"], {"a": 1}, "none", "HS256", "NONE", [[[1]]], "\ud800", -1e-300),
)


def _grown(rng: random.Random, message: bytes) -> bytes:
    """Repeat a word hundred thousands of times, as a name, nonce, extension or token would be."""
    at = rng.randrange(len(message) + 1)
    word = rng.choice((b"\0", b"x", b"=2C", b",a=b", b"a=b\1", b".", b"AAAA", b"\xff"))
    return message[:at] + word * (200_000 // len(word)) + message[at:]


def _other_token(rng: random.Random, message: bytes) -> bytes:
    """Change claims or header of the token in a message of OAUTHBEARER."""
    before, found, rest = message.partition(b"Bearer ")
    token, _, after = rest.partition(b"\1")
    parts = token.split(b".")
    if not found or len(parts) != 3:
        return mutations.changed(rng, message, ())
    at = rng.randrange(2)
    try:
        decoded = base64.urlsafe_b64decode(parts[at] + b"==")
        value = json.loads(decoded)
    except (ValueError, RecursionError):
        return mutations.changed(rng, message, ())
    if rng.random() < 0.3 or not isinstance(value, dict):
        text = mutations.changed_text(rng, decoded.decode(errors="replace"), WORDS)
    else:
        names = (*value, "alg", "typ", "crit", "b64", "kid", "sub", "exp", "nbf", "iat", "scope")
        value[rng.choice(names)] = rng.choice(_VALUES)
        text = json.dumps(value)
        if rng.random() < 0.02:
            text = "[" * rng.choice((10, 2000)) + text
    parts[at] = _base64url(text).encode()
    return before + found + b".".join(parts) + b"\1" + after


class SaslClients(Target):
    """The responses of a broker to a client that authenticates: handshake, then challenges.

    No error shows the password.
    """

    name = "sasl-client"
    allowed = (
        AuthenticationFailedError,
        AuthenticationMethodNotSupported,
        KafkaProtocolError,
        KafkaConnectionError,  # there are no more responses
    )

    @override
    def seeds(self) -> Sequence[bytes]:
        handshake = _response(SaslHandshakeResponse(mechanisms=["PLAIN", "SCRAM-SHA-256"]), 1)
        refusal = _response(
            SaslAuthenticateResponse(error_code=58, error_message=f"{PASSWORD} is wrong\n"), 2
        )
        found = []
        for kind in range(4):
            challenges = [b"", b""]
            if kind in (1, 2):
                challenges = _challenges(kind)
            responses = [
                _response(SaslAuthenticateResponse(auth_bytes=each, session_lifetime_ms=5), 2)
                for each in challenges
            ]
            found.append(bytes([kind]) + pack([handshake, *responses]))
            found.append(bytes([kind]) + pack([handshake, responses[0], refusal]))
        return found

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        kind, parts = content[:1] or b"\0", unpack_bytes(content[1:]) or [b""]
        at = rng.randrange(len(parts))
        if at == 0 or rng.random() < 0.3:
            parts[at] = mutations.changed(rng, parts[at], unpack_bytes(rng.choice(pool)[1:]))
        else:
            try:
                answer = framing.response_decoder(SaslAuthenticateRequest, 2)(memoryview(parts[at]))
            except KafkaProtocolError:
                answer = SaslAuthenticateResponse()
            text = mutations.changed_text(rng, answer.auth_bytes.decode(errors="replace"), WORDS)
            answer.auth_bytes = text.encode(errors="surrogatepass")
            parts[at] = _response(answer, 2)
        if rng.random() < 0.1:
            parts.insert(at, parts[at])
        return kind + pack(parts)

    @override
    def run(self, content: bytes) -> str:
        kind = (content[0] if content else 0) % 4
        mechanism = mechanism_of(
            MECHANISMS[kind],
            username=USER,
            password=PASSWORD,
            token_provider=Provider(),
            nonce=lambda size: NONCE[:size],
        )
        peer = Peer(unpack_bytes(content[1:]))
        authenticate = Authenticator(mechanism, timeout_s=1)
        try:
            with patch.object(_threads, "compute", _hash_briefly):
                lifetime_s = without_loop(authenticate(peer))
        except self.allowed as error:
            if PASSWORD in str(error):
                raise Broken("an error shows the password") from None
            raise
        if not 0 <= lifetime_s < 2**63:
            raise Broken(f"a session of {lifetime_s} s")
        return f"{kind} authenticated"


class Provider(AbstractTokenProvider):
    @override
    async def token(self) -> str:
        return PASSWORD

    @override
    def extensions(self) -> dict[str, str]:
        return {"a": "b"}


class Peer:
    """Returns responses in turn."""

    peer = "broker"

    def __init__(self, responses: list[bytes]) -> None:
        self._responses = responses

    async def request(self, request: Request[Any], *, timeout_s: float) -> Any:
        if not self._responses:
            raise KafkaConnectionError("the broker is gone")
        version = 1 if isinstance(request, SaslHandshakeRequest) else 2
        frame = self._responses.pop(0)
        if len(frame) < 4:
            raise KafkaConnectionError("the broker is gone")
        return framing.response_decoder(type(request), version)(memoryview(frame))


def _response(message: SaslHandshakeResponse | SaslAuthenticateResponse, version: int) -> bytes:
    return framing.encode_response(message, version, 1)[4:]


async def _hash_briefly(work: Callable[[], bytes]) -> bytes:
    """Hash only if that takes milliseconds: the client limits iterations by itself."""
    cells = dict(zip(work.__code__.co_freevars, work.__closure__ or (), strict=True))
    asked = cells["asked"].cell_contents
    return work() if asked.iterations <= 4096 else bytes(32)


def _challenges(kind: int) -> list[bytes]:
    """Return the broker's messages to the client, which always has the same nonce."""
    mechanism = (ScramMechanism.SHA_256, ScramMechanism.SHA_512)[kind - 1]
    first = ClientFirst(USER, base64.b64encode(NONCE))
    asked = ServerFirst(first.nonce + b"more", SALT, 4096).encode()
    salted = scram.salted_password(mechanism, PASSWORD.encode(), SALT, 4096)
    final = ClientFinal.unproven(scram.NO_CHANNEL_BINDING, first.nonce + b"more")
    message = scram.auth_message(first, asked, final)
    key = scram.server_key(mechanism, salted)
    signature = scram.signature(mechanism, key, message)
    return [asked, scram.ServerFinal(signature).encode()]
