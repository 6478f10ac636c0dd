"""Draw the results: one picture per family of scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from benchmarks.contestants import AIOKAFKA, BARE, CONFLUENT, FASTSTREAM, JAVA, OURS, SPARK
from benchmarks.machine import Machine
from benchmarks.results import Sample, Summaries, summarize
from benchmarks.scenarios import Scenario
from benchmarks.tasks.memory import STEP_S

_COLOURS: Final = {
    OURS: "#33658a",
    AIOKAFKA: "#f6ae2d",
    CONFLUENT: "#f26419",
    JAVA: "#86bbd8",
    SPARK: "#b8b8b8",
    BARE: "#6c757d",
    FASTSTREAM: "#2f9e8f",
}
_WIDTH_INCHES: Final = 12
_PANEL_INCHES: Final = 3.6


def plot(
    path: Path, machine: Machine, scenarios: Sequence[Scenario], samples: Sequence[Sample]
) -> None:
    """Draw a family: curves of what changes over time, or of what grows with the work, or bars."""
    if scenarios[0].axis:
        axes = [list(grown) for _, grown in groupby(scenarios, lambda scenario: scenario.axis)]
        canvas, panels = _canvas(len(axes), machine)
        for panel, grown in zip(panels, axes, strict=True):
            _growth(panel, grown, summarize(samples))
    else:
        canvas, panels = _canvas(len(scenarios), machine)
        for panel, scenario in zip(panels, scenarios, strict=True):
            own = [sample for sample in samples if sample.scenario == scenario.name]
            if any(sample.measurement.series for sample in own):
                _curves(panel, scenario, own)
            else:
                _bars(panel, scenario, summarize(own))
            panel.set_title(f"{scenario.name}: {scenario.title}", loc="left", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110)


def _canvas(count: int, machine: Machine) -> tuple[Canvas, Sequence[Axes]]:
    canvas = Canvas(figsize=(_WIDTH_INCHES, 1 + _PANEL_INCHES * count), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(str(machine), fontsize=9)
    panels: list[Axes] = [*canvas.subplots(count, 1, squeeze=False)[:, 0]]
    for panel in panels:
        panel.grid(linewidth=0.4)
        panel.set_axisbelow(True)
    return canvas, panels


def _bars(panel: Axes, scenario: Scenario, summaries: Summaries) -> None:
    """Draw the first figure of each contestant, with a whisker from best to worst round."""
    shown = scenario.figures[0]
    clients = {each.name: each.client for each in scenario.contestants}
    rows = sorted(summaries.values(), key=lambda row: -row.figures[shown.key].best)
    best = [row.figures[shown.key].best for row in rows]
    above = [row.figures[shown.key].worst - row.figures[shown.key].best for row in rows]
    panel.barh(
        [row.contestant for row in rows],
        best,
        xerr=[[0.0] * len(rows), above],
        color=[_COLOURS[clients[row.contestant]] for row in rows],
        capsize=3,
    )
    for place, row in enumerate(rows):
        spread = row.figures[shown.key]
        text = f"   {shown.text(spread.best)}"
        panel.annotate(text, (spread.worst, place), va="center", fontsize=8)
    panel.margins(x=0.08)
    panel.set_xlabel(f"{shown.heading}, {shown.unit}: best round, whisker to the worst")
    panel.grid(visible=False, axis="y")


def _growth(panel: Axes, scenarios: Sequence[Scenario], summaries: Summaries) -> None:
    """Draw the first figure over what grows, with a whisker from best to worst round."""
    shown = scenarios[0].figures[0]
    for contestant in scenarios[0].contestants:
        spreads = [
            (scenario.at, summary.figures[shown.key])
            for scenario in scenarios
            if (summary := summaries.get((scenario.name, contestant.name))) is not None
        ]
        panel.errorbar(
            [at for at, _ in spreads],
            [spread.best for _, spread in spreads],
            yerr=[[0.0] * len(spreads), [spread.worst - spread.best for _, spread in spreads]],
            color=_COLOURS[contestant.client],
            label=contestant.name,
            marker="o",
            capsize=3,
        )
    panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_xlabel(scenarios[0].axis)
    panel.set_ylabel(f"{shown.heading}, {shown.unit}")
    panel.legend(fontsize=8)


def _curves(panel: Axes, scenario: Scenario, samples: Sequence[Sample]) -> None:
    """Draw what each contestant noted over time of the first figure; colours as in other panels."""
    shown = scenario.figures[0]
    for place, contestant in enumerate(scenario.contestants):
        for sample in samples:
            if sample.contestant == contestant.name:
                values = sample.measurement.series[shown.key]
                seconds = [STEP_S * number for number in range(1, len(values) + 1)]
                panel.plot(seconds, values, color=f"C{place}", label=contestant.name)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("s")
    panel.set_ylabel(shown.unit)
    panel.legend(fontsize=8, loc="upper right")
