"""The state machine of a connection's authentication, and the tokens, without a network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from unittest import mock

import jwt
import pytest

from aiokafka_lite.broker.security.mechanisms import (
    Authenticated,
    Continue,
    InvalidCredentialsError,
    SaslMechanism,
    SaslServer,
    Step,
)
from aiokafka_lite.broker.security.oauth import (
    MAX_TOKEN_BYTES,
    InvalidTokenError,
    OAuthBearerServer,
    TokenAuthority,
)
from aiokafka_lite.broker.security.session import (
    API_VERSIONS,
    AUTHENTICATE,
    HANDSHAKE,
    LEGAL_TRANSITIONS,
    SaslSession,
    SaslState,
    Verdict,
)
from aiokafka_lite.errors import IllegalSaslStateError, NoError, SaslAuthenticationFailed
from tests.support.for_each import for_each
from tests.support.sasl_client import oauth_token, unsecured_jws

METADATA = 3
NOW_MS = 1_700_000_000_000


class NoServer:
    """A mechanism that is never asked."""

    is_slow = False

    def evaluate(self, token: bytes) -> Step:
        raise NotImplementedError


class Machine(SaslSession):
    """A session at a time that the test sets."""

    now = 0.0

    def __init__(self, max_reauth_ms: int) -> None:
        def new_server(_: SaslMechanism) -> SaslServer:
            return NoServer()

        loop = mock.Mock(asyncio.AbstractEventLoop, time=lambda: self.now)
        mechanisms = [SaslMechanism.PLAIN, SaslMechanism.SCRAM_SHA_256]
        super().__init__(mechanisms, new_server, max_reauth_ms, 1.0, loop, lambda: NOW_MS)

    def begins(self, mechanism: str = "PLAIN") -> bool:
        error, names = self.handshake(mechanism, 1)
        assert (error, names) in (
            (NoError, ["PLAIN", "SCRAM-SHA-256"]),
            (IllegalSaslStateError, []),
        )
        return error is NoError

    def judge_at(self, api_key: int, now: float) -> Verdict:
        self.now = now
        return self.judge(api_key)


def authenticated(
    max_reauth_ms: int = 0, expires_at_ms: int | None = None, now: float = 0.0
) -> tuple[Machine, int]:
    """Return a machine that is through, and the session's lifetime."""
    machine = Machine(max_reauth_ms)
    assert machine.begins()
    machine.now = now
    return machine, machine.advance(Authenticated(b"", "alice", expires_at_ms))


def in_state(state: SaslState) -> Machine:
    machine = Machine(10_000)
    match state:
        case SaslState.HANDSHAKE:
            machine.note_versions()
        case SaslState.AUTHENTICATE:
            machine.begins()
        case SaslState.COMPLETE:
            machine, _ = authenticated(10_000)
        case SaslState.BAD_MECHANISM:
            machine, _ = authenticated(10_000)
            assert machine.begins("SCRAM-SHA-256")
        case SaslState.FAILED:
            machine.fail()
    assert machine.state is state
    return machine


HANDLE, FAIL, CLOSE = Verdict.HANDLE, Verdict.FAIL, Verdict.CLOSE
VERDICTS = {  # of ApiVersions, SaslHandshake, SaslAuthenticate, Metadata
    SaslState.HANDSHAKE_OR_VERSIONS: (HANDLE, HANDLE, CLOSE, CLOSE),
    SaslState.HANDSHAKE: (CLOSE, HANDLE, CLOSE, CLOSE),
    SaslState.AUTHENTICATE: (HANDLE, HANDLE, HANDLE, FAIL),
    SaslState.COMPLETE: (HANDLE, HANDLE, HANDLE, HANDLE),
    SaslState.BAD_MECHANISM: (FAIL, FAIL, FAIL, FAIL),
    SaslState.FAILED: (CLOSE, CLOSE, CLOSE, CLOSE),
}


@for_each(SaslState)
def test_each_state_lets_through_what_fits_it(state: SaslState) -> None:
    for api_key, verdict in zip(
        (API_VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA), VERDICTS[state], strict=True
    ):
        assert in_state(state).judge_at(api_key, 1.0) is verdict


