"""`python -m benchmarks.pages`: write the figures of README and the documentation anew.

They stand in blocks, which are made of the runs that are kept and of nothing else:

    <!-- figures: NAME -->
    ...
    <!-- /figures -->

With `--check` nothing is written: it fails when a block does not say what the runs do.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from benchmarks import comparison
from benchmarks.figures import Figure
from benchmarks.kept import FOLDER, ROOT, Kept, Question, Shown, shown
from benchmarks.results import Summary, Verdict

PAGES: Final = ("README.md", "docs/benchmarks.md", "docs/why.md")
EXIT_DIFFERS: Final = 1
_BLOCK: Final = re.compile(
    r"(?P<begin>^<!-- figures: (?P<name>[\w -]+) -->\n)(?P<text>.*?)(?P<end>^<!-- /figures -->$)",
    re.M | re.DOTALL,
)
_NO_RUN: Final = "(No run is kept yet: `make {}` makes one, and `make figures` writes it here.)"
_NOT_MEASURED: Final = "(In no run that is kept: `make {} ARGS='--scenario {}'` measures it.)"
_MISSING: Final = "–"

Beside = Literal["median", "worst"]
Runs = Mapping[str, Shown]
"""By kind."""


class PageError(Exception):
    """A page names a block that there is not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the blocks of all pages, or check them."""
    is_check = "--check" in (sys.argv[1:] if arguments is None else arguments)
    return update(ROOT, FOLDER, is_check=is_check)


def update(root: Path, folder: Path, *, is_check: bool) -> int:
    """Write the blocks of all pages below `root` of the runs in `folder`, or compare them."""
    runs: Runs = {"bench": shown("bench", folder), "spark": shown("spark", folder)}
    differing = []
    for name in PAGES:
        path = root / name
        text = path.read_text()
        written = rewrite(text, runs)
        if written != text:
            differing.append(name)
            if not is_check:
                path.write_text(written)
    if not is_check:
        print(f"written: {', '.join(differing) or 'nothing, all is up to date'}")
        return 0
    if differing:
        print(
            f"{' and '.join(differing)}: figures are not those of benchmarks/results: run "
            "`make figures`, which writes them; never by hand",
            file=sys.stderr,
        )
        return EXIT_DIFFERS
    return 0


def rewrite(text: str, runs: Runs) -> str:
    """Return a page with its blocks made of these runs.

    Raises:
        PageError: It names a block that there is not.
    """

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS and not name.startswith("family "):
            raise PageError(f"there is no block {name!r}: there are {', '.join(BLOCKS)}")
        return f"{match['begin']}\n{_render(name, runs).rstrip()}\n\n{match['end']}"

    return _BLOCK.sub(block, text)


def _render(name: str, runs: Runs) -> str:
    kind = "spark" if "spark" in name else "bench"
    if not runs[kind].runs:
        return _NO_RUN.format("bench-spark" if kind == "spark" else "bench")
    if name.startswith("family "):
        return family(runs[kind], name.removeprefix("family "))
    return BLOCKS[name](runs[kind])


# --- Parts of a page -----------------------------------------------------------------------
def about(runs: Shown) -> str:
    """Say where the figures come from: the run of most of them, and those of the others."""
    others: dict[str, list[str]] = {}
    for name in runs.families:
        run = runs.of(name)[-1]
        if run is not runs.main:
            others.setdefault(run.label, []).append(f"`{name}`")
    others_said = "".join(
        f"Of a run of its own: {', '.join(names)} ({label}).\n" for label, names in others.items()
    )
    return about_run(runs.main) + (f"\n{others_said}" if others else "")


def about_run(run: Kept) -> str:
    """Say where the figures of one run come from."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    quick = (
        "**A quick run**, of less work in fewer rounds: no more than an order of magnitude. "
        if run.is_quick
        else ""
    )
    return f"{quick}{run.day}, commit `{run.commit}`{_changes(run)}: {run.machine}. {versions}.\n"


def _changes(run: Kept) -> str:
    return " with changes that are not committed" if run.is_dirty else ""


def family(runs: Shown, name: str, beside: Beside = "worst") -> str:
    """Return the table of a family, and the run that it is of if it is not that of most."""
    found = runs.of(name)
    if not found:
        return _NOT_MEASURED.format("bench", name)
    own = f"{about_run(found[-1])}\n" if found[-1] is not runs.main else ""
    return own + family_table(found[-1], name, beside)


