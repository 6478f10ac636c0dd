"""SASL authentication over Kafka's own requests.

    SaslHandshake(mechanism)  →  SaslAuthenticate(token), as often as the mechanism needs

Mechanisms are generators without I/O that yield tokens and are sent the broker's challenges.
References: KIP-43, KIP-84 (SCRAM), KIP-152, KIP-255 and KIP-342 (OAUTHBEARER), KIP-368; RFC 4616,
RFC 5802, RFC 7628.
"""

from __future__ import annotations

import base64
import hmac
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from traceback import walk_tb
from typing import Final, Protocol, TypeVar

from aiokafka_lite._chance import UNSEEDED
from aiokafka_lite._compat import may_be_cancelled, override
from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.client.wire import UnansweredCredentialsError
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    NoError,
    UnsupportedSaslMechanismError,
    for_code,
)
from aiokafka_lite.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.sasl import Secret, scram

R = TypeVar("R", bound=Response)

NONCE_BYTES: Final = 18
MAX_TOKEN_BYTES: Final = 64 << 10
MAX_TOKENS: Final = 8  # the longest conversation has three
MAX_TEXT_CHARACTERS: Final = 300
MAX_NAMES: Final = 20

_TOKEN: Final = re.compile(rb"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750, section 2.1
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
# Characters that end lines, move a terminal's cursor, or reorder text.
_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+"
)
_MECHANISM_NAME: Final = re.compile(r"[A-Z0-9_-]{1,20}")  # RFC 4422, section 3.1


class Peer(Protocol):
    @property
    def peer(self) -> str: ...

    async def request(self, request: Request[R], *, timeout_s: float) -> R: ...


class Mechanism(ABC):
    """A SASL mechanism with its credentials."""

    name: str

    @abstractmethod
    def converse(self, secrets: list[Secret]) -> AsyncGenerator[bytes, bytes]:
        """Yield tokens, each after the broker's challenge. `secrets` gets texts to hide."""


class Plain(Mechanism):
    """User name and password in plain text (RFC 4616): for connections with TLS."""

    name = "PLAIN"

    def __init__(self, username: str, password: Secret) -> None:
        if "\0" in username or b"\0" in password.reveal():
            raise KafkaConfigurationError(
                "SASL PLAIN cannot transmit a NUL character in a user name or password"
            )
        self._username = username
        self._password = password

    @override
    async def converse(self, secrets: list[Secret]) -> AsyncGenerator[bytes, bytes]:
        secrets.append(self._password)
        yield b"\0".join((b"", self._username.encode(), self._password.reveal()))


class Scram(Mechanism):
    """SCRAM-SHA-256 and SCRAM-SHA-512, which do not reveal the password to the broker."""

    def __init__(
        self,
        mechanism: scram.ScramMechanism,
        username: str,
        password: Secret,
        *,
        nonce: Callable[[int], bytes] = UNSEEDED.unguessable_bytes,
    ) -> None:
        self.name = mechanism.mechanism_name
        self._mechanism = mechanism
        self._username = username
        self._password = password
        self._nonce = nonce

    @override
    async def converse(self, secrets: list[Secret]) -> AsyncGenerator[bytes, bytes]:
        secrets.append(self._password)
        first = scram.ClientFirst(self._username, base64.b64encode(self._nonce(NONCE_BYTES)))
        challenge = yield first.encode()
        proof, signature = await self._prove(first, challenge)
        final = scram.ServerFinal.parse((yield proof))
        if final.error:
            reason = printable(final.error, secrets)
            raise AuthenticationFailedError(
                "the broker rejects the SCRAM proof, so the user name or password is wrong: "
                f"{reason}"
            )
        if not hmac.compare_digest(final.signature, signature):
            raise AuthenticationFailedError(
                "the broker's SCRAM signature is wrong, so the broker has not proved that it knows "
                "the password"
            )

    async def _prove(self, first: scram.ClientFirst, challenge: bytes) -> tuple[bytes, bytes]:
        """Return the client's proof, and the proof that is expected from the broker."""
        from aiokafka_lite._threads import compute  # here: parsing credentials needs no asyncio

        asked = scram.ServerFirst.parse(challenge)
        if not asked.nonce.startswith(first.nonce) or len(asked.nonce) == len(first.nonce):
            raise AuthenticationFailedError(
                "the broker's SCRAM nonce is invalid, because it does not extend the client's nonce"
            )
        if not scram.MIN_ITERATIONS <= asked.iterations <= scram.MAX_ITERATIONS:
            raise AuthenticationFailedError(
                f"the broker requests {asked.iterations} SCRAM iterations, but the client accepts "
                f"only {scram.MIN_ITERATIONS} to {scram.MAX_ITERATIONS}"
            )
        final = scram.ClientFinal.unproven(scram.NO_CHANNEL_BINDING, asked.nonce)
        message = scram.auth_message(first, challenge, final)

        def hashing() -> bytes:  # a partial's repr would show the password
            password = self._password.reveal()
            return scram.salted_password(self._mechanism, password, asked.salt, asked.iterations)

        salted = await compute(hashing)
        key = scram.server_key(self._mechanism, salted)
        proof = scram.client_proof(self._mechanism, salted, message)
        signature = scram.signature(self._mechanism, key, message)
        return final._replace(proof=proof).encode(), signature


