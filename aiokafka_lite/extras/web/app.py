"""The pages as an aiohttp application."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from aiokafka_lite.extras.web.measured import Shown
from aiokafka_lite.extras.web.pages import Pages

if TYPE_CHECKING:
    from aiohttp import web

EXTRA: Final = ("aiohttp", "prometheus_client")


def application(consumer: Shown, *, hosts: Collection[str] = ()) -> web.Application:
    """Return an aiohttp application that shows a consumer's state. The module lists its paths.

    Serve it on its own or mount it with `add_subapp`, in the consumer's event loop. The consumer
    may start before or after. The application does not start, stop or keep the consumer alive. When
    it is mounted, the server limits the connections.

    Args:
        consumer: The consumer, or a function that returns it, or None until the consumer exists.
        hosts: Accepted host names without a port, such as "consumer.svc.cluster.local". IP
            addresses and "localhost" are always accepted.

    Raises:
        ModuleNotFoundError: A package of the extra `web` is not installed.
    """
    require_web()
    from aiohttp import web

    from aiokafka_lite._pages.aiohttp_answers import hosts_of, response

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