def family_table(run: Kept, name: str, beside: Beside) -> str:
    """Return the table of a family: best of the rounds, and in brackets the worst or median."""
    questions = run.family(name)
    figures = questions[0].figures
    headings = [f"{each.heading}, {each.unit}" if each.unit else each.heading for each in figures]
    lines = [f"| | {' | '.join(headings)} |", "|---|" + "---:|" * len(headings)]
    for question in questions:
        rows = _rows(run, question)
        if len(rows) > 1 or len(question.contestants) > 1:
            lines.append(f"| **{question.name}**: {question.title} |" + " |" * len(headings))
            labels = [row.contestant for row in rows]
        else:
            labels = [f"{row.contestant}: {question.title}" for row in rows]
        for label, row in zip(labels, rows, strict=True):
            lines.append(f"| {label} | {' | '.join(_cells(question.figures, row, beside))} |")
    return "\n".join(lines) + "\n"


def _rows(run: Kept, question: Question) -> list[Summary]:
    """Return who took part, the least of the first figure first."""
    key = question.figures[0].key
    found = [run.summaries.get((question.name, name)) for name in question.contestants]
    return sorted((row for row in found if row is not None), key=lambda row: row.figures[key].best)


def _cells(figures: Sequence[Figure], row: Summary, beside: Beside) -> Iterator[str]:
    for figure in figures:
        spread = row.figures.get(figure.key)
        if spread is None:
            yield _MISSING
        elif row.runs == 1:
            yield figure.text(spread.best)
        else:
            yield f"{figure.text(spread.best)} ({figure.text(getattr(spread, beside))})"


def goals_table(runs: Shown, *, of_all: bool = False) -> str:
    """Return the goals, each with what the run to show has reached, or all runs that count."""
    lines = ["| goal | reached | |", "|---|---:|---|"]
    for name in runs.families:
        counted = runs.of(name) if of_all else runs.of(name)[-1:]
        for goal in counted[-1].goals_of(name):
            found = [each for run in counted for each in run.verdicts if _is_same(each, goal)]
            reached = [each for each in found if each.reached is not None]
            what = f"`{goal.scenario}`, {goal.contestant}, {goal.figure}: {goal.goal}"
            figures = ", ".join(f"{each.reached:,.2f}" for each in reached) or _MISSING
            lines.append(f"| {what} | {figures} | {_verdict(reached)} |")
    return "\n".join(lines) + "\n"


def _is_same(one: Verdict, other: Verdict) -> bool:
    return (one.scenario, one.contestant, one.figure, one.goal) == (
        other.scenario, other.contestant, other.figure, other.goal,
    )  # fmt: skip


def _verdict(reached: Sequence[Verdict]) -> str:
    met = sum(each.is_met is True for each in reached)
    if not reached:
        return "not run"
    if met == len(reached):
        return "met"
    return "missed" if met == 0 else f"met in {met} of {len(reached)} runs"


# --- README --------------------------------------------------------------------------------
PLAIN: Final = "plain"
POLL: Final = "lite poll"
ASYNC_FOR: Final = "lite async for"
ROWS: Final = (
    ("lite batches", "aiokafka_lite `batches()`, Arrow"),
    (POLL, "aiokafka_lite `poll()`"),
    (ASYNC_FOR, "aiokafka_lite `async for`"),
    ("confluent consume, least CPU", "confluent-kafka `consume()`, set for least CPU"),
    ("confluent consume", "confluent-kafka `consume()`, its defaults"),
    ("Java ConsumerPerformance", "Java `ConsumerPerformance`"),
    ("aiokafka getmany", "aiokafka `getmany()`"),
    ("aiokafka async for", "aiokafka `async for`"),
)


def readme_bulk(runs: Shown) -> str:
    """Return what a record costs at full speed."""
    poll = runs.best(PLAIN, POLL, "cpu_ns")
    async_for = runs.best(PLAIN, ASYNC_FOR, "cpu_ns")
    lines = [about(runs), "| | CPU ns a record | times `poll()` |", "|---|---:|---:|"]
    for name, label in ROWS:
        figure = runs.best(PLAIN, name, "cpu_ns")
        if figure is None:
            continue
        times = _MISSING if not poll else f"{figure / poll:.1f}"
        if name == "aiokafka async for" and async_for:
            times += f" ({figure / async_for:.0f} × our `async for`)"
        lines.append(f"| {label} | {figure:,.0f} | {times} |")
    return "\n".join(lines) + "\n"


def readme_loop(runs: Shown) -> str:
    """Say what an idle consumer, a held loop and a trickle are like."""
    lines = []
    idle = runs.best("idle", ASYNC_FOR, "cpu_percent")
    if idle is not None:
        lines.append(f"- An idle consumer of 3,000 partitions takes {idle:.2f} % of a core.")
    ours, theirs = _lateness(runs, "lite"), _lateness(runs, "aiokafka")
    if ours and theirs:
        lines.append(
            "- A task that is due every millisecond, beside a full-speed `async for`, is at most "
            f"{max(ours):.1f} ms late (p99); beside aiokafka's {min(theirs):.0f} to "
            f"{max(theirs):.0f}."
        )
    trickle = {
        name: runs.best("trickle", contestant, "cpu_us")
        for name, contestant in (
            ("ours", ASYNC_FOR),
            ("librdkafka's", "confluent poll"),
            ("aiokafka's", "aiokafka async for"),
        )
    }
    if all(trickle.values()):
        costs = ", ".join(f"{name} {figure:.0f}" for name, figure in trickle.items())
        lines.append(
            f"- A trickle of 1,000 records a second costs, in µs of CPU a record: {costs}."
        )
    return "\n".join(lines) + "\n" if lines else _NOT_MEASURED.format("bench", "trickle")