class OAuthBearer(Mechanism):
    """A token of an OAuth server (RFC 7628). Each connection requests one from the provider."""

    name = "OAUTHBEARER"

    def __init__(self, provider: AbstractTokenProvider) -> None:
        self._provider = provider

    @override
    async def converse(self, secrets: list[Secret]) -> AsyncGenerator[bytes, bytes]:
        challenge = yield await self._ask_provider(secrets)
        while challenge:  # an error's details; the error itself follows after \x01
            challenge = yield b"\x01"

    async def _ask_provider(self, secrets: list[Secret]) -> bytes:
        import asyncio  # here: parsing credentials does not need it

        is_given = False
        try:
            given: object = await self._provider.token()
            offered = self._provider.extensions()
            is_given = True
            extensions = dict(offered)
        except (asyncio.CancelledError, Exception) as error:  # the application's code
            if isinstance(error, asyncio.CancelledError):
                # Otherwise it is the provider's own, such as of a task that its callers share.
                if may_be_cancelled(asyncio.current_task()):
                    raise
                may_pass = True
            else:
                may_pass = not is_given and (not isinstance(error, KafkaError) or error.retriable)
            failure = f"{type(error).__name__} at {_place(error)}"
        else:
            token = _token(given)
            secrets.append(Secret(token))
            pairs = b"".join(
                b"%b=%b\x01" % (name.encode(), value.encode())
                for name, value in _checked(extensions).items()
            )
            return b"n,,\x01auth=Bearer %b\x01%b\x01" % (token, pairs)
        # Without its text and cause, which may contain secrets.
        kind = TokenUnavailableError if may_pass else AuthenticationFailedError
        raise kind(f"the token provider raised {failure}")


class TokenUnavailableError(AuthenticationFailedError):
    """The provider has no token now, and may have one later."""

    retriable = True


def _token(given: object) -> bytes:
    """Return a provider's bearer token. An invalid one is described only by its size."""
    if not isinstance(given, str):
        raise AuthenticationFailedError(
            f"the token provider returned an object of type {type(given).__name__}: token() "
            "must return a str"
        )
    if len(given) > MAX_TOKEN_BYTES:
        raise AuthenticationFailedError(
            f"the token provider returned a token of {len(given)} characters, but the limit is "
            f"{MAX_TOKEN_BYTES}"
        )
    token = given.encode(errors="replace")
    if not _TOKEN.fullmatch(token):
        raise AuthenticationFailedError(
            f"the token provider returned a str of {len(token)} bytes that is not a bearer token: "
            "RFC 6750 allows letters, digits and -._~+/, and = at the end"
        )
    return token


def _place(error: BaseException) -> str:
    *_, (frame, line) = walk_tb(error.__traceback__)
    return f"{Path(frame.f_code.co_filename).name}:{line}"


def _checked(extensions: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in extensions.items():
        if not all(isinstance(each, str) for each in (name, value)):
            raise KafkaConfigurationError("names and values of SASL extensions must be str")
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name):
            raise KafkaConfigurationError(
                f"a SASL extension cannot have the name {name!r}: a name must consist of letters, "
                "and 'auth' is reserved"
            )
        if not _EXTENSION_VALUE.fullmatch(value):
            raise KafkaConfigurationError(
                f"the value of SASL extension {name!r} is empty or contains characters other "
                "than printable ASCII"
            )
    return extensions


