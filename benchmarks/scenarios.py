"""What is compared: one scenario per question, each done by several contestants.

A scenario is nothing but values: the topics it needs, the task (a module of `benchmarks.tasks`)
that each contestant's process does with them, and the figures that come out of it. Scenarios of one
family differ in their topics only, and share a table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from benchmarks.contestants import (
    AIOKAFKA_ASYNC_FOR,
    AIOKAFKA_GETMANY,
    CONFLUENT_AIO,
    CONFLUENT_CONSUME,
    CONFLUENT_LEAST_CPU,
    CONFLUENT_LEAST_WALL,
    CONFLUENT_POLL,
    IMPORT_AIOKAFKA,
    IMPORT_CONFLUENT,
    IMPORT_LITE,
    JAVA_PERFORMANCE,
    LITE_ASYNC_FOR,
    LITE_GETMANY,
    LITE_POLL,
    Contestant,
)
from benchmarks.figures import (
    AGE,
    CPU_MS,
    CPU_NS,
    CPU_PERCENT,
    CPU_US,
    GROWTH,
    LATENESS,
    RSS,
    WALL_MS,
    WALL_NS,
    Figure,
)
from benchmarks.measure import Measurement, RunError, Workload
from benchmarks.topics import Topic

_MANY_SETTLE_S: Final = 5.0
_PACE_TOLERANCE: Final = 0.8
"""A run of a paced scenario counts if it saw so much of what should have been written."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question.

    Attributes:
        name: Unique; what `--scenario` and the goals name.
        family: Scenarios with one table; `--scenario` takes this name too.
        title: The question in words.
        task: A module of `benchmarks.tasks`.
        figures: What each run measures; the table is sorted by the first.
        contestants: Who takes part; ratios are to the first.
        rounds: How often each of them runs.
        topics: What must be there.
        rate: Records a second that a producer writes while the contestants run.
        axis: What grows from one scenario of a family to the next, where something does.
        at: How far it has grown in this one.
        start, passes, settle_s, seconds, pause_s: See `Workload`.
    """

    name: str
    family: str
    title: str
    task: str
    figures: tuple[Figure, ...]
    contestants: tuple[Contestant, ...]
    rounds: int
    topics: tuple[Topic, ...] = ()
    rate: int = 0
    axis: str = ""
    at: int = 0
    start: Literal["earliest", "latest"] = "earliest"
    passes: int = 1
    settle_s: float = 0.0
    seconds: float = 0.0
    pause_s: float = 0.0

    def workload(self, bootstrap_servers: str) -> Workload:
        """Return what a run is told."""
        return Workload(
            bootstrap_servers,
            [topic.name for topic in self.topics],
            self.topics[0].partition_count if self.topics else 0,
            self.start,
            sum(topic.records for topic in self.topics),
            self.passes,
            self.settle_s,
            self.seconds,
            self.pause_s,
        )

    def check(self, measurement: Measurement) -> None:
        """Refuse a measurement of less work, or of other work, than was asked for.

        Raises:
            RunError: Says what is wrong with it.
        """
        records = measurement.records
        due = int(self.rate * self.seconds * _PACE_TOLERANCE)
        if records < due:
            raise RunError(f"saw {records} records in {self.seconds:g} s, expected {due} at least")
        if measurement.touched_bytes is None:
            return
        expected = self.passes * sum(topic.records for topic in self.topics)
        if records != expected:
            raise RunError(f"read {records} records, expected {expected}")
        expected_bytes = self.passes * sum(topic.touched_bytes for topic in self.topics)
        if measurement.touched_bytes != expected_bytes:
            raise RunError(f"touched {measurement.touched_bytes} bytes, expected {expected_bytes}")


@dataclass(frozen=True, slots=True)
class Size:
    """How much work the scenarios are."""

    records: int
    rounds: int
    seconds: float
    scaling_records: int


FULL: Final = Size(records=2_000_000, rounds=5, seconds=10, scaling_records=10_000_000)
QUICK: Final = Size(records=300_000, rounds=2, seconds=5, scaling_records=1_000_000)
QUICK_FAMILIES: Final = ("bulk", "trickle", "idle", "import")
"""What `--quick` runs unless scenarios are named."""


def scenarios(size: Size) -> tuple[Scenario, ...]:
    """Return all scenarios."""
    return (
        *_bulk(size),
        *_paced(size),
        _idle(size),
        *_hold(size),
        *_memory(size),
        _import(size),
        *scaling(size),
    )


def _bulk_topics(size: Size) -> dict[str, Topic]:
    """Topics for reading at full speed; big records are fewer, so that all take alike."""
    return {
        "plain": Topic("none", 100, size.records),
        "lz4": Topic("lz4", 100, size.records),
        "zstd": Topic("zstd", 100, size.records),
        "big": Topic("none", 1000, size.records // 4),
    }


def _bulk(size: Size) -> list[Scenario]:
    asyncio_ways = (
        LITE_POLL,
        LITE_GETMANY,
        LITE_ASYNC_FOR,
        AIOKAFKA_GETMANY,
        AIOKAFKA_ASYNC_FOR,
    )
    contestants = (
        *asyncio_ways,
        *(each.on_uvloop() for each in asyncio_ways),
        CONFLUENT_CONSUME,
        CONFLUENT_LEAST_CPU,
        CONFLUENT_LEAST_WALL,
        JAVA_PERFORMANCE,
    )
    return [
        Scenario(
            name,
            family="bulk",
            title=topic.title,
            task="bulk",
            figures=(CPU_NS, WALL_NS),
            contestants=contestants,
            rounds=size.rounds,
            topics=(topic,),
        )
        for name, topic in _bulk_topics(size).items()
    ]


def _many_topics() -> tuple[Topic, ...]:
    return tuple(Topic(use=f"many-{number:02}", partition_count=100) for number in range(30))


def _paced(size: Size) -> list[Scenario]:
    trickle = Scenario(
        "trickle",
        family="trickle",
        title="1,000 records a second on 4 partitions",
        task="paced",
        figures=(CPU_US, *AGE),
        contestants=(
            LITE_ASYNC_FOR,
            LITE_ASYNC_FOR.on_uvloop(),
            LITE_POLL,
            AIOKAFKA_GETMANY,
            AIOKAFKA_ASYNC_FOR,
            CONFLUENT_POLL,
            CONFLUENT_AIO,
        ),
        rounds=min(size.rounds, 3),
        topics=(Topic(use="paced"),),
        rate=1000,
        start="latest",
        settle_s=0.5,
        seconds=size.seconds,
    )
    many = replace(
        trickle,
        name="many",
        family="many",
        title="500 records a second spread over 3,000 partitions",
        rounds=min(size.rounds, 2),
        topics=_many_topics(),
        rate=500,
        settle_s=_MANY_SETTLE_S,
    )
    return [trickle, many]


def _idle(size: Size) -> Scenario:
    return Scenario(
        "idle",
        family="idle",
        title="3,000 partitions, no records",
        task="idle",
        figures=(CPU_PERCENT,),
        contestants=(
            LITE_ASYNC_FOR,
            LITE_ASYNC_FOR.on_uvloop(),
            AIOKAFKA_GETMANY,
            CONFLUENT_POLL,
        ),
        rounds=min(size.rounds, 2),
        topics=_many_topics(),
        start="latest",
        settle_s=_MANY_SETTLE_S,
        seconds=size.seconds,
    )


def _hold(size: Size) -> list[Scenario]:
    def sliced(contestant: Contestant) -> Contestant:
        return replace(contestant, loop="benchmarks.slice_loop")

    return [
        Scenario(
            f"hold-{name}",
            family="hold",
            title=topic.title,
            task="hold",
            figures=LATENESS,
            contestants=(
                sliced(LITE_ASYNC_FOR),
                LITE_ASYNC_FOR.on_uvloop(),
                sliced(LITE_POLL),
                sliced(AIOKAFKA_ASYNC_FOR),
                sliced(AIOKAFKA_GETMANY),
            ),
            rounds=min(size.rounds, 3),
            topics=(topic,),
        )
        for name, topic in _bulk_topics(size).items()
    ]


def _memory(size: Size) -> list[Scenario]:
    slow = Topic("none", 1000, 256_000, partition_count=64)
    cases = {
        "memory-plain": ("5 records a second", slow, 0.2),
        "memory-zstd": ("5 records a second", replace(slow, codec="zstd"), 0.2),
        "memory-steady": (
            "a thousand records a second",
            replace(slow, codec="zstd", value_bytes=10_000, records=32_000),
            0.001,
        ),
    }
    return [
        Scenario(
            name,
            family="memory",
            title=f"takes {pace} at most, of {topic.title}, 64 partitions",
            task="memory",
            figures=(RSS, GROWTH),
            contestants=(LITE_ASYNC_FOR, LITE_POLL, AIOKAFKA_ASYNC_FOR, CONFLUENT_POLL),
            rounds=1,
            topics=(topic,),
            seconds=2 * size.seconds,
            pause_s=pause_s,
        )
        for name, (pace, topic, pause_s) in cases.items()
    ]


def _import(size: Size) -> Scenario:
    return Scenario(
        "import",
        family="import",
        title="import into a fresh interpreter, beyond what that takes itself",
        task="imports",
        figures=(WALL_MS, CPU_MS),
        contestants=(IMPORT_LITE, IMPORT_AIOKAFKA, IMPORT_CONFLUENT),
        rounds=min(size.rounds, 2),
        passes=10,
    )


def scaling(size: Size) -> list[Scenario]:
    """Let the work grow in one way at a time: records, partitions, records in a batch.

    Ten million records are a million, read ten times by one consumer that seeks back: nobody has to
    store more. The small topics of the third way are read several times too, to take long enough.
    Wall time is no figure here: who seeks at the end of a topic waits for the fetch that is out.
    """

    def scenario(axis: str, at: int, topic: Topic, passes: int = 1) -> Scenario:
        return Scenario(
            f"{axis.replace(' ', '-')}-{at}",
            family="scaling",
            title=f"{at:,} {axis}",
            task="bulk",
            figures=(CPU_NS,),
            contestants=(LITE_POLL,),
            rounds=min(size.rounds, 3),
            topics=(topic,),
            axis=axis,
            at=at,
            passes=passes,
        )

    million = Topic("none", 100, 1_000_000)
    return [
        scenario("records", 100_000, Topic("none", 100, 100_000)),
        *(
            scenario("records", records, million, records // million.records)
            for records in (1_000_000, 3_000_000, 10_000_000)
            if records <= size.scaling_records
        ),
        *(
            scenario("partitions", count, Topic("none", 100, 500_000, partition_count=count), 2)
            for count in (1, 10, 100, 1000)
        ),
        *(
            scenario("records a batch", count, Topic("none", 50, 100_000, batch_records=count), 5)
            for count in (1, 10, 100, 1000, 10_000)
        ),
    ]
