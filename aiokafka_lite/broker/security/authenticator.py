"""A connection's authentication as a state machine, without I/O.

After org.apache.kafka.common.security.authenticator.SaslServerAuthenticator (KIP-43, KIP-152,
KIP-368)::

    HANDSHAKE_OR_VERSIONS ─ApiVersions→ HANDSHAKE ─┐
             └──────────SaslHandshake──────────────┴→ AUTHENTICATE ─last token→ COMPLETE
                                                        │    ↑                    │
                                                        ↓    └───SaslHandshake────┤
                            FAILED ←─next request── BAD_MECHANISM ←──another's────┘

Which requests are let through in which state:

| state | goes on with | closes for all others |
|---|---|---|
| HANDSHAKE_OR_VERSIONS | ApiVersions, SaslHandshake | at once |
| HANDSHAKE | SaslHandshake | at once |
| AUTHENTICATE | SaslAuthenticate, or bare tokens after a SaslHandshake v0 | after a delay |
| BAD_MECHANISM | nothing | after a delay |
| COMPLETE | all; SaslHandshake begins a re-authentication | at once, when it has expired |

In AUTHENTICATE, ApiVersions and SaslHandshake are told ILLEGAL_SASL_STATE before it closes (a real
Kafka tells everybody).

A session expires with its credential, and after `connections.max.reauth.ms`. A client may
authenticate again once a second; one whose session has no end may not.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from aiokafka_lite.broker.security.mechanism import (
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
    """How far a connection is."""

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
    """What becomes of a request."""

    HANDLE = "handle"
    FAIL = "fail"  # close, but no sooner than any other failed authentication
    CLOSE = "close"


class SaslServerAuthenticator:
    """One connection's; times are the loop's, in seconds.

    Args:
        mechanisms: What is on offer, in the order clients are told of it.
        new_server: Begins an exchange.
        max_reauth_ms: Longest session, 0 for no end (`connections.max.reauth.ms`).
    """

    def __init__(
        self,
        mechanisms: Sequence[SaslMechanism],
        new_server: Callable[[SaslMechanism], SaslServer],
        max_reauth_ms: int,
    ) -> None:
        self.mechanisms = mechanisms
        self._new_server = new_server
        self._max_reauth_ms = max_reauth_ms
        self.state = SaslState.HANDSHAKE_OR_VERSIONS
        self.username: str | None = None
        self.server: SaslServer | None = None
        self._mechanism: SaslMechanism | None = None
        self._takes_bare_tokens = False
        self._expires_at: float | None = None
        self._reauthenticated_at: float | None = None

    # What may come

    @property
    def expects_bare_token(self) -> bool:
        """The next frame is a token and no request."""
        return self._takes_bare_tokens and self.state is SaslState.AUTHENTICATE

    @property
    def is_reauthenticating(self) -> bool:
        """The client was authenticated before."""
        return self.username is not None and self.state is not SaslState.COMPLETE

    def judge(self, api_key: int, now: float) -> Verdict:
        """Say what becomes of a request that arrived now."""
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

    # What came

    def versions_told(self) -> bool:
        """Note a proper ApiVersions request; False when it came too late."""
        if self.state is SaslState.HANDSHAKE_OR_VERSIONS:
            self._move(SaslState.HANDSHAKE)
        elif self.state is not SaslState.COMPLETE:
            self.fail()
            return False
        return True

    def takes_handshake(self, now: float) -> bool:
        """Say whether a SaslHandshake fits the state; fail if none can follow."""
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
        """Begin an exchange; False when the mechanism is not on offer, which fails."""
        if name not in {mechanism.value for mechanism in self.mechanisms}:
            self.fail()
            return False
        mechanism = SaslMechanism(name)
        if self.username is not None and mechanism is not self._mechanism:
            # Like Kafka, which reports this with the next request only.
            self._move(SaslState.BAD_MECHANISM)
            return True
        self._mechanism = mechanism
        self._takes_bare_tokens = version < FIRST_WITH_SASL_AUTHENTICATE
        self.server = self._new_server(mechanism)
        self._move(SaslState.AUTHENTICATE)
        return True

    def advance(self, step: Step, now: float, wall_clock_ms: int) -> int:
        """Take what the mechanism made of a token; return the session's lifetime in ms, or 0.

        Raises:
            SaslAuthenticationFailed: The client is now somebody else, which fails.
        """
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
        limits = [self._max_reauth_ms] if self._max_reauth_ms > 0 else []
        if credential_expires_at_ms is not None:
            limits.append(max(0, credential_expires_at_ms - now_ms))
        return min(limits, default=None)

    def failure_text(
        self, error: SaslAuthenticationFailed | InvalidCredentialsError | KafkaProtocolError
    ) -> str:
        """Fail, and return what the client is told of an error of the mechanism."""
        again = "re-authentication" if self.is_reauthenticating else "authentication"
        self.fail()
        if isinstance(error, SaslAuthenticationFailed):
            return str(error.args[0])
        return (
            f"Authentication failed during {again} due to invalid credentials with "
            f"SASL mechanism {self._mechanism}"
        )

    def fail(self) -> None:
        """End it: nothing that follows is handled."""
        self.server = None
        if self.state is not SaslState.FAILED:
            self._move(SaslState.FAILED)

    def _move(self, state: SaslState) -> None:
        if state not in LEGAL_TRANSITIONS[self.state]:
            raise RuntimeError(
                f"the SASL state cannot change from {self.state.value!r} to {state.value!r}"
            )
        self.state = state
