"""How many members a group needs for the partitions of one of them, for an autoscaler.

Each member answers for its own partitions, so the sum over all members is the size of the group.
Between two samples, one or two minutes apart, every partition has a rate of new records and a rate
of records read, both in offsets. A partition needs its rate of new records, and its lag divided by
the time to catch up. The member can process

    the rate of records read / the part of the time it was busy

or, if it lags behind by more than `BACKLOG_S`, just the rate of records read: then it is as fast as
it can be. It is to use only a part of that, `Target.part`. A partition needs its rate divided by
this part of the member's, but at most one member.

The answer is 1, the present size, if the samples are less than `LEAST_S` apart, if no records
are read in spite of a lag, and while a circuit breaker pauses the handlers: more members would fail
like this one. Smoothing and delays are left to the autoscaler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from aiokafka_lite.structs import TopicPartition

# The least time between the samples that are compared.
WINDOW_S: Final = 60.0
LEAST_S: Final = 10.0
# A lag of more than the member reads in this time is a backlog.
BACKLOG_S: Final = 10.0
# The state of a partition whose records are not due: any member would wait for them.
DELAYED: Final = "delayed"
# A member that is hardly busy may be less fast than it seems.
LEAST_BUSY: Final = 0.05


class Target(NamedTuple):
    """The time to catch up, and the part of its capacity that a member uses."""

    catch_up_s: float = 300.0
    part: float = 0.8

    @classmethod
    def of(cls, path: str) -> Target | None:
        """Return that of a path such as "scale" or "scale/60/0.7". None: it is no such path."""
        name, *given = path.split("/")
        try:
            target = cls(*map(float, given))
        except (TypeError, ValueError):
            return None
        is_right = 0 < target.catch_up_s < math.inf and 0 < target.part <= 1
        return target if name == "scale" and is_right else None


class PartitionSample(NamedTuple):
    position: int
    lag: int


class MemberSample(NamedTuple):
    """A member at a loop time.

    Attributes:
        busy_s: How long it was busy, since the first sample.
        is_paused: A circuit breaker pauses its handlers.
    """

    at_s: float
    busy_s: float
    places: Mapping[TopicPartition, PartitionSample]
    is_paused: bool = False


def busy(earlier: MemberSample, latest: MemberSample) -> float:
    """Return the part of the time in which a member was busy, from 0 to 1."""
    passed_s = latest.at_s - earlier.at_s
    return min(1.0, (latest.busy_s - earlier.busy_s) / passed_s) if passed_s else 0.0


def members_wanted(earlier: MemberSample, latest: MemberSample, target: Target) -> float:
    """Return how many members the latest partitions need, at most their number."""
    places, passed_s = latest.places, latest.at_s - earlier.at_s
    if passed_s < LEAST_S or latest.is_paused:
        return float(bool(places))
    lag = sum(place.lag for place in places.values())
    rate, needed = 0.0, []
    for tp, place in places.items():
        # Of a partition that is new here, only the lag is known.
        before = earlier.places.get(tp, place)
        read = max(0, place.position - before.position) / passed_s
        new = max(0.0, read + (place.lag - before.lag) / passed_s)
        rate += read
        needed.append(new + place.lag / target.catch_up_s)
    if not rate:
        return float(lag > 0)
    if lag <= rate * BACKLOG_S:
        rate /= max(busy(earlier, latest), LEAST_BUSY)
    return sum(min(1.0, each / (rate * target.part)) for each in needed)


def added(answers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return one answer for several members."""
    names = ("lag", "partitions_with_lag", "wanted")
    found = {name: round(sum(each[name] for each in answers), 3) for name in names}
    return found | {"busy": round(sum(each["busy"] for each in answers) / len(answers), 3)}


class Scaling:
    """Samples one consumer's metrics whenever it is asked."""

    def __init__(self) -> None:
        self._earlier: MemberSample | None = None
        # Replaces `_earlier` when it is a window old.
        self._later: MemberSample
        self._latest: MemberSample
        self._cpu_s = 0.0

    def answer(
        self, metrics: Mapping[str, object], target: Target, now: float, cpu_s: float = 0.0
    ) -> dict[str, float]:
        """Return the values of ``/scale``, at a time of any clock.

        `cpu_s` is the CPU time that the thread of the event loop has used.
        """
        latest = self._sample(metrics, now, cpu_s)
        if self._earlier is None:
            self._earlier = self._later = latest
        elif latest.at_s - self._later.at_s >= WINDOW_S:
            self._earlier, self._later = self._later, latest
        self._latest = latest
        lags = [place.lag for place in latest.places.values()]
        return {
            "lag": sum(lags),
            "partitions_with_lag": sum(lag > 0 for lag in lags),
            "busy": round(busy(self._earlier, latest), 3),
            "wanted": round(members_wanted(self._earlier, latest, target), 3),
        }

    def _sample(self, metrics: Mapping[str, object], now: float, cpu_s: float) -> MemberSample:
        places: dict[TopicPartition, PartitionSample] = {}
        for row in cast("Sequence[Mapping[str, Any]]", metrics["partitions"]):
            if row["position"] is not None and row["lag"] is not None:
                tp = TopicPartition(row["topic"], row["partition"])
                lag = 0 if row["state"] == DELAYED else row["lag"]
                places[tp] = PartitionSample(row["position"], lag)
        busy_s = 0.0
        if self._earlier is not None:
            passed_s = now - self._latest.at_s
            used = _used(metrics, any(place.lag for place in places.values()))
            busy_s = self._latest.busy_s + max(used * passed_s, cpu_s - self._cpu_s)
        self._cpu_s = cpu_s
        return MemberSample(now, busy_s, places, bool(metrics["processing_paused"]))


def _used(metrics: Mapping[str, object], has_lag: bool) -> float:
    """Return the part of the handlers that are in use. Without `run`, the application is one."""
    concurrency = cast("int", metrics["processing_concurrency"])
    calls = cast("int", metrics["processing_calls"])
    return min(1.0, calls / concurrency) if concurrency else float(has_lag)
