"""Show the results, in the terminal and as Markdown: best and median of the rounds that count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.results import Spread, Summaries, Summary, Verdict
from benchmarks.scenarios import Scenario
from benchmarks.spark.catalogue import BULK, JVM

_MISSING: Final = "–"
_LABEL_WIDTH: Final = 40


class Rows(NamedTuple):
    """A table: what it is about, headings, and rows by scenario."""

    title: str
    headings: Sequence[str]
    sections: Sequence[tuple[str, Sequence[Sequence[str]]]]


def tables(scenarios: Sequence[Scenario], summaries: Summaries) -> Iterator[Rows]:
    """Yield a table for what goes by the record, and one for what takes its time.

    A ratio above 1 says how many times faster than the connector with its defaults.
    """
    for is_bulk, family in groupby(scenarios, lambda scenario: scenario.figures is BULK):
        measured = [
            scenario for scenario in family if any(name == scenario.name for name, _ in summaries)
        ]
        if measured:
            yield _bulk_table(measured, summaries) if is_bulk else _fixed_table(measured, summaries)


def _bulk_table(scenarios: Sequence[Scenario], summaries: Summaries) -> Rows:
    headings = ("Mrows/s", "× jvm", "CPU s/Mrow", "of it JVM", "Python", "broker CPU")
    sections = []
    for scenario, rows in _by_scenario(scenarios, summaries):
        lines = []
        for row in rows:
            wall, cpu = row.figures["wall_us"], row.figures["cpu_us"]
            rate = f"{1 / wall.best:.2f} ({1 / wall.median:.2f})"
            parts = (f"{row.figures[f'{part}_us'].median:.2f}" for part in ("jvm", "python"))
            broker = f"{row.figures['broker_us'].median:.2f}"
            ratio = _ratio(row, summaries, "wall_us")
            lines.append((row.contestant, rate, ratio, _two(cpu, 2), *parts, broker))
        sections.append((scenario.title, lines))
    return Rows("Per record: best (median); JVM, Python and broker: median", headings, sections)


def _fixed_table(scenarios: Sequence[Scenario], summaries: Summaries) -> Rows:
    headings = ("ms", "× jvm", "CPU ms", "of it JVM", "Python", "broker CPU")
    sections = []
    for scenario, rows in _by_scenario(scenarios, summaries):
        lines = []
        for row in rows:
            parts = (f"{row.figures[f'{part}_ms'].median:,.0f}" for part in ("jvm", "python"))
            broker = f"{row.figures['broker_ms'].median:,.0f}"
            wall, cpu = row.figures["wall_ms"], row.figures["cpu_ms"]
            ratio = _ratio(row, summaries, "wall_ms")
            lines.append((row.contestant, _two(wall, 0), ratio, _two(cpu, 0), *parts, broker))
        sections.append((scenario.title, lines))
    return Rows("Each time: best (median); JVM, Python and broker: median", headings, sections)


def _by_scenario(
    scenarios: Sequence[Scenario], summaries: Summaries
) -> Iterator[tuple[Scenario, list[Summary]]]:
    for scenario in scenarios:
        found = (summaries.get((scenario.name, each.name)) for each in scenario.contestants)
        yield scenario, [row for row in found if row is not None]


def _two(spread: Spread, digits: int) -> str:
    return f"{spread.best:,.{digits}f} ({spread.median:,.{digits}f})"


def _ratio(row: Summary, summaries: Summaries, key: str) -> str:
    """Say how many times less than the connector's best the best round took."""
    connector = summaries.get((row.scenario, JVM.name))
    if connector is None:
        return _MISSING
    return f"{connector.figures[key].best / row.figures[key].best:.2f}"


def rich_table(rows: Rows) -> Table:
    """Build the table for the terminal."""
    table = Table(title=rows.title, title_justify="left")
    table.add_column("", width=_LABEL_WIDTH)
    for heading in rows.headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for title, lines in rows.sections:
        table.add_section()
        table.add_row(f"[bold]{title}[/bold]")
        for name, *cells in lines:
            table.add_row(f"  {name}", *cells)
    return table


def markdown(
    machine: Machine, about: str, results: Sequence[Rows], verdicts: Sequence[Verdict]
) -> str:
    """Write the tables as docs/benchmarks.md has them."""
    parts = [f"{machine}. {about}\n"]
    for rows in results:
        parts.append(f"{rows.title}.\n")
        lines = [f"| | {' | '.join(rows.headings)} |", "|---|" + "---:|" * len(rows.headings)]
        for title, section in rows.sections:
            lines.append(f"| **{title}** |" + " |" * len(rows.headings))
            lines += [f"| {' | '.join(cells)} |" for cells in section]
        parts.append("\n".join(lines) + "\n")
    if verdicts:
        lines = ["| goal | reached | |", "|---|---:|---|"]
        lines += [_goal_line(verdict) for verdict in verdicts]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _goal_line(verdict: Verdict) -> str:
    words = {True: "met", False: "missed", None: "not run"}
    reached = _MISSING if verdict.reached is None else f"{verdict.reached:,.2f}"
    goal = f"`{verdict.scenario}`, {verdict.contestant}, {verdict.figure}: {verdict.goal}"
    return f"| {goal} | {reached} | {words[verdict.is_met]} |"
