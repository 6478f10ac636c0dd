"""The latest measurement of a consumer, renewed within the limit of the event loop's time."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import weakref
from collections.abc import Callable, Hashable
from time import thread_time
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._arguments import PLAIN_FUNCTION, Kind, expected
from aiokafka_lite._pages import Json

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

    def __init__(self, verdict: str, text: str, health_status: int) -> None:
        super().__init__(text)
        self.verdict, self.text, self.health_status = verdict, text, health_status


def source_of(shown: Shown) -> Callable[[], AnyConsumer]:
    CONSUMER.check("consumer", shown)
    if callable(shown):
        return lambda: _made(shown())
    reference = weakref.ref(shown)
    return lambda: present(reference)


def _made(consumer: AnyConsumer | None) -> AnyConsumer:
    if consumer is None:
        text = "the application has not created the consumer yet"
        raise NoConsumerError("degraded", text, health_status=200)
    if not _is_consumer(consumer):
        wanted = "an AIOKafkaConsumer or None"
        raise TypeError(expected("the result of the function", wanted, consumer))
    return consumer


def present(reference: weakref.ref[AnyConsumer]) -> AnyConsumer:
    if (consumer := reference()) is None:
        text = "the consumer was garbage-collected without stop()"
        raise NoConsumerError("dead", text, health_status=503)
    return consumer


class HealthAnswer(NamedTuple):
    verdict: str
    reasons: tuple[str, ...]
    is_dead: bool
    body: bytes
    until: float


def _rest_s(began: float) -> float:
    """Return the pause after work that began at a `thread_time`, which excludes suspensions."""
    return (thread_time() - began) * REST_PER_WORK


class Measured:
    """A consumer's metrics at one moment, and the responses built from them.

    Attributes:
        measured_at: The loop time of the measurement.
        exposition: The response of ``/metrics``, None before its first request.
        until: The loop time until which the measurement is used.
    """

    def __init__(self, consumer: AnyConsumer, health: HealthAnswer) -> None:
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
        self._health: HealthAnswer | None = None

    def health(self) -> HealthAnswer:
        consumer = self._consumer()
        loop = asyncio.get_running_loop()
        if self._health is None or self._health.until <= loop.time():
            began = thread_time()
            found = consumer.health()
            body = json.dumps(dataclasses.asdict(found)).encode()
            until = loop.time() + _rest_s(began)
            self._health = HealthAnswer(
                found.verdict, found.reasons, found.verdict == "dead", body, until
            )
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
        return consumer
