"""What the project wants to reach: how many times less than a peer a record may cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.results import Summary

Figure = Literal["cpu", "wall"]


@dataclass(frozen=True, slots=True)
class Goal:
    """In `scenario`, `ours` is to cost at least `factor` times less than `peer`."""

    scenario: str
    ours: str
    peer: str
    factor: float
    figure: Figure = "cpu"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal, and how far it was reached; None when one of the two did not run."""

    goal: Goal
    ratio: float | None

    @property
    def is_met(self) -> bool:
        return self.ratio is not None and self.ratio >= self.goal.factor


_AIO_GETMANY: Final = "aiokafka getmany"
_AIO_ASYNC_FOR: Final = "aiokafka async for"
_CONFLUENT: Final = "confluent consume, least CPU"
_CONFLUENT_WALL: Final = "confluent consume, least wall"
_JAVA: Final = "Java ConsumerPerformance"

GOALS: Final = (
    Goal("plain", "lite poll", _AIO_GETMANY, 10),
    Goal("plain", "lite getmany", _AIO_GETMANY, 10),
    Goal("plain", "lite poll", _CONFLUENT, 5),
    Goal("plain", "lite getmany", _CONFLUENT, 5),
    Goal("plain", "lite poll", _JAVA, 3),
    Goal("plain", "lite async for", _AIO_ASYNC_FOR, 25),
    Goal("plain", "lite async for", "lite poll", 1 / 1.15),
    *(
        goal
        for codec in ("zstd", "lz4")
        for goal in (
            Goal(codec, "lite poll", _AIO_GETMANY, 6),
            Goal(codec, "lite poll", _CONFLUENT, 4),
        )
    ),
    Goal("big", "lite poll", _AIO_GETMANY, 6),
    Goal("big", "lite poll", _CONFLUENT, 3),
    Goal("plain", "lite poll", _AIO_GETMANY, 4, "wall"),
    Goal("plain", "lite poll", _CONFLUENT_WALL, 3, "wall"),
)


def judge(
    summaries: Mapping[tuple[str, str], Summary], goals: Iterable[Goal] = GOALS
) -> list[Verdict]:
    """Compare the best figures of a run with the goals; ones of other scenarios are left out."""
    scenarios = {scenario for scenario, _ in summaries}
    verdicts = []
    for goal in goals:
        if goal.scenario not in scenarios:
            continue
        ours = summaries.get((goal.scenario, goal.ours))
        peer = summaries.get((goal.scenario, goal.peer))
        if ours is None or peer is None:
            verdicts.append(Verdict(goal, None))
            continue
        ratio = (
            peer.cpu_ns.best / ours.cpu_ns.best
            if goal.figure == "cpu"
            else peer.wall_ns.best / ours.wall_ns.best
        )
        verdicts.append(Verdict(goal, ratio))
    return verdicts
