"""Runs the `SaslServerAuthenticator` of a connection, with timers and an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from aiokafka_lite._threads import aside
from aiokafka_lite.broker.security.authenticator import SaslServerAuthenticator, SaslState, Verdict
from aiokafka_lite.broker.security.mechanisms import InvalidCredentialsError, SaslServer, Step
from aiokafka_lite.errors import (
    BrokerResponseError,
    IllegalSaslStateError,
    KafkaProtocolError,
    NoError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka_lite.protocol.messages.sasl import SaslAuthenticateResponse


@dataclass(eq=False)
class SaslSession:
    """The SASL side of one connection. The connection calls `judge` before each request.

    Once `has_failed`, it sends its response after a delay, which slows down guessing, and
    closes.
    """

    authenticator: SaslServerAuthenticator
    timeout_s: float
    loop: asyncio.AbstractEventLoop
    clock: Callable[[], int]
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    @property
    def is_authenticated(self) -> bool:
        return self.authenticator.username is not None

    @property
    def has_failed(self) -> bool:
        return self.authenticator.state is SaslState.FAILED

    # The connection

    def opened(self, overdue: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(self.timeout_s, overdue)

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def judge(self, api_key: int) -> Verdict:
        verdict = self.authenticator.judge(api_key, self.loop.time())
        if verdict is not Verdict.HANDLE:
            self.authenticator.fail()
        return verdict

    # The handlers

    def handshake(
        self, mechanism: str, version: int
    ) -> tuple[type[BrokerResponseError], list[str]]:
        """Begin an exchange. Return the error and the available mechanisms."""
        if not self.authenticator.takes_handshake(self.loop.time()):
            return IllegalSaslStateError, []
        is_on_offer = self.authenticator.handshake(mechanism, version)
        if not is_on_offer and self.authenticator.username is not None:
            raise KafkaProtocolError(
                "the client re-authenticates with a SASL mechanism that the listener does not offer"
            )
        names = [mechanism.value for mechanism in self.authenticator.mechanisms]
        return NoError if is_on_offer else UnsupportedSaslMechanismError, names

    async def authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        """Process a token of the client. Cancellation in the executor's work changes no state."""
        server = self.authenticator.server
        if server is None:
            return no_exchange()
        try:
            step = await self._evaluate(server, token)
        except (SaslAuthenticationFailed, InvalidCredentialsError, KafkaProtocolError) as error:
            return _failed(self.authenticator.failure_text(error))
        try:
            lifetime_ms = self.authenticator.advance(step, self.loop.time(), self.clock())
        except SaslAuthenticationFailed as error:
            return _failed(str(error.args[0]))
        if self.authenticator.state is SaslState.COMPLETE:
            self.closed()
        return SaslAuthenticateResponse(
            error_message="", auth_bytes=step.token, session_lifetime_ms=lifetime_ms
        )

    async def _evaluate(self, server: SaslServer, token: bytes) -> Step:
        if server.is_slow:
            return await aside(self.loop, partial(server.evaluate, token))
        return server.evaluate(token)


def no_exchange() -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=IllegalSaslStateError.errno,
        error_message="SaslAuthenticate request received after successful authentication",
    )


def _failed(text: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=SaslAuthenticationFailed.errno, error_message=text)