def _lateness(runs: Shown, client: str) -> list[float]:
    found = (
        run.best(question.name, f"{client} async for", "late_p99_ms")
        for run in runs.of("hold")[-1:]
        for question in run.family("hold")
    )
    return [each for each in found if each is not None]


def readme_broker(runs: Shown) -> str:
    """Say how fast others' clients are with the embedded broker, beside a real Kafka."""
    if not runs.of("broker"):
        return _NOT_MEASURED.format("bench", "broker")
    run = runs.of("broker")[-1]
    ratios = []
    for question in run.family("broker"):
        for name in question.contestants:
            client, _, server = name.rpartition(", ")
            if server not in ("memory", "directory"):
                continue
            with_us = run.best(question.name, name, "wall_ns")
            with_kafka = run.best(question.name, f"{client}, Kafka", "wall_ns")
            if with_us and with_kafka:
                ratios.append(with_kafka / with_us)
    return (
        "Java's and librdkafka's producers and consumers are "
        f"{min(ratios):.2f} to {max(ratios):.2f} times as fast with it as with a real Kafka on the "
        f"same machine ({run.label}).\n"
    )


# --- Spark ---------------------------------------------------------------------------------
SPARK_ROWS: Final = (
    ("agg", "wall_us", "count and sum of lengths"),
    ("agg-lz4", "wall_us", "the same, lz4"),
    ("parquet", "wall_us", "all columns to Parquet"),
    ("stream", "wall_us", "all columns to Parquet, streaming"),
    ("small", "wall_ms", "a query of 40,000 records"),
    ("trigger", "wall_ms", "a micro-batch of 2,000 records"),
)


def spark_rule(runs: Shown) -> str:
    """Say how the figures of several runs come together, and which runs these are."""
    counting = [run for name in runs.families for run in runs.of(name)]
    named = "; ".join(run.label for run in runs.runs if any(each is run for each in counting))
    return (
        "The rule: within a run the best round of one is divided by the best round of the other; "
        "of several runs the least and the most are given. All runs that are kept count, these: "
        f"{named}.\n"
    )


def spark_ranges(runs: Shown) -> str:
    """Return how many times faster than the connector, over all runs."""
    lines = [spark_rule(runs), "| | × the JVM connector | × tuned by hand |", "|---|---:|---:|"]
    for scenario, key, title in SPARK_ROWS:
        cells = [_range(_ratios(runs, scenario, peer, key)) for peer in ("jvm", "jvm tuned")]
        if cells != [_MISSING, _MISSING]:
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ratios(runs: Shown, scenario: str, peer: str, key: str) -> list[float]:
    found = []
    for run in runs.asking(scenario):
        ours, theirs = run.best(scenario, "lite", key), run.best(scenario, peer, key)
        if ours and theirs:
            found.append(theirs / ours)
    return found


def _range(ratios: Sequence[float]) -> str:
    texts = dict.fromkeys(f"{ratio:.1f}" for ratio in (min(ratios), max(ratios))) if ratios else {}
    return " to ".join(texts) or _MISSING


def spark_tables(runs: Shown) -> str:
    """Return the figures of the newest runs, a table for each kind of scenario."""
    parts = [about(runs), "Best of the rounds, and in brackets the median.\n"]
    return "\n".join(parts + [family(runs, name, "median") for name in runs.families])


def why_figures(runs: Shown) -> str:
    """Return ours beside the other clients, and of which runs that is."""
    return f"{about(runs)}\n{comparison.table(runs)}"


def why_goals(runs: Shown) -> str:
    """Say how many goals were met."""
    goals = [goal for name in runs.families for goal in runs.of(name)[-1].goals_of(name)]
    return comparison.goals(goals)


BLOCKS: Final[Mapping[str, Callable[[Shown], str]]] = {
    "about": about,
    "goals": goals_table,
    "readme bulk": readme_bulk,
    "readme loop": readme_loop,
    "readme broker": readme_broker,
    "readme spark": spark_ranges,
    "spark": spark_tables,
    "why figures": why_figures,
    "why goals": why_goals,
    "spark goals": lambda runs: spark_rule(runs) + "\n" + goals_table(runs, of_all=True),
}


if __name__ == "__main__":
    sys.exit(main())
