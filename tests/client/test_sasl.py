"""SASL conversations against brokers that cannot be trusted."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import sys
import traceback
from typing import TypeVar, cast

import pytest

from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.client import sasl
from aiokafka_lite.client.wire import UnansweredCredentialsError
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
)
from aiokafka_lite.protocol.messages.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.sasl import Secret, scram
from tests.support.conversing import Conversation

R = TypeVar("R", bound=Response)

NONCE = b"rOprNGfwEbeRWgbNEkqO"
# RFC 7677, section 3.
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def conversation() -> Conversation:
    mechanism = sasl.Scram(
        scram.ScramMechanism.SHA_256,
        "user",
        Secret("pencil"),
        nonce=lambda size: base64.b64decode(NONCE),
    )
    return Conversation(mechanism)


async def test_the_rfcs_exchange_is_ours() -> None:
    talk = conversation()
    assert await talk.first() == b"n,,n=user,r=" + NONCE
    assert await talk.answer(SERVER_FIRST) == CLIENT_FINAL
    assert await talk.answer(SERVER_FINAL) is None


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"r=%b,s=QUJD,i=4096" % NONCE, "does not extend the client's nonce"),
        (b"r=other,s=QUJD,i=4096", "does not extend the client's nonce"),
        (b"r=%bx,s=QUJD,i=1" % NONCE, "requests 1 SCRAM iterations"),
        (b"r=%bx,s=QUJD,i=4095" % NONCE, "requests 4095 SCRAM iterations"),
        (b"r=%bx,s=QUJD,i=1000001" % NONCE, "requests 1000001 SCRAM iterations"),
        (b"r=%bx,s=QUJD,i=2147483647" % NONCE, "server's first"),
        (b"r=%bx,s=,i=4096" % NONCE, "server's first"),
        (b"m=ext,r=%bx,s=QUJD,i=4096" % NONCE, "server's first"),
        (b"", "server's first"),
        (b"\xff" * 65_536, "server's first"),
    ],
)
async def test_challenge_that_asks_too_little_or_too_much_is_refused(
    challenge: bytes, reason: str
) -> None:
    talk = conversation()
    await talk.first()
    with pytest.raises((AuthenticationFailedError, KafkaProtocolError), match=reason):
        await talk.answer(challenge)


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "signature is wrong"),
        (b"v=QUJD", "signature is wrong"),
        (b"e=other-error", "other-error"),
        (b"v=", "server's final"),
    ],
)
async def test_broker_that_cannot_prove_itself_is_refused(final: bytes, reason: str) -> None:
    talk = conversation()
    await talk.first()
    await talk.answer(SERVER_FIRST)
    with pytest.raises(KafkaError, match=reason):
        await talk.answer(final)


async def test_sha_512_uses_its_own_hash() -> None:
    mechanism = sasl.Scram(
        scram.ScramMechanism.SHA_512, "user", Secret("pencil"), nonce=lambda size: bytes(size)
    )
    talk = Conversation(mechanism)
    nonce = (await talk.first()).rpartition(b"r=")[2]
    answer = await talk.answer(b"r=%bx,s=QUJD,i=4096" % nonce)
    assert answer is not None
    proof = base64.b64decode(answer.rpartition(b"p=")[2])
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", b"ABC", 4096)
    key = hmac.digest(salted, b"Client Key", "sha512")
    signed = b"n=user,r=%b,r=%bx,s=QUJD,i=4096,c=biws,r=%bx" % (nonce, nonce, nonce)
    signature = hmac.digest(hashlib.sha512(key).digest(), signed, "sha512")
    assert proof == bytes(a ^ b for a, b in zip(key, signature, strict=True))


# --- What a broker answers ---------------------------------------------------------------------
class Peer:
    """Gives these answers, one after another, at last one of them again and again."""

    peer = "host:9092"

    def __init__(self, *answers: Response | KafkaError) -> None:
        self._answers = list(answers)
        self.asked: list[Request[Response]] = []

    async def request(self, request: Request[R], *, timeout_s: float) -> R:
        assert timeout_s == 5.0
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, KafkaError):
            raise answer
        return cast("R", answer)


async def authenticated(*answers: Response | KafkaError) -> tuple[float, Peer]:
    """Authenticate by a token; return how long the session lasts, and who was asked."""
    peer = Peer(*answers)
    authenticator = sasl.Authenticator(sasl.OAuthBearer(Provider("token")), timeout_s=5.0)
    return await authenticator(peer), peer


SHAKEN = SaslHandshakeResponse(mechanisms=["OAUTHBEARER"])
SASL_FAILED = 58


@pytest.mark.parametrize(
    ("lifetime_ms", "lifetime_s"), [(60_000, 60.0), (1, 0.001), (0, 0.0), (-1, 0.0)]
)
async def test_a_session_lasts_as_long_as_the_broker_says(
    lifetime_ms: int, lifetime_s: float
) -> None:
    accepted = SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms)
    session_s, peer = await authenticated(SHAKEN, accepted)
    assert session_s == lifetime_s
    assert len(peer.asked) == 2


@pytest.mark.parametrize(
    ("answers", "error_class", "text"),
    [
        (
            [SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN", "no name"])],
            AuthenticationMethodNotSupported,
            "sasl_mechanism is OAUTHBEARER, but host:9092 offers PLAIN$",
        ),
        (
            [SaslHandshakeResponse(error_code=33)],
            AuthenticationMethodNotSupported,
            "offers no mechanism$",
        ),
        (
            [SaslHandshakeResponse(error_code=34)],
            AuthenticationFailedError,
            "this listener of host:9092 does not use SASL",
        ),
        (
            [SaslHandshakeResponse(error_code=35)],
            AuthenticationFailedError,
            "host:9092 refuses OAUTHBEARER authentication: UnsupportedVersionError$",
        ),
        (
            [SHAKEN, SaslAuthenticateResponse(error_code=SASL_FAILED, error_message="no token")],
            AuthenticationFailedError,
            "refuses OAUTHBEARER authentication: no ",
        ),
        (
            [SHAKEN, SaslAuthenticateResponse(error_code=SASL_FAILED)],
            AuthenticationFailedError,
            "refuses OAUTHBEARER authentication: SaslAuthenticationFailed$",
        ),
        ([SHAKEN, KafkaConnectionError("lost")], UnansweredCredentialsError, "check the cred"),
        (
            [SHAKEN, SaslAuthenticateResponse(auth_bytes=b"go on")],
            KafkaProtocolError,
            "did not complete SASL authentication within 8 requests",
        ),
    ],
)
async def test_a_broker_that_does_not_accept_is_named_with_the_reason(
    answers: list[Response | KafkaError], error_class: type[KafkaError], text: str
) -> None:
    with pytest.raises(error_class, match=text):
        await authenticated(*answers)


# --- Credentials -------------------------------------------------------------------------------
def test_a_mechanism_has_the_credentials_that_it_takes() -> None:
    for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert sasl.mechanism_of(name, username="u", password="p").name == name
        for username, password in (("u", None), (None, "p"), (None, None)):
            with pytest.raises(KafkaConfigurationError, match=f"{name} needs a user name"):
                sasl.mechanism_of(name, username=username, password=password)
    provider = Provider("token")
    assert isinstance(sasl.mechanism_of("OAUTHBEARER", token_provider=provider), sasl.OAuthBearer)
    with pytest.raises(KafkaConfigurationError, match="OAUTHBEARER needs a token"):
        sasl.mechanism_of("OAUTHBEARER", username="u", password="p")
    with pytest.raises(KafkaConfigurationError, match="GSSAPI is not supported: use PLAIN, SC"):
        sasl.mechanism_of("GSSAPI", username="u", password="p", token_provider=provider)


async def test_a_name_and_a_password_cannot_have_what_separates_them() -> None:
    assert await Conversation(sasl.Plain("u", Secret("p"))).first() == b"\0u\0p"
    for username, password in (("u\0", "p"), ("u", "p\0")):
        with pytest.raises(KafkaConfigurationError, match="NUL"):
            sasl.Plain(username, Secret(password))


def test_words_of_a_broker_are_fit_for_a_log() -> None:
    assert sasl.printable("no\r\nERROR forged line\x1b[2J", ()) == "no ERROR forged line [2J"
    assert sasl.printable("turned \u202edrow\u2028around", ()) == "turned  drow around"
    assert len(sasl.printable("x" * 10_000, ())) == sasl.MAX_TEXT_CHARACTERS
    told = sasl.printable("password hunter2 is wrong", (Secret(""), Secret("hunter2")))
    assert told == "password *** is wrong"


# --- What somebody else's token provider may do -----------------------------------------------
class Provider(AbstractTokenProvider):
    """Gives what it is told to."""

    def __init__(self, token: object, extensions: object = None) -> None:
        self._token = token
        self._extensions = {} if extensions is None else extensions

    async def token(self) -> str:
        if isinstance(self._token, BaseException):
            raise self._token
        return self._token  # type: ignore[return-value] # the wrong kind too

    def extensions(self) -> dict[str, str]:
        if isinstance(self._extensions, Exception):
            raise self._extensions
        return self._extensions  # type: ignore[return-value] # likewise


async def test_token_and_extensions_are_said_as_rfc_7628_has_it() -> None:
    provider = Provider("a.b-c_d~e+f/==", {"logicalCluster": "lkc 1", "pool": "p"})
    talk, other = (Conversation(sasl.OAuthBearer(provider)) for _ in range(2))
    said = b"n,,\x01auth=Bearer a.b-c_d~e+f/==\x01logicalCluster=lkc 1\x01pool=p\x01\x01"
    assert await talk.first() == said
    assert await talk.answer(b"") is None
    assert await other.first() == said
    assert await other.answer(b'{"status":"invalid_token"}') == b"\x01"


async def test_a_token_may_be_as_long_as_brokers_accept() -> None:
    token = "t" * sasl.MAX_TOKEN_BYTES
    assert token.encode() in await Conversation(sasl.OAuthBearer(Provider(token))).first()
    with pytest.raises(AuthenticationFailedError, match="65537 characters"):
        await Conversation(sasl.OAuthBearer(Provider(token + "t"))).first()


@pytest.mark.parametrize(
    ("token", "extensions", "reason"),
    [
        (RuntimeError("token canary-9b1f"), None, r"raised RuntimeError at test_sasl\.py:\d+"),
        (KeyError("canary-9b1f"), None, r"raised KeyError at test_sasl\.py:\d+"),
        (asyncio.TimeoutError(), None, "raised TimeoutError at"),
        pytest.param(
            *(asyncio.CancelledError("canary-9b1f"), None, "raised CancelledError at"),
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks do not tell"),
        ),
        ("good", KeyError("canary-9b1f"), r"raised KeyError at test_sasl\.py:\d+"),
        (b"canary-9b1f", None, "object of type bytes"),
        (None, None, "object of type NoneType"),
        ("", None, "0 bytes that is not a bearer token"),
        ("canary-9b1f\x01auth=Bearer x", None, "not a bearer token"),
        ("canary-9b1f\n", None, "not a bearer token"),
        ("\ud800", None, "not a bearer token"),
        ("c" * 10_000_000, None, "10000000 characters"),
        ("good", 5, "raised TypeError"),
        ("good", {"auth": "canary-9b1f"}, "cannot have the name 'auth'"),
        ("good", {"a b": "canary-9b1f"}, "cannot have the name 'a b'"),
        ("good", {"a": "canary-9b1f\x01"}, "'a' is empty or contains characters other"),
        ("good", {"a": b"canary-9b1f"}, "must be str"),
    ],
)
async def test_provider_that_gives_no_token_is_told_without_what_it_gave(
    token: object, extensions: object, reason: str
) -> None:
    talk = Conversation(sasl.OAuthBearer(Provider(token, extensions)))
    with pytest.raises((AuthenticationFailedError, KafkaConfigurationError), match=reason) as error:
        await talk.first()
    assert "canary" not in "".join(traceback.format_exception(error.value))
    assert error.value.__cause__ is error.value.__context__ is None
    is_raised = any(isinstance(each, BaseException) for each in (token, extensions))
    assert error.value.retriable is is_raised


async def test_a_request_for_a_token_that_the_client_cancels_is_no_failure_of_the_provider() -> (
    None
):
    class Waiting(Provider):
        async def token(self) -> str:
            await asyncio.Event().wait()
            raise AssertionError

    talk = asyncio.ensure_future(Conversation(sasl.OAuthBearer(Waiting(None))).first())
    await asyncio.sleep(0)
    talk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await talk
