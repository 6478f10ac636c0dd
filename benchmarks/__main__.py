"""`python -m benchmarks`: run the comparison, print it, keep it under out/."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path

from benchmarks.catalogue import FULL, QUICK, QUICK_FAMILIES, Size, scenarios
from benchmarks.goals import GOALS, Limit, Verdict, judge
from benchmarks.loading import TopicError, drop_topics, ensure_topics
from benchmarks.machine import describe_machine
from benchmarks.measure import RunError
from benchmarks.plot import plot
from benchmarks.results import (
    Failure,
    Kind,
    Run,
    Sample,
    describe_run,
    document,
    keep,
    summarize,
)
from benchmarks.runner import Plan, run
from benchmarks.scenarios import Scenario
from benchmarks.servers import kafka_at
from benchmarks.tables import report
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
    known = scenarios(_size(options))
    names = options.scenario or (QUICK_FAMILIES if options.quick else ())
    chosen = chosen_of(known, names, options.only)
    if not chosen:
        print("nothing to run: see --list", file=sys.stderr)
        return EXIT_USAGE
    if options.list:
        list_all(chosen)
        return 0

    def outcomes(bootstrap_servers: str) -> Iterator[Sample | Failure]:
        return run(Plan(bootstrap_servers, chosen, reads_once=True))

    return compare("bench", options, chosen, known, outcomes)


def compare(
    kind: Kind,
    options: argparse.Namespace,
    chosen: Sequence[Scenario],
    known: Sequence[Scenario],
    outcomes: Callable[[str], Iterator[Sample | Failure]],
    goals: Sequence[Limit] = GOALS,
) -> int:
    """Run scenarios, and print and write their results; returns the exit code.

    Args:
        kind: Of the benchmarks.
        options: Of the command line.
        chosen: The scenarios to run.
        known: All scenarios.
        outcomes: Runs them on the Kafka at an address.
        goals: For these benchmarks.
    """
    machine = describe_machine()
    samples: list[Sample] = []
    failures: list[Failure] = []
    try:
        needs_kafka = any(not each.course for each in chosen)
        with kafka_at(options.bootstrap) if needs_kafka else nullcontext("") as bootstrap_servers:
            topics = list(dict.fromkeys(topic for each in chosen for topic in each.topics))
            if topics:
                ensure_topics(bootstrap_servers, topics)
            for outcome in outcomes(bootstrap_servers):
                _show_step(outcome)
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                elif outcome.round > 0:
                    samples.append(outcome)
            if options.drop and topics:
                drop_topics(bootstrap_servers, [topic.name for topic in topics])
    except (KafkaUnavailableError, TopicError, RunError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("\ninterrupted: the results so far", file=sys.stderr)
    if not samples:
        return EXIT_FAILED
    summaries = summarize(samples)
    verdicts = judge(summaries, goals)
    result = describe_run(
        kind, datetime.now(timezone.utc).isoformat(timespec="seconds"), machine, chosen,
        summaries, is_quick=options.quick, is_own_kafka=not options.bootstrap,
    )  # fmt: skip
    print(report(result, verdicts, failures))
    if options.keep:
        keep_run(result, options, known, failures)
    written = [options.out / f"{kind}.json"]
    write_json(written[0], result, samples, verdicts, failures)
    measured = [each for each in chosen if any(name == each.name for name, _ in summaries)]
    for family, members in groupby(measured, lambda scenario: scenario.family):
        written.append(options.out / f"{family}.png")
        plot(written[-1], machine, list(members), samples)
    print(f"written: {', '.join(map(str, written))}")
    return exit_code(failures, verdicts, is_strict=options.strict)


def write_json(
    path: Path,
    result: Run,
    samples: Sequence[Sample],
    verdicts: Sequence[Verdict],
    failures: Sequence[Failure],
) -> None:
    """Write everything that was measured, for other programs to read."""
    everything = {
        **document(result),
        "samples": [asdict(sample) for sample in samples],
        "goals": [asdict(verdict) for verdict in verdicts],
        "failures": [asdict(failure) for failure in failures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(everything, indent=2) + "\n")


def keep_run(
    result: Run,
    options: argparse.Namespace,
    known: Sequence[Scenario],
    failures: Sequence[Failure],
) -> None:
    """Keep the results for README and the documentation, if nothing of what ran was left out.

    Args:
        result: Of the scenarios that ran.
        options: How it was called.
        known: All scenarios.
        failures: Which contestants failed: then nothing is kept.
    """
    reason = "a contestant failed" if failures else _partial(options, result, known)
    if reason:
        print(f"not kept: {reason}; what is kept is of whole families", file=sys.stderr)
        return
    print(f"kept: {keep(result)}; `make figures` writes them into README and docs")


def _partial(options: argparse.Namespace, result: Run, known: Sequence[Scenario]) -> str:
    """Say what a run has left out of the families that it is of."""
    for name in PARTLY:
        if getattr(options, name, None):
            return f"--{name} was given"
    names = {each.name for each in result.questions}
    families = {each.family for each in result.questions}
    absent = [each.name for each in known if each.family in families and each.name not in names]
    return f"{', '.join(absent)} did not run" if absent else ""


def exit_code(failures: Sequence[Failure], verdicts: Sequence[Verdict], *, is_strict: bool) -> int:
    """Return what the run ends with; a goal that could not be judged is none that was missed."""
    if failures:
        return EXIT_FAILED
    is_missed = any(verdict.is_met is False for verdict in verdicts)
    return EXIT_GOAL_MISSED if is_strict and is_missed else 0


def parser_of(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the options of all benchmarks."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--quick", action="store_true", help="less work and fewer rounds")
    parser.add_argument(
        "--bootstrap",
        default=os.environ.get("BOOTSTRAP"),
        metavar="HOST:PORT",
        help="use this Kafka (default: $BOOTSTRAP, else a real one is started)",
    )
    parser.add_argument("--records", type=int, metavar="N", help="per topic of 100-byte values")
    parser.add_argument("--rounds", type=int, metavar="N", help="measured rounds")
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


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "python -m benchmarks",
        "Compare what reading costs with aiokafka, confluent-kafka and Java.",
    )
    parser.add_argument("--seconds", type=float, metavar="N", help="per run that goes by time")
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


def chosen_of(
    known: Sequence[Scenario], names: Sequence[str] | None, only: Sequence[str] | None
) -> list[Scenario]:
    """Return the scenarios of these names or families, with the contestants that can run here."""
    wanted = set(names or ())
    asked = [
        each
        for each in known
        # "broker" is "broker-drain" too
        if not wanted or wanted & {each.name, each.family, each.family.partition("-")[0]}
    ]
    missing: dict[str, str] = {}
    chosen = []
    for scenario in asked:
        found = []
        for contestant in scenario.contestants:
            if only and not any(text in contestant.name for text in only):
                continue
            reason = contestant.missing()
            if reason is None:
                found.append(contestant)
            else:
                missing[contestant.name] = reason
        if found:
            chosen.append(replace(scenario, contestants=tuple(found)))
    for name, reason in missing.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    return chosen


def list_all(chosen: Sequence[Scenario]) -> None:
    """Print scenarios and their contestants."""
    for scenario in chosen:
        names = ", ".join(contestant.name for contestant in scenario.contestants)
        print(f"{scenario.name:14} {scenario.title}: {names}")


def _show_step(outcome: Sample | Failure) -> None:
    if isinstance(outcome, Failure):
        text = f"FAILED: {outcome.reason}"
    else:
        figures = outcome.measurement.figures.items()
        text = f"round {outcome.round}: " if outcome.round else "warm-up: "
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
