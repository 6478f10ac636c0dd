"""The pages as an aiohttp application, on its own port or in another application."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiokafka_lite._pages import hosts_of, response
from aiokafka_lite.errors import KafkaConnectionError
from aiokafka_lite.extras.web.measured import Shown
from aiokafka_lite.extras.web.pages import Pages

if TYPE_CHECKING:
    from aiohttp import web

EXTRA: Final = ("aiohttp", "prometheus_client")


def application(consumer: Shown, *, hosts: Collection[str] = ()) -> web.Application:
    """Return an aiohttp application that shows a consumer's state. The module lists its paths.

    Serve it on its own or mount it with `add_subapp`, in the consumer's event loop. The consumer
    may start before or after, and is not kept alive.

    Args:
        consumer: The consumer, or a function that returns it, or None until the consumer exists.
        hosts: Accepted host names without a port, such as "consumer.svc.cluster.local". IP
            addresses and "localhost" are always accepted.

    Raises:
        ModuleNotFoundError: A package of the extra `web` is not installed.
    """
    require_web()
    from aiohttp import web

    pages = Pages(consumer, hosts)

    async def answer(request: web.Request) -> web.Response:
        path = request.match_info["path"]
        return response(await pages.answer(request.method, hosts_of(request), path, request.query))

    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{path:.*}", answer)
    return app


def require_web() -> None:
    try:
        for name in EXTRA:
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'aiokafka-lite[web]'", name=error.name
        ) from error


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
    consumer has stopped, so that the page can show the cause. Leaving waits at most 0.5 s.

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
