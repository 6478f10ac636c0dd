"""What the project wants to reach, in absolute figures and compared with peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    SHARE_LITE,
    START_AIOKAFKA,
    START_CONFLUENT,
    START_LITE,
    Contestant,
)
from benchmarks.figures import (
    ACK_P99,
    AGE_P50,
    AGE_P99,
    BACK_MS,
    BEYOND,
    CLAIMED,
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
    IDLE_PERCENT,
    JOINED_MS,
    JOINER,
    KIB_EACH,
    LATE_P99,
    LOST,
    MOVES,
    NEW_MS,
    REBALANCES,
    REPEATED,
    RSS,
    SCHEDULING,
    SILENCE,
    SLICE,
    START_CPU_MS,
    STAYS,
    TIMES_ALONE,
    TIMES_BYTES,
    UNFINISHED,
    UNREPORTED,
    WALL_BYTE,
    WALL_MS,
    WALL_NS,
    WALL_US,
    Figure,
)
from benchmarks.measure import Move
from benchmarks.results import Summaries, best_of
from benchmarks.servers import DIRECTORY, KAFKA, MEMORY


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal, and what was reached.

    Attributes:
        scenario: Where it was measured.
        contestant: Whose figure it is.
        figure: Which one.
        goal: What is wanted, in words.
        reached: The same kind of number as the goal names; None when something did not run.
        is_met: Whether that is enough; None when something did not run.
    """

    scenario: str
    contestant: str
    figure: str
    goal: str
    reached: float | None
    is_met: bool | None


@dataclass(frozen=True, slots=True)
class Limit:
    """Our best round is to be at most `bound`."""

    scenario: str
    ours: Contestant
    figure: Figure
    bound: float
    peers: tuple[Contestant, ...] = ()

    @property
    def scenarios(self) -> tuple[str, ...]:
        return (self.scenario,)

    def wanted(self) -> str:
        """Return the goal in words."""
        return f"at most {self.bound:g} {self.figure.unit}"

    def reached(self, summaries: Summaries) -> float | None:
        """Return the number that is bounded; None when something did not run."""
        return self._best(summaries, self.ours)

    def is_met(self, reached: float) -> bool:
        """Return whether that is enough."""
        return reached <= self.bound

    def judge(self, summaries: Summaries) -> Verdict:
        """Compare the best rounds of a run with the goal."""
        reached = self.reached(summaries)
        return Verdict(
            self.scenario,
            self.ours.name,
            self.figure.heading,
            self.wanted(),
            reached,
            None if reached is None else self.is_met(reached),
        )

    def _best(self, summaries: Summaries, contestant: Contestant) -> float | None:
        return best_of(summaries, self.scenario, contestant.name, self.figure.key)

    def _share(
        self, summaries: Summaries, choose: Callable[[Iterable[float]], float] = min
    ) -> float | None:
        """Return how many times a peer's best round ours is; None when one of both is missing."""
        ours = self._best(summaries, self.ours)
        found = [self._best(summaries, peer) for peer in self.peers]
        theirs = [each for each in found if each is not None]
        return None if ours is None or not theirs else ours / choose(theirs)


class NotAbove(Limit):
    """Our best round is to be at most `bound` times that of the best of `peers`."""

    __slots__ = ()

    def wanted(self) -> str:
        return f"at most {self.bound:g} × {_name(self.peers)}"

    def reached(self, summaries: Summaries) -> float | None:
        return self._share(summaries)


class TimesLess(Limit):
    """Our best round is to be at least `bound` times less than that of the best of `peers`."""

    __slots__ = ()

    def wanted(self) -> str:
        return f"{self.bound:g} × less than {_name(self.peers)}"

    def reached(self, summaries: Summaries) -> float | None:
        share = self._share(summaries)
        return None if share is None else 1 / share

    def is_met(self, reached: float) -> bool:
        return reached >= self.bound