def test_every_state_can_be_reached_and_left_for_failure_only_by_the_table() -> None:
    reachable = {SaslState.HANDSHAKE_OR_VERSIONS}.union(*LEGAL_TRANSITIONS.values())
    assert reachable == set(SaslState) == LEGAL_TRANSITIONS.keys()
    for state in SaslState:
        machine = in_state(state)
        machine.fail()
        assert machine.state is SaslState.FAILED


def test_step_that_is_not_the_last_goes_on() -> None:
    machine = in_state(SaslState.AUTHENTICATE)
    assert machine.advance(Continue(b"challenge")) == 0
    assert machine.state is SaslState.AUTHENTICATE
    assert machine.username is None


@for_each(
    [
        (0, None, 0),
        (5_000, None, 5_000),
        (0, 7_000, 7_000),
        (5_000, 7_000, 5_000),
        (5_000, 3_000, 3_000),
        (0, -1, 0),
    ]
)
def test_session_ends_with_the_first_of_its_limits(
    max_reauth_ms: int, token_ms: int | None, lifetime_ms: int
) -> None:
    expires_at_ms = None if token_ms is None else NOW_MS + token_ms
    machine, told_ms = authenticated(max_reauth_ms, expires_at_ms, now=100.0)
    assert told_ms == lifetime_ms
    has_end = max_reauth_ms > 0 or token_ms is not None
    ends = 100.0 + lifetime_ms / 1000
    assert machine.judge_at(METADATA, ends - 0.001) is HANDLE
    # What has ended can still be renewed.
    assert machine.judge_at(HANDSHAKE, ends) is HANDLE
    assert machine.begins() is has_end
    machine, _ = authenticated(max_reauth_ms, expires_at_ms, now=100.0)
    assert machine.judge_at(METADATA, ends) is (CLOSE if has_end else HANDLE)
    assert machine.has_failed is has_end


def test_re_authentication_begins_once_a_second_at_most() -> None:
    machine, _ = authenticated(10_000)
    for now, may in ((0.0, True), (0.9, False), (1.0, True), (1.5, False), (2.0, True)):
        machine.now = now
        assert machine.begins() is may
        if may:
            machine.advance(Authenticated(b"", "alice"))
    assert machine.judge_at(HANDSHAKE, 12.0) is HANDLE
    assert machine.judge_at(HANDSHAKE, 2.5) is HANDLE  # to be told ILLEGAL_SASL_STATE


def test_somebody_else_fails() -> None:
    machine, _ = authenticated(10_000)
    assert machine.begins()
    with pytest.raises(SaslAuthenticationFailed, match=r"from User\.alice: User\.bob"):
        machine.advance(Authenticated(b"", "bob"))
    assert machine.state is SaslState.FAILED
    assert machine.username == "alice"


def test_failure_says_whether_it_was_a_re_authentication() -> None:
    machine = in_state(SaslState.AUTHENTICATE)
    assert "during authentication" in machine.failure_text(InvalidCredentialsError())
    machine, _ = authenticated(10_000)
    assert machine.begins()
    assert "during re-authentication" in machine.failure_text(InvalidCredentialsError())


# --- Tokens ------------------------------------------------------------------------------------
def authority(*, allow_unsecured: bool = False, seed: int = 1) -> TokenAuthority:
    return TokenAuthority(lambda: NOW_MS, allow_unsecured=allow_unsecured, rng=random.Random(seed))


def test_token_says_what_was_asked_for() -> None:
    issuer = authority()
    token = issuer.issue("alice", lifetime_s=60, scope="read write")
    assert issuer.check(token) == ("alice", NOW_MS + 60_000)
    assert jwt.decode(token, options={"verify_signature": False})["scope"] == "read write"
    claims = jwt.decode(issuer.issue("alice", lifetime_s=-5), options={"verify_signature": False})
    assert claims == {"sub": "alice", "iat": NOW_MS / 1_000 - 5, "exp": NOW_MS / 1_000 - 5}


