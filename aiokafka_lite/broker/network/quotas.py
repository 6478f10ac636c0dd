"""Client quotas: how much a user or a client id may send, receive and occupy (KIP-13, 124, 546).

A quota is for an entity: a user, a client id, both together, or the default of either. Of those
that fit a request, the most specific counts. What clients do is measured over a window; whoever
is above his quota is told to wait in the answer, and his connection is muted for so long
(KIP-219): as long as it takes for the rate to fall back to the quota.

References: kafka.server.ClientQuotaManager, ClientRequestQuotaManager,
org.apache.kafka.common.metrics.stats.{Rate,SampledStat}, server.quota.QuotaUtils.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.schema import Response

if TYPE_CHECKING:
    from aiokafka_lite.broker.context import RequestContext
    from aiokafka_lite.broker.network.work import Work

DEFAULT: Final = None
"""In the place of a user's or client's name: whoever has no quota of his own."""

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

Entity: TypeAlias = tuple[tuple[str, "str | None"], ...]
"""Who a quota is for: (type, name) pairs by type; a name of None is the default."""


class QuotaKey(str, enum.Enum):
    """What is limited."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


class _Sample:
    """What was recorded in one piece of the window."""

    __slots__ = ("last_at_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_at_ms = now_ms
        self.value = 0.0


class SampledRate:
    """A rate per second over the latest samples.

    Args:
        samples: How many make the window (quota.window.num).
        sample_ms: How long each is (quota.window.size.seconds).
    """

    def __init__(self, samples: int, sample_ms: int) -> None:
        self._count = samples
        self._sample_ms = sample_ms
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add to the current sample, or begin the next if it is over."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        sample = self._samples[self._current]
        if now_ms - sample.start_ms >= self._sample_ms:
            sample = self._advance(now_ms)
        sample.value += value
        sample.last_at_ms = now_ms

    def _advance(self, now_ms: int) -> _Sample:
        # One more than the window holds: the oldest may still reach into it.
        self._current = (self._current + 1) % (self._count + 1)
        if self._current >= len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._samples[self._current].reset(now_ms)
        return self._samples[self._current]

    def per_s(self, now_ms: int) -> float:
        """Return the rate."""
        self._purge(now_ms)
        total = math.fsum(sample.value for sample in self._samples)
        return total / (self.window_ms(now_ms) / 1000)

    def window_ms(self, now_ms: int) -> int:
        """Return the time that the rate is over: at least all whole samples but one."""
        self._purge(now_ms)
        oldest_ms = min((sample.start_ms for sample in self._samples), default=now_ms)
        elapsed_ms = now_ms - oldest_ms
        missing = self._count - 1 - elapsed_ms // self._sample_ms
        return max(1, elapsed_ms + max(0, missing) * self._sample_ms)

    def is_over(self, now_ms: int) -> bool:
        """Nothing was recorded within the window."""
        return all(
            now_ms - sample.last_at_ms >= self._count * self._sample_ms for sample in self._samples
        )

    def _purge(self, now_ms: int) -> None:
        for sample in self._samples:
            if now_ms - sample.last_at_ms >= self._count * self._sample_ms:
                sample.reset(now_ms)


class _Sensor(NamedTuple):
    """Whose rate is measured: a user, a client id, or a client id of a user."""

    key: QuotaKey
    user: str | None
    client_id: str | None


class ClientQuotas:
    """The quotas of a broker, and what its clients have used. Written only from its loop.

    Args:
        now_s: Returns the loop's time.
        samples: How many samples make the window.
        sample_s: How long each is.

    Attributes:
        is_active: There is any quota: what the reactor tests for each answer.
        is_timing: There is one on the time that requests take.
    """

    def __init__(self, now_s: Callable[[], float], samples: int, sample_s: float) -> None:
        self._now_s = now_s
        self._count = samples
        self._sample_ms = round(sample_s * 1000)
        self._quotas: dict[Entity, dict[QuotaKey, float]] = {}
        self._rates: dict[_Sensor, SampledRate] = {}
        self.is_active = False
        self.is_timing = False

    # What is set

    def __iter__(self) -> Iterator[tuple[Entity, Mapping[QuotaKey, float]]]:
        """Iterate over entities and their quotas."""
        return iter([(entity, dict(quotas)) for entity, quotas in self._quotas.items()])

    def put(self, entity: Entity, key: QuotaKey, value: float | None) -> None:
        """Set one quota of an entity; None removes it."""
        quotas = self._quotas.setdefault(entity, {})
        if value is None:
            quotas.pop(key, None)
        else:
            quotas[key] = value
        if not quotas:
            del self._quotas[entity]
        self.is_active = bool(self._quotas)
        self.is_timing = any(
            QuotaKey.REQUEST_PERCENTAGE in quotas for quotas in self._quotas.values()
        )

    def limit(
        self,
        *,
        user: str | None = "",
        client_id: str | None = "",
        producer_byte_rate: float | None = None,
        consumer_byte_rate: float | None = None,
        request_percentage: float | None = None,
    ) -> None:
        """Set quotas, as AlterClientQuotas does; they count from the next request on.

        ::

            broker.quotas.limit(client_id="slow", consumer_byte_rate=10_000)

        Args:
            user: A user; `quotas.DEFAULT` for all without quotas of their own; left out: any.
                Clients that did not authenticate are the user "ANONYMOUS".
            client_id: A client id, likewise.
            producer_byte_rate: Bytes of Produce requests a second.
            consumer_byte_rate: Bytes of Fetch answers a second.
            request_percentage: Of one core, what requests may take, without what they wait.

        Raises:
            ValueError: A quota is not positive, or neither user nor client id is given.
        """
        entity = entity_of({USER: user, CLIENT_ID: client_id})
        if not entity:
            raise ValueError("a quota is for a user, a client id, or both: say which")
        for key, value in (
            (QuotaKey.PRODUCER_BYTE_RATE, producer_byte_rate),
            (QuotaKey.CONSUMER_BYTE_RATE, consumer_byte_rate),
            (QuotaKey.REQUEST_PERCENTAGE, request_percentage),
        ):
            if value is None:
                continue
            if value <= 0:
                raise ValueError(f"{key.value} must be greater than 0, not {value}")
            self.put(entity, key, value)

    def clear(self) -> None:
        """Remove all quotas, and forget what was used."""
        self._quotas.clear()
        self._rates.clear()
        self.is_active = self.is_timing = False

    # What is used

    def limit_of(self, key: QuotaKey, user: str, client_id: str) -> float | None:
        """Return the quota of a client, None if it has none."""
        found = self._find(key, user, client_id)
        return None if found is None else found[1]

    def window_bytes(self, user: str, client_id: str) -> int | None:
        """Return what a client may be sent in a window: no single answer holds more."""
        limit = self.limit_of(QuotaKey.CONSUMER_BYTE_RATE, user, client_id)
        return None if limit is None else int(limit * (self._count - 1) * self._sample_ms / 1000)

    def record(self, key: QuotaKey, user: str, client_id: str, amount: float) -> int:
        """Count what a client has used; return for how many milliseconds to throttle it."""
        found = self._find(key, user, client_id)
        if found is None:
            return 0
        sensor, limit = found
        now_ms = self._now_ms()
        rate = self._rates.get(sensor)
        if rate is None:
            self._forget_idle(now_ms)
            rate = self._rates[sensor] = SampledRate(self._count, self._sample_ms)
        rate.record(amount, now_ms)
        measured = rate.per_s(now_ms)
        if measured <= limit:
            return 0
        throttle_ms = math.floor((measured - limit) / limit * rate.window_ms(now_ms) + 0.5)
        if key is QuotaKey.REQUEST_PERCENTAGE:
            return min(throttle_ms, self._sample_ms)
        return throttle_ms

    def unrecord(self, key: QuotaKey, user: str, client_id: str, amount: float) -> None:
        """Take back what was counted, for an answer that is not sent."""
        found = self._find(key, user, client_id)
        if found is not None and found[0] in self._rates:
            self._rates[found[0]].record(-amount, self._now_ms())

    def throttle(self, work: Work, response: Response | None) -> float:
        """Count an answer; say in it for how long its client is throttled; return that in seconds.

        Fetch answers were counted by their handler, which may have emptied them.
        """
        user, client_id = user_of(work.context), work.context.client_id or ""
        throttle_ms = 0
        if isinstance(work.request, ProduceRequest):
            throttle_ms = self.record(QuotaKey.PRODUCER_BYTE_RATE, user, client_id, work.size_bytes)
        elif isinstance(work.request, FetchRequest):
            throttle_ms = getattr(response, "throttle_time_ms", 0)
        if self.is_timing and work.started_at is not None:
            spent_s = self._now_s() - work.started_at
            throttle_ms = max(
                throttle_ms,
                self.record(QuotaKey.REQUEST_PERCENTAGE, user, client_id, spent_s * 100),
            )
        if throttle_ms and hasattr(response, "throttle_time_ms"):
            setattr(response, "throttle_time_ms", throttle_ms)  # noqa: B010 — of any response
        return throttle_ms / 1000

    def _now_ms(self) -> int:
        return round(self._now_s() * 1000)

    def _find(self, key: QuotaKey, user: str, client_id: str) -> tuple[_Sensor, float] | None:
        """Return whose rate counts against which quota: the most specific that there is."""
        both = _Sensor(key, user, client_id)
        of_user = _Sensor(key, user, None)
        of_client = _Sensor(key, None, client_id)
        for entity, sensor in (
            (((CLIENT_ID, client_id), (USER, user)), both),
            (((CLIENT_ID, DEFAULT), (USER, user)), both),
            (((USER, user),), of_user),
            (((CLIENT_ID, client_id), (USER, DEFAULT)), both),
            (((CLIENT_ID, DEFAULT), (USER, DEFAULT)), both),
            (((USER, DEFAULT),), of_user),
            (((CLIENT_ID, client_id),), of_client),
            (((CLIENT_ID, DEFAULT),), of_client),
        ):
            limit = self._quotas.get(entity, {}).get(key)
            if limit is not None:
                return sensor, limit
        return None

    def _forget_idle(self, now_ms: int) -> None:
        """Drop rates that nobody adds to: client ids come and go."""
        for sensor in [each for each, rate in self._rates.items() if rate.is_over(now_ms)]:
            del self._rates[sensor]


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """Return the entity of these names by type; empty names are left out."""
    return tuple(sorted((kind, name) for kind, name in names.items() if name != ""))


def user_of(context: RequestContext) -> str:
    """Return the name of who sent a request."""
    return context.principal.removeprefix("User:")
