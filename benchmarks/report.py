"""Show the results in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.contestants import CONTESTANTS, OUR_POLL
from benchmarks.goals import Verdict
from benchmarks.machine import Machine
from benchmarks.results import Failure, Summary
from benchmarks.scenarios import Scenario

WIDTH = 110


def show(
    machine: Machine,
    scenarios: Sequence[Scenario],
    summaries: Mapping[tuple[str, str], Summary],
    verdicts: Sequence[Verdict],
    failures: Sequence[Failure],
    console: Console | None = None,
) -> None:
    """Print a table per scenario, the ratios beside the goals, and what failed."""
    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=WIDTH)
    console.print(str(machine), markup=False)
    for scenario in scenarios:
        rows = [each for (name, _), each in summaries.items() if name == scenario.name]
        if rows:
            console.print(_scenario_table(scenario, rows))
    if verdicts:
        console.print(_ratio_table(verdicts))
    client_of = {each.name: each.client for each in CONTESTANTS}
    versions = {f"{client_of[each.contestant]} {each.version}" for each in summaries.values()}
    console.print("Versions: " + "; ".join(sorted(versions)), markup=False)
    for failure in failures:
        console.print(
            f"FAILED {failure.scenario}, {failure.contestant}: {failure.reason}", markup=False
        )


def _scenario_table(scenario: Scenario, rows: Sequence[Summary]) -> Table:
    table = Table(title=scenario.title, title_justify="left", caption_justify="left")
    table.caption = "ns per record; best of the rounds, with median and worst"
    table.add_column("contestant", no_wrap=True)
    for heading in (
        "CPU best",
        "median",
        "worst",
        "wall best",
        "median",
        "records/s",
        "CPU ÷ ours",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    ours = next((row for row in rows if row.contestant == OUR_POLL), None)
    for row in sorted(rows, key=lambda each: each.cpu_ns.best):
        ratio = "–" if ours is None else f"{row.cpu_ns.best / ours.cpu_ns.best:.2f}"
        table.add_row(
            row.contestant,
            f"{row.cpu_ns.best:,.0f}",
            f"{row.cpu_ns.median:,.0f}",
            f"{row.cpu_ns.worst:,.0f}",
            f"{row.wall_ns.best:,.0f}",
            f"{row.wall_ns.median:,.0f}",
            f"{1e9 / row.wall_ns.best:,.0f}",
            ratio,
        )
    return table


def _ratio_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="How many times less a record costs, beside the goal", title_justify="left")
    for heading in ("scenario", "figure", "ours", "peer"):
        table.add_column(heading, no_wrap=True)
    table.add_column("ratio", justify="right")
    table.add_column("goal", justify="right")
    table.add_column("")
    for verdict in verdicts:
        goal = verdict.goal
        table.add_row(
            goal.scenario,
            goal.figure,
            goal.ours,
            goal.peer,
            "not run" if verdict.ratio is None else f"{verdict.ratio:.2f}",
            f"{goal.factor:.2f}",
            "" if verdict.ratio is None else "met" if verdict.is_met else "missed",
        )
    return table
