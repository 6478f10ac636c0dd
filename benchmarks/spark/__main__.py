"""`python -m benchmarks.spark`: run the comparison with Spark's own source, and keep it in out/."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.__main__ import EXIT_FAILED, EXIT_USAGE, exit_code, keep_run
from benchmarks.goals import judge
from benchmarks.loading import TopicError, drop_topics, ensure_topics
from benchmarks.machine import Machine, describe_machine
from benchmarks.plot import plot
from benchmarks.report import WIDTH, goal_table, wide_console
from benchmarks.results import Failure, Sample, Verdict, summarize, write_json
from benchmarks.scenarios import Scenario
from benchmarks.servers import kafka_at
from benchmarks.spark.catalogue import FULL, QUICK, Size, scenarios
from benchmarks.spark.goals import SPARK_GOALS
from benchmarks.spark.report import markdown, rich_table, tables
from benchmarks.spark.sessions import Machinery, run_in_sessions
from tests.support.maven import JarsUnavailableError
from tests.support.real_kafka import KafkaUnavailableError
from tests.support.spark.session import SparkUnavailableError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks of the Spark source.

    Returns:
        1 when a contestant failed; 3 when a goal was missed and `--strict` was given.
    """
    options = _parser().parse_args(arguments)
    size = _size(options)
    chosen = _choose(options, size)
    if not chosen:
        print("nothing to run: see --list", file=sys.stderr)
        return EXIT_USAGE
    if options.list:
        for scenario in chosen:
            names = ", ".join(each.name for each in scenario.contestants)
            print(f"{scenario.name:14} {scenario.title}: {names}")
        return 0
    machine = describe_machine()
    machinery = Machinery(options.cores, options.memory)
    samples: list[Sample] = []
    failures: list[Failure] = []
    try:
        # Not to leave a JVM and a Kafka behind when it is told to end.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with kafka_at(options.bootstrap) as bootstrap_servers:
            topics = list(dict.fromkeys(topic for each in chosen for topic in each.topics))
            ensure_topics(bootstrap_servers, topics)
            _run(bootstrap_servers, chosen, machinery, size.warm_rounds, samples, failures)
            if options.drop:
                drop_topics(bootstrap_servers, [topic.name for topic in topics])
    except (
        KafkaUnavailableError, TopicError, SparkUnavailableError, JarsUnavailableError,
    ) as error:  # fmt: skip
        print(error, file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("\ninterrupted: what was measured so far", file=sys.stderr)
    for failure in failures:
        text = f"FAILED {failure.scenario}, {failure.contestant}: {failure.reason}"
        print(text, file=sys.stderr)
    if not samples:
        return EXIT_FAILED
    verdicts = judge(summarize(samples), SPARK_GOALS)
    _report(options.out, machine, machinery, chosen, samples, failures, verdicts)
    if options.keep:
        summaries = summarize(samples)
        keep_run("spark", options, machine, chosen, scenarios(size), summaries, verdicts, failures)
    return exit_code(failures, verdicts, is_strict=options.strict)


def _report(
    out: Path,
    machine: Machine,
    machinery: Machinery,
    chosen: Sequence[Scenario],
    samples: Sequence[Sample],
    failures: Sequence[Failure],
    verdicts: Sequence[Verdict],
) -> None:
    """Print the tables and the goals, and write them and the pictures to a folder."""
    summaries = summarize(samples)
    results = list(tables(chosen, summaries))
    console = wide_console()
    console.print(str(machine), markup=False)
    for rows in results:
        console.print(rich_table(rows))
    if verdicts:
        console.print(goal_table(verdicts))
    versions = {f"{name} {summary.version}" for (_, name), summary in summaries.items()}
    about = f"local[{machinery.cores}], heap {machinery.memory}; {', '.join(sorted(versions))}."
    out.mkdir(parents=True, exist_ok=True)
    written = [out / "spark.json", out / "spark.md"]
    write_json(written[0], machine, samples, verdicts, failures)
    written[1].write_text(markdown(machine, about, results, verdicts))
    measured = [each for each in chosen if any(name == each.name for name, _ in summaries)]
    for family, members in groupby(measured, lambda scenario: scenario.family):
        written.append(out / f"{family}.png")
        plot(written[-1], machine, list(members), samples)
    print(f"written: {', '.join(map(str, written))}")


def _run(
    bootstrap_servers: str,
    chosen: Sequence[Scenario],
    machinery: Machinery,
    warm_rounds: int,
    samples: list[Sample],
    failures: list[Failure],
) -> None:
    """Run everything, and tell on stderr how far it is."""
    total = sum(scenario.rounds * len(scenario.contestants) for scenario in chosen)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=WIDTH)
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting Spark", total=total)
        for outcome in run_in_sessions(bootstrap_servers, chosen, machinery, warm_rounds):
            progress.update(bar, description=outcome.scenario, advance=1)
            progress.console.print(_step_text(outcome), markup=False, highlight=False)
            if isinstance(outcome, Failure):
                failures.append(outcome)
            elif outcome.round > 0:
                samples.append(outcome)


