"""What was measured last of a consumer: measured anew when the loop had its rest from it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._pages.values import Json

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer

# After work of so long, rest of so many times that: twice (health and the rest) 0.5 % of the loop.
REST_PER_WORK: Final = 199
LEAST_REFRESH_S: Final = 1.0
MOST_BODIES: Final = 100


class TooManyError(Exception):
    """More different views are asked for than one measurement has time for."""


class Health(NamedTuple):
    """A verdict, as it is answered."""

    verdict: str
    reasons: tuple[str, ...]
    is_dead: bool
    body: bytes
    until: float


class Measured:
    """A consumer's numbers at one moment, and the answers that were made of them.

    Attributes:
        metrics: What `AIOKafkaConsumer.metrics` returned.
        health: How the consumer was.
        measured_at: When, in loop time.
        exposition: The answer to ``/metrics``, None while nobody asked.
        until: The loop time until which all this is good enough.
    """

    def __init__(self, consumer: AIOKafkaConsumer, health: Health) -> None:
        self._consumer = consumer
        self._clock = asyncio.get_running_loop().time
        self._bodies: dict[Hashable, bytes] = {}
        began = self.measured_at = self.until = self._clock()
        self.metrics = consumer.metrics()
        self.health = health
        self.exposition: bytes | None = None
        self._worked(began)

    def _worked(self, began: float) -> None:
        self.until += (self._clock() - began) * REST_PER_WORK

    @property
    def refresh_ms(self) -> int:
        """When to ask again."""
        return int(max(LEAST_REFRESH_S, self.until - self._clock()) * 1000)

    @property
    def explain(self) -> Callable[[str, int], str]:
        """Says why nothing comes of a partition."""
        from aiokafka_lite import TopicPartition

        return lambda topic, partition: self._consumer.explain(TopicPartition(topic, partition))

    def body(self, key: Hashable, make: Callable[[Measured], dict[str, Json]]) -> bytes:
        """Return an answer, made when it is first asked for.

        Raises:
            TooManyError: So many different ones were made that others have to wait.
        """
        found = self._bodies.get(key)
        if found is None:
            if len(self._bodies) >= MOST_BODIES:
                raise TooManyError
            began = self._clock()
            view = make(self)
            view |= {"measured_at_s": self.measured_at, "refresh_ms": self.refresh_ms}
            found = self._bodies[key] = json.dumps(view).encode()
            self._worked(began)
        return found


class Measuring:
    """Measures a consumer, for 1 % of the event loop's time at most."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._measured: Measured | None = None
        self._health: Health | None = None

    def health(self) -> Health:
        """Return how the consumer is, or lately was."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._health is None or self._health.until <= began:
            found = self._consumer.health()
            body = json.dumps(dataclasses.asdict(found)).encode()
            until = loop.time() + (loop.time() - began) * REST_PER_WORK
            self._health = Health(
                found.verdict, found.reasons, found.verdict == "dead", body, until
            )
        return self._health

    def now(self) -> Measured:
        """Return the consumer's numbers, or those of a moment ago."""
        if self._measured is None or self._measured.until <= asyncio.get_running_loop().time():
            self._measured = Measured(self._consumer, self.health())
        return self._measured
