"""The aiohttp application: a table of paths, and nothing to change."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from aiohttp import web

from aiokafka_lite._pages import HEADERS, SHARED, problem, read_assets, refusal
from aiokafka_lite._pages.values import Json
from aiokafka_lite.extras.web import views
from aiokafka_lite.extras.web.measured import Measured, Measuring, TooManyError
from aiokafka_lite.extras.web.prometheus import CONTENT_TYPE, render
from aiokafka_lite.extras.web.views import Query

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer

HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:@/?#\s]+))(?::\d{1,5})?")
VIEWS: Final[Mapping[str, Callable[[Measured, Query], dict[str, Json]]]] = {
    "api/overview": views.overview,
    "api/partitions": views.partitions,
    "api/nodes": views.nodes,
}


def application(consumer: AIOKafkaConsumer, *, hosts: Collection[str] = ()) -> web.Application:
    """Return an aiohttp application that shows a consumer; see the module for what it serves.

    It may be served by itself or mounted with `add_subapp`, in the loop of the consumer, which
    may be started before or after. It neither starts nor stops it. Mounted, the limit of
    connections is its server's.

    Args:
        consumer: It is only read.
        hosts: Names, without a port, under which it is asked for besides IP addresses and
            "localhost": "consumer.svc.cluster.local".
    """
    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{path:.*}", _Pages(consumer, hosts).answer)
    return app


class _Pages:
    """Answers requests."""

    def __init__(self, consumer: AIOKafkaConsumer, hosts: Collection[str]) -> None:
        self._measuring = Measuring(consumer)
        self._names = frozenset({"localhost", *(host.lower() for host in hosts)})
        assets = {
            **SHARED,
            **read_assets(__package__, ("index.html", "consumer.css", "consumer.js")),
        }
        assets[""] = assets.pop("index.html")
        self._assets = assets
        self._render_one_at_a_time = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request; whatever comes back carries the headers that guard it."""
        answer = refusal(request, self._is_own_name)
        if answer is None:
            answer = await self._look_up(request.match_info["path"], request.query)
        answer.headers.update(HEADERS)
        return answer

    def _is_own_name(self, host: str) -> bool:
        # No web page can have an address for a name: rebinding takes a name.
        found = HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1] or found[2]
        return name in self._names or _is_address(name)

    async def _look_up(self, path: str, parameters: Mapping[str, str]) -> web.Response:
        if path in self._assets:
            return self._assets[path].answer()
        if path == "health":
            health = self._measuring.health()
            return _json(health.body, status=503 if health.is_dead else 200)
        if path == "metrics":
            body = await self._metrics()
            return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
        if path not in VIEWS:
            return problem(404, "there is nothing here")
        query = Query.of(parameters)
        try:
            body = self._measuring.now().body((path, query), lambda it: VIEWS[path](it, query))
        except TooManyError:
            answer = problem(503, "too many different things are asked for")
            answer.headers["Retry-After"] = "1"
            return answer
        return _json(body)

    async def _metrics(self) -> bytes:
        # Thousands of samples are formatted, which would hold up the loop.
        async with self._render_one_at_a_time:
            measured = self._measuring.now()
            if measured.exposition is None:
                text = asyncio.to_thread(render, measured.metrics, self._measuring.health().verdict)
                measured.exposition = await text
            return measured.exposition


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
