"""The plot of a run: delays and cancellations per carrier."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from demos.flights.statistics import CarrierTally

FILE_NAME: Final = "flights.png"
_BAR_HEIGHT: Final = 0.38


def plot(carriers: Mapping[str, CarrierTally], names: Mapping[str, str], directory: Path) -> Path:
    """Draw the statistics into `directory`, ordered by mean departure delay. Returns the path."""
    ordered = sorted(carriers.items(), key=lambda item: item[1].mean_departure_delay_min or 0.0)
    tallies = [tally for _, tally in ordered]
    places = range(len(ordered))
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    delays, cancelled = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))

    delays.barh(
        [place + _BAR_HEIGHT / 2 for place in places],
        [tally.mean_departure_delay_min or 0.0 for tally in tallies],
        height=_BAR_HEIGHT,
        label="departure",
        color="#33658a",
    )
    delays.barh(
        [place - _BAR_HEIGHT / 2 for place in places],
        [tally.mean_arrival_delay_min or 0.0 for tally in tallies],
        height=_BAR_HEIGHT,
        label="arrival",
        color="#f6ae2d",
    )
    delays.axvline(0, color="black", linewidth=0.8)
    delays.set_yticks(
        list(places),
        [f"{names.get(code, '')} {code} ({tally.flights:,})" for code, tally in ordered],
    )
    delays.set_xlabel("mean delay in minutes")
    delays.legend(loc="lower right")

    cancelled.barh(places, [100 * tally.share_cancelled for tally in tallies], color="#86bbd8")
    cancelled.set_xlabel("cancelled, %")
    for axes in (delays, cancelled):
        axes.grid(axis="x", linewidth=0.4)
        axes.set_axisbelow(True)
    flights = sum(tally.flights for tally in tallies)
    figure.suptitle(f"{flights:,} flights from New York City in 2013, by carrier")

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE_NAME
    figure.savefig(path, dpi=120)
    return path
