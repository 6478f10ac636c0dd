"""Results that are kept beside the code: what README and the documentation take their figures from.

One file a run, in `benchmarks/results/`: where and when it was made, of which commit, what was
measured, by whom, and the summary of each contestant. It says all that a table needs, so that it
can still be shown when scenarios have been renamed. A run is of whole families: what is compared
was measured in one run, and one family can be measured anew without the hours of all the others.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from benchmarks.figures import Figure
from benchmarks.machine import Machine
from benchmarks.results import Spread, Summaries, Summary, Verdict
from benchmarks.scenarios import Scenario
from tests.support.real_kafka import KAFKA_VERSION

FOLDER: Final = Path(__file__).parent / "results"
ROOT: Final = Path(__file__).parents[1]
# Of a run that was made outside of a checkout.
UNKNOWN_COMMIT: Final = "unknown"

Kind: TypeAlias = Literal["bench", "spark"]


@dataclass(frozen=True, slots=True)
class Question:
    """A scenario as it was then."""

    name: str
    family: str
    title: str
    figures: Sequence[Figure]
    contestants: Sequence[str]


@dataclass(frozen=True, slots=True)
class Kept:
    """One run.

    Attributes:
        kind: What ran.
        at: When it ended, in UTC, as ISO 8601 has it.
        commit: Of the code that ran.
        is_dirty: Whether that code was changed and not committed.
        is_quick: Whether it did less of everything.
        machine: Where.
        versions: Of clients and of Kafka, by name.
        questions: In the order of the tables.
        summaries: What came out.
        verdicts: The goals, and what was reached.
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
    verdicts: Sequence[Verdict]

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

    def goals_of(self, family: str) -> list[Verdict]:
        """Return what became of a family's goals; one of several scenarios is named after it."""
        names = {family, *(each.name for each in self.questions if each.family == family)}
        return [each for each in self.verdicts if each.scenario.partition(",")[0] in names]

    def best(self, scenario: str, contestant: str, figure: str) -> float | None:
        """Return a contestant's best figure, None if it was not measured."""
        summary = self.summaries.get((scenario, contestant))
        spread = None if summary is None else summary.figures.get(figure)
        return None if spread is None else spread.best


def describe_run(
    kind: Kind,
    at: str,
    machine: Machine,
    scenarios: Iterable[Scenario],
    summaries: Summaries,
    verdicts: Sequence[Verdict],
    *,
    is_quick: bool,
    is_own_kafka: bool,
) -> Kept:
    """Put together what is to be kept of a run of this code."""
    scenarios = list(scenarios)
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
    return Kept(
        kind, at, *_commit(), is_quick, machine, versions, questions, summaries, list(verdicts)
    )


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


def keep(run: Kept, folder: Path = FOLDER) -> Path:
    """Write a run to a file of its own; returns its path."""
    document = asdict(replace(run, summaries={}))
    document["summaries"] = [asdict(summary) for summary in run.summaries.values()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / run.file_name
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def load(path: Path) -> Kept:
    """Read a run."""
    document = json.loads(path.read_text())
    summaries = [
        Summary(
            **{**each, "figures": {key: Spread(**value) for key, value in each["figures"].items()}}
        )
        for each in document["summaries"]
    ]
    questions = [
        Question(**{**each, "figures": [Figure(**figure) for figure in each["figures"]]})
        for each in document["questions"]
    ]
    return Kept(
        **{
            **document,
            "machine": Machine(**document["machine"]),
            "questions": questions,
            "summaries": {(each.scenario, each.contestant): each for each in summaries},
            "verdicts": [Verdict(**each) for each in document["verdicts"]],
        }
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """What the pages show of the runs of a kind: each family of the newest run that measured it.

    A quick run counts only for a family that no full run has measured.

    Attributes:
        runs: All that are kept, oldest first.
    """

    runs: Sequence[Kept]

    @property
    def families(self) -> list[str]:
        """All that were measured, in the order of the run that measured most."""
        runs = sorted(self.runs, key=lambda run: len(run.questions), reverse=True)
        named = dict.fromkeys(each.family for run in runs for each in run.questions)
        return [family for family in named if self.of(family)]

    @property
    def main(self) -> Kept:
        """The run that most families are shown of."""
        shown = [self.of(family)[-1] for family in self.families]
        return max(self.runs, key=lambda run: sum(each is run for each in shown))

    def of(self, family: str) -> list[Kept]:
        """Return the runs that count for a family, oldest first: the last is the one to show."""
        found = [run for run in self.runs if run.family(family)]
        return [run for run in found if not run.is_quick] or found

    def asking(self, scenario: str) -> list[Kept]:
        """Return the runs that count for a scenario, oldest first."""
        for family in self.families:
            runs = self.of(family)
            if any(each.name == scenario for each in runs[-1].family(family)):
                return runs
        return []

    def best(self, scenario: str, contestant: str, figure: str) -> float | None:
        """Return a contestant's best figure in the run to show, None if it was not measured."""
        runs = self.asking(scenario)
        return runs[-1].best(scenario, contestant, figure) if runs else None


def shown(kind: Kind, folder: Path = FOLDER) -> Shown:
    """Read all runs of a kind that are kept."""
    return Shown(sorted(map(load, folder.glob(f"{kind}-*.json")), key=lambda run: run.at))
