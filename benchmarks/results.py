"""What came out: samples of each contestant in each scenario, and their summary."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.contestants import FLOOR
from benchmarks.figures import BEYOND, CPU_NS
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
    """One contestant in one scenario over all rounds, each figure for itself."""

    scenario: str
    contestant: str
    runs: int
    figures: Mapping[str, Spread]
    version: str


Summaries = Mapping[tuple[str, str], Summary]
"""By scenario and contestant."""


def summarize(samples: Iterable[Sample]) -> dict[tuple[str, str], Summary]:
    """Summarize samples by scenario and contestant, in the order in which they first came.

    If the floor took part in a scenario, each summary has a figure more: `BEYOND`.
    """
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.scenario, sample.contestant), []).append(sample)
    found = {
        (scenario, contestant): Summary(
            scenario,
            contestant,
            len(group),
            {
                key: Spread.of([each.measurement.figures[key] for each in group])
                for key in group[0].measurement.figures
            },
            group[0].measurement.version,
        )
        for (scenario, contestant), group in groups.items()
    }
    return {
        (scenario, contestant): _beyond_floor(summary, found.get((scenario, FLOOR.name)))
        for (scenario, contestant), summary in found.items()
    }


def _beyond_floor(summary: Summary, floor: Summary | None) -> Summary:
    """Add the CPU time less that of the floor's best round, if that was measured."""
    if floor is None or CPU_NS.key not in floor.figures:
        return summary
    least = floor.figures[CPU_NS.key].best
    cpu = summary.figures[CPU_NS.key]
    beyond = Spread(cpu.best - least, cpu.median - least, cpu.worst - least)
    return replace(summary, figures={**summary.figures, BEYOND.key: beyond})


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


def write_json(
    path: Path,
    machine: Machine,
    samples: Sequence[Sample],
    verdicts: Sequence[Verdict],
    failures: Sequence[Failure],
) -> None:
    """Write everything that was measured, for other programs to read."""
    document = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": asdict(machine),
        "samples": [asdict(sample) for sample in samples],
        "summaries": [asdict(summary) for summary in summarize(samples).values()],
        "goals": [asdict(verdict) for verdict in verdicts],
        "failures": [asdict(failure) for failure in failures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
