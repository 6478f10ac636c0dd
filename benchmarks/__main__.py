"""`python -m benchmarks`: run the comparison, print it, keep it under out/."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path

from benchmarks.catalogue import FULL, QUICK, QUICK_FAMILIES, Size, scenarios
from benchmarks.contestants import Contestant
from benchmarks.goals import judge
from benchmarks.kept import Kind, describe_run, keep
from benchmarks.loading import TopicError, drop_topics, ensure_topics
from benchmarks.machine import Machine, describe_machine
from benchmarks.plot import plot
from benchmarks.report import show
from benchmarks.results import Failure, Sample, Summaries, Verdict, summarize, write_json
from benchmarks.runner import Plan, run
from benchmarks.scenarios import Scenario
from benchmarks.servers import kafka_at
from tests.support.real_kafka import KafkaUnavailableError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_GOAL_MISSED = 3
# Options by which a run leaves something of a family out.
PARTLY = ("only", "records", "rounds", "seconds", "partitions", "warm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks.

    Returns:
        1 when a contestant failed; 3 when a goal was missed and `--strict` was given.
    """
    options = _parser().parse_args(arguments)
    chosen = _choose(options)
    if not chosen:
        print("nothing to run: see --list", file=sys.stderr)
        return EXIT_USAGE
    if options.list:
        _list(chosen)
        return 0
    machine = describe_machine()
    samples: list[Sample] = []
    failures: list[Failure] = []
    try:
        needs_kafka = any(not each.course for each in chosen)
        with kafka_at(options.bootstrap) if needs_kafka else nullcontext("") as bootstrap_servers:
            topics = list(dict.fromkeys(topic for each in chosen for topic in each.topics))
            if topics:
                ensure_topics(bootstrap_servers, topics)
            for outcome in run(Plan(bootstrap_servers, chosen, reads_once=True)):
                _show_step(outcome)
                if isinstance(outcome, Sample):
                    samples.append(outcome)
                else:
                    failures.append(outcome)
            if options.drop and topics:
                drop_topics(bootstrap_servers, [topic.name for topic in topics])
    except (KafkaUnavailableError, TopicError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("\ninterrupted: what was measured so far", file=sys.stderr)
    if not samples:
        for failure in failures:
            print(f"FAILED {failure.contestant}: {failure.reason}", file=sys.stderr)
        return EXIT_FAILED
    summaries = summarize(samples)
    verdicts = judge(summaries)
    show(machine, chosen, summaries, verdicts, failures)
    if options.keep:
        everything = scenarios(_size(options))
        keep_run("bench", options, machine, chosen, everything, summaries, verdicts, failures)
    written = [options.out / "bench.json"]
    write_json(written[0], machine, samples, verdicts, failures)
    measured = [each for each in chosen if any(name == each.name for name, _ in summaries)]
    for family, members in groupby(measured, lambda scenario: scenario.family):
        written.append(options.out / f"{family}.png")
        plot(written[-1], machine, list(members), samples)
    print(f"written: {', '.join(map(str, written))}")
    return exit_code(failures, verdicts, is_strict=options.strict)


def keep_run(
    kind: Kind,
    options: argparse.Namespace,
    machine: Machine,
    chosen: Sequence[Scenario],
    known: Sequence[Scenario],
    summaries: Summaries,
    verdicts: Sequence[Verdict],
    failures: Sequence[Failure],
) -> None:
    """Keep the results for README and the documentation, if nothing of what ran was left out.

    Args:
        kind: What ran.
        options: How it was called.
        machine: Where it ran.
        chosen: The scenarios that ran.
        known: All that there are.
        summaries: What came out.
        verdicts: What became of the goals.
        failures: Which contestants failed: then nothing is kept.
    """
    reason = _partial(options, chosen, known)
    if failures:
        reason = "a contestant failed"
    if reason:
        print(f"not kept: {reason}; what is kept is of whole families", file=sys.stderr)
        return
    kept = describe_run(
        kind, datetime.now(timezone.utc).isoformat(timespec="seconds"), machine, chosen,
        summaries, verdicts, is_quick=options.quick, is_own_kafka=not options.bootstrap,
    )  # fmt: skip
    print(f"kept: {keep(kept)}; `make figures` writes them into README and docs")


def _partial(
    options: argparse.Namespace, chosen: Sequence[Scenario], known: Sequence[Scenario]
) -> str:
    """Say what a run has left out of the families that it is of."""
    for name in PARTLY:
        if getattr(options, name, None):
            return f"--{name} was given"
    names = {each.name for each in chosen}
    families = {each.family for each in chosen}
    absent = [each.name for each in known if each.family in families and each.name not in names]
    return f"{', '.join(absent)} did not run" if absent else ""


def exit_code(failures: Sequence[Failure], verdicts: Sequence[Verdict], *, is_strict: bool) -> int:
    """Return what the run ends with; a goal that could not be judged is none that was missed."""
    if failures:
        return EXIT_FAILED
    is_missed = any(verdict.is_met is False for verdict in verdicts)
    return EXIT_GOAL_MISSED if is_strict and is_missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare what reading costs with aiokafka, confluent-kafka and Java.",
    )
    parser.add_argument("--quick", action="store_true", help="less work and fewer rounds: < 3 min")
    parser.add_argument(
        "--bootstrap",
        default=os.environ.get("BOOTSTRAP"),
        metavar="HOST:PORT",
        help="use this Kafka (default: $BOOTSTRAP, else a real one is started)",
    )
    parser.add_argument("--records", type=int, metavar="N", help="per topic of 100-byte values")
    parser.add_argument("--seconds", type=float, metavar="N", help="per run that goes by time")
    parser.add_argument("--rounds", type=int, metavar="N")
    parser.add_argument(
        "--scenario",
        action="append",
        metavar="NAME",
        help="only this one, or this family (may be repeated)",
    )
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="only contestants with this in their name"
    )
    parser.add_argument("--list", action="store_true", help="list scenarios and contestants")
    parser.add_argument("--strict", action="store_true", help="exit with 3 when a goal is missed")
    parser.add_argument("--drop", action="store_true", help="delete the topics in the end")
    parser.add_argument("--keep", action="store_true", help="keep the results for the docs")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR")
    return parser


