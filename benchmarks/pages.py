"""`python -m benchmarks.pages`: update the figures in README and the documentation.

They are written into blocks, and into the picture of README, from the runs that are kept:

    <!-- figures: NAME -->
    ...
    <!-- /figures -->

With `--check` the pages are compared with the runs and not written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import comparison, picture
from benchmarks.goals import GOALS, Verdict
from benchmarks.results import FOLDER, ROOT, Shown, shown
from benchmarks.servers import SERVERS
from benchmarks.spark.goals import SPARK_GOALS
from benchmarks.tables import MISSING, about_run, family_table, goal_table, markdown, status

PAGES: Final = ("README.md", "docs/benchmarks.md", "docs/testing.md")
PICTURE: Final = "docs/assets/cpu.svg"
EXIT_DIFFERS: Final = 1
_BLOCK: Final = re.compile(
    r"(?P<begin>^<!-- figures: (?P<name>[\w -]+) -->\n)(?P<text>.*?)(?P<end>^<!-- /figures -->$)",
    re.M | re.DOTALL,
)
_NO_RUN: Final = "(No run is stored yet. Run `make {}`, then `make figures`.)"
_NOT_MEASURED: Final = (
    "The results of `make {} ARGS='--scenario {}'` are not stored in the repository."
)
_NOT_MISSED: Final = ("met", "not run")

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
    path, drawn = root / PICTURE, _draw(runs["bench"])
    if not path.exists() or path.read_text() != drawn:
        differing.append(PICTURE)
        if not is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(drawn)
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


def _draw(runs: Shown) -> str:
    """Return the picture of README: CPU time per record at full speed, the least first."""
    found = {label: runs.best("plain", name, "cpu_ns") for name, label in picture.BARS}
    return picture.draw({label: ns for label, ns in found.items() if ns is not None})


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
    """Return a table of the run of most figures, and of the families measured in other runs."""
    others: dict[str, list[str]] = {}
    for name in runs.families:
        run = runs.of(name)[-1]
        if run is not runs.main:
            others.setdefault(run.label, []).append(f"`{name}`")
    listed = ", ".join(f"{', '.join(names)} ({label})" for label, names in others.items())
    return about_run(runs.main) + (f"| measured in separate runs | {listed} |\n" if others else "")


def family(runs: Shown, name: str) -> str:
    """Return the table of a family, and its run if that is not the main one."""
    found = runs.of(name)
    if not found:
        return _NOT_MEASURED.format("bench", name)
    own = f"{about_run(found[-1], runs.main)}\n" if found[-1] is not runs.main else ""
    return own + family_table(found[-1], name)


def goals_of(runs: Shown) -> Iterator[Sequence[Verdict]]:
    """Yield the verdicts on each goal: of the shown run, or for Spark of all runs that count.

    A goal without a run has none.
    """
    is_spark = runs.main.kind == "spark"
    for goal in SPARK_GOALS if is_spark else GOALS:
        counted = runs.asking(goal.scenarios[0])
        yield [goal.judge(run.summaries) for run in (counted if is_spark else counted[-1:])]


def missed_goals(runs: Shown) -> str:
    """Return how many goals were met, and the table of those that were missed."""
    goals = list(goals_of(runs))
    states = [status(verdicts) for verdicts in goals]
    kind = "Spark benchmark" if runs.main.kind == "spark" else "benchmark"
    met, unknown = states.count("met"), states.count("not run")
    judged = len(goals) - unknown
    left = f" {unknown} were not measured." if unknown else ""
    if met == judged:
        return f"All {met} {kind} goals were met.{left}\n"
    missed = [each for each, state in zip(goals, states, strict=True) if state not in _NOT_MISSED]
    return (
        f"{met} of {judged} {kind} goals were met, and {len(missed)} were missed.{left}\n\n"
        f"{goal_table(missed)}"
    )


# --- README --------------------------------------------------------------------------------
def readme_comparison(runs: Shown) -> str:
    """Return the rows that a reader of README asks for first, and where the figures are from."""
    return (
        f"{comparison.short_table(runs)}\nValues have 100 bytes. CPU times are the best of several "
        f"rounds, with a real Kafka on the same machine ({runs.main.label}). confluent-kafka reads "
        "batches with the settings that need the least CPU time.\n"
    )


def broker_table(runs: Shown) -> str:
    """Return the wall time of other clients with the embedded broker and with a real Kafka."""
    if not runs.of("broker"):
        return _NOT_MEASURED.format("bench", "broker")
    run = runs.of("broker")[-1]
    rows = []
    for question in run.family("broker"):
        client = question.contestants[0].partition(", ")[0]
        best = [run.best(question.name, f"{client}, {server}", "wall_ns") for server in SERVERS]
        cells = [MISSING if each is None else f"{each:,.0f}" for each in best]
        rows.append([f"**{question.name}**: {question.title}", *cells])
    own = f"{about_run(run, runs.main)}\n" if run is not runs.main else ""
    return own + markdown(["wall time, ns a record", *SERVERS], rows)


def broker_ratios(runs: Shown) -> str:
    """Compare the speed of other clients with the embedded broker and with a real Kafka."""
    if not runs.of("broker"):
        return _NOT_MEASURED.format("bench", "broker")
    run = runs.of("broker")[-1]
    ratios = []
    for question in run.family("broker"):
        client = question.contestants[0].partition(", ")[0]
        with_kafka = run.best(question.name, f"{client}, Kafka", "wall_ns")
        for server in ("memory", "directory"):
            with_us = run.best(question.name, f"{client}, {server}", "wall_ns")
            if with_us and with_kafka:
                ratios.append(with_kafka / with_us)
    return (
        f"The embedded broker serves Java and librdkafka clients at {min(ratios):.2f} to "
        f"{max(ratios):.2f} times the speed of a real Kafka. Both the embedded broker and Kafka "
        f"ran on one machine ({run.label}).\n"
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
    """Explain how the figures of several runs are combined, and name the runs."""
    counting = [run for name in runs.families for run in runs.of(name)]
    named = [run.label for run in runs.runs if any(each is run for each in counting)]
    several = "If runs differ, the table gives the smallest and the largest speed-up. "
    return (
        "A speed-up is the JVM connector's best time divided by aiokafka_lite's best time in the "
        f"same run. {several if len(named) > 1 else ''}The figures are from these runs: "
        f"{'; '.join(named)}.\n"
    )


def spark_ranges(runs: Shown) -> str:
    """Return the speed-up over the connector, over all runs."""
    rows = []
    for scenario, key, title in SPARK_ROWS:
        cells = [_range(_ratios(runs, scenario, peer, key)) for peer in ("jvm", "jvm tuned")]
        if cells != [MISSING, MISSING]:
            rows.append([title, *cells])
    headings = ("", "speed-up over the JVM connector, default", "hand-tuned")
    return f"{spark_rule(runs)}\n{markdown(headings, rows)}"


def _ratios(runs: Shown, scenario: str, peer: str, key: str) -> list[float]:
    found = []
    for run in runs.asking(scenario):
        ours, theirs = run.best(scenario, "lite", key), run.best(scenario, peer, key)
        if ours and theirs:
            found.append(theirs / ours)
    return found


def _range(ratios: Sequence[float]) -> str:
    texts = dict.fromkeys(f"{ratio:.1f}" for ratio in (min(ratios), max(ratios))) if ratios else {}
    return " to ".join(texts) or MISSING


def spark_tables(runs: Shown) -> str:
    """Return the figures of the newest runs, a table for each kind of scenario."""
    rule = "The tables show each source's best round, with the median of its rounds in brackets.\n"
    parts = [about(runs), rule]
    return "\n".join(parts + [family(runs, name) for name in runs.families])


def compared(runs: Shown) -> str:
    """Return the figures of this package and of the other clients, and their runs."""
    return f"{about(runs)}\n{comparison.table(runs)}"


BLOCKS: Final[Mapping[str, Callable[[Shown], str]]] = {
    "missed goals": missed_goals,
    "readme comparison": readme_comparison,
    "broker": broker_ratios,
    "broker servers": broker_table,
    "spark ranges": spark_ranges,
    "spark": spark_tables,
    "comparison": compared,
    "spark goals": missed_goals,
}


if __name__ == "__main__":
    sys.exit(main())
