"""What a run is told, what it measures, and its clocks."""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

from benchmarks.topics import Topic

Move: TypeAlias = Literal["seek", "resume", "assign"]
"""How a consumer comes to read a partition from elsewhere."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run is to do; which of it counts is up to the task.

    Attributes:
        bootstrap_servers: The cluster's address.
        topics: Topics to read, all partitions of each.
        partition_count: Partitions of each topic.
        start: Where reading begins.
        records: How many records the topics hold.
        passes: How many times all of them are read.
        settle_s: How long nothing is measured yet.
        seconds: How long it is measured.
        pause_s: How long the application takes over each record.
        wait_s: A run that gets no record for so long is given up.
        written: The topic that the run makes, writes and drops.
        batch_bytes: The largest batches to write; 0 for the client's default.
        is_group: Whether consumers join groups, each one that nobody knew.
        is_crowd: Whether consumers that were started stay until the last one has started.
        move: How consumers are moved.
    """

    bootstrap_servers: str
    topics: Sequence[str] = ()
    partition_count: int = 0
    start: Literal["earliest", "latest"] = "earliest"
    records: int = 0
    passes: int = 1
    settle_s: float = 0.0
    seconds: float = 0.0
    pause_s: float = 0.0
    wait_s: float = 30.0
    written: Topic | None = None
    batch_bytes: int = 0
    is_group: bool = False
    is_crowd: bool = False
    move: Move = "seek"

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """Rebuild what `json.dumps(asdict(workload))` wrote."""
        fields = json.loads(text)
        if fields["written"] is not None:
            fields["written"] = Topic(**fields["written"])
        return cls(**fields)

    def to_json(self) -> str:
        """Write it for another process."""
        return json.dumps(asdict(self))

    def partitions(self) -> list[tuple[str, int]]:
        """Return topic and number of every partition to read."""
        return [(topic, number) for topic in self.topics for number in range(self.partition_count)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a run came to.

    Attributes:
        version: Of the client.
        figures: By the keys of the scenario's figures.
        records: How many records the figures are about.
        touched_bytes: Lengths of all their keys and values; None when the task does not add up.
        series: Figures over time, by name, in steps of equal length.
    """

    version: str
    figures: Mapping[str, float]
    records: int = 0
    touched_bytes: int | None = None
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)


class RunError(Exception):
    """A run failed, or did other work than was asked for."""


class StarvedError(RunError):
    """No record came, though there are more."""


class Meter:
    """Measures wall time and CPU time (user + system, of all threads) from when it is made."""

    def __init__(self) -> None:
        self._cpu_s = cpu_seconds()
        self._wall_s = time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Return the wall time and the CPU time since then, in seconds."""
        wall_s = time.perf_counter() - self._wall_s
        return wall_s, cpu_seconds() - self._cpu_s


def cpu_seconds(who: int = resource.RUSAGE_SELF) -> float:
    """Return the user and system time of this process, or of its ended children."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest of the sorted figures that is not below `percent` % of them."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
