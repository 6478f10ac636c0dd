"""The application on its own port, with a limit of connections."""

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
# Connections that the system accepts before asyncio does.
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
    """Serve a consumer's state during an `async with` block, which yields the page's address.

    Enter the block before the consumer starts, in the same event loop, and leave it after the
    consumer has stopped, so that the page can show the cause. Leaving waits at most 0.5 s for
    responses that are being sent.

    Args:
        consumer: As for `application`.
        host: The address to listen on. "0.0.0.0" serves every client that can reach this machine.
        port: 0 uses a free port.
        hosts: As for `application`.

    Raises:
        KafkaConnectionError: The address cannot be listened on.
        ModuleNotFoundError: A package of the extra `web` is not installed.
    """
    app = application(consumer, hosts=hosts)
    from aiohttp import web

    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    del consumer  # serving must not keep it alive
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
    """Accepts connections, and closes the oldest one above the limit.

    So clients that send or read slowly hold a bounded number of sockets and buffers.
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
