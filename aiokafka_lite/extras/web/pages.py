"""The paths and their responses, all read-only, with limited numbers of rows and lengths.

They are made of the latest measurement, which is renewed within the limit of the loop's time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import re
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from time import thread_time
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from aiokafka_lite import AIOKafkaConsumer, __version__
from aiokafka_lite._arguments import PLAIN_FUNCTION, Kind, expected, is_list
from aiokafka_lite._pages import (
    LONGEST,
    ROWS,
    SHARED,
    Answer,
    Json,
    PageQuery,
    clip,
    problem,
    read_assets,
    refusal,
)
from aiokafka_lite.extras.web.scale import Scaling, Target

if TYPE_CHECKING:
    from aiokafka_lite.consumer.monitoring.health import Health

# --- Measurements ----------------------------------------------------------------------------
AnyConsumer: TypeAlias = AIOKafkaConsumer[object, object]
Shown: TypeAlias = AnyConsumer | Callable[[], AnyConsumer | None]

# The pause is the work's time multiplied by this: twice (health and metrics) 0.5 % of the loop.
REST_PER_WORK: Final = 199
LEAST_REFRESH_S: Final = 1.0
MOST_BODIES: Final = 100


def _is_consumer(given: object) -> bool:
    return not isinstance(given, type) and hasattr(given, "health") and hasattr(given, "metrics")


CONSUMER: Final = Kind(
    "an AIOKafkaConsumer, or a plain function that returns one or None",
    lambda given: (
        _is_consumer(given) or (PLAIN_FUNCTION.is_right(given) and not isinstance(given, type))
    ),
)


class TooManyError(Exception):
    """Clients requested more different views than one measurement has time for."""


class NoConsumerError(Exception):
    """There is no consumer to show. The attributes replace its state."""

    def __init__(self, verdict: str, text: str) -> None:
        super().__init__(text)
        self.verdict, self.text = verdict, text


def source_of(shown: Shown) -> Callable[[], AnyConsumer]:
    CONSUMER.check("consumer", shown)
    if callable(shown):
        return lambda: _made(shown())
    reference = weakref.ref(shown)
    return lambda: present(reference)


def _made(consumer: AnyConsumer | None) -> AnyConsumer:
    if consumer is None:
        text = "the application has not created the consumer yet"
        raise NoConsumerError("degraded", text)
    if not _is_consumer(consumer):
        wanted = "an AIOKafkaConsumer or None"
        raise TypeError(expected("the result of the function", wanted, consumer))
    return consumer


def present(reference: weakref.ref[AnyConsumer]) -> AnyConsumer:
    if (consumer := reference()) is None:
        text = "the consumer was garbage-collected without stop()"
        raise NoConsumerError("dead", text)
    return consumer


def _rest_s(began: float) -> float:
    """Return the pause after work that began at a `thread_time`, which excludes suspensions."""
    return (thread_time() - began) * REST_PER_WORK


class Measured:
    """A consumer's metrics, used `until` a loop time, and the responses built of them."""

    def __init__(self, consumer: AnyConsumer, health: Health) -> None:
        self._consumer = weakref.ref(consumer)
        self._clock = asyncio.get_running_loop().time
        self._bodies: dict[Hashable, bytes] = {}
        self.measured_at = self.until = self._clock()
        began = thread_time()
        self.metrics = consumer.metrics()
        self.health = health
        self.exposition: bytes | None = None
        self._worked(began)

    def _worked(self, began: float) -> None:
        self.until += _rest_s(began)

    @property
    def refresh_ms(self) -> int:
        return int(max(LEAST_REFRESH_S, self.until - self._clock()) * 1000)

    @property
    def explain(self) -> Callable[[str, int], str]:
        from aiokafka_lite import TopicPartition

        consumer = present(self._consumer)
        return lambda topic, partition: consumer.explain(TopicPartition(topic, partition))

    def body(self, key: Hashable, make: Callable[[Measured], dict[str, Json]]) -> bytes:
        found = self._bodies.get(key)
        if found is None:
            if len(self._bodies) >= MOST_BODIES:
                raise TooManyError
            began = thread_time()
            view = make(self)
            view |= {"measured_at_s": self.measured_at, "refresh_ms": self.refresh_ms}
            found = self._bodies[key] = json.dumps(view).encode()
            self._worked(began)
        return found


class Measuring:
    """Measures a consumer, in at most 1 % of the event loop's time."""

    def __init__(self, shown: Shown) -> None:
        self._source = source_of(shown)
        self._of: weakref.ref[AnyConsumer] | None = None
        self._measured: Measured | None = None
        self._health: Health | None = None
        self._health_until = 0.0
        self.scaling = Scaling()

    def health(self) -> Health:
        consumer, now = self._consumer(), asyncio.get_running_loop().time()
        if self._health is None or self._health_until <= now:
            began = thread_time()
            self._health = consumer.health()
            self._health_until = now + _rest_s(began)
        return self._health

    def now(self) -> Measured:
        consumer = self._consumer()
        if self._measured is None or self._measured.until <= asyncio.get_running_loop().time():
            self._measured = Measured(consumer, self.health())
        return self._measured

    def _consumer(self) -> AnyConsumer:
        """Return the consumer to show. A new one discards the earlier measurements."""
        consumer = self._source()
        if self._of is None or self._of() is not consumer:
            self._of = weakref.ref(consumer)
            self._measured = self._health = None
            self.scaling = Scaling()
        return consumer


