"""The terminal output of the flights job: progress, the table, the rate, and differences."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from demos.flights.scoreboard import Pace
from demos.flights.statistics import CarrierTally, Difference

_NAME_WIDTH: Final = 20  # with the other columns: a terminal of 80


class Reporter:
    """The console, to which no other part of the job prints."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console if console is not None else Console(highlight=False)

    def say(self, text: str) -> None:
        """Print one line without markup and wrapping."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self, title: str, goal: int) -> Iterator[ProgressBar]:
        """Show a progress bar during the block, and print how far it got if it is cancelled."""
        progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
        bar = ProgressBar(progress, title, goal)
        try:
            with progress:
                yield bar
        except asyncio.CancelledError:
            self.say(f"{title}: interrupted after {bar.done:,} of {goal:,} flights")
            raise

    def table(self, carriers: Mapping[str, CarrierTally], names: Mapping[str, str]) -> None:
        table = Table(
            title="Flights from New York City in 2013, by carrier (mean delays in minutes)",
            title_justify="left",
            box=SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        table.add_column("carrier", no_wrap=True)
        table.add_column("name", no_wrap=True, max_width=_NAME_WIDTH)
        for heading in ("flights", "dep. delay", "arr. delay", "cancelled"):
            table.add_column(heading, justify="right", no_wrap=True)
        for carrier, tally in carriers.items():
            table.add_row(carrier, names.get(carrier, ""), *figures(tally))
        self.console.print(table)

    def pace(self, pace: Pace, *, cpu_scope: str) -> None:
        self.say(
            f"{pace.records:,} records in {pace.wall_s:.2f} s: "
            f"{pace.records_per_s:,.0f} records/s, {pace.cpu_ns_per_record:,.0f} ns of CPU "
            f"time per record ({cpu_scope})"
        )

    def failure(self, wrong: Sequence[Difference]) -> None:
        self.console.print("THE RESULT DIFFERS FROM THE DATA SET", style="bold red")
        for difference in wrong:
            self.say(f"  {difference}")


class ProgressBar:
    def __init__(self, progress: Progress, title: str, goal: int) -> None:
        self.done = 0
        self._progress = progress
        self._task_id = progress.add_task(title, total=goal)

    def move_to(self, done: int) -> None:
        self.done = done
        self._progress.update(self._task_id, completed=done)


def figures(tally: CarrierTally) -> tuple[str, str, str, str]:
    """Return a carrier's flights, mean departure and arrival delay, and share cancelled."""
    return (
        f"{tally.flights:,}",
        _one_decimal(tally.mean_departure_delay_min),
        _one_decimal(tally.mean_arrival_delay_min),
        f"{tally.share_cancelled:.1%}",
    )


def _one_decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
