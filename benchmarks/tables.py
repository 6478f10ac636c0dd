"""The results as tables in Markdown, for the terminal and for the pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from benchmarks.contestants import BARE
from benchmarks.figures import BEYOND, Figure
from benchmarks.goals import Verdict
from benchmarks.results import Failure, Question, Run, Spread, Summary

MISSING: Final = "–"
_QUICK: Final = (
    "**A quick run** with less work and fewer rounds, which shows only orders of magnitude"
)
_UVLOOP: Final = ", uvloop"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose other columns are numbers."""
    lines = [_line(headings), "|---|" + "---:|" * (len(headings) - 1), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def aligned(table: str) -> str:
    """Return a table of Markdown with columns of even width, for the terminal.

    A row with only a title may be wider.
    """
    text = table.replace("**", "").replace("`", "")
    head, _, *rows = (
        [cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()
    )
    columns = zip(*(row for row in (head, *rows) if any(row[1:])), strict=True)
    label_width, *widths = (max(map(len, column)) for column in columns)
    lines = []
    for label, *cells in (head, *rows):
        numbers = (f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{label:<{label_width}}{''.join(numbers)}" if any(cells) else label)
    return "\n".join(lines) + "\n"


def about_run(run: Run, versions_of: Run | None = None) -> str:
    """Return a table of one run; with the other run, only the machine and versions that differ."""
    known = versions_of.versions if versions_of else {}
    versions = _versions(run, known)
    changes = " with uncommitted changes" if run.is_dirty else ""
    lines = [f"| run | {run.day}, commit `{run.commit}`{changes} |", "|---|---|"]
    lines += [f"| kind | {_QUICK} |"] if run.is_quick else []
    if versions_of is None or not run.machine.is_like(versions_of.machine):
        lines += [f"| machine | {run.machine} |"]
    lines += [f"| versions | {versions} |"] if versions else []
    return "\n".join(lines) + "\n"


def _versions(run: Run, known: Mapping[str, str]) -> str:
    return ", ".join(
        version if version.startswith(name) else f"{name} {version}"
        for name, version in sorted(run.versions.items())
        if name != BARE  # the machine has it
        if not f"{known.get(name, '')},".startswith(f"{version},")  # more may follow a comma
    )


def family_table(run: Run, name: str, *, has_uvloop: bool = False) -> str:
    """Return the table of a family: best of the rounds, with another round in brackets.

    The last column compares CPU times beyond the floor if those were measured, else the first
    figure, with that of the first contestant.
    """
    questions = run.family(name)
    figures = questions[0].figures
    compared = next((each for each in figures if each.key == BEYOND.key), figures[0])
    headings = [f"{each.heading}, {each.unit}" if each.unit else each.heading for each in figures]
    rows: list[list[str]] = []
    for question in questions:
        found = list(_rows(run, question, has_uvloop=has_uvloop))
        ours = run.best(question.name, question.contestants[0], compared.key)
        is_alone = len(found) == len(question.contestants) == 1
        if not is_alone:
            rows.append([f"**{question.name}**: {question.title}", *[""] * (len(figures) + 1)])
        for row in found:
            label = f"{row.contestant}: {question.title}" if is_alone else row.contestant
            best = run.best(question.name, row.contestant, compared.key)
            share = MISSING if best is None or not ours else f"{best / ours:.2f}"
            rows.append([label, *_cells(run, question.figures, row), share])
    return markdown(["", *headings, f"{compared.heading} ÷ ours"], rows)


def _rows(run: Run, question: Question, *, has_uvloop: bool) -> list[Summary]:
    """Return the contestants that took part, sorted by the first figure."""
    key = question.figures[0].key
    names = [each for each in question.contestants if has_uvloop or not each.endswith(_UVLOOP)]
    found = [run.summaries.get((question.name, name)) for name in names]
    return sorted((row for row in found if row is not None), key=lambda row: row.figures[key].best)


def _cells(run: Run, figures: Iterable[Figure], row: Summary) -> Iterator[str]:
    for figure in figures:
        spread = row.figures.get(figure.key)
        if spread is None:
            yield MISSING
        elif row.runs == 1:
            yield figure.text(spread.best)
        else:
            yield f"{figure.text(spread.best)} ({figure.text(_beside(run, spread))})"


def _beside(run: Run, spread: Spread) -> float:
    return spread.median if run.kind == "spark" else spread.worst


def goal_table(goals: Iterable[Sequence[Verdict]]) -> str:
    """Return a table of goals, each with its verdicts in one run or in several."""
    return markdown(("goal", "reached", ""), map(_goal, goals))


def _goal(verdicts: Sequence[Verdict]) -> tuple[str, str, str]:
    one = verdicts[0]
    goal = f"`{one.scenario}`, {one.contestant}, {one.figure}: {one.goal}"
    reached = [each.reached for each in verdicts if each.reached is not None]
    figures = ", ".join(f"{each:,.2f}" for each in reached) or MISSING
    return goal, figures, status(verdicts)


def status(verdicts: Sequence[Verdict]) -> str:
    """Return whether a goal was met, in words."""
    judged = [each.is_met for each in verdicts if each.is_met is not None]
    if not judged:
        return "not run"
    if all(judged):
        return "met"
    return f"met in {sum(judged)} of {len(judged)} runs" if any(judged) else "missed"


def report(run: Run, verdicts: Sequence[Verdict], failures: Sequence[Failure]) -> str:
    """Return all tables of a run, the goals and the failures, for the terminal."""
    parts = [f"{run.label}: {run.machine}\n{_versions(run, {})}\n"]
    beside = "median" if run.kind == "spark" else "worst"
    for name in dict.fromkeys(question.family for question in run.questions):
        if run.family(name):
            table = aligned(family_table(run, name, has_uvloop=True))
            parts.append(f"{name}: the best round, with the {beside} in brackets\n{table}")
    if verdicts:
        parts.append(aligned(goal_table([verdict] for verdict in verdicts)))
    parts += [f"FAILED {each.scenario}, {each.contestant}: {each.reason}" for each in failures]
    return "\n".join(parts)
