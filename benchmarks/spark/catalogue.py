"""What is compared: who takes part, with which settings, in which scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.contestants import JAVA, OURS, SPARK, Contestant
from benchmarks.figures import Figure
from benchmarks.scenarios import Scenario
from benchmarks.topics import Topic

LITE: Final = Contestant("lite", OURS, "aiokafka_lite", requires="pyspark")
LITE_VALUE: Final = Contestant("lite, value only", OURS, LITE.subject, requires="pyspark")
JVM: Final = Contestant("jvm", JAVA, "kafka", requires="java")
JVM_TUNED: Final = Contestant("jvm tuned", JAVA, "kafka", requires="java")
TRANSPORT: Final = Contestant("transport alone", SPARK, "transport", requires="pyspark")
"""The limit of every source in Python: `benchmarks.spark.transport`, which imports pyspark."""

TUNING: Final[Mapping[str, str]] = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""The options that were found best for the connector; it asks for offsets after every poll."""

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {JVM_TUNED.name: TUNING}
"""Options by contestant, beside those that say what to read."""

SCHEMAS: Final[Mapping[str, str]] = {LITE_VALUE.name: "value binary"}
"""The columns wanted, by contestant; else all. Spark's own source takes no schema."""

WALL_US: Final = Figure("wall_us", "wall", "µs a record", 3)
CPU_US: Final = Figure("cpu_us", "CPU", "µs a record", 3)
WALL_MS: Final = Figure("wall_ms", "wall", "ms", 0)
CPU_MS: Final = Figure("cpu_ms", "CPU", "ms", 0)
PARTS: Final[Mapping[str, str]] = {"jvm": "JVM", "python": "Python", "broker": "broker"}
"""Processes that take CPU time: figures are called `jvm_us` or `jvm_ms`, and so on."""


def _with_parts(wall: Figure, cpu: Figure, unit: str) -> tuple[Figure, ...]:
    parts = (
        replace(cpu, key=f"{part}_{unit}", heading=f"{name}'s CPU") for part, name in PARTS.items()
    )
    return (wall, cpu, *parts)


BULK: Final = _with_parts(WALL_US, CPU_US, "us")
FIXED: Final = _with_parts(WALL_MS, CPU_MS, "ms")

BATCH_BYTES: Final = 64 * 1024
TRIGGER_RECORDS: Final = 2_000
"""How many records a small micro-batch has."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much work the scenarios are.

    Attributes:
        records: In each topic that is read at full speed.
        small_records: In the topic of small queries and of small micro-batches.
        partition_count: Of the topic whose query is planned.
        warm_rounds: Rounds that do not count, in which the JVM compiles.
        rounds: Rounds that count.
    """

    records: int
    small_records: int
    partition_count: int
    warm_rounds: int
    rounds: int


# Virtual machines change their speed by a third from minute to minute: the best of many rounds is
# what a contestant takes, the best of few says when it was tried.
FULL: Final = Size(5_000_000, 40_000, 3_000, warm_rounds=6, rounds=12)
QUICK: Final = Size(500_000, 40_000, 3_000, warm_rounds=1, rounds=2)

UNIX_SOCKETS: Final = "trigger-unix"
"""The scenario that needs a session of its own: the setting cannot be changed in a running one."""


def scenarios(size: Size) -> tuple[Scenario, ...]:
    """Return all scenarios; ones of the same session are neighbours."""
    plain, lz4, zstd = (
        Topic(codec, 100, size.records, batch_bytes=BATCH_BYTES)
        for codec in ("none", "lz4", "zstd")
    )
    small = Topic("none", 100, size.small_records, batch_bytes=BATCH_BYTES)
    wide = Topic("none", 100, 10 * size.partition_count, size.partition_count)
    length = "count and sum of lengths"
    to_parquet = "all columns to Parquet, a batch query"
    triggers = f"micro-batches of {TRIGGER_RECORDS:,} records, median"

    def scenario(
        name: str,
        title: str,
        task: str,
        topic: Topic,
        figures: tuple[Figure, ...] = BULK,
        more: tuple[Contestant, ...] = (),
    ) -> Scenario:
        return Scenario(
            name,
            "spark-bulk" if figures is BULK else "spark-fixed",
            title,
            task,
            figures,
            ((LITE, JVM, JVM_TUNED) if figures is BULK else (LITE, JVM)) + more,
            rounds=size.warm_rounds + size.rounds,
            topics=(topic,),
        )

    return (
        scenario(
            "agg", f"{length}, {plain.title}", "aggregate", plain, more=(LITE_VALUE, TRANSPORT)
        ),
        scenario("agg-lz4", f"{length}, {lz4.title}", "aggregate", lz4),
        scenario("agg-zstd", f"{length}, {zstd.title}", "aggregate", zstd),
        scenario("parquet", to_parquet, "parquet", plain, more=(TRANSPORT,)),
        scenario("stream", "all columns to Parquet, availableNow", "stream", plain),
        scenario("small", f"a query of {size.small_records:,} records", "aggregate", small, FIXED),
        scenario("plan", f"planning of {size.partition_count:,} partitions", "plan", wide, FIXED),
        scenario("trigger", triggers, "trigger", small, FIXED),
        scenario(UNIX_SOCKETS, f"{triggers}; unix sockets", "trigger", small, FIXED),
    )