def mechanism_of(
    name: str,
    *,
    username: str | None = None,
    password: str | None = None,
    token_provider: AbstractTokenProvider | None = None,
    nonce: Callable[[int], bytes] = UNSEEDED.unguessable_bytes,
) -> Mechanism:
    if name == OAuthBearer.name:
        if token_provider is None:
            raise KafkaConfigurationError(f"SASL mechanism {name} needs a token provider")
        return OAuthBearer(token_provider)
    if name != Plain.name and name not in scram.BY_NAME:
        raise KafkaConfigurationError(
            f"SASL mechanism {name} is not supported: use "
            f"{', '.join([Plain.name, *scram.BY_NAME])} or {OAuthBearer.name}"
        )
    if username is None or password is None:
        raise KafkaConfigurationError(f"SASL mechanism {name} needs a user name and a password")
    if name == Plain.name:
        return Plain(username, Secret(password))
    return Scram(scram.BY_NAME[name], username, Secret(password), nonce=nonce)


class Authenticator:
    def __init__(self, mechanism: Mechanism, *, timeout_s: float) -> None:
        self._mechanism = mechanism
        self._timeout_s = timeout_s

    async def __call__(self, connection: Peer) -> float:
        """Authenticate. Return the seconds until the session ends, 0 if it does not."""
        await self._choose(connection)
        secrets: list[Secret] = []
        async with aclosing(self._mechanism.converse(secrets)) as conversation:
            # Not in a variable, because error reports show the variables of each frame.
            request = SaslAuthenticateRequest(auth_bytes=await anext(conversation))
            for _ in range(MAX_TOKENS):
                answer = await self._ask(connection, request, secrets)
                try:
                    token = await conversation.asend(bytes(answer.auth_bytes))
                except StopAsyncIteration:
                    return max(0, answer.session_lifetime_ms) / 1000
                except (AuthenticationFailedError, KafkaProtocolError) as error:
                    raise AuthenticationFailedError(
                        f"{connection.peer} is not trusted: {error.args[0]}"
                    ) from error
                request = SaslAuthenticateRequest(auth_bytes=token)
        raise KafkaProtocolError(
            f"{connection.peer} did not complete SASL authentication within {MAX_TOKENS} requests"
        )

    async def _ask(
        self, connection: Peer, request: SaslAuthenticateRequest, secrets: Sequence[Secret]
    ) -> SaslAuthenticateResponse:
        try:
            answer = await connection.request(request, timeout_s=self._timeout_s)
        except KafkaConnectionError as error:
            raise UnansweredCredentialsError(
                f"{connection.peer} closed the connection during {self._mechanism.name} "
                "authentication. Some brokers close the connection when they reject "
                "credentials: check the credentials"
            ) from error
        if answer.error_code != NoError.errno:
            reason = printable(answer.error_message or "", secrets)
            raise self._refusal(connection, reason or for_code(answer.error_code).__name__)
        return answer

    async def _choose(self, connection: Peer) -> None:
        name = self._mechanism.name
        request = SaslHandshakeRequest(mechanism=name)
        answer = await connection.request(request, timeout_s=self._timeout_s)
        if answer.error_code == UnsupportedSaslMechanismError.errno:
            offered = [one for one in answer.mechanisms if _MECHANISM_NAME.fullmatch(one)]
            raise AuthenticationMethodNotSupported(
                f"sasl_mechanism is {name}, but {connection.peer} offers "
                f"{', '.join(offered[:MAX_NAMES]) or 'no mechanism'}"
            )
        if answer.error_code == IllegalSaslStateError.errno:
            raise AuthenticationFailedError(
                f"this listener of {connection.peer} does not use SASL: set security_protocol to "
                "PLAINTEXT or SSL"
            )
        if answer.error_code != NoError.errno:
            raise self._refusal(connection, for_code(answer.error_code).__name__)

    def _refusal(self, connection: Peer, reason: str) -> AuthenticationFailedError:
        return AuthenticationFailedError(
            f"{connection.peer} refuses {self._mechanism.name} authentication: {reason}"
        )


def printable(text: str, secrets: Sequence[Secret]) -> str:
    """Make a broker's text fit one line of a log, without our secrets."""
    for secret in secrets:
        if secret:
            text = text.replace(secret.reveal().decode(errors="replace"), repr(secret))
    return _CONTROL.sub(" ", text)[:MAX_TEXT_CHARACTERS].strip()
