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
    """Return an aiohttp application that shows a consumer; see the module for what it serves.

    It may be served by itself or mounted with `add_subapp`, in the loop of the consumer, which
    may be started before or after. It neither starts nor stops it, nor keeps it alive. Mounted,
    the limit of connections is its server's.

    Args:
        consumer: It is only read. Or a function that returns the one to show, or None while
            there is none.
        hosts: Names, without a port, under which it is asked for besides IP addresses and
            "localhost": "consumer.svc.cluster.local".

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
    """Import what belongs to the extra.

    Raises:
        ModuleNotFoundError: It is not installed; says how it is.
    """
    try:
        for name in EXTRA:
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'aiokafka-lite[web]'", name=error.name
        ) from error
