"""SASL conversations against brokers that cannot be trusted."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import traceback

import pytest

from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.client import sasl
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    KafkaConfigurationError,
    KafkaError,
    KafkaProtocolError,
)
from aiokafka_lite.sasl import Secret, scram

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


def conversation() -> sasl.Conversation:
    mechanism = sasl.Scram(
        scram.ScramMechanism.SHA_256,
        "user",
        Secret("pencil"),
        nonce=lambda size: base64.b64decode(NONCE),
    )
    return mechanism.begin()


async def test_the_rfcs_exchange_is_ours() -> None:
    talk = conversation()
    assert await talk.first() == b"n,,n=user,r=" + NONCE
    assert await talk.answer(SERVER_FIRST) == CLIENT_FINAL
    assert await talk.answer(SERVER_FINAL) is None


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"r=%b,s=QUJD,i=4096" % NONCE, "does not extend"),
        (b"r=other,s=QUJD,i=4096", "does not extend"),
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
    talk = mechanism.begin()
    nonce = (await talk.first()).rpartition(b"r=")[2]
    answer = await talk.answer(b"r=%bx,s=QUJD,i=4096" % nonce)
    assert answer is not None
    proof = base64.b64decode(answer.rpartition(b"p=")[2])
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", b"ABC", 4096)
    key = hmac.digest(salted, b"Client Key", "sha512")
    signed = b"n=user,r=%b,r=%bx,s=QUJD,i=4096,c=biws,r=%bx" % (nonce, nonce, nonce)
    signature = hmac.digest(hashlib.sha512(key).digest(), signed, "sha512")
    assert proof == bytes(a ^ b for a, b in zip(key, signature, strict=True))


def test_words_of_a_broker_are_fit_for_a_log() -> None:
    assert sasl.words("no\r\nERROR forged line\x1b[2J", ()) == "no ERROR forged line [2J"
    assert sasl.words("turned \u202edrow\u2028around", ()) == "turned  drow around"
    assert len(sasl.words("x" * 10_000, ())) == sasl.MAX_TEXT_CHARACTERS
    told = sasl.words("password hunter2 is wrong", (Secret(""), Secret("hunter2")))
    assert told == "password *** is wrong"


# --- What somebody else's token provider may do -----------------------------------------------
class Provider(AbstractTokenProvider):
    """Gives what it is told to."""

    def __init__(self, token: object, extensions: object = None) -> None:
        self._token = token
        self._extensions = {} if extensions is None else extensions

    async def token(self) -> str:
        if isinstance(self._token, Exception):
            raise self._token
        return self._token  # type: ignore[return-value] # the wrong kind too

    def extensions(self) -> dict[str, str]:
        return self._extensions  # type: ignore[return-value] # likewise


async def test_token_and_extensions_are_said_as_rfc_7628_has_it() -> None:
    provider = Provider("a.b-c_d~e+f/==", {"logicalCluster": "lkc 1", "pool": "p"})
    talk = sasl.OAuthBearer(provider).begin()
    said = b"n,,\x01auth=Bearer a.b-c_d~e+f/==\x01logicalCluster=lkc 1\x01pool=p\x01\x01"
    assert await talk.first() == said
    assert await talk.answer(b"") is None
    assert await talk.answer(b'{"status":"invalid_token"}') == b"\x01"


@pytest.mark.parametrize(
    ("token", "extensions", "reason"),
    [
        (RuntimeError("token canary-9b1f"), None, r"raised RuntimeError at test_sasl\.py:\d+"),
        (KeyError("canary-9b1f"), None, r"raised KeyError at test_sasl\.py:\d+"),
        (asyncio.TimeoutError(), None, "raised TimeoutError at"),
        (b"canary-9b1f", None, "object of type bytes"),
        (None, None, "object of type NoneType"),
        ("", None, "0 bytes that are not a bearer token"),
        ("canary-9b1f\x01auth=Bearer x", None, "not a bearer token"),
        ("canary-9b1f\n", None, "not a bearer token"),
        ("\ud800", None, "not a bearer token"),
        ("c" * 10_000_000, None, "10000000 characters"),
        ("good", 5, "raised TypeError"),
        ("good", {"auth": "canary-9b1f"}, "cannot be named 'auth'"),
        ("good", {"a b": "canary-9b1f"}, "cannot be named 'a b'"),
        ("good", {"a": "canary-9b1f\x01"}, "'a' has an impossible value"),
        ("good", {"a": b"canary-9b1f"}, "must be str"),
    ],
)
async def test_provider_that_gives_no_token_is_told_without_what_it_gave(
    token: object, extensions: object, reason: str
) -> None:
    talk = sasl.OAuthBearer(Provider(token, extensions)).begin()
    with pytest.raises((AuthenticationFailedError, KafkaConfigurationError), match=reason) as error:
        await talk.first()
    assert "canary" not in "".join(traceback.format_exception(error.value))
    assert error.value.__cause__ is error.value.__context__ is None