def _step_text(outcome: Sample | Failure) -> str:
    """Return the line that tells how a run went."""
    if isinstance(outcome, Failure):
        text = f"FAILED: {outcome.reason}"
    else:
        figures = outcome.measurement.figures
        number = f"round {outcome.round}" if outcome.round else "warm-up"
        rate = 1 / figures["wall_us"]
        text = f"{number}: {figures['wall_ms']:,.0f} ms, CPU {figures['cpu_ms']:,.0f} ms, "
        text += f"{rate:.2f} Mrows/s, CPU {figures['cpu_us']:.2f} s/Mrow"
    return f"{outcome.scenario:12} {outcome.contestant:10} {text}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description="Compare the Spark source with Spark's own, the JVM connector.",
    )
    parser.add_argument("--quick", action="store_true", help="less work and fewer rounds")
    parser.add_argument(
        "--bootstrap",
        default=os.environ.get("BOOTSTRAP"),
        metavar="HOST:PORT",
        help="use this Kafka (default: $BOOTSTRAP, else a real one is started)",
    )
    parser.add_argument("--records", type=int, metavar="N", help="per topic read at full speed")
    parser.add_argument("--partitions", type=int, metavar="N", help="of the topic that is planned")
    parser.add_argument("--rounds", type=int, metavar="N", help="that count, after the warm-up")
    parser.add_argument("--warm", type=int, metavar="N", help="rounds that do not count")
    parser.add_argument(
        "--scenario", action="append", metavar="NAME", help="only this one (may be repeated)"
    )
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="only contestants with this in their name"
    )
    parser.add_argument("--cores", type=int, default=2, metavar="N", help="of Spark (%(default)s)")
    parser.add_argument("--memory", default="4g", help="the JVM's heap (%(default)s)")
    parser.add_argument("--list", action="store_true", help="list scenarios and contestants")
    parser.add_argument("--strict", action="store_true", help="exit with 3 when a goal is missed")
    parser.add_argument("--drop", action="store_true", help="delete the topics in the end")
    parser.add_argument("--keep", action="store_true", help="keep the results for the docs")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR")
    return parser


def _size(options: argparse.Namespace) -> Size:
    size = QUICK if options.quick else FULL
    return replace(
        size,
        records=options.records or size.records,
        partition_count=options.partitions or size.partition_count,
        rounds=options.rounds or size.rounds,
        warm_rounds=size.warm_rounds if options.warm is None else options.warm,
    )


def _choose(options: argparse.Namespace, size: Size) -> list[Scenario]:
    """Return the scenarios that were asked for, with the contestants that can run here."""
    chosen = []
    missing: dict[str, str] = {}
    for scenario in scenarios(size):
        if options.scenario and scenario.name not in options.scenario:
            continue
        present = []
        for contestant in scenario.contestants:
            if options.only and not any(text in contestant.name for text in options.only):
                continue
            reason = contestant.missing()
            if reason is None:
                present.append(contestant)
            else:
                missing[contestant.name] = reason
        if present:
            chosen.append(replace(scenario, contestants=tuple(present)))
    for name, reason in missing.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    return chosen


if __name__ == "__main__":
    sys.exit(main())
