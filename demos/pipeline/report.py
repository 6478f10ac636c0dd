"""The terminal output of the flights' pipeline: counts, delays, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from demos.flights.statistics import Delays
from demos.pipeline.flights import CarrierHour, FlightTables, local_hour

_SLOT_HOURS: Final = 3
_FIRST_HOUR: Final = 5
_SHOWN_DIFFERENCES: Final = 10
_WORST: Final = 5
_NAME_WIDTH: Final = 14  # with the other columns: a terminal of 80
_LEAST_FLIGHTS: Final = 5
"""Of an hour to be among the worst: one late flight is no bad hour."""


def show_tables(console: Console, tables: FlightTables, directory: Path) -> None:
    table = _table(console, f"Tables in {directory}")
    table.add_column("table", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("contents")
    table.add_row("raw", f"{tables.raw:,}", f"{tables.distinct:,} distinct records of the topic")
    table.add_row(
        "aggregate",
        f"{tables.aggregate_rows:,}",
        f"one row per carrier and hour ({tables.late:,} late rows are left out)",
    )
    table.add_row("quarantine", f"{tables.quarantine:,}", "records that are not flights")
    console.print(table)


def show_delays(
    console: Console, delays: Mapping[CarrierHour, Delays], names: Mapping[str, str]
) -> None:
    """Print the mean departure delay per carrier and time of day, and the worst hours."""
    slots: dict[tuple[str, int], Delays] = {}
    carriers: dict[str, Delays] = {}
    for place, each in delays.items():
        slot = (local_hour(place.hour) - _FIRST_HOUR) // _SLOT_HOURS
        slots.setdefault((place.carrier, slot), Delays()).add(each)
        carriers.setdefault(place.carrier, Delays()).add(each)
    table = _table(
        console, "Mean departure delay in minutes, by carrier and scheduled hour in New York"
    )
    table.add_column("carrier", no_wrap=True, max_width=_NAME_WIDTH)
    table.add_column("flights", justify="right", no_wrap=True)
    columns = sorted({slot for (_, slot), each in slots.items() if each.departed})
    for slot in columns:
        hour = _FIRST_HOUR + slot * _SLOT_HOURS
        table.add_column(f"{hour}–{min(hour + _SLOT_HOURS, 24)}", justify="right", no_wrap=True)
    table.add_column("all", justify="right", no_wrap=True, style="bold")
    for carrier in sorted(carriers):
        cells = [_minutes(slots.get((carrier, slot))) for slot in columns]
        of_all = carriers[carrier]
        title = f"{carrier} {names.get(carrier, '')}"
        table.add_row(title, f"{of_all.flights:,}", *cells, _minutes(of_all))
    console.print(table)
    _show_worst(console, delays, names)


def _show_worst(
    console: Console, delays: Mapping[CarrierHour, Delays], names: Mapping[str, str]
) -> None:
    busy = [(place, each) for place, each in delays.items() if each.departed >= _LEAST_FLIGHTS]
    busy.sort(key=lambda item: item[1].mean_departure_delay_min or 0.0, reverse=True)
    table = _table(
        console,
        "The highest mean delays per carrier and hour "
        f"(among {len(busy):,} with at least {_LEAST_FLIGHTS} departures)",
    )
    table.add_column("hour in UTC", no_wrap=True)
    table.add_column("carrier", no_wrap=True, max_width=24)
    for heading in ("flights", "departed", "mean delay"):
        table.add_column(heading, justify="right", no_wrap=True)
    for place, each in busy[:_WORST]:
        table.add_row(
            f"{place.hour:%Y-%m-%d %H:%M}",
            f"{place.carrier} {names.get(place.carrier, '')}",
            f"{each.flights:,}",
            f"{each.departed:,}",
            _minutes(each),
        )
    console.print(table)


def show_differences(console: Console, wrong: Sequence[str]) -> None:
    console.print("THE TABLES ARE WRONG", style="bold red")
    for difference in wrong[:_SHOWN_DIFFERENCES]:
        console.print(f"  {difference}", markup=False, soft_wrap=True)
    if len(wrong) > _SHOWN_DIFFERENCES:
        console.print(f"  and {len(wrong) - _SHOWN_DIFFERENCES:,} more")


def _table(console: Console, title: str) -> Table:
    """Print a title, which may be wider than its table, and begin the table."""
    console.print(f"\n{title}", style="italic", markup=False, soft_wrap=True)
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _minutes(delays: Delays | None) -> str:
    mean = None if delays is None else delays.mean_departure_delay_min
    return "–" if mean is None else f"{mean:.1f}"
