"""Show the results in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from benchmarks.figures import BEYOND, Figure
from benchmarks.machine import Machine
from benchmarks.results import Failure, Spread, Summaries, Summary, Verdict
from benchmarks.scenarios import Scenario

WIDTH = 140
_LABEL_WIDTH = 44


def show(
    machine: Machine,
    scenarios: Sequence[Scenario],
    summaries: Summaries,
    verdicts: Sequence[Verdict],
    failures: Sequence[Failure],
    console: Console | None = None,
) -> None:
    """Print a table per family of scenarios, the goals beside what was reached, and failures."""
    console = console or wide_console()
    console.print(str(machine), markup=False)
    for _, family in groupby(scenarios, lambda scenario: scenario.family):
        members = list(family)
        names = {scenario.name for scenario in members}
        if any(name in names for name, _ in summaries):
            console.print(_family_table(members, summaries))
    if verdicts:
        console.print(goal_table(verdicts))
    console.print("Versions: " + "; ".join(_versions(scenarios, summaries)), markup=False)
    for failure in failures:
        console.print(
            f"FAILED {failure.scenario}, {failure.contestant}: {failure.reason}", markup=False
        )


def wide_console() -> Console:
    """Return a console for tables, which are as wide in a file as on a large screen."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def _family_table(scenarios: Sequence[Scenario], summaries: Summaries) -> Table:
    """Build the table of scenarios that measure the same figures.

    Each has a section, sorted by the first figure; one with a single contestant is a single row.
    """
    figures = scenarios[0].figures
    compared = BEYOND if BEYOND in figures else figures[0]
    units = ", ".join(f"{figure.heading} in {figure.unit}" for figure in figures)
    table = Table(title=scenarios[0].family, title_justify="left", caption_justify="left")
    table.caption = f"{units}: best of the rounds, and in brackets the worst"
    table.add_column("", width=_LABEL_WIDTH)
    for figure in figures:
        table.add_column(figure.heading, justify="right", no_wrap=True)
    table.add_column(f"{compared.heading} ÷ ours", justify="right", no_wrap=True)
    for scenario in scenarios:
        rows = [each for (name, _), each in summaries.items() if name == scenario.name]
        ours = summaries.get((scenario.name, scenario.contestants[0].name))
        rows.sort(key=lambda each: each.figures[figures[0].key].best)
        if len(scenario.contestants) == 1:
            for row in rows:
                label = f"{row.contestant}: {scenario.title}"
                table.add_row(label, *_cells(figures, row), "")
            continue
        table.add_section()
        table.add_row(f"[bold]{scenario.name}[/bold]: {scenario.title}")
        for row in rows:
            ratio = _ratio(compared, row, ours)
            table.add_row(f"  {row.contestant}", *_cells(figures, row), ratio)
    return table


def _versions(scenarios: Iterable[Scenario], summaries: Summaries) -> list[str]:
    """Return each client and its version, in the form that says most."""
    versions: dict[str, str] = {}
    for scenario in scenarios:
        for contestant in scenario.contestants:
            summary = summaries.get((scenario.name, contestant.name))
            if summary is not None:
                known = versions.get(contestant.client, "")
                versions[contestant.client] = max(known, summary.version, key=len)
    return [f"{client} {version}" for client, version in sorted(versions.items())]


def _cells(figures: Iterable[Figure], row: Summary) -> Iterable[str]:
    for figure in figures:
        spread = row.figures.get(figure.key)
        yield "–" if spread is None else _spread_text(figure, spread, row.runs)


def _spread_text(figure: Figure, spread: Spread, runs: int) -> str:
    best = figure.text(spread.best)
    return best if runs == 1 else f"{best} ({figure.text(spread.worst)})"


def _ratio(figure: Figure, row: Summary, ours: Summary | None) -> str:
    base = None if ours is None else ours.figures.get(figure.key)
    own = row.figures.get(figure.key)
    return f"{own.best / base.best:.2f}" if own is not None and base and base.best else "–"


def goal_table(verdicts: Sequence[Verdict]) -> Table:
    """Build the table of goals, with what was reached."""
    table = Table(title="Goals, and the best round", title_justify="left")
    for heading in ("scenario", "ours", "figure", "goal"):
        table.add_column(heading)
    table.add_column("reached", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    met = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "not run"}
    for verdict in verdicts:
        table.add_row(
            verdict.scenario,
            verdict.contestant,
            verdict.figure,
            verdict.goal,
            "–" if verdict.reached is None else f"{verdict.reached:,.2f}",
            met[verdict.is_met],
        )
    return table
