"""What is measured: names, units, and how the figures are written. Less is better in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Figure:
    """One kind of figure.

    Attributes:
        key: Its name in a `Measurement`.
        heading: Its name in a table.
        unit: What it counts.
        digits: How many follow the decimal point.
    """

    key: str
    heading: str
    unit: str
    digits: int = 0

    def text(self, figure: float) -> str:
        """Write a figure, with separators and without the unit."""
        return f"{figure:,.{self.digits}f}"


CPU_NS: Final = Figure("cpu_ns", "CPU", "ns a record")
BEYOND: Final = Figure("beyond_ns", "beyond the floor", "ns a record")
"""CPU time less that of the floor's best round, which is the kernel's copy for the most part: it
varies more from machine to machine than the work of a client."""
WALL_NS: Final = Figure("wall_ns", "wall", "ns a record")
CPU_US: Final = Figure("cpu_us", "CPU", "µs a record", 1)
AGE_P50: Final = Figure("p50_ms", "age p50", "ms", 2)
AGE_P99: Final = Figure("p99_ms", "age p99", "ms", 2)
AGE: Final = (AGE_P50, AGE_P99)
"""How old records are when they are handed out."""
LATE_P50: Final = Figure("late_p50_ms", "late p50", "ms", 2)
LATE_P99: Final = Figure("late_p99_ms", "late p99", "ms", 2)
LATE_MAX: Final = Figure("late_max_ms", "late max", "ms", 2)
SLICE: Final = Figure("slice_ms", "longest slice", "ms CPU", 2)
LATENESS: Final = (LATE_P99, LATE_P50, LATE_MAX, SLICE)
"""How late a ticker runs, and the longest CPU time of one round of the loop."""
CPU_PERCENT: Final = Figure("cpu_percent", "CPU", "% of a core", 2)
RSS: Final = Figure("rss_mib", "peak RSS", "MiB", 1)
GROWTH: Final = Figure("growth_percent", "growth", "%", 1)
WALL_MS: Final = Figure("wall_ms", "wall", "ms", 1)
CPU_MS: Final = Figure("cpu_ms", "CPU", "ms", 1)
BROKER_CPU_NS: Final = Figure("broker_cpu_ns", "broker's CPU", "ns a record")
BROKER_CPU_PERCENT: Final = Figure("broker_cpu_percent", "broker's CPU", "% of a core", 1)
SILENCE: Final = Figure("silence_s", "silence", "s", 2)
SILENCE_MAX: Final = Figure("silence_max_s", "longest", "s", 2)
BEHIND: Final = Figure("behind_s", "of it own", "s", 2)
AGE_P99_S: Final = Figure("age_p99_s", "age p99", "s", 2)
REBALANCES: Final = Figure("rebalances", "rebalances", "", 0)
LOST: Final = Figure("lost", "lost", "records", 0)
REPEATED: Final = Figure("repeated", "repeated", "records", 0)
DISORDERED: Final = Figure("disordered", "out of order", "records", 0)
FAILOVER: Final = (SILENCE, SILENCE_MAX, BEHIND, AGE_P99_S, REBALANCES, LOST, REPEATED, DISORDERED)
"""The longest time without a record of a partition, its median over the faults and the worst; the
longest time for which a record could be had and was not there; what is to be 0."""
FIRST_MS: Final = Figure("first_ms", "first record", "ms", 1)
COLD_MS: Final = Figure("cold_ms", "cold", "ms", 1)
START_CPU_MS: Final = Figure("start_cpu_ms", "CPU", "ms a start", 2)
KIB_EACH: Final = Figure("kib_each", "memory", "KiB each", 1)
START: Final = (FIRST_MS, START_CPU_MS, COLD_MS, KIB_EACH)
"""From the making of a consumer to its first record: the median; the CPU time of the process; the
first one of a process, its import included; what the process grew by for each."""
WALL_US: Final = Figure("wall_us", "wall", "µs a record", 1)
SCHEDULING: Final = Figure("scheduling_us", "scheduling", "µs CPU a record", 2)
TIMES_ALONE: Final = Figure("times_alone", "CPU", "times asyncio alone", 2)
EARLY: Final = Figure("early", "committed early", "records", 0)
HANDLING: Final = (WALL_US, SCHEDULING, TIMES_ALONE, EARLY, DISORDERED)
"""What a record takes where 500 handlers wait 50 or 5 ms each; CPU time beside the handlers' own,
each the mean of the cheaper half of its seconds; all CPU time by that of asyncio alone; how many
records were committed at one time and not finished, which a kill would lose; what is to be 0."""
FIRST_P50: Final = Figure("first_p50_ms", "first record p50", "ms", 2)
FIRST_MAX: Final = Figure("first_max_ms", "first record max", "ms", 1)
MOVED: Final = (FIRST_P50, FIRST_MAX)
"""From a `seek`, `resume` or `assign` to the first record of that partition."""
WALL_BYTE: Final = Figure("wall_ns_byte", "wall", "ns a byte", 3)
BROKER_CPU_BYTE: Final = Figure("broker_cpu_ns", "broker's CPU", "ns a byte", 3)
MOVES: Final = Figure("moves_s", "moves", "s silent", 2)
STAYS: Final = Figure("stays_s", "stays", "s silent", 2)
JOINER: Final = Figure("joiner_s", "joiner", "s", 2)
ERRORS: Final = Figure("errors", "errors", "", 0)
NEW_MS: Final = Figure("new_ms", "first record, new group", "ms", 0)
JOINED_MS: Final = Figure("joined_ms", "one more member", "ms", 0)
IDLE_PERCENT: Final = Figure("idle_percent", "handlers idle", "%", 1)
TIMES_BYTES: Final = Figure("times_bytes", "fetched", "times the records' bytes", 2)
ACK_P99: Final = Figure("ack_p99_ms", "released p99", "ms", 1)
ACK_P50: Final = Figure("ack_p50_ms", "released p50", "ms", 1)
SHARE_BUSY: Final = (IDLE_PERCENT, TIMES_BYTES, ACK_P99, ACK_P50)
"""How much of their time handlers have no record; what is fetched for what they handle; from when a
handler and all of its partition before have ended to when the broker has that."""
UNFINISHED: Final = Figure("unfinished", "not accepted", "records", 0)
BACK_MS: Final = Figure("back_ms", "next record", "ms", 0)
CLAIMED: Final = Figure("claimed", "claimed", "records", 0)
UNREPORTED: Final = Figure("unreported", "unreported", "records", 0)
SHARE_CUT: Final = (BACK_MS, UNREPORTED, CLAIMED, REPEATED)
"""From a cut to the next record that is accepted; of the repeated records, how many the client did
not report as lost, and how many it reported as accepted."""
REBALANCE: Final = (MOVES, STAYS, JOINER, LOST, REPEATED, ERRORS)
"""The longest time without a record of a partition that goes to another member, and of one that
does not; the longest from the making of a new member's consumer to its first record; what is to be
0."""
