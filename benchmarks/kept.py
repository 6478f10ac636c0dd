"""Results that are kept beside the code: what README and the documentation take their figures from.

One file a run, in `benchmarks/results/`: where and when it was made, of which commit, what was
measured, by whom, and the summary of each contestant. It says all that a table needs, so that it
can still be shown when scenarios have been renamed.
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
        is_quick: Whether it did less of everything: shown only while there is no full run.
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
        quick = ", quick" if self.is_quick else ""
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


def runs_of(kind: Kind, folder: Path = FOLDER) -> list[Kept]:
    """Return the runs to show, oldest first: the full ones, and while there is none the quick."""
    runs = sorted((load(path) for path in folder.glob(f"{kind}-*.json")), key=lambda run: run.at)
    return [run for run in runs if not run.is_quick] or runs
