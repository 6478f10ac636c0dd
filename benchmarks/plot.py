"""Draw the results: best CPU time per record, with a whisker up to the worst round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.contestants import AIOKAFKA, CONFLUENT, CONTESTANTS, JAVA, OURS
from benchmarks.machine import Machine
from benchmarks.results import Summary
from benchmarks.scenarios import Scenario

_COLOURS: Final = {OURS: "#33658a", AIOKAFKA: "#f6ae2d", CONFLUENT: "#f26419", JAVA: "#86bbd8"}


def plot(
    path: Path,
    machine: Machine,
    scenarios: Sequence[Scenario],
    summaries: Mapping[tuple[str, str], Summary],
) -> None:
    """Draw one panel per scenario into a PNG file."""
    shown = [
        (scenario, [each for (name, _), each in summaries.items() if name == scenario.name])
        for scenario in scenarios
    ]
    shown = [(scenario, rows) for scenario, rows in shown if rows]
    if not shown:
        return
    clients = {each.name: each.client for each in CONTESTANTS}
    figure = Figure(figsize=(12, 1 + 3.6 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axes, (scenario, rows) in zip(panels, shown, strict=True):
        rows = sorted(rows, key=lambda each: -each.cpu_ns.best)
        best = [row.cpu_ns.best for row in rows]
        above = [row.cpu_ns.worst - row.cpu_ns.best for row in rows]
        axes.barh(
            [row.contestant for row in rows],
            best,
            xerr=[[0.0] * len(rows), above],
            color=[_COLOURS[clients[row.contestant]] for row in rows],
            capsize=3,
        )
        for place, figure_ns in enumerate(best):
            axes.annotate(f"  {figure_ns:,.0f}", (0, place), va="center", fontsize=8, color="white")
        axes.set_title(scenario.title, loc="left", fontsize=10)
        axes.set_xlabel("CPU time per record in ns: best round, whisker to the worst")
        axes.grid(axis="x", linewidth=0.4)
        axes.set_axisbelow(True)
    figure.suptitle(str(machine), fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
