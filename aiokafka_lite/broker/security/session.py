"""The authentication of a connection, as a state machine.

After org.apache.kafka.common.security.authenticator.SaslServerAuthenticator (KIP-43, KIP-152,
KIP-368)::

    HANDSHAKE_OR_VERSIONS ─ApiVersions→ HANDSHAKE ─┐
             └──────────SaslHandshake──────────────┴→ AUTHENTICATE ─last token→ COMPLETE
                                                        │    ↑                    │
                                                        ↓    └───SaslHandshake────┤
                            FAILED ←─next request── BAD_MECHANISM ←──another's────┘

COMPLETE handles all requests until the session expires, other states those in `HANDLED`. Another
request closes the connection: after a delay in AUTHENTICATE and BAD_MECHANISM, otherwise at once.
In AUTHENTICATE, ApiVersions and SaslHandshake get ILLEGAL_SASL_STATE first, and the tokens are bare
after SaslHandshake v0.

A session expires with its credential, and after `connections.max.reauth.ms`. A client whose session
expires may authenticate again once a second.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiokafka_lite._threads import aside
from aiokafka_lite.broker.security.mechanisms import (
    Authenticated,
    InvalidCredentialsError,
    SaslMechanism,
    SaslServer,
    Step,
)
from aiokafka_lite.errors import (
    BrokerResponseError,
    IllegalSaslStateError,
    KafkaProtocolError,
    NoError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from aiokafka_lite.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)

FIRST_WITH_SASL_AUTHENTICATE: Final = 1
MIN_REAUTHENTICATION_INTERVAL_S: Final = 1.0
MS_PER_S: Final = 1_000

API_VERSIONS: Final = ApiVersionsRequest.api_key
HANDSHAKE: Final = SaslHandshakeRequest.api_key
AUTHENTICATE: Final = SaslAuthenticateRequest.api_key


class SaslState(enum.Enum):
    HANDSHAKE_OR_VERSIONS = "handshake or versions"
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    COMPLETE = "complete"
    BAD_MECHANISM = "bad mechanism"
    FAILED = "failed"


LEGAL_TRANSITIONS: Final[Mapping[SaslState, Set[SaslState]]] = {
    SaslState.HANDSHAKE_OR_VERSIONS: {
        SaslState.HANDSHAKE,
        SaslState.AUTHENTICATE,
        SaslState.FAILED,
    },
    SaslState.HANDSHAKE: {SaslState.AUTHENTICATE, SaslState.FAILED},
    SaslState.AUTHENTICATE: {SaslState.COMPLETE, SaslState.FAILED},
    SaslState.COMPLETE: {SaslState.AUTHENTICATE, SaslState.BAD_MECHANISM, SaslState.FAILED},
    SaslState.BAD_MECHANISM: {SaslState.FAILED},
    SaslState.FAILED: set(),
}

HANDLED: Final[Mapping[SaslState, Set[int]]] = {
    SaslState.HANDSHAKE_OR_VERSIONS: {API_VERSIONS, HANDSHAKE},
    SaslState.HANDSHAKE: {HANDSHAKE},
    SaslState.AUTHENTICATE: {API_VERSIONS, HANDSHAKE, AUTHENTICATE},
    SaslState.BAD_MECHANISM: set(),
    SaslState.FAILED: set(),
}


class Verdict(enum.Enum):
    HANDLE = "handle"
    FAIL = "fail"  # close after the delay of failed authentications
    CLOSE = "close"


@dataclass(eq=False)
class SaslSession:
    """The SASL side of one connection. The connection calls `judge` before each request.

    Once `has_failed`, it sends its response after a delay, which slows down guessing, and closes.
    """

    mechanisms: Sequence[SaslMechanism]
    new_server: Callable[[SaslMechanism], SaslServer]
    max_reauth_ms: int
    timeout_s: float
    loop: asyncio.AbstractEventLoop
    clock: Callable[[], int]
    state: SaslState = field(default=SaslState.HANDSHAKE_OR_VERSIONS, init=False)
    username: str | None = field(default=None, init=False)
    _server: SaslServer | None = field(default=None, init=False)
    _mechanism: SaslMechanism | None = field(default=None, init=False)
    _takes_bare_tokens: bool = field(default=False, init=False)
    _expires_at: float | None = field(default=None, init=False)
    _reauthenticated_at: float | None = field(default=None, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    @property
    def expects_bare_token(self) -> bool:
        return self._takes_bare_tokens and self.state is SaslState.AUTHENTICATE

    @property
    def has_failed(self) -> bool:
        return self.state is SaslState.FAILED

    def opened(self, overdue: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(self.timeout_s, overdue)

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def judge(self, api_key: int) -> Verdict:
        """Return what to do with a request. Fail unless it is handled."""
        verdict = self._verdict(api_key)
        if verdict is not Verdict.HANDLE:
            self.fail()
        return verdict

    def _verdict(self, api_key: int) -> Verdict:
        if self.state is SaslState.COMPLETE:
            if self._expires_at is None or self.loop.time() < self._expires_at:
                return Verdict.HANDLE
            may_begin = api_key == HANDSHAKE and self._may_reauthenticate()
            return Verdict.HANDLE if may_begin else Verdict.CLOSE
        if api_key in HANDLED[self.state]:
            return Verdict.HANDLE
        is_exchange = self.state in (SaslState.AUTHENTICATE, SaslState.BAD_MECHANISM)
        return Verdict.FAIL if is_exchange else Verdict.CLOSE

    def _may_reauthenticate(self) -> bool:
        if self._expires_at is None:
            return False
        last = self._reauthenticated_at
        return last is None or self.loop.time() - last >= MIN_REAUTHENTICATION_INTERVAL_S

    def note_versions(self) -> bool:
        """Note a valid ApiVersions request. False refuses it, because it is too late."""
        if self.state is SaslState.HANDSHAKE_OR_VERSIONS:
            self._move(SaslState.HANDSHAKE)
        elif self.state is not SaslState.COMPLETE:
            self.fail()
            return False
        return True

    def handshake(self, name: str, version: int) -> tuple[type[BrokerResponseError], list[str]]:
        """Begin an exchange. Return the error and the available mechanisms."""
        if not self._takes_handshake():
            return IllegalSaslStateError, []
        names = [mechanism.value for mechanism in self.mechanisms]
        if name not in names:
            self.fail()
            if self.username is not None:
                raise KafkaProtocolError(
                    "the client re-authenticates with a SASL mechanism that the listener does not "
                    "offer"
                )
            return UnsupportedSaslMechanismError, names
        mechanism = SaslMechanism(name)
        if self.username is not None and mechanism is not self._mechanism:
            # As in Kafka, the next request reports this.
            self._move(SaslState.BAD_MECHANISM)
            return NoError, names
        self._mechanism = mechanism
        self._takes_bare_tokens = version < FIRST_WITH_SASL_AUTHENTICATE
        self._server = self.new_server(mechanism)
        self._move(SaslState.AUTHENTICATE)
        return NoError, names

    def _takes_handshake(self) -> bool:
        """Return whether SaslHandshake is legal in this state. Fail if it never will be."""
        if self.state is SaslState.COMPLETE:
            if not self._may_reauthenticate():
                return False
            self._reauthenticated_at = self.loop.time()
            return True
        if self.state in (SaslState.HANDSHAKE_OR_VERSIONS, SaslState.HANDSHAKE):
            return True
        self.fail()
        return False

    async def authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        """Process a token of the client. Cancellation in the executor's work changes no state."""
        server = self._server
        if server is None:
            return no_exchange()
        evaluate = partial(server.evaluate, token)
        try:
            step = await aside(self.loop, evaluate) if server.is_slow else evaluate()
            lifetime_ms = self.advance(step)
        except (SaslAuthenticationFailed, InvalidCredentialsError, KafkaProtocolError) as error:
            return SaslAuthenticateResponse(
                error_code=SaslAuthenticationFailed.errno, error_message=self.failure_text(error)
            )
        return SaslAuthenticateResponse(
            error_message="", auth_bytes=step.token, session_lifetime_ms=lifetime_ms
        )

    def advance(self, step: Step) -> int:
        """Process the result of a token. Return the session's lifetime in ms, or 0."""
        if not isinstance(step, Authenticated):
            return 0
        if self.username is not None and step.username != self.username:
            self.fail()
            raise SaslAuthenticationFailed(
                f"Cannot change principals during re-authentication from User.{self.username}: "
                f"User.{step.username}"
            )
        self.username, self._server = step.username, None
        lifetime_ms = self._lifetime_ms(step.expires_at_ms)
        self._expires_at = None
        if lifetime_ms is not None:
            self._expires_at = self.loop.time() + lifetime_ms / MS_PER_S
        self._move(SaslState.COMPLETE)
        self.closed()
        return lifetime_ms or 0

    def _lifetime_ms(self, credential_expires_at_ms: int | None) -> int | None:
        limits = [self.max_reauth_ms] if self.max_reauth_ms > 0 else []
        if credential_expires_at_ms is not None:
            limits.append(max(0, credential_expires_at_ms - self.clock()))
        return min(limits, default=None)

    def failure_text(
        self, error: SaslAuthenticationFailed | InvalidCredentialsError | KafkaProtocolError
    ) -> str:
        """Fail, and return the message for the client."""
        again = "authentication" if self.username is None else "re-authentication"
        self.fail()
        if isinstance(error, SaslAuthenticationFailed):
            return str(error.args[0])
        return (
            f"Authentication failed during {again} due to invalid credentials with "
            f"SASL mechanism {self._mechanism}"
        )

    def fail(self) -> None:
        self._server = None
        if self.state is not SaslState.FAILED:
            self._move(SaslState.FAILED)

    def _move(self, state: SaslState) -> None:
        if state not in LEGAL_TRANSITIONS[self.state]:
            raise RuntimeError(
                f"the SASL state cannot change from {self.state.value!r} to {state.value!r}"
            )
        self.state = state


def no_exchange() -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=IllegalSaslStateError.errno,
        error_message="SaslAuthenticate request received after successful authentication",
    )