def _size(options: argparse.Namespace) -> Size:
    """Return how much work it is to be."""
    size = QUICK if options.quick else FULL
    return replace(
        size,
        records=options.records or size.records,
        broker_records=options.records or size.broker_records,
        seconds=options.seconds or size.seconds,
        rounds=options.rounds or size.rounds,
        timed_rounds=options.rounds or size.timed_rounds,
        start_rounds=options.rounds or size.start_rounds,
        memory_seconds=options.seconds or size.memory_seconds,
    )


def _choose(options: argparse.Namespace) -> list[Scenario]:
    """Return the scenarios that were asked for, with the contestants that can run here."""
    wanted = set(options.scenario or (QUICK_FAMILIES if options.quick else ()))
    chosen = []
    missing: dict[str, str] = {}
    for scenario in scenarios(_size(options)):
        kin = scenario.family.partition("-")[0]  # "broker" is "broker-drain" too
        if wanted and not wanted & {scenario.name, scenario.family, kin}:
            continue
        present = tuple(_present(scenario.contestants, options.only, missing))
        if present:
            chosen.append(replace(scenario, contestants=present))
    for name, reason in missing.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    return chosen


def _present(
    contestants: Sequence[Contestant], wanted: Sequence[str] | None, missing: dict[str, str]
) -> Iterator[Contestant]:
    for contestant in contestants:
        if wanted and not any(text in contestant.name for text in wanted):
            continue
        reason = contestant.missing()
        if reason is None:
            yield contestant
        else:
            missing[contestant.name] = reason


def _list(chosen: Sequence[Scenario]) -> None:
    for scenario in chosen:
        print(f"{scenario.name:12} {scenario.title}")
        for contestant in scenario.contestants:
            print(f"{'':12}   {contestant.name}")


def _show_step(outcome: Sample | Failure) -> None:
    if isinstance(outcome, Failure):
        text = f"FAILED: {outcome.reason}"
    else:
        figures = outcome.measurement.figures.items()
        text = f"round {outcome.round}: "
        text += ", ".join(f"{key} {figure:,.5g}" for key, figure in figures)
    print(f"{outcome.scenario:12} {outcome.contestant:30} {text}", file=sys.stderr)


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    sys.exit(code)