class NotAboveSlowest(Limit):
    """Our best round is to be at most `bound` times that of the slowest of `peers`."""

    __slots__ = ()

    def wanted(self) -> str:
        names = " and ".join(peer.name for peer in self.peers)
        return f"at most {self.bound:g} × the slower of {names}"

    def reached(self, summaries: Summaries) -> float | None:
        return self._share(summaries, max)


@dataclass(frozen=True, slots=True)
class Flat(Limit):
    """Our best rounds differ by at most `bound` between the scenarios `names`.

    The work grows from one of them to the next; those that did not run do not count.
    """

    names: tuple[str, ...] = ()

    @property
    def scenarios(self) -> tuple[str, ...]:
        return self.names

    def wanted(self) -> str:
        return f"worst at most {self.bound:g} × the best"

    def reached(self, summaries: Summaries) -> float | None:
        found = [best_of(summaries, name, self.ours.name, self.figure.key) for name in self.names]
        figures = [each for each in found if each is not None]
        return max(figures) / min(figures) if len(figures) > 1 else None


_CONFLUENT: Final = (CONFLUENT_CONSUME, CONFLUENT_LEAST_CPU, CONFLUENT_LEAST_WALL)
_ON_UVLOOP: Final = LITE_ASYNC_FOR.on_uvloop()


def _bulk() -> Iterable[Limit]:
    # The kernel's time to copy an answer differs more between machines than between clients.
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


def _paced() -> Iterable[Limit]:
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


def _hold() -> Iterable[Limit]:
    for name in ("plain", "lz4", "zstd", "big"):
        yield Limit(f"hold-{name}", LITE_ASYNC_FOR, LATE_P99, 3)
        yield Limit(f"hold-{name}", LITE_ASYNC_FOR, SLICE, 10)


def _footprint() -> Iterable[Limit]:
    for ours in (LITE_ASYNC_FOR, _ON_UVLOOP):
        yield Limit("idle", ours, CPU_PERCENT, 0.5)
    for name in ("memory-plain", "memory-zstd", "memory-steady"):
        for ours in (LITE_ASYNC_FOR, LITE_POLL):
            yield Limit(name, ours, RSS, 160)
            yield Limit(name, ours, GROWTH, 5)
    yield Limit("import", IMPORT_LITE, WALL_MS, 45)


def _start() -> Iterable[Limit]:
    yield NotAbove("start-assign", START_LITE, FIRST_MS, 1, (START_AIOKAFKA,))
    yield NotAbove("start-group", START_LITE, FIRST_MS, 1, (START_AIOKAFKA, START_CONFLUENT))
    for way in ("assign", "group"):
        yield Limit(f"start-crowd-{way}", START_LITE, KIB_EACH, 80)
        yield NotAbove(f"start-crowd-{way}", START_LITE, START_CPU_MS, 1, (START_AIOKAFKA,))


def _moves() -> Iterable[Limit]:
    # Where peers wait for what is left of a long poll, ours is one request and its answer.
    for move in get_args(Move):
        yield Limit(f"moves-{move}", MOVE_LITE, FIRST_P50, 3)
        yield Limit(f"moves-{move}", MOVE_LITE, FIRST_MAX, 20)


def _produce() -> Iterable[Limit]:
    for name in ("produce", "produce-big"):
        yield TimesLess(name, PRODUCE_LITE, CPU_NS, 3, (PRODUCE_AIOKAFKA,))


def _processing() -> Iterable[Limit]:
    # 500 handlers of 50 ms are 10,000 records a second at best, of 5 ms 100,000; 0.95 of that.
    yield Limit("processing", HANDLING_LITE, WALL_US, 105.3)
    yield Limit("processing", HANDLING_LITE, SCHEDULING, 5)
    yield Limit("processing-short", HANDLING_LITE, WALL_US, 10.53)
    yield Limit("processing-short", HANDLING_LITE, TIMES_ALONE, 1.25)
    for name in ("processing", "processing-short"):
        yield Limit(name, HANDLING_LITE, EARLY, 0)
        yield Limit(name, HANDLING_LITE, DISORDERED, 0)


