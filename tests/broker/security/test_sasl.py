"""What a client of a SASL listener is told, in order and out of it; long form: by Kafka too."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    IllegalSaslStateError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from aiokafka_lite.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    ScramCredentialUpsertion,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.sasl import scram
from aiokafka_lite.sasl.scram import ClientFinal, ClientFirst, ScramMechanism, ServerFirst
from tests.broker.wire import eventually, until_closed
from tests.support.frames import correlation_id_of
from tests.support.real_kafka import KafkaUnavailableError
from tests.support.required import unavailable
from tests.support.sasl_client import (
    ChangeFinal,
    handshake,
    log_in,
    oauth_token,
    plain_token,
    scram_log_in,
    send_token,
    unsecured_jws,
)
from tests.support.sasl_kafka import MECHANISMS, SESSION_MS, SaslKafka
from tests.support.wire import R, RawClient

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
SCRAM_USERS = {"carol": "carol-secret"}
METADATA = MetadataRequest(topics=[])
VERSIONS = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")
GENERIC = "Authentication failed during {} due to invalid credentials with SASL mechanism {}"


class SaslHandle(NamedTuple):
    """Where to connect."""

    plain: str
    sasl: str
    short: str


async def add_scram_users(address: str) -> None:
    upsertions = [
        ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism.code,
            iterations=4096,
            salt=b"salt",
            salted_password=scram.salted_password(mechanism, password.encode(), b"salt", 4096),
        )
        for name, password in SCRAM_USERS.items()
        for mechanism in ScramMechanism
    ]
    async with RawClient(address) as client:
        for upsertion in upsertions:  # a user may be in a request once
            await client.request(AlterUserScramCredentialsRequest(upsertions=[upsertion]))


async def until_scram_works(address: str) -> None:
    for _ in range(100):  # a real broker learns of users a little later
        async with RawClient(address) as client:
            if not (await scram_log_in(client, "carol", SCRAM_USERS["carol"])).error_code:
                return
    raise TimeoutError("the user does not arrive")


@pytest.fixture(scope="module")
def sasl_kafka() -> Iterator[SaslKafka]:
    try:
        kafka = SaslKafka(USERS)
    except KafkaUnavailableError as error:
        unavailable(error)
    with kafka:
        yield kafka


@pytest.fixture(
    params=["embedded", pytest.param("real", marks=[pytest.mark.slow, pytest.mark.real_kafka])]
)
async def listeners(request: pytest.FixtureRequest) -> AsyncIterator[SaslHandle]:
    if request.param == "real":
        real: SaslKafka = request.getfixturevalue("sasl_kafka")
        await add_scram_users(real.bootstrap_servers)
        await until_scram_works(real.sasl_servers)
        yield SaslHandle(real.bootstrap_servers, real.sasl_servers, real.short_servers)
        return
    async with sasl_broker() as broker, sasl_broker(SESSION_MS) as short, Broker() as plain:
        yield SaslHandle(plain.bootstrap_servers, broker.bootstrap_servers, short.bootstrap_servers)
        assert broker.failure is short.failure is plain.failure is None


def sasl_broker(session_ms: int = 0, *, delay_ms: int = 10, timeout_s: float = 30) -> Broker:
    return Broker(
        security_protocol="SASL_PLAINTEXT",
        users={**USERS, **SCRAM_USERS},
        sasl_mechanisms=MECHANISMS,
        oauth_allow_unsecured_tokens=True,
        connections_max_reauth_ms=session_ms,
        connection_failed_authentication_delay_ms=delay_ms,
        sasl_authentication_timeout_s=timeout_s,
    )


# --- In order ----------------------------------------------------------------------------------
@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_scram_lets_in_who_knows_the_password(
    listeners: SaslHandle, mechanism: ScramMechanism
) -> None:
    async with RawClient(listeners.sasl) as client:
        answer = await scram_log_in(client, "carol", SCRAM_USERS["carol"], mechanism)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        assert (await client.request(METADATA)).brokers


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_scram_keeps_out_who_does_not(
    listeners: SaslHandle, mechanism: ScramMechanism
) -> None:
    async with RawClient(listeners.sasl) as client:
        answer = await scram_log_in(client, "carol", "wrong", mechanism)
        assert answer.error_code == SaslAuthenticationFailed.errno
        assert answer.error_message == GENERIC.format("authentication", mechanism.mechanism_name)
        await until_closed(client)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_plain_lets_in_who_knows_the_password(listeners: SaslHandle, version: int) -> None:
    async with RawClient(listeners.sasl) as client:
        assert (await client.request(VERSIONS, 3)).error_code == 0
        chosen = await handshake(client, "PLAIN")
        assert sorted(chosen.mechanisms) == sorted(MECHANISMS)
        answer = await send_token(client, plain_token("alice", USERS["alice"]), version)
        assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"")
        assert (await client.request(METADATA)).brokers


async def bare_exchange(client: RawClient, token: bytes) -> bytes:
    return bytes(await client.exchange(len(token).to_bytes(4, "big") + token))


async def test_tokens_are_bare_after_the_oldest_handshake(listeners: SaslHandle) -> None:
    async with RawClient(listeners.sasl) as client:
        assert (await handshake(client, "PLAIN", 0)).error_code == 0
        assert await bare_exchange(client, plain_token("alice", USERS["alice"])) == b""
        assert (await client.request(METADATA)).brokers
    async with RawClient(listeners.sasl) as client:
        await handshake(client, "SCRAM-SHA-256", 0)
        challenge = await bare_exchange(client, ClientFirst("carol", b"nonce").encode())
        assert ServerFirst.parse(challenge).nonce.startswith(b"nonce")


async def test_wrong_bare_token_closes_without_an_answer(listeners: SaslHandle) -> None:
    async with RawClient(listeners.sasl) as client:
        await handshake(client, "PLAIN", 0)
        token = plain_token("alice", "wrong")
        await client.send(len(token).to_bytes(4, "big") + token)
        await until_closed(client)


async def test_unsecured_token_lets_in_until_it_expires(listeners: SaslHandle) -> None:
    claims = f'{{"sub":"dave","exp":{time.time() + 60}}}'
    async with RawClient(listeners.sasl) as client:
        await handshake(client, "OAUTHBEARER")
        answer = await send_token(client, oauth_token(unsecured_jws(claims)))
        assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"")
        assert 1_000 < answer.session_lifetime_ms <= 60_000
        assert (await client.request(METADATA)).brokers


# --- Refused -----------------------------------------------------------------------------------
@pytest.mark.parametrize("version", [0, 1])
async def test_mechanism_that_is_not_on_offer_is_told_which_are(
    listeners: SaslHandle, version: int
) -> None:
    async with RawClient(listeners.sasl) as client:
        answer = await handshake(client, "GSSAPI", version)
        assert answer.error_code == UnsupportedSaslMechanismError.errno
        assert sorted(answer.mechanisms) == sorted(MECHANISMS)
        await until_closed(client)


WRONG_PLAIN = {
    b"": "Invalid SASL/PLAIN response: expected 3 tokens, got 1",
    b"alice\0alice-secret": "Invalid SASL/PLAIN response: expected 3 tokens, got 2",
    b"a\0b\0c\0d\0e": "Invalid SASL/PLAIN response: expected 3 tokens, got 4",
    b"\0\0secret": "Authentication failed: username not specified",
    b"\0alice\0": "Authentication failed: password not specified",
    b"\0alice\0wrong": "Authentication failed: Invalid username or password",
    b"\0nobody\0wrong": "Authentication failed: Invalid username or password",
    b"\xff\xfe\0\xff\0\xff": "Authentication failed: Invalid username or password",
    b"bob\0alice\0alice-secret": "Authentication failed: Client requested an authorization id "
    "that is different from username",
}


@pytest.mark.parametrize("token", WRONG_PLAIN)
async def test_wrong_plain_token_is_told_why(listeners: SaslHandle, token: bytes) -> None:
    async with RawClient(listeners.sasl) as client:
        await handshake(client, "PLAIN")
        answer = await send_token(client, token)
        assert answer.error_code == SaslAuthenticationFailed.errno
        assert answer.error_message == WRONG_PLAIN[token]
        await until_closed(client)


MALFORMED = {
    "SCRAM-SHA-256": [b"", b"\0", b"n,,n=carol", b"y,,n=carol,r=abc"],
    "OAUTHBEARER": [
        b"",
        b"\1",
        b"n,,\1auth=Bearer a b\1\1",
        b"n,,\1host=here\1\1",
        b"n,,\1auth=Bearer abc\1",
        b"y,,\1auth=Bearer abc\1\1",
    ],
}


@pytest.mark.parametrize(
    ("mechanism", "token"), [(name, each) for name, tokens in MALFORMED.items() for each in tokens]
)
async def test_malformed_token_is_refused_without_details(
    listeners: SaslHandle, mechanism: str, token: bytes
) -> None:
    await token_is_refused(listeners.sasl, mechanism, token)


async def token_is_refused(address: str, mechanism: str, token: bytes) -> None:
    async with RawClient(address) as client:
        await handshake(client, mechanism)
        answer = await send_token(client, token)
        assert answer.error_code == SaslAuthenticationFailed.errno
        assert answer.error_message == GENERIC.format("authentication", mechanism)
        await until_closed(client)


def shorter_nonce(final: ClientFinal) -> ClientFinal:
    return with_nonce(final, final.nonce[24:])


def with_nonce(final: ClientFinal, nonce: bytes) -> ClientFinal:
    return final._replace(without_proof=b"c=biws,r=" + nonce)


WRONG_FINALS: dict[str, ChangeFinal] = {
    "only the broker's nonce (CVE-2024-56128)": shorter_nonce,
    "another nonce": lambda final: with_nonce(final, b"x" * len(final.nonce)),
    "a nonce with something before it": lambda final: with_nonce(final, b"x" + final.nonce),
    "a nonce with something behind it": lambda final: with_nonce(final, final.nonce + b"x"),
    "another channel binding": lambda final: final._replace(
        without_proof=b"c=eSws,r=" + final.nonce
    ),
    "no proof but zeros": lambda final: final._replace(proof=bytes(len(final.proof))),
}


@pytest.mark.parametrize("wrong", WRONG_FINALS)
async def test_final_message_of_scram_must_be_of_this_exchange(
    listeners: SaslHandle, wrong: str
) -> None:
    await final_is_refused(listeners.sasl, WRONG_FINALS[wrong])


async def final_is_refused(address: str, change: ChangeFinal) -> None:
    async with RawClient(address) as client:
        answer = await scram_log_in(client, "carol", SCRAM_USERS["carol"], change=change)
        assert answer.error_code == SaslAuthenticationFailed.errno
        assert answer.error_message == GENERIC.format("authentication", "SCRAM-SHA-256")
        await until_closed(client)


WRONG_CLAIMS = {
    "expired": '{"sub":"dave","exp":1}',
    "no end": '{"sub":"dave"}',
    "an end that is no number": '{"sub":"dave","exp":"tomorrow"}',
    "nobody": '{"exp":99999999999}',
    "no object": '"dave"',
}


@pytest.mark.parametrize("wrong", WRONG_CLAIMS)
async def test_invalid_token_is_told_so_and_the_client_confirms(
    listeners: SaslHandle, wrong: str
) -> None:
    async with RawClient(listeners.sasl) as client:
        await handshake(client, "OAUTHBEARER")
        token = oauth_token(unsecured_jws(WRONG_CLAIMS[wrong]))
        answer = await send_token(client, token)
        assert answer.error_code == 0
        assert bytes(answer.auth_bytes) == b'{"status":"invalid_token"}'
        answer = await send_token(client, b"\1")
        assert answer.error_code == SaslAuthenticationFailed.errno
        assert answer.error_message == '{"status":"invalid_token"}'
        await until_closed(client)


# --- Out of order ------------------------------------------------------------------------------
HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")
TOKEN = SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret")
CLOSING: dict[str, list[Request[Response]]] = {
    "metadata first": [METADATA],
    "metadata after versions": [VERSIONS, METADATA],
    "token first": [TOKEN],
    "token after versions": [VERSIONS, TOKEN],
    "versions twice": [VERSIONS, VERSIONS],
}


def version_of(request: Request[R]) -> int:
    """Return the newest version that Kafka 4.3 has, too."""
    return 4 if isinstance(request, ApiVersionsRequest) else type(request).max_version


@pytest.mark.parametrize("order", CLOSING)
async def test_request_before_its_turn_closes_the_connection(
    listeners: SaslHandle, order: str
) -> None:
    *before, last = CLOSING[order]
    async with RawClient(listeners.sasl) as client:
        for request in before:
            await client.request(request, version_of(request))
        await client.send(framing.encode_request(last, version_of(last), 9, "raw"))
        await until_closed(client)


@pytest.mark.parametrize("request_", [HANDSHAKE, VERSIONS], ids=["handshake", "versions"])
async def test_another_request_amid_an_exchange_is_an_illegal_state(
    listeners: SaslHandle, request_: Request[SaslHandshakeResponse | ApiVersionsResponse]
) -> None:
    async with RawClient(listeners.sasl) as client:
        await handshake(client, "PLAIN")
        answer = await client.request(request_, version_of(request_))
        assert answer.error_code == IllegalSaslStateError.errno
        await until_closed(client)


async def test_versions_may_be_asked_again_in_proper_form(listeners: SaslHandle) -> None:
    improper = ApiVersionsRequest(client_software_name="", client_software_version="1.0")
    async with RawClient(listeners.sasl) as client:
        assert (await client.request(improper, 3)).error_code != 0
        assert (await client.request(VERSIONS, 3)).error_code == 0
        assert (await log_in(client, "alice", USERS["alice"])).error_code == 0


async def test_who_is_authenticated_already_may_not_do_it_again(listeners: SaslHandle) -> None:
    async with RawClient(listeners.sasl) as client:
        await log_in(client, "alice", USERS["alice"])
        await is_told_that_it_is_authenticated(client)


async def test_nobody_authenticates_on_a_listener_without_sasl(listeners: SaslHandle) -> None:
    async with RawClient(listeners.plain) as client:
        await is_told_that_it_is_authenticated(client)


async def is_told_that_it_is_authenticated(client: RawClient) -> None:
    chosen = await handshake(client, "PLAIN")
    assert (chosen.error_code, chosen.mechanisms) == (IllegalSaslStateError.errno, [])
    answer = await send_token(client, plain_token("alice", USERS["alice"]))
    assert answer.error_code == IllegalSaslStateError.errno
    assert answer.error_message == (
        "SaslAuthenticate request received after successful authentication"
    )
    assert (await client.request(METADATA)).brokers


# --- Again (KIP-368) ---------------------------------------------------------------------------
async def test_session_goes_on_for_who_authenticates_again(listeners: SaslHandle) -> None:
    async with RawClient(listeners.short) as client:
        assert (await log_in(client, "alice", USERS["alice"])).session_lifetime_ms == SESSION_MS
        assert (await client.request(METADATA)).brokers
        assert (await log_in(client, "alice", USERS["alice"])).session_lifetime_ms == SESSION_MS
        # Once a second is often enough.
        assert (await handshake(client, "PLAIN")).error_code == IllegalSaslStateError.errno
        assert (await client.request(METADATA)).brokers


async def test_nobody_becomes_somebody_else(listeners: SaslHandle) -> None:
    async with RawClient(listeners.short) as client:
        await log_in(client, "alice", USERS["alice"])
        answer = await log_in(client, "bob", USERS["bob"])
        assert answer.error_code == SaslAuthenticationFailed.errno
        assert answer.error_message == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        await until_closed(client)


async def test_wrong_password_ends_the_session(listeners: SaslHandle) -> None:
    async with RawClient(listeners.short) as client:
        await log_in(client, "alice", USERS["alice"])
        answer = await log_in(client, "alice", "wrong")
        assert answer.error_code == SaslAuthenticationFailed.errno
        await until_closed(client)


async def test_another_mechanism_ends_the_session_with_the_next_request(
    listeners: SaslHandle,
) -> None:
    async with RawClient(listeners.short) as client:
        await log_in(client, "alice", USERS["alice"])
        assert (await handshake(client, "SCRAM-SHA-256")).error_code == 0
        token = SaslAuthenticateRequest(auth_bytes=ClientFirst("alice", b"abc").encode())
        await client.send(framing.encode_request(token, 2, 9, "raw"))
        await until_closed(client)


async def test_mechanism_that_is_not_on_offer_ends_the_session_at_once(
    listeners: SaslHandle,
) -> None:
    async with RawClient(listeners.short) as client:
        await log_in(client, "alice", USERS["alice"])
        request = SaslHandshakeRequest(mechanism="GSSAPI")
        await client.send(framing.encode_request(request, 1, 9, "raw"))
        await until_closed(client)


async def test_request_after_the_end_of_the_session_closes_the_connection(
    listeners: SaslHandle,
) -> None:
    async with RawClient(listeners.short) as late, RawClient(listeners.short) as again:
        for client in (late, again):
            await log_in(client, "alice", USERS["alice"])
        await asyncio.sleep(SESSION_MS / 1000 + 0.1)
        await late.send(framing.encode_request(METADATA, 12, 9, "raw"))
        await until_closed(late)
        # The session is over, but may still be renewed.
        assert (await log_in(again, "alice", USERS["alice"])).session_lifetime_ms == SESSION_MS
        assert (await again.request(METADATA)).brokers


# --- What only the embedded broker can be asked for --------------------------------------------
async def test_token_of_the_broker_lets_in_and_its_end_ends_the_session() -> None:
    async with sasl_broker() as broker:
        signed = broker.oauth_token("dave", lifetime_s=30, scope="read")
        expired = broker.oauth_token("dave", lifetime_s=-1)
        async with RawClient(broker.bootstrap_servers) as client:
            await handshake(client, "OAUTHBEARER")
            answer = await send_token(client, oauth_token(signed))
            assert answer.error_code == 0
            assert 1_000 < answer.session_lifetime_ms <= 30_000
            assert (await client.request(METADATA)).brokers
        async with RawClient(broker.bootstrap_servers) as client:
            await handshake(client, "OAUTHBEARER")
            answer = await send_token(client, oauth_token(expired))
            assert bytes(answer.auth_bytes) == b'{"status":"invalid_token"}'
            # Unlike Kafka's, ours takes no second token.
            answer = await send_token(client, oauth_token(signed))
            assert answer.error_code == SaslAuthenticationFailed.errno
            await until_closed(client)


async def test_unknown_user_is_challenged_like_a_known_one() -> None:
    async with sasl_broker() as broker:
        salts = []
        for _ in range(2):
            async with RawClient(broker.bootstrap_servers) as client:
                await handshake(client, "SCRAM-SHA-256")
                answer = await send_token(client, ClientFirst("nobody", b"abc").encode())
                salts.append(ServerFirst.parse(bytes(answer.auth_bytes)).salt)
        assert salts[0] == salts[1]
        told = []
        for name in ("nobody", "carol"):
            async with RawClient(broker.bootstrap_servers) as client:
                answer = await scram_log_in(client, name, "wrong")
                told.append((answer.error_code, answer.error_message))
        assert told[0] == told[1]


# Kafka takes the first and the third, and closes without an answer for the others.
STRICTER = {
    "SCRAM-SHA-256": b"n,,m=must-be-understood,n=carol,r=abc",
    "OAUTHBEARER": b"n,,\1auth=Basic abc\1\1",
}
STRICTER_FINALS: dict[str, ChangeFinal] = {
    "an extension that was not signed": lambda final: final._replace(
        without_proof=final.without_proof + b",x=y"
    ),
    "a proof of another length": lambda final: final._replace(proof=final.proof[:-1]),
}


async def test_what_kafka_is_lax_about_is_refused() -> None:
    async with sasl_broker() as broker:
        for mechanism, token in STRICTER.items():
            await token_is_refused(broker.bootstrap_servers, mechanism, token)
        for change in STRICTER_FINALS.values():
            await final_is_refused(broker.bootstrap_servers, change)
        assert broker.failure is None


async def test_request_amid_an_exchange_closes_the_connection() -> None:
    async with sasl_broker() as broker, RawClient(broker.bootstrap_servers) as client:
        await handshake(client, "PLAIN")
        await client.send(framing.encode_request(METADATA, 12, 9, "raw"))
        await until_closed(client)


def large_request(size: int) -> bytes:
    return framing.encode_request(METADATA, 5, 9, "x" * 30_000)[4:].ljust(size, b"\0")


async def test_large_requests_are_taken_from_authenticated_clients_only() -> None:
    frame = large_request(100 << 10)
    sized = len(frame).to_bytes(4, "big") + frame
    async with sasl_broker() as broker:
        async with RawClient(broker.bootstrap_servers) as client:
            await client.send(sized[:8])
            await until_closed(client)
        async with RawClient(broker.bootstrap_servers) as client:
            await log_in(client, "alice", USERS["alice"])
            assert correlation_id_of(await client.exchange(sized)) == 9


@pytest.mark.parametrize("size", [0, -1, 64 * 1024 + 1, 2**31 - 1])
async def test_frame_of_impossible_size_closes_the_connection(size: int) -> None:
    async with sasl_broker() as broker, RawClient(broker.bootstrap_servers) as client:
        await client.send(size.to_bytes(4, "big", signed=True))
        await until_closed(client)


async def test_client_that_takes_too_long_is_closed() -> None:
    async with sasl_broker(timeout_s=0.2) as broker:
        async with RawClient(broker.bootstrap_servers) as silent:
            await until_closed(silent)
        async with RawClient(broker.bootstrap_servers) as slow:
            await handshake(slow, "PLAIN")
            await until_closed(slow)
        async with RawClient(broker.bootstrap_servers) as client:
            await log_in(client, "alice", USERS["alice"])
            await asyncio.sleep(0.3)
            assert (await client.request(METADATA)).brokers


async def test_failure_is_told_after_a_delay() -> None:
    loop = asyncio.get_running_loop()
    async with sasl_broker(delay_ms=300) as broker:
        async with RawClient(broker.bootstrap_servers) as client:
            began = loop.time()
            assert (await log_in(client, "alice", "wrong")).error_code
            assert loop.time() - began >= 0.29
            await until_closed(client)
        async with RawClient(broker.bootstrap_servers) as client:  # gone before it is told
            await handshake(client, "PLAIN")
            token = SaslAuthenticateRequest(auth_bytes=plain_token("alice", "wrong"))
            await client.send(framing.encode_request(token, 2, 9, "raw"))
        await eventually(lambda: broker.connection_count == 0)


async def test_principal_is_who_authenticated() -> None:
    async with sasl_broker() as broker, RawClient(broker.bootstrap_servers) as client:
        await client.request(VERSIONS)
        (connection,) = broker.node.connections
        assert connection.principal == "User:ANONYMOUS"
        await log_in(client, "alice", USERS["alice"])
        assert connection.principal == "User:alice"


async def test_clients_are_served_while_passwords_are_hashed() -> None:
    async with sasl_broker() as broker:

        async def one() -> int:
            async with RawClient(broker.bootstrap_servers) as client:
                return (await log_in(client, "alice", USERS["alice"])).error_code

        assert await asyncio.gather(*(one() for _ in range(30))) == [0] * 30
        assert broker.failure is None


SECRETS = (*USERS.values(), *SCRAM_USERS.values())


async def test_no_secret_is_logged_or_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[object] = []
    async with sasl_broker() as broker:
        token = broker.oauth_token("dave")
        attempts: list[Callable[[RawClient], object]] = []
        for password in (*SECRETS, "wrong-secret"):
            async with RawClient(broker.bootstrap_servers) as client:
                await log_in(client, "alice", password)
            async with RawClient(broker.bootstrap_servers) as client:
                await scram_log_in(client, "carol", password)
        async with RawClient(broker.bootstrap_servers) as client:
            await handshake(client, "OAUTHBEARER")
            await send_token(client, oauth_token(token))
        shown += [broker.config, vars(broker.config), broker.security.credentials, attempts]
        shown += [vars(broker.security.credentials), *broker.requests]
        shown += [seen.request for seen in broker.requests]
        kept = [
            bytes(seen.request.auth_bytes)
            for seen in broker.requests
            if isinstance(seen.request, SaslAuthenticateRequest)
        ]
    assert kept
    assert not any(kept)
    text = caplog.text + repr(shown)
    for secret in (*SECRETS, "wrong-secret", token):
        assert secret not in text
