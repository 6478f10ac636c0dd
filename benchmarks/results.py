"""What came out: samples of each contestant in each scenario, and their summary."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.machine import Machine
from benchmarks.measure import Measurement


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one contestant."""

    scenario: str
    contestant: str
    round: int
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that did not end well."""

    scenario: str
    contestant: str
    reason: str


@dataclass(frozen=True, slots=True)
class Spread:
    """The best, the middle and the worst of several runs."""

    best: float
    median: float
    worst: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        return cls(min(figures), statistics.median(figures), max(figures))


@dataclass(frozen=True, slots=True)
class Summary:
    """One contestant in one scenario over all rounds; nanoseconds per record."""

    scenario: str
    contestant: str
    runs: int
    cpu_ns: Spread
    wall_ns: Spread
    version: str


def summarize(samples: Iterable[Sample]) -> dict[tuple[str, str], Summary]:
    """Summarize samples by scenario and contestant, in the order in which they first came."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.scenario, sample.contestant), []).append(sample)
    return {
        (scenario, contestant): Summary(
            scenario,
            contestant,
            len(group),
            Spread.of([each.measurement.cpu_ns for each in group]),
            Spread.of([each.measurement.wall_ns for each in group]),
            group[0].measurement.version,
        )
        for (scenario, contestant), group in groups.items()
    }


def write_json(
    path: Path, machine: Machine, samples: Sequence[Sample], failures: Sequence[Failure]
) -> None:
    """Write everything that was measured, for other programs to read."""
    document = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": asdict(machine),
        "samples": [asdict(sample) for sample in samples],
        "summaries": [asdict(summary) for summary in summarize(samples).values()],
        "failures": [asdict(failure) for failure in failures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
