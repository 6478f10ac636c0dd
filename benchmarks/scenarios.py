"""A scenario: one question, answered by several contestants in the same way.

It is nothing but values: the topics it needs, the task (a module of `benchmarks.tasks`) that each
contestant's process does with them, and the figures that come out of it. Which there are is in
`catalogue`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.contestants import Contestant
from benchmarks.figures import Figure
from benchmarks.measure import Measurement, Move, RunError, Workload
from benchmarks.topics import Topic

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
        course: What is done to a cluster of its own while all contestants read from it at the same
            time; a name out of `benchmarks.failover.COURSES`.
        start, passes, settle_s, seconds, pause_s, written, batch_bytes, is_group, is_crowd, move:
            See `Workload`.
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
    course: str = ""
    start: Literal["earliest", "latest"] = "earliest"
    passes: int = 1
    settle_s: float = 0.0
    seconds: float = 0.0
    pause_s: float = 0.0
    written: Topic | None = None
    batch_bytes: int = 0
    is_group: bool = False
    is_crowd: bool = False
    move: Move = "seek"

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
            written=self.written,
            batch_bytes=self.batch_bytes,
            is_group=self.is_group,
            is_crowd=self.is_crowd,
            move=self.move,
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
        if self.written is not None and records != self.written.records:
            raise RunError(f"wrote {records} records, expected {self.written.records}")
        if measurement.touched_bytes is None:
            return
        expected = self.passes * sum(topic.records for topic in self.topics)
        if records != expected:
            raise RunError(f"read {records} records, expected {expected}")
        expected_bytes = self.passes * sum(topic.touched_bytes for topic in self.topics)
        if measurement.touched_bytes != expected_bytes:
            raise RunError(f"touched {measurement.touched_bytes} bytes, expected {expected_bytes}")