# --- Views -----------------------------------------------------------------------------------
Row: TypeAlias = "dict[str, Json]"

# States of a partition in which something is wrong, though it may pass.
TROUBLES: Final = frozenset(
    {
        "task_died",
        "out_of_group",
        "error_waits",
        "handlers_paused",
        "no_leader",
        "broker_down",
        "backing_off",
    }
)
# Nothing of a partition was finished for so long, though there are records.
LONG_STANDSTILL_S: Final = 25.0


def is_in_trouble(row: Row) -> bool:
    return row["state"] in TROUBLES or cast("float", row["standstill_seconds"]) >= LONG_STANDSTILL_S


FILTERS: Final[Mapping[str, Callable[[Row], bool]]] = {
    "all": lambda row: True,
    "behind": lambda row: bool(row["lag"]),
    "paused": lambda row: bool(row["is_paused"]),
    "trouble": is_in_trouble,
}


def overview(measured: Measured, query: PageQuery) -> Row:
    rows = rows_of(measured, "partitions")
    metrics = cast("Row", measured.metrics)
    return {
        "version": __version__,
        "verdict": measured.health.verdict,
        "reasons": [clip(reason, 4 * LONGEST) for reason in measured.health.reasons],
        **{name: _clipped(each) for name, each in metrics.items() if not isinstance(each, list)},
        **{name: sum(map(is_shown, rows)) for name, is_shown in FILTERS.items()},
        "nodes": len(rows_of(measured, "nodes")),
    }


def partitions(measured: Measured, query: PageQuery) -> Row:
    is_shown = FILTERS.get(query.show, FILTERS["all"])
    found = [
        row
        for row in rows_of(measured, "partitions")
        if is_shown(row) and query.find in f"{row['topic']}/{row['partition']}"
    ]
    found.sort(key=lambda row: (row["topic"], row["partition"]))
    first = (query.page - 1) * ROWS
    return {
        "total": len(found),
        "page": query.page,
        "page_rows": ROWS,
        "rows": [_partition(measured, row) for row in found[first : first + ROWS]],
    }


def _partition(measured: Measured, row: Row) -> Row:
    topic, partition = cast("str", row["topic"]), cast("int", row["partition"])
    return {
        **row,
        "topic": clip(topic),
        "why": clip(measured.explain(topic, partition), 2 * LONGEST),
        "is_in_trouble": is_in_trouble(row),
    }


def nodes(measured: Measured, query: PageQuery) -> Row:
    found = rows_of(measured, "nodes")
    return {"total": len(found), "rows": cast("list[Json]", found[:ROWS])}


def rows_of(measured: Measured, name: str) -> list[Row]:
    return cast("list[Row]", measured.metrics[name])


def _clipped(value: Json) -> Json:
    return clip(value) if isinstance(value, str) else value


# --- Responses -------------------------------------------------------------------------------
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
FOR_MACHINES: Final = ("health", "metrics", "scale")
VIEWS: Final[Mapping[str, Callable[[Measured, PageQuery], dict[str, Json]]]] = {
    "api/overview": overview,
    "api/partitions": partitions,
    "api/nodes": nodes,
}


def health_answer(health: Mapping[str, Any]) -> Answer:
    status = 503 if health["verdict"] == "dead" else 200
    return Answer(json.dumps(health).encode(), status=status)


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
        checked = ("localhost",) if path.partition("/")[0] in FOR_MACHINES else hosts
        refused = refusal(method, checked, self._is_own_name, NAME_THE_HOST)
        if refused is not None:
            return refused
        try:
            return await self._look_up(path, parameters)
        except NoConsumerError as error:
            if path == "health":
                return health_answer({"verdict": error.verdict, "reasons": [error.text]})
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
            return health_answer(dataclasses.asdict(self._measuring.health()))
        if path == "metrics":
            return await self._metrics()
        if (target := Target.of(path)) is not None:
            return self._scale(target)
        if path not in VIEWS:
            return problem(404, "this page does not exist")
        query = PageQuery.of(parameters)
        try:
            body = self._measuring.now().body((path, query), lambda it: VIEWS[path](it, query))
        except TooManyError:
            text = "clients request too many different pages at once: try again in a second"
            return problem(503, text, Retry_After="1")
        return Answer(body)

    def _scale(self, target: Target) -> Answer:
        if self._measuring.health().verdict == "dead":
            return problem(503, "the consumer is dead: /health has the reason")
        measured = self._measuring.now()
        answer = self._measuring.scaling.answer(
            measured.metrics, target, measured.measured_at, thread_time()
        )
        return Answer(json.dumps(answer).encode())

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
                shown = metrics, verdict, labels_of(metrics)
                measured.exposition = await asyncio.to_thread(render, shown)
            return Answer(measured.exposition, CONTENT_TYPE)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
