"""The application on a port of its own, with few connections at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiokafka_lite.errors import KafkaConnectionError
from aiokafka_lite.extras.web.app import application
from aiokafka_lite.extras.web.measured import Shown

if TYPE_CHECKING:
    from aiohttp import web

LOOPBACK: Final = "127.0.0.1"
MOST_CONNECTIONS: Final = 32
# Connections that the system accepts for us meanwhile.
BACKLOG: Final = 128
SHUTDOWN_S: Final = 0.5


@asynccontextmanager
async def serve(
    consumer: Shown,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    hosts: Collection[str] = (),
) -> AsyncIterator[str]:
    """Serve a consumer's state until the `async with` is left; gives the address of the page.

    Enter it before the consumer is started, in the same event loop, and leave it after its end:
    that is when people want to know why. Leaving waits half a second at most for answers that are
    on their way.

    Args:
        consumer: It is only read. Or a function that returns the one to show, or None while
            there is none.
        host: Where to listen. "0.0.0.0" shows it to everybody who can reach this machine.
        port: 0 takes a free one.
        hosts: Names under which it may be asked for; see `application`.

    Raises:
        KafkaConnectionError: It cannot listen there.
        ModuleNotFoundError: A package of the extra `web` is not installed.
    """
    app = application(consumer, hosts=hosts)
    from aiohttp import web

    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    del consumer  # not to be kept alive by being shown
    await runner.setup()
    assert runner.server is not None  # noqa: S101 -- setup made it
    try:
        listening = await asyncio.get_running_loop().create_server(
            _Door(runner.server), host, port, backlog=BACKLOG
        )
    except OSError as error:
        await runner.cleanup()
        raise KafkaConnectionError(
            f"the consumer's page cannot be served at {host}:{port}: {error.strerror}. Choose "
            "another port, or 0 for a free one"
        ) from error
    address = listening.sockets[0].getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    try:
        yield f"http://{shown}:{address[1]}/"
    finally:
        listening.close()
        await runner.cleanup()
        await listening.wait_closed()


class _Door:
    """Lets connections in; when there are too many, the oldest has to go.

    So clients that send or read slowly, or nothing at all, hold a bounded number of sockets and
    buffers, and whoever comes next is served all the same.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server

    def __call__(self) -> asyncio.BaseProtocol:
        inside = [
            transport
            for connection in self._server.connections
            if (transport := connection.transport) is not None and not transport.is_closing()
        ]
        for transport in inside[: max(len(inside) - MOST_CONNECTIONS + 1, 0)]:
            transport.abort()
        return self._server()
