"""The clock of a contestant."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Final

WAIT_S: Final = 30.0
"""A contestant that gets no record for so long gives up."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a contestant is to read."""

    bootstrap_servers: str
    topic: str
    partition_count: int
    records: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What reading it took."""

    records: int
    touched_bytes: int | None
    """Lengths of all keys and values; None when the contestant does not tell."""
    wall_s: float
    cpu_s: float
    version: str

    @property
    def cpu_ns(self) -> float:
        """CPU time per record in nanoseconds."""
        return self.cpu_s * 1e9 / self.records

    @property
    def wall_ns(self) -> float:
        """Wall time per record in nanoseconds."""
        return self.wall_s * 1e9 / self.records


class StarvedError(Exception):
    """No record came, though there are more."""


class Meter:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._cpu_s = cpu_seconds()
        self._wall_s = time.perf_counter()

    def stop(self, records: int, touched_bytes: int, version: str) -> Measurement:
        """Stop, and tell what was read meanwhile."""
        wall_s = time.perf_counter() - self._wall_s
        return Measurement(records, touched_bytes, wall_s, cpu_seconds() - self._cpu_s, version)


def cpu_seconds(who: int = resource.RUSAGE_SELF) -> float:
    """Return the user and system time of this process, or of its ended children."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime
