"""What the Spark source is to reach, compared with Spark's own: best round against best round."""

from __future__ import annotations

from typing import Final

from benchmarks.goals import Limit, NotAbove, TimesLess
from benchmarks.spark.catalogue import CPU_US, JVM, JVM_TUNED, LITE, WALL_MS, WALL_US

SPARK_GOALS: Final[tuple[Limit, ...]] = (
    TimesLess("agg", LITE, WALL_US, 2.6, (JVM,)),
    TimesLess("agg", LITE, WALL_US, 2.2, (JVM_TUNED,)),
    NotAbove("agg", LITE, CPU_US, 0.65, (JVM,)),
    TimesLess("agg-lz4", LITE, WALL_US, 3, (JVM,)),
    TimesLess("agg-lz4", LITE, WALL_US, 2.2, (JVM_TUNED,)),
    NotAbove("agg-lz4", LITE, CPU_US, 0.65, (JVM,)),
    TimesLess("parquet", LITE, WALL_US, 1.3, (JVM,)),
    TimesLess("parquet", LITE, WALL_US, 1.1, (JVM_TUNED,)),
    TimesLess("stream", LITE, WALL_US, 1.3, (JVM,)),
    TimesLess("stream", LITE, WALL_US, 1.1, (JVM_TUNED,)),
    NotAbove("small", LITE, WALL_MS, 0.3, (JVM,)),
    Limit("plan", LITE, WALL_MS, 1000),
    NotAbove("trigger", LITE, WALL_MS, 2, (JVM,)),
    NotAbove("trigger-unix", LITE, WALL_MS, 1.4, (JVM,)),
)
