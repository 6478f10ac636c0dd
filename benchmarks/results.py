"""The results of a run: samples, their summary, and the file that stores it.

README and the documentation take their figures from the files in `benchmarks/results/`, one for
each run. A run is of whole families, because only figures of one run are compared. A family can be
measured again without the hours of all others, and the newest run of each family is shown.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, TypeAlias

from benchmarks.contestants import FLOOR
from benchmarks.figures import BEYOND, CPU_NS, Figure
from benchmarks.machine import Machine
from benchmarks.measure import Measurement
from benchmarks.scenarios import Scenario
from tests.support.real_kafka import KAFKA_VERSION

FOLDER: Final = Path(__file__).parent / "results"
ROOT: Final = Path(__file__).parents[1]
UNKNOWN_COMMIT: Final = "unknown"
"""The commit of a run outside of a checkout."""

Kind: TypeAlias = Literal["bench", "spark"]


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


Summaries: TypeAlias = Mapping[tuple[str, str], Summary]
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


def best_of(summaries: Summaries, scenario: str, contestant: str, figure: str) -> float | None:
    """Return a contestant's best figure, None if it was not measured."""
    summary = summaries.get((scenario, contestant))
    spread = None if summary is None else summary.figures.get(figure)
    return None if spread is None else spread.best


@dataclass(frozen=True, slots=True)
class Question:
    """A scenario as it was then; its tables can be made after scenarios were renamed."""

    name: str
    family: str
    title: str
    figures: Sequence[Figure]
    contestants: Sequence[str]


@dataclass(frozen=True, slots=True)
class Run:
    """The summary of one run.

    Attributes:
        kind: Of the client's benchmarks, or of those of the Spark source.
        at: Its end in UTC, in ISO 8601.
        commit: The code that ran.
        is_dirty: Whether that code had changes without a commit.
        is_quick: Whether it did less of everything.
        machine: The place.
        versions: Of clients and of Kafka, by name.
        questions: In the order of the tables.
        summaries: The figures.
    """

    kind: Kind
    at: str
    commit: str
    is_dirty: bool
    is_quick: bool
    machine: Machine
    versions: Mapping[str, str]
    questions: Sequence[Question]
    summaries: Summaries

    @property
    def day(self) -> str:
        return self.at[:10]

    @property
    def label(self) -> str:
        """The run in few words."""
        changed = " and changes" if self.is_dirty else ""
        quick = ", quick run" if self.is_quick else ""
        return f"{self.day}, commit {self.commit}{changed}{quick}"

    @property
    def file_name(self) -> str:
        moment = self.at[:19].replace(":", "").replace("-", "").replace("T", "-")
        quick = "-quick" if self.is_quick else ""
        return f"{self.kind}{quick}-{moment}-{self.commit}.json"

    def family(self, name: str) -> list[Question]:
        """Return the questions of a family, those that were answered."""
        answered = {scenario for scenario, _ in self.summaries}
        return [each for each in self.questions if each.family == name and each.name in answered]

    def best(self, scenario: str, contestant: str, figure: str) -> float | None:
        """Return a contestant's best figure, None if it was not measured."""
        return best_of(self.summaries, scenario, contestant, figure)


def describe_run(
    kind: Kind,
    at: str,
    machine: Machine,
    scenarios: Sequence[Scenario],
    summaries: Summaries,
    *,
    is_quick: bool,
    is_own_kafka: bool,
) -> Run:
    """Collect all that is known of a run of this code."""
    versions: dict[str, str] = {}
    for scenario in scenarios:
        for contestant in scenario.contestants:
            summary = summaries.get((scenario.name, contestant.name))
            if summary is not None:
                known = versions.get(contestant.client, "")
                versions[contestant.client] = max(known, summary.version, key=len)
    if is_own_kafka:
        versions["Kafka"] = KAFKA_VERSION
    questions = [
        Question(
            each.name, each.family, each.title, each.figures, [c.name for c in each.contestants]
        )
        for each in scenarios
    ]
    return Run(kind, at, *_commit(), is_quick, machine, versions, questions, summaries)


def _commit() -> tuple[str, bool]:
    """Return the commit of the code, and whether there are changes beside the results."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!*.md")
        return git("rev-parse", "--short=8", "HEAD"), bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN_COMMIT, False


def document(run: Run) -> dict[str, object]:
    """Return a run as values of JSON."""
    summaries = [asdict(summary) for summary in run.summaries.values()]
    return {**asdict(replace(run, summaries={})), "summaries": summaries}


def keep(run: Run, folder: Path = FOLDER) -> Path:
    """Write a run to a file of its own; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / run.file_name
    path.write_text(json.dumps(document(run), indent=1) + "\n")
    return path


def load(path: Path) -> Run:
    """Read a run."""
    stored = json.loads(path.read_text())
    stored.pop("verdicts", None)  # older runs have the goals of their day, too
    summaries = [
        Summary(
            **{**each, "figures": {key: Spread(**value) for key, value in each["figures"].items()}}
        )
        for each in stored["summaries"]
    ]
    questions = [
        Question(**{**each, "figures": [Figure(**figure) for figure in each["figures"]]})
        for each in stored["questions"]
    ]
    return Run(
        **{
            **stored,
            "machine": Machine(**stored["machine"]),
            "questions": questions,
            "summaries": {(each.scenario, each.contestant): each for each in summaries},
        }
    )


@dataclass(frozen=True)
class Shown:
    """What the pages show of the runs of a kind: each family of the newest run that measured it.

    A quick run counts only for a family that no full run has measured.

    Attributes:
        runs: All that are kept, oldest first.
    """

    runs: Sequence[Run]

    @cached_property
    def families(self) -> Mapping[str, Sequence[Run]]:
        """The runs that count for each family, oldest first: the last is the one to show.

        Families are in the order of the run that measured most.
        """
        runs = sorted(self.runs, key=lambda run: len(run.questions), reverse=True)
        named = dict.fromkeys(each.family for run in runs for each in run.questions)
        found = {name: [run for run in self.runs if run.family(name)] for name in named}
        return {
            name: [run for run in measured if not run.is_quick] or measured
            for name, measured in found.items()
            if measured
        }

    @property
    def main(self) -> Run:
        """The run that most families are shown of."""
        shown = [runs[-1] for runs in self.families.values()]
        return max(self.runs, key=lambda run: sum(each is run for each in shown))

    def of(self, family: str) -> Sequence[Run]:
        """Return the runs that count for a family."""
        return self.families.get(family, ())

    @cached_property
    def _by_scenario(self) -> Mapping[str, Sequence[Run]]:
        return {
            question.name: runs
            for family, runs in self.families.items()
            for question in runs[-1].family(family)
        }

    def asking(self, scenario: str) -> Sequence[Run]:
        """Return the runs that count for a scenario, oldest first."""
        return self._by_scenario.get(scenario, ())

    def best(self, scenario: str, contestant: str, figure: str) -> float | None:
        """Return a contestant's best figure in the run to show, None if it was not measured."""
        runs = self.asking(scenario)
        return runs[-1].best(scenario, contestant, figure) if runs else None


def shown(kind: Kind, folder: Path = FOLDER) -> Shown:
    """Read all runs of a kind that are kept."""
    return Shown(sorted(map(load, folder.glob(f"{kind}-*.json")), key=lambda run: run.at))
