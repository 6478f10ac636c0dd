"""SASL authentication of a blocking connection: the conversation of sasl.py without an event loop.

Only a token provider's coroutine needs a temporary loop.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine
from typing import TypeVar

from aiokafka_lite.client.blocking import BlockingConnection, run
from aiokafka_lite.client.sasl import Authenticator, Mechanism
from aiokafka_lite.errors import KafkaConnectionError, RequestTimedOutError
from aiokafka_lite.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)
T = TypeVar("T")


class _Peer:
    """A connection whose requests must all end by the deadline."""

    def __init__(
        self, connection: BlockingConnection, deadline: float, clock: Callable[[], float]
    ) -> None:
        self.peer = connection.peer
        self._connection = connection
        self._deadline = deadline
        self._clock = clock

    async def request(self, request: Request[R], *, timeout_s: float) -> R:
        left_s = min(timeout_s, self._deadline - self._clock())
        return self._connection.request_now(request, timeout_s=left_s)


def authenticate(
    connection: BlockingConnection,
    mechanism: Mechanism,
    *,
    timeout_s: float,
    clock: Callable[[], float],
) -> float:
    """Authenticate. Return the seconds until the session ends, 0 if it does not."""
    authenticator = Authenticator(mechanism, timeout_s=timeout_s, compute=_at_once)
    peer = _Peer(connection, clock() + timeout_s, clock)
    try:
        if mechanism.asks_users:
            return _run_on_a_loop(lambda: authenticator(peer), timeout_s)
        return run(authenticator(peer))
    except (RequestTimedOutError, TimeoutError) as error:
        text = f"{connection.peer} did not finish authentication within {timeout_s:g} s"
        raise KafkaConnectionError(text) from error


async def _at_once(work: Callable[[], bytes]) -> bytes:
    return work()


def _run_on_a_loop(start: Callable[[], Coroutine[object, None, T]], timeout_s: float) -> T:
    """Run a coroutine on a new event loop, in a new thread if this thread's loop is running."""
    import asyncio

    from aiokafka_lite._compat import timeout

    async def bounded() -> T:
        async with timeout(timeout_s):
            return await start()

    def begin() -> T:
        try:
            return asyncio.run(bounded())
        except asyncio.TimeoutError:
            raise TimeoutError from None  # another class before Python 3.11

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return begin()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(contextvars.copy_context().run, begin).result()
