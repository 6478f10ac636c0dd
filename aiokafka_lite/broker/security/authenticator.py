"""The authentication of a connection as a state machine, without I/O.

After org.apache.kafka.common.security.authenticator.SaslServerAuthenticator (KIP-43, KIP-152,
KIP-368)::

    HANDSHAKE_OR_VERSIONS ─ApiVersions→ HANDSHAKE ─┐
             └──────────SaslHandshake──────────────┴→ AUTHENTICATE ─last token→ COMPLETE
                                                        │    ↑                    │
                                                        ↓    └───SaslHandshake────┤
                            FAILED ←─next request── BAD_MECHANISM ←──another's────┘

| state | requests that are handled | other requests close the connection |
|---|---|---|
| HANDSHAKE_OR_VERSIONS | ApiVersions, SaslHandshake | at once |
| HANDSHAKE | SaslHandshake | at once |
| AUTHENTICATE | SaslAuthenticate, or bare tokens after SaslHandshake v0 | after a delay |
| BAD_MECHANISM | – | after a delay |
| COMPLETE | all; SaslHandshake begins a re-authentication | at once, after expiry |

In AUTHENTICATE, ApiVersions and SaslHandshake get ILLEGAL_SASL_STATE first.

A session expires with its credential, and after `connections.max.reauth.ms`. A client whose session
expires may authenticate again once a second.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from aiokafka_lite.broker.security.mechanisms import (
    Authenticated,
    InvalidCredentialsError,
    SaslMechanism,
    SaslServer,
    Step,
)
from aiokafka_lite.errors import KafkaProtocolError, SaslAuthenticationFailed
from aiokafka_lite.protocol.messages.api_versions import ApiVersionsRequest
from aiokafka_lite.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

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
class SaslServerAuthenticator:
    """The state machine of one connection. Times are the loop's, in seconds."""

    mechanisms: Sequence[SaslMechanism]
    new_server: Callable[[SaslMechanism], SaslServer]
    max_reauth_ms: int
    state: SaslState = field(default=SaslState.HANDSHAKE_OR_VERSIONS, init=False)
    username: str | None = field(default=None, init=False)
    server: SaslServer | None = field(default=None, init=False)
    _mechanism: SaslMechanism | None = field(default=None, init=False)
    _takes_bare_tokens: bool = field(default=False, init=False)
    _expires_at: float | None = field(default=None, init=False)
    _reauthenticated_at: float | None = field(default=None, init=False)

    @property
    def expects_bare_token(self) -> bool:
        return self._takes_bare_tokens and self.state is SaslState.AUTHENTICATE

    @property
    def is_reauthenticating(self) -> bool:
        return self.username is not None and self.state is not SaslState.COMPLETE

    def judge(self, api_key: int, now: float) -> Verdict:
        if self.state is SaslState.COMPLETE:
            if self._expires_at is None or now < self._expires_at:
                return Verdict.HANDLE
            may_begin = api_key == HANDSHAKE and self._may_reauthenticate(now)
            return Verdict.HANDLE if may_begin else Verdict.CLOSE
        if api_key in HANDLED[self.state]:
            return Verdict.HANDLE
        is_exchange = self.state in (SaslState.AUTHENTICATE, SaslState.BAD_MECHANISM)
        return Verdict.FAIL if is_exchange else Verdict.CLOSE

    def _may_reauthenticate(self, now: float) -> bool:
        if self._expires_at is None:
            return False
        last = self._reauthenticated_at
        return last is None or now - last >= MIN_REAUTHENTICATION_INTERVAL_S

    def note_versions(self) -> bool:
        """Note a valid ApiVersions request. False refuses it, because it is too late."""
        if self.state is SaslState.HANDSHAKE_OR_VERSIONS:
            self._move(SaslState.HANDSHAKE)
        elif self.state is not SaslState.COMPLETE:
            self.fail()
            return False
        return True

    def takes_handshake(self, now: float) -> bool:
        """Return whether SaslHandshake is legal in this state. Fail if it never will be."""
        if self.state is SaslState.COMPLETE:
            if not self._may_reauthenticate(now):
                return False
            self._reauthenticated_at = now
            return True
        if self.state in (SaslState.HANDSHAKE_OR_VERSIONS, SaslState.HANDSHAKE):
            return True
        self.fail()
        return False

    def handshake(self, name: str, version: int) -> bool:
        """Begin an exchange. Return False, and fail, if the mechanism is not available."""
        if name not in {mechanism.value for mechanism in self.mechanisms}:
            self.fail()
            return False
        mechanism = SaslMechanism(name)
        if self.username is not None and mechanism is not self._mechanism:
            # As in Kafka, the next request reports this.
            self._move(SaslState.BAD_MECHANISM)
            return True
        self._mechanism = mechanism
        self._takes_bare_tokens = version < FIRST_WITH_SASL_AUTHENTICATE
        self.server = self.new_server(mechanism)
        self._move(SaslState.AUTHENTICATE)
        return True

    def advance(self, step: Step, now: float, wall_clock_ms: int) -> int:
        """Process the result of a token. Return the session's lifetime in ms, or 0."""
        if not isinstance(step, Authenticated):
            return 0
        if self.username is not None and step.username != self.username:
            error = SaslAuthenticationFailed(
                f"Cannot change principals during re-authentication from User.{self.username}: "
                f"User.{step.username}"
            )
            self.fail()
            raise error
        self.username, self.server = step.username, None
        lifetime_ms = self._lifetime_ms(step.expires_at_ms, wall_clock_ms)
        self._expires_at = None if lifetime_ms is None else now + lifetime_ms / MS_PER_S
        self._move(SaslState.COMPLETE)
        return lifetime_ms or 0

    def _lifetime_ms(self, credential_expires_at_ms: int | None, now_ms: int) -> int | None:
        limits = [self.max_reauth_ms] if self.max_reauth_ms > 0 else []
        if credential_expires_at_ms is not None:
            limits.append(max(0, credential_expires_at_ms - now_ms))
        return min(limits, default=None)

    def failure_text(
        self, error: SaslAuthenticationFailed | InvalidCredentialsError | KafkaProtocolError
    ) -> str:
        """Fail, and return the message for the client."""
        again = "re-authentication" if self.is_reauthenticating else "authentication"
        self.fail()
        if isinstance(error, SaslAuthenticationFailed):
            return str(error.args[0])
        return (
            f"Authentication failed during {again} due to invalid credentials with "
            f"SASL mechanism {self._mechanism}"
        )

    def fail(self) -> None:
        self.server = None
        if self.state is not SaslState.FAILED:
            self._move(SaslState.FAILED)

    def _move(self, state: SaslState) -> None:
        if state not in LEGAL_TRANSITIONS[self.state]:
            raise RuntimeError(
                f"the SASL state cannot change from {self.state.value!r} to {state.value!r}"
            )
        self.state = state
