"""The status page over HTTP, on 127.0.0.1 only: a page that reads JSON, without changes.

`_pages/guard.py` rejects requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from aiohttp import web

from aiokafka_lite._compat import Self
from aiokafka_lite._pages import (
    SHARED,
    Answer,
    Json,
    hosts_of,
    problem,
    read_assets,
    refusal,
    response,
)
from aiokafka_lite.broker import Broker
from aiokafka_lite.cli.status import views
from aiokafka_lite.cli.status.views import BrokerPageQuery, MeasuredSlices, NotThereError
from aiokafka_lite.errors import KafkaConnectionError

HOST: Final = "127.0.0.1"
VIEWS: Final[
    Mapping[str, Callable[[Broker, BrokerPageQuery, MeasuredSlices], Awaitable[dict[str, Json]]]]
] = {
    "/api/overview": views.overview,
    "/api/topics": views.topics,
    "/api/topic": views.topic,
    "/api/groups": views.groups,
    "/api/group": views.group,
    "/api/connections": views.connections,
    "/api/requests": views.requests,
}
MOST_AT_ONCE: Final = 32
MOST_REMEMBERED: Final = 100
# A view is recreated after this multiple of its cost: at most 1 % of the loop's time.
REST_PER_WORK: Final = 99
LEAST_REFRESH_MS: Final = 1_000
SHUTDOWN_S: Final = 0.5


class _CachedView(NamedTuple):
    body: bytes
    until: float


class StatusPage:
    """Serves the page inside of an `async with`, in the broker's event loop."""

    def __init__(self, broker: Broker, *, port: int = 0) -> None:
        self._broker = broker
        self._port = port
        self._hosts: frozenset[str] = frozenset()
        assets = {**SHARED, **read_assets(__package__, ("index.html", "status.js"))}
        self._files = {f"/{name}": asset for name, asset in assets.items()}
        self._files["/"] = self._files.pop("/index.html")
        self._at_once = 0
        self._cached: dict[tuple[str, BrokerPageQuery], _CachedView] = {}
        # Made on entering, in the loop.
        self._one_at_a_time: asyncio.Lock
        self._runner: web.AppRunner

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}/"

    async def __aenter__(self) -> Self:
        self._one_at_a_time = asyncio.Lock()
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, HOST, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise KafkaConnectionError(
                f"the status page cannot be served at {HOST}:{self._port}: {error.strerror}. "
                "Choose another port (--status-port), or disable the page (--no-status)"
            ) from error
        self._port = self._runner.addresses[0][1]
        self._hosts = frozenset(f"{name}:{self._port}" for name in (HOST, "localhost"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        return response(await self._dispatch(request))

    async def _dispatch(self, request: web.Request) -> Answer:
        names = " or ".join(sorted(self._hosts))
        refused = refusal(
            request.method, hosts_of(request), self._hosts.__contains__, f"ask for {names}"
        )
        if refused is not None:
            return refused
        if request.path in self._files:
            return self._files[request.path]
        if request.path not in VIEWS:
            return problem(404, "this page does not exist")
        if self._at_once >= MOST_AT_ONCE:
            return problem(503, "too many requests at once", Retry_After="1")
        self._at_once += 1
        try:
            return await self._view(request.path, BrokerPageQuery.of(request.query))
        finally:
            self._at_once -= 1

    async def _view(self, path: str, query: BrokerPageQuery) -> Answer:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            cached = self._cached.get((path, query))
            if cached is None or cached.until < loop.time():
                slices = MeasuredSlices()
                try:
                    view = await VIEWS[path](self._broker, query, slices)
                except NotThereError as error:
                    return problem(404, str(error))
                rest_s = slices.worked_s * REST_PER_WORK
                view["refresh_ms"] = max(LEAST_REFRESH_MS, int(rest_s * 1000))
                cached = _CachedView(json.dumps(view).encode(), loop.time() + rest_s)
                if len(self._cached) >= MOST_REMEMBERED:
                    self._cached.clear()
                self._cached[path, query] = cached
        return Answer(cached.body)
