"""Serves a page with aiohttp: as an application, or on a port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from aiohttp import web

from aiokafka_lite._pages import Answer
from aiokafka_lite.errors import KafkaConnectionError

# Takes the method, the Host headers, the path without its first slash, and the parameters.
Page: TypeAlias = Callable[[str, Sequence[str], str, Mapping[str, str]], Awaitable[Answer]]

MOST_CONNECTIONS: Final = 32
# Connections that the system accepts before asyncio does.
BACKLOG: Final = 128
SHUTDOWN_S: Final = 0.5


def application_of(page: Page) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        hosts = request.headers.getall("Host", [])
        found = await page(request.method, hosts, request.match_info["path"], request.query)
        return web.Response(body=found.body, status=found.status, headers=found.headers)

    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{path:.*}", answer)
    return app


@asynccontextmanager
async def listening(
    page: Page, host: str, port: int, *, name: str, hint: str
) -> AsyncIterator[str]:
    """Serve a page during an `async with` block, which yields its address.

    `name` and `hint` are in the KafkaConnectionError for an address that cannot be listened on.
    """
    runner = web.AppRunner(application_of(page), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    assert runner.server is not None  # noqa: S101 -- setup made it
    try:
        server = await asyncio.get_running_loop().create_server(
            _Door(runner.server), host, port, backlog=BACKLOG
        )
    except OSError as error:
        await runner.cleanup()
        raise KafkaConnectionError(
            f"{name} cannot be served at {host}:{port}: {error.strerror}. Choose another port{hint}"
        ) from error
    address = server.sockets[0].getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    try:
        yield f"http://{shown}:{address[1]}/"
    finally:
        server.close()
        await runner.cleanup()
        await server.wait_closed()


class _Door:
    """Accepts connections, and closes the oldest one above the limit."""

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
