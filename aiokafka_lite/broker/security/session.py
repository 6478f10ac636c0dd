"""Runs a connection's `SaslServerAuthenticator`: its timers, and the executor's work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from aiokafka_lite.broker.security.authenticator import SaslServerAuthenticator, SaslState, Verdict
from aiokafka_lite.broker.security.mechanism import InvalidCredentialsError, SaslServer, Step
from aiokafka_lite.errors import (
    BrokerResponseError,
    IllegalSaslStateError,
    KafkaProtocolError,
    NoError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

MS_PER_S: Final = 1_000


class SaslSettings(NamedTuple):
    """How a broker treats clients that are not authenticated yet.

    Attributes:
        max_reauth_ms: See `connections_max_reauth_ms` of the broker's configuration.
        timeout_s: A connection that is not authenticated by then is closed.
        failure_delay_s: How long a failed client waits to be told so.
        max_frame_bytes: Largest request until then.
    """

    max_reauth_ms: int
    timeout_s: float
    failure_delay_s: float
    max_frame_bytes: int


class TokenAnswer(NamedTuple):
    """What a token is answered with."""

    error: type[BrokerResponseError]
    text: str = ""
    token: bytes = b""
    lifetime_ms: int = 0


NO_EXCHANGE: Final = TokenAnswer(
    IllegalSaslStateError, "SaslAuthenticate request received after successful authentication"
)


class SaslSession:
    """The SASL side of one connection; `judge` before each request, then its handler's method.

    Once `has_failed`, the connection sends the answer (if there is one) after `failure_delay_s`
    and closes: guessing takes its time.
    """

    def __init__(
        self,
        authenticator: SaslServerAuthenticator,
        settings: SaslSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
    ) -> None:
        self._authenticator = authenticator
        self._settings = settings
        self._loop = loop
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    @property
    def failure_delay_s(self) -> float:
        """How long a failed client waits to be told so."""
        return self._settings.failure_delay_s

    @property
    def max_frame_bytes(self) -> int | None:
        """The limit for who is not authenticated yet; None when the broker's own applies."""
        return self._settings.max_frame_bytes if self.username is None else None

    @property
    def username(self) -> str | None:
        """Who was authenticated on this connection; None when nobody was."""
        return self._authenticator.username

    @property
    def has_failed(self) -> bool:
        """The connection is to be closed."""
        return self._authenticator.state is SaslState.FAILED

    @property
    def expects_bare_token(self) -> bool:
        """The next frame is a token and no request (SaslHandshake v0)."""
        return self._authenticator.expects_bare_token

    # The connection

    def opened(self, overdue: Callable[[], None]) -> None:
        """Start the clock: `overdue` is called if the client takes too long."""
        self._timer = self._loop.call_later(self._settings.timeout_s, overdue)

    def closed(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def judge(self, api_key: int) -> Verdict:
        """Say what becomes of a request that arrived now."""
        verdict = self._authenticator.judge(api_key, self._loop.time())
        if verdict is not Verdict.HANDLE:
            self._authenticator.fail()
        return verdict

    # The handlers

    def versions_told(self) -> bool:
        """Note a proper ApiVersions request; False when it is to be refused."""
        return self._authenticator.versions_told()

    def handshake(
        self, mechanism: str, version: int
    ) -> tuple[type[BrokerResponseError], list[str]]:
        """Begin an exchange; return the error and the mechanisms on offer.

        Raises:
            KafkaProtocolError: A client that re-authenticates asks for what is not on offer.
        """
        if not self._authenticator.takes_handshake(self._loop.time()):
            return IllegalSaslStateError, []
        is_on_offer = self._authenticator.handshake(mechanism, version)
        if not is_on_offer and self.username is not None:
            raise KafkaProtocolError(
                "the client re-authenticates with a SASL mechanism that the listener does not offer"
            )
        names = [mechanism.value for mechanism in self._authenticator.mechanisms]
        return NoError if is_on_offer else UnsupportedSaslMechanismError, names

    async def authenticate(self, token: bytes) -> TokenAnswer:
        """Take a token of the client.

        Cancelled while the executor works, it has changed nothing.
        """
        server = self._authenticator.server
        if server is None:
            return NO_EXCHANGE
        try:
            step = await self._evaluate(server, token)
        except (SaslAuthenticationFailed, InvalidCredentialsError, KafkaProtocolError) as error:
            text = self._authenticator.failure_text(error)
            return TokenAnswer(SaslAuthenticationFailed, text)
        try:
            lifetime_ms = self._authenticator.advance(step, self._loop.time(), self._clock())
        except SaslAuthenticationFailed as error:
            return TokenAnswer(SaslAuthenticationFailed, str(error.args[0]))
        if self._authenticator.state is SaslState.COMPLETE:
            self.closed()
        return TokenAnswer(NoError, "", step.token, lifetime_ms)

    async def _evaluate(self, server: SaslServer, token: bytes) -> Step:
        if server.is_slow:
            return await self._loop.run_in_executor(None, server.evaluate, token)
        return server.evaluate(token)