FOREIGN_KEY = bytes(32)
CLAIMS = {"sub": "alice", "exp": NOW_MS / 1000 + 60}
BAD_TOKENS: dict[str, Callable[[], str]] = {
    "of another authority": lambda: authority(seed=2).issue("alice"),
    "expired": lambda: authority().issue("alice", lifetime_s=-1),
    "just expired": lambda: authority().issue("alice", lifetime_s=0),
    "changed": lambda: authority().issue("alice")[:-4] + "AAAA",
    "signed by nobody": lambda: unsecured_jws('{"sub":"alice","exp":99999999999}'),
    "signed with no key": lambda: jwt.encode(CLAIMS, FOREIGN_KEY, algorithm="HS256"),
    "signed by another algorithm": lambda: jwt.encode(CLAIMS, bytes(64), algorithm="HS512"),
    "too long": lambda: authority().issue("x" * MAX_TOKEN_BYTES),
    "empty": lambda: "",
    "no token": lambda: "a.b.c",
    "dots": lambda: "..",
}


@for_each(BAD_TOKENS)
def test_bad_token_is_refused(which: str) -> None:
    with pytest.raises(InvalidTokenError):
        authority().check(BAD_TOKENS[which]())


BAD_CLAIMS = [
    "{}",
    '{"sub":"alice"}',
    '{"exp":99999999999}',
    '{"sub":"","exp":99999999999}',
    '{"sub":7,"exp":99999999999}',
    '{"sub":"alice","exp":"99999999999"}',
    '{"sub":"alice","exp":true}',
    '{"sub":"alice","exp":NaN}',
    '{"sub":"alice","exp":Infinity}',
    '{"sub":"alice","exp":1e400}',
    '{"sub":"alice","exp":' + "9" * 400 + "}",
    '{"sub":"alice","exp":-1}',
    '{"sub":"alice","exp":99999999999,"nbf":99999999998}',
    '{"sub":"alice","exp":99999999999,"iat":99999999998}',
    '{"sub":"alice","exp":99999999999',
    "[]",
    "7",
    "[" * 5_000,
]


@for_each(BAD_CLAIMS)
def test_unsecured_token_with_bad_claims_is_refused(claims: str) -> None:
    with pytest.raises(InvalidTokenError):
        authority(allow_unsecured=True).check(unsecured_jws(claims))


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ('{"sub":"alice","exp":1}', r"has expired \(exp\)"),
        ('{"sub":"alice","exp":99999999999,"nbf":99999999998}', "not valid yet: iat or nbf"),
    ],
)
def test_token_outside_its_time_is_refused_with_the_claim(claims: str, reason: str) -> None:
    with pytest.raises(InvalidTokenError, match=reason):
        authority(allow_unsecured=True).check(unsecured_jws(claims))


def test_unsecured_token_is_taken_if_allowed_and_without_a_signature_only() -> None:
    token = unsecured_jws('{"sub":"alice","exp":99999999999,"iat":0,"scope":["a","b"]}')
    assert authority(allow_unsecured=True).check(token) == ("alice", 99999999999_000)
    with pytest.raises(InvalidTokenError):
        authority(allow_unsecured=True).check(token + "c2ln")
    signed = authority().issue("alice")
    assert authority(allow_unsecured=True).check(signed).principal == "alice"


def test_authorisation_id_must_be_the_principal() -> None:
    issuer = authority()
    token = issuer.issue("alice")

    def attempt(authzid: bytes) -> Step:
        message = oauth_token(token).replace(b"n,,", b"n,a=" + authzid + b",", 1)
        return OAuthBearerServer(issuer).evaluate(message)

    assert attempt(b"alice") == Authenticated(b"", "alice", NOW_MS + 3_600_000)
    with pytest.raises(SaslAuthenticationFailed, match=r"\(b,ob\).*\(alice\)"):
        attempt(b"b=2Cob")


def test_padded_and_extended_messages_are_read() -> None:
    issuer = authority()
    message = f"n,,\1host=here\1auth=bEaReR   {issuer.issue('alice')}\1port=9\1\1".encode()
    assert isinstance(OAuthBearerServer(issuer).evaluate(message), Authenticated)
