"""What the project wants to reach, in absolute figures and compared with peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, get_args

from benchmarks.broker_scenarios import RATES
from benchmarks.catalogue import BATCH_AXIS, FULL, scaling
from benchmarks.contestants import (
    AIOKAFKA_ASYNC_FOR,
    AIOKAFKA_GETMANY,
    CONFLUENT_CONSUME,
    CONFLUENT_LEAST_CPU,
    CONFLUENT_LEAST_WALL,
    CONFLUENT_POLL,
    FLOOR,
    FOOTPRINT_DIRECTORY,
    FOOTPRINT_MEMORY,
    HANDLING_LITE,
    IMPORT_LITE,
    JAVA_PERFORMANCE,
    LITE_ASYNC_FOR,
    LITE_BATCHES,
    LITE_GETMANY,
    LITE_POLL,
    MEMBER_LITE_CONSUMER,
    MEMBER_LITE_RANGE,
    MEMBER_LITE_STICKY,
    MOVE_LITE,
    PRODUCE_AIOKAFKA,
    PRODUCE_LITE,
    RAW_DRAIN,
    START_AIOKAFKA,
    START_CONFLUENT,
    START_LITE,
    Contestant,
)
from benchmarks.figures import (
    AGE_P50,
    AGE_P99,
    BEYOND,
    CPU_NS,
    CPU_PERCENT,
    CPU_US,
    DISORDERED,
    EARLY,
    ERRORS,
    FIRST_MAX,
    FIRST_MS,
    FIRST_P50,
    GROWTH,
    JOINER,
    KIB_EACH,
    LATE_P99,
    LOST,
    MOVES,
    REBALANCES,
    REPEATED,
    RSS,
    SCHEDULING,
    SILENCE,
    SLICE,
    START_CPU_MS,
    STAYS,
    WALL_BYTE,
    WALL_MS,
    WALL_NS,
    WALL_US,
    Figure,
)
from benchmarks.measure import Move
from benchmarks.results import Summaries, Verdict
from benchmarks.servers import DIRECTORY, KAFKA, MEMORY


@dataclass(frozen=True, slots=True)
class Limit:
    """Our figure is to be at most `limit`."""

    scenario: str
    ours: Contestant
    figure: Figure
    limit: float

    @property
    def scenarios(self) -> tuple[str, ...]:
        return (self.scenario,)

    def judge(self, summaries: Summaries) -> Verdict:
        """Compare our best round with the limit."""
        reached = _best(summaries, self.scenario, self.ours, self.figure)
        return Verdict(
            self.scenario,
            self.ours.name,
            self.figure.heading,
            f"at most {self.limit:g} {self.figure.unit}",
            reached,
            None if reached is None else reached <= self.limit,
        )


@dataclass(frozen=True, slots=True)
class TimesLess:
    """Our figure is to be at least `factor` times less than that of the best of `peers`."""

    scenario: str
    ours: Contestant
    figure: Figure
    factor: float
    peers: tuple[Contestant, ...]

    @property
    def scenarios(self) -> tuple[str, ...]:
        return (self.scenario,)

    def judge(self, summaries: Summaries) -> Verdict:
        """Compare our best round with the best one of all peers."""
        share = _share(summaries, self.scenario, self.ours, self.figure, self.peers)
        return Verdict(
            self.scenario,
            self.ours.name,
            self.figure.heading,
            f"{self.factor:g} × less than {_name(self.peers)}",
            None if share is None else 1 / share,
            None if share is None else 1 / share >= self.factor,
        )


@dataclass(frozen=True, slots=True)
class NotAbove:
    """Our figure is to be at most `factor` times that of the best of `peers`."""

    scenario: str
    ours: Contestant
    figure: Figure
    factor: float
    peers: tuple[Contestant, ...]

    @property
    def scenarios(self) -> tuple[str, ...]:
        return (self.scenario,)

    def judge(self, summaries: Summaries) -> Verdict:
        """Compare our best round with the best one of all peers."""
        share = _share(summaries, self.scenario, self.ours, self.figure, self.peers)
        return Verdict(
            self.scenario,
            self.ours.name,
            self.figure.heading,
            f"at most {self.factor:g} × {_name(self.peers)}",
            share,
            None if share is None else share <= self.factor,
        )


@dataclass(frozen=True, slots=True)
class NotAboveSlowest:
    """Our figure is to be at most `factor` times that of the slowest of `peers`."""

    scenario: str
    ours: Contestant
    figure: Figure
    factor: float
    peers: tuple[Contestant, ...]

    @property
    def scenarios(self) -> tuple[str, ...]:
        return (self.scenario,)

    def judge(self, summaries: Summaries) -> Verdict:
        """Compare our best round with the best one of the peer that is slowest."""
        ours = _best(summaries, self.scenario, self.ours, self.figure)
        found = [_best(summaries, self.scenario, peer, self.figure) for peer in self.peers]
        theirs = [each for each in found if each is not None]
        share = None if ours is None or not theirs else ours / max(theirs)
        names = " and ".join(peer.name for peer in self.peers)
        return Verdict(
            self.scenario,
            self.ours.name,
            self.figure.heading,
            f"at most {self.factor:g} × the slower of {names}",
            share,
            None if share is None else share <= self.factor,
        )


@dataclass(frozen=True, slots=True)
class Flat:
    """Our figure is to differ by no more than `factor` between scenarios where the work grows."""

    axis: str
    scenarios: tuple[str, ...]
    ours: Contestant
    figure: Figure
    factor: float

    def judge(self, summaries: Summaries) -> Verdict:
        """Compare our best rounds in all the scenarios that ran."""
        figures = [
            best
            for scenario in self.scenarios
            if (best := _best(summaries, scenario, self.ours, self.figure)) is not None
        ]
        reached = max(figures) / min(figures) if len(figures) > 1 else None
        return Verdict(
            f"scaling, {self.axis}",
            self.ours.name,
            self.figure.heading,
            f"worst at most {self.factor:g} × the best",
            reached,
            None if reached is None else reached <= self.factor,
        )


Goal = Limit | TimesLess | NotAbove | NotAboveSlowest | Flat

_CONFLUENT: Final = (CONFLUENT_CONSUME, CONFLUENT_LEAST_CPU, CONFLUENT_LEAST_WALL)
_ON_UVLOOP: Final = LITE_ASYNC_FOR.on_uvloop()


def _bulk() -> Iterable[Goal]:
    # Beyond the floor: what the kernel takes to copy an answer differs from machine to machine by
    # more than clients differ.
    for codec, than_aiokafka, than_confluent in (
        ("plain", 12, 8),
        ("lz4", 8, 5),
        ("zstd", 6, 5),
        ("big", 8, 4),
    ):
        yield TimesLess(codec, LITE_POLL, BEYOND, than_aiokafka, (AIOKAFKA_GETMANY,))
        yield TimesLess(codec, LITE_POLL, BEYOND, than_confluent, _CONFLUENT)
    yield TimesLess("plain", LITE_POLL, BEYOND, 3, (JAVA_PERFORMANCE,))
    yield TimesLess("plain", LITE_GETMANY, BEYOND, 10, (AIOKAFKA_GETMANY,))
    yield TimesLess("plain", LITE_GETMANY, BEYOND, 5, _CONFLUENT)
    yield TimesLess("plain", LITE_ASYNC_FOR, BEYOND, 25, (AIOKAFKA_ASYNC_FOR,))
    yield TimesLess("plain", LITE_ASYNC_FOR, BEYOND, 6, _CONFLUENT)
    yield NotAbove("plain", LITE_ASYNC_FOR, BEYOND, 1.15, (LITE_POLL,))
    yield TimesLess("plain", LITE_BATCHES, BEYOND, 25, (AIOKAFKA_GETMANY,))
    yield TimesLess("plain", LITE_BATCHES, BEYOND, 18, _CONFLUENT)
    yield TimesLess("plain", LITE_POLL, WALL_NS, 4, (AIOKAFKA_GETMANY,))
    yield TimesLess("plain", LITE_POLL, WALL_NS, 3, _CONFLUENT)


def _paced() -> Iterable[Goal]:
    poll = (CONFLUENT_POLL,)
    # On asyncio the floor itself takes more than librdkafka.
    yield NotAbove("trickle", LITE_ASYNC_FOR, CPU_US, 1.1, (FLOOR,))
    yield NotAbove("trickle", _ON_UVLOOP, CPU_US, 1.1, (FLOOR.on_uvloop(),))
    yield NotAbove("trickle", _ON_UVLOOP, CPU_US, 1, poll)
    # Of few records the p99 is chance.
    for name, ages in (
        ("trickle", (AGE_P50, AGE_P99)),
        ("trickle-100", (AGE_P50,)),
        ("trickle-10", (AGE_P50,)),
    ):
        for ours in (LITE_ASYNC_FOR, _ON_UVLOOP):
            for age in ages:
                yield NotAbove(name, ours, age, 1, poll)
    for ours in (LITE_ASYNC_FOR, _ON_UVLOOP):
        yield NotAbove("many", ours, CPU_US, 0.15, poll)
        yield TimesLess("many", ours, AGE_P50, 3, poll)


def _hold() -> Iterable[Goal]:
    for name in ("plain", "lz4", "zstd", "big"):
        yield Limit(f"hold-{name}", LITE_ASYNC_FOR, LATE_P99, 3)
        yield Limit(f"hold-{name}", LITE_ASYNC_FOR, SLICE, 10)


def _footprint() -> Iterable[Goal]:
    for ours in (LITE_ASYNC_FOR, _ON_UVLOOP):
        yield Limit("idle", ours, CPU_PERCENT, 0.5)
    for name in ("memory-plain", "memory-zstd", "memory-steady"):
        for ours in (LITE_ASYNC_FOR, LITE_POLL):
            yield Limit(name, ours, RSS, 160)
            yield Limit(name, ours, GROWTH, 5)
    yield Limit("import", IMPORT_LITE, WALL_MS, 45)


def _start() -> Iterable[Goal]:
    yield NotAbove("start-assign", START_LITE, FIRST_MS, 1, (START_AIOKAFKA,))
    yield NotAbove("start-group", START_LITE, FIRST_MS, 1, (START_AIOKAFKA, START_CONFLUENT))
    for way in ("assign", "group"):
        yield Limit(f"start-crowd-{way}", START_LITE, KIB_EACH, 80)
        yield NotAbove(f"start-crowd-{way}", START_LITE, START_CPU_MS, 1, (START_AIOKAFKA,))


def _moves() -> Iterable[Goal]:
    # Where peers wait for what is left of a long poll, ours is one request and its answer.
    for move in get_args(Move):
        yield Limit(f"moves-{move}", MOVE_LITE, FIRST_P50, 3)
        yield Limit(f"moves-{move}", MOVE_LITE, FIRST_MAX, 20)


def _produce() -> Iterable[Goal]:
    for name in ("produce", "produce-big"):
        yield TimesLess(name, PRODUCE_LITE, CPU_NS, 3, (PRODUCE_AIOKAFKA,))


def _processing() -> Iterable[Goal]:
    # 500 handlers of 50 ms are 10,000 records a second at best; 0.95 of that.
    yield Limit("processing", HANDLING_LITE, WALL_US, 105.3)
    yield Limit("processing", HANDLING_LITE, SCHEDULING, 5)
    yield Limit("processing", HANDLING_LITE, EARLY, 0)
    yield Limit("processing", HANDLING_LITE, DISORDERED, 0)


def _scaling() -> Iterable[Goal]:
    # What cannot be shared: finding the offsets of a thousand partitions, and a batch's header. A
    # batch of one record is not judged: its header is as long as the record.
    for axis, family in groupby(scaling(FULL), lambda scenario: scenario.axis):
        judged = tuple(each.name for each in family if (axis, each.at) != (BATCH_AXIS, 1))
        yield Flat(axis, judged, LITE_POLL, CPU_NS, 2)


def _broker() -> Iterable[Goal]:
    for rate in RATES:
        for server in (MEMORY, DIRECTORY):
            kafka = rate.client.on(KAFKA)
            yield NotAbove(rate.name, rate.client.on(server), WALL_NS, 1 / 0.8, (kafka,))
    for server in (MEMORY, DIRECTORY):
        yield Limit("broker-drain", RAW_DRAIN.on(server), WALL_BYTE, 1)
    for ours in (FOOTPRINT_MEMORY, FOOTPRINT_DIRECTORY):
        yield Limit("broker-footprint", ours, RSS, 190)  # 200 MB


def _failover() -> list[Goal]:
    peers = (AIOKAFKA_GETMANY, CONFLUENT_POLL)
    return [
        NotAboveSlowest("failover-kill", LITE_GETMANY, SILENCE, 1.1, peers),
        *(
            Limit(f"failover-{course}", LITE_GETMANY, figure, 0)
            for course in ("kill", "restart", "hang")
            for figure in (LOST, REPEATED, DISORDERED, REBALANCES)
        ),
    ]


def _rebalance() -> Iterable[Goal]:
    for ours in (MEMBER_LITE_CONSUMER, MEMBER_LITE_STICKY, MEMBER_LITE_RANGE):
        for figure in (LOST, REPEATED, ERRORS):
            yield Limit("rebalance", ours, figure, 0)
        yield Limit("rebalance", ours, JOINER, 0.8)
    # By the eager protocol all partitions stop.
    for ours, moves_s in ((MEMBER_LITE_CONSUMER, 0.6), (MEMBER_LITE_STICKY, 0.8)):
        yield Limit("rebalance", ours, STAYS, 0.2)
        yield Limit("rebalance", ours, MOVES, moves_s)


GOALS: Final[tuple[Goal, ...]] = (
    *_bulk(),
    *_paced(),
    *_hold(),
    *_failover(),
    *_rebalance(),
    *_footprint(),
    *_start(),
    *_moves(),
    *_produce(),
    *_processing(),
    *_scaling(),
    *_broker(),
)


def judge(summaries: Summaries, goals: Iterable[Goal] = GOALS) -> list[Verdict]:
    """Compare the figures of a run with the goals; ones of scenarios not run are left out."""
    ran = {scenario for scenario, _ in summaries}
    return [goal.judge(summaries) for goal in goals if ran.intersection(goal.scenarios)]


def _best(
    summaries: Summaries, scenario: str, contestant: Contestant, figure: Figure
) -> float | None:
    summary = summaries.get((scenario, contestant.name))
    spread = None if summary is None else summary.figures.get(figure.key)
    return None if spread is None else spread.best


def _share(
    summaries: Summaries,
    scenario: str,
    ours: Contestant,
    figure: Figure,
    peers: Iterable[Contestant],
) -> float | None:
    """Return how many times the best peer's figure ours is; None when one of both is missing."""
    our_best = _best(summaries, scenario, ours, figure)
    theirs = [
        best for peer in peers if (best := _best(summaries, scenario, peer, figure)) is not None
    ]
    return None if our_best is None or not theirs else our_best / min(theirs)


def _name(peers: Sequence[Contestant]) -> str:
    if len(peers) == 1:
        return peers[0].name
    clients = {each.client for each in peers}
    return f"{clients.pop()}'s best" if len(clients) == 1 else "the best peer"
