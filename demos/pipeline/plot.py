"""The plot of the aggregate: mean departure delay per carrier and hour of the day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import DateFormatter, MonthLocator
from matplotlib.figure import Figure

from demos.flights.statistics import Delays
from demos.pipeline.flights import CarrierHour, local_hour

FILE_NAME: Final = "pipeline.png"
_FIRST_HOUR: Final = 5
_LAST_HOUR: Final = 23
_LEAST_FLIGHTS: Final = 10
"""Of a cell: fewer make no mean worth a colour."""
_BRIGHT_MIN: Final = 45.0


def plot(delays: Mapping[CarrierHour, Delays], names: Mapping[str, str], directory: Path) -> Path:
    """Draw the aggregate into `directory`. Returns the file's path."""
    cells: dict[tuple[str, int], Delays] = {}
    carriers: dict[str, Delays] = {}
    days: dict[date, Delays] = {}
    for place, each in delays.items():
        cells.setdefault((place.carrier, local_hour(place.hour)), Delays()).add(each)
        carriers.setdefault(place.carrier, Delays()).add(each)
        days.setdefault(place.hour.date(), Delays()).add(each)
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid, year = figure.subplots(2, 1, height_ratios=(3, 1))

    hours = range(_FIRST_HOUR, _LAST_HOUR + 1)
    order = sorted(carriers, key=lambda carrier: carriers[carrier].flights, reverse=True)
    means = [[_mean(cells.get((carrier, hour))) for hour in hours] for carrier in order]
    image = grid.imshow(means, aspect="auto", cmap="YlOrRd", vmin=0, vmax=_BRIGHT_MIN)
    grid.set_facecolor("#eeeeee")
    grid.set_xticks(range(len(hours)), [str(hour) for hour in hours])
    grid.set_yticks(
        range(len(order)),
        [
            f"{names.get(carrier, '')} {carrier} ({carriers[carrier].flights:,})"
            for carrier in order
        ],
    )
    grid.set_xlabel("scheduled hour of departure, New York time")
    for row, line in enumerate(means):
        for column, mean in enumerate(line):
            if mean == mean:  # not NaN, which is left grey
                colour = "white" if mean > 0.6 * _BRIGHT_MIN else "black"
                grid.text(
                    column,
                    row,
                    f"{round(mean)}",
                    ha="center",
                    va="center",
                    color=colour,
                    fontsize=8,
                )
    figure.colorbar(image, ax=grid, label="mean departure delay in minutes", extend="both")

    dates = sorted(days)
    year.plot(dates, [_mean(days[day]) for day in dates], color="#33658a", linewidth=1)
    year.axhline(0, color="black", linewidth=0.8)
    year.set_ylabel("minutes, by day")
    year.margins(x=0.01)
    year.xaxis.set_major_locator(MonthLocator())  # type: ignore[no-untyped-call]
    year.xaxis.set_major_formatter(DateFormatter("%b"))  # type: ignore[no-untyped-call]
    year.grid(linewidth=0.4)
    flights = sum(each.flights for each in carriers.values())
    figure.suptitle(
        f"Mean departure delay of {flights:,} flights from New York City in 2013, "
        f"from {len(delays):,} rows (one per carrier and hour)"
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE_NAME
    figure.savefig(path, dpi=120)
    return path


def _mean(delays: Delays | None) -> float:
    if delays is None or delays.departed < _LEAST_FLIGHTS:
        return float("nan")
    return delays.departure_delay_min / delays.departed
