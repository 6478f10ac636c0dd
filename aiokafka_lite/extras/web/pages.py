"""The paths and their responses, all read-only."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from aiokafka_lite._arguments import Kind, is_list
from aiokafka_lite._pages import SHARED, Answer, problem, read_assets, refusal
from aiokafka_lite._pages.values import Json
from aiokafka_lite.extras.web import views
from aiokafka_lite.extras.web.measured import (
    Measured,
    Measuring,
    NoConsumerError,
    Shown,
    TooManyError,
)
from aiokafka_lite.extras.web.views import ConsumerPageQuery

NAMES: Final = Kind("a list of host names", is_list)
HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:@/?#\s]+))(?::\d{1,5})?")
NO_PROMETHEUS: Final = (
    "this page needs prometheus_client, which is not installed: pip install 'aiokafka-lite[web]'"
)
NAME_THE_HOST: Final = (
    'add "{}" to the argument hosts of asgi, serve or application, as in '
    'web.asgi(consumer, hosts={"{}"})'
)
# What probes and scrapers ask for, by whatever name they know the service.
FOR_MACHINES: Final = ("health", "metrics")
VIEWS: Final[Mapping[str, Callable[[Measured, ConsumerPageQuery], dict[str, Json]]]] = {
    "api/overview": views.overview,
    "api/partitions": views.partitions,
    "api/nodes": views.nodes,
}


class Pages:
    def __init__(self, shown: Shown, hosts: Collection[str]) -> None:
        NAMES.check("hosts", hosts)
        self._measuring = Measuring(shown)
        self._names = frozenset({"localhost", *(host.lower() for host in hosts)})
        assets = {
            **SHARED,
            **read_assets(__package__, ("index.html", "consumer.css", "consumer.js")),
        }
        assets[""] = assets.pop("index.html")
        self._assets = assets
        self._render_one_at_a_time = asyncio.Lock()

    async def answer(
        self, method: str, hosts: Sequence[str], path: str, parameters: Mapping[str, str]
    ) -> Answer:
        checked = ("localhost",) if path in FOR_MACHINES else hosts
        refused = refusal(method, checked, self._is_own_name, NAME_THE_HOST)
        if refused is not None:
            return refused
        try:
            return await self._look_up(path, parameters)
        except NoConsumerError as error:
            if path == "health":
                health = {"verdict": error.verdict, "reasons": [error.text]}
                return Answer(json.dumps(health).encode(), status=error.health_status)
            return problem(503, error.text)

    def _is_own_name(self, host: str) -> bool:
        # No web page can have an address for a name: rebinding takes a name.
        found = HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1] or found[2]
        return name in self._names or _is_address(name)

    async def _look_up(self, path: str, parameters: Mapping[str, str]) -> Answer:
        if path in self._assets:
            return self._assets[path]
        if path == "health":
            health = self._measuring.health()
            return Answer(health.body, status=503 if health.is_dead else 200)
        if path == "metrics":
            return await self._metrics()
        if path not in VIEWS:
            return problem(404, "this page does not exist")
        query = ConsumerPageQuery.of(parameters)
        try:
            body = self._measuring.now().body((path, query), lambda it: VIEWS[path](it, query))
        except TooManyError:
            text = "clients request too many different pages at once: try again in a second"
            return problem(503, text, Retry_After="1")
        return Answer(body)

    async def _metrics(self) -> Answer:
        try:
            from aiokafka_lite.extras.web.prometheus import CONTENT_TYPE, labels_of, render
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            return problem(501, NO_PROMETHEUS)
        # Thousands of samples are formatted, which would hold up the loop.
        async with self._render_one_at_a_time:
            measured = self._measuring.now()
            if measured.exposition is None:
                metrics, verdict = measured.metrics, self._measuring.health().verdict
                measured.exposition = await asyncio.to_thread(
                    render, metrics, verdict, labels_of(metrics)
                )
            return Answer(measured.exposition, CONTENT_TYPE)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
