"""Draw the results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from benchmarks.contestants import AIOKAFKA, CONFLUENT, JAVA, OURS
from benchmarks.machine import Machine
from benchmarks.results import Summaries
from benchmarks.scenarios import Scenario

_COLOURS: Final = {OURS: "#33658a", AIOKAFKA: "#f6ae2d", CONFLUENT: "#f26419", JAVA: "#86bbd8"}


def plot_bars(
    path: Path, machine: Machine, scenarios: Sequence[Scenario], summaries: Summaries
) -> None:
    """Draw one panel per scenario: its first figure, with a whisker from best to worst round."""
    figure = Canvas(figsize=(12, 1 + 3.6 * len(scenarios)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(scenarios), 1, squeeze=False)[:, 0]
    for axes, scenario in zip(panels, scenarios, strict=True):
        _bars(axes, scenario, summaries)
    figure.suptitle(str(machine), fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _bars(axes: Axes, scenario: Scenario, summaries: Summaries) -> None:
    shown = scenario.figures[0]
    clients = {each.name: each.client for each in scenario.contestants}
    rows = [each for (name, _), each in summaries.items() if name == scenario.name]
    rows.sort(key=lambda row: -row.figures[shown.key].best)
    best = [row.figures[shown.key].best for row in rows]
    above = [row.figures[shown.key].worst - row.figures[shown.key].best for row in rows]
    axes.barh(
        [row.contestant for row in rows],
        best,
        xerr=[[0.0] * len(rows), above],
        color=[_COLOURS[clients[row.contestant]] for row in rows],
        capsize=3,
    )
    for place, figure in enumerate(best):
        text = f"  {shown.text(figure)}"
        axes.annotate(text, (0, place), va="center", fontsize=8, color="white")
    axes.set_title(f"{scenario.name}: {scenario.title}", loc="left", fontsize=10)
    axes.set_xlabel(f"{shown.heading}, {shown.unit}: best round, whisker to the worst")
    axes.grid(axis="x", linewidth=0.4)
    axes.set_axisbelow(True)