def _scaling() -> Iterable[Limit]:
    # What cannot be shared: finding the offsets of a thousand partitions, and a batch's header. A
    # batch of one record is not judged: its header is as long as the record.
    for axis, family in groupby(scaling(FULL), lambda scenario: scenario.axis):
        judged = tuple(each.name for each in family if (axis, each.at) != (BATCH_AXIS, 1))
        yield Flat(f"scaling, {axis}", LITE_POLL, CPU_NS, 2, names=judged)


def _broker() -> Iterable[Limit]:
    for rate in RATES:
        for server in (MEMORY, DIRECTORY):
            kafka = rate.client.on(KAFKA)
            yield NotAbove(rate.name, rate.client.on(server), WALL_NS, 1 / 0.8, (kafka,))
    for server in (MEMORY, DIRECTORY):
        yield Limit("broker-drain", RAW_DRAIN.on(server), WALL_BYTE, 1)
    for ours in (FOOTPRINT_MEMORY, FOOTPRINT_DIRECTORY):
        yield Limit("broker-footprint", ours, RSS, 190)  # 200 MB


def _failover() -> list[Limit]:
    peers = (AIOKAFKA_GETMANY, CONFLUENT_POLL)
    return [
        NotAboveSlowest("failover-kill", LITE_GETMANY, SILENCE, 1.1, peers),
        *(
            Limit(f"failover-{course}", LITE_GETMANY, figure, 0)
            for course in ("kill", "restart", "hang")
            for figure in (LOST, REPEATED, DISORDERED, REBALANCES)
        ),
    ]


def _rebalance() -> Iterable[Limit]:
    for ours in (MEMBER_LITE_CONSUMER, MEMBER_LITE_STICKY, MEMBER_LITE_RANGE):
        for figure in (LOST, REPEATED, ERRORS):
            yield Limit("rebalance", ours, figure, 0)
        yield Limit("rebalance", ours, JOINER, 0.8)
    # By the eager protocol all partitions stop.
    for ours, moves_s in ((MEMBER_LITE_CONSUMER, 0.6), (MEMBER_LITE_STICKY, 0.8)):
        yield Limit("rebalance", ours, STAYS, 0.2)
        yield Limit("rebalance", ours, MOVES, moves_s)


def _share() -> Iterable[Limit]:
    for figure, bound in ((NEW_MS, 1200), (JOINED_MS, 150)):
        yield Limit("share-start", SHARE_LITE, figure, bound)
    for figure, bound in ((CPU_NS, 300), (WALL_NS, 5000)):
        yield Limit("share-bulk", SHARE_LITE, figure, bound)
    for figure, bound in ((IDLE_PERCENT, 5), (TIMES_BYTES, 2), (ACK_P99, 120)):
        yield Limit("share-busy", SHARE_LITE, figure, bound)
    yield Limit("share-idle", SHARE_LITE, ACK_P99, 20)
    for figure in (REPEATED, UNFINISHED):
        yield Limit("share-long", SHARE_LITE, figure, 0)
    for figure, bound in ((BACK_MS, 1000), (UNREPORTED, 0), (CLAIMED, 0)):
        yield Limit("share-cut", SHARE_LITE, figure, bound)


GOALS: Final[tuple[Limit, ...]] = (
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
    *_share(),
)


def judge(summaries: Summaries, goals: Iterable[Limit] = GOALS) -> list[Verdict]:
    """Compare the figures of a run with the goals; ones of scenarios not run are left out."""
    ran = {scenario for scenario, _ in summaries}
    return [goal.judge(summaries) for goal in goals if ran.intersection(goal.scenarios)]


def _name(peers: Sequence[Contestant]) -> str:
    if len(peers) == 1:
        return peers[0].name
    clients = {each.client for each in peers}
    return f"{clients.pop()}'s best" if len(clients) == 1 else "the best peer"
