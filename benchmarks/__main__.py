"""`python -m benchmarks`: run the comparison, print it, keep it under out/."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.goals import judge
from benchmarks.machine import describe_machine
from benchmarks.plot import plot
from benchmarks.report import show
from benchmarks.results import Failure, Sample, summarize, write_json
from benchmarks.runner import Plan, run
from benchmarks.scenarios import Scenario, scenarios
from benchmarks.topics import drop_topics, ensure_topic
from tests.support.real_kafka import KafkaUnavailableError, RealKafka

RECORDS: Final = 2_000_000
ROUNDS: Final = 5
QUICK_RECORDS: Final = 300_000
QUICK_ROUNDS: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; returns 1 when a contestant failed."""
    options = _parser().parse_args(arguments)
    records = options.records or (QUICK_RECORDS if options.quick else RECORDS)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    chosen = [
        each for each in scenarios(records) if not options.scenario or each.name in options.scenario
    ]
    contestants = _present(options.only)
    if not chosen or not contestants:
        print("nothing to run: see --list", file=sys.stderr)
        return 2
    if options.list:
        _list(chosen, contestants)
        return 0
    machine = describe_machine()
    samples: list[Sample] = []
    failures: list[Failure] = []
    try:
        with _kafka(options.bootstrap) as bootstrap_servers:
            for scenario in chosen:
                ensure_topic(bootstrap_servers, scenario)
            for outcome in run(Plan(bootstrap_servers, chosen, contestants, rounds)):
                _show_step(outcome)
                if isinstance(outcome, Sample):
                    samples.append(outcome)
                else:
                    failures.append(outcome)
            if options.drop:
                drop_topics(bootstrap_servers, [each.topic for each in chosen])
    except KafkaUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: what was measured so far", file=sys.stderr)
    if not samples:
        for failure in failures:
            print(f"FAILED {failure.contestant}: {failure.reason}", file=sys.stderr)
        return 1
    summaries = summarize(samples)
    show(machine, chosen, summaries, judge(summaries), failures)
    write_json(options.out / "bench.json", machine, samples, failures)
    plot(options.out / "bench.png", machine, chosen, summaries)
    print(f"written: {options.out / 'bench.json'}, {options.out / 'bench.png'}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare what a record costs with aiokafka, confluent-kafka and Java.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds: < 3 min")
    parser.add_argument(
        "--bootstrap",
        default=os.environ.get("BOOTSTRAP"),
        metavar="HOST:PORT",
        help="use this Kafka (default: $BOOTSTRAP, else a real one is started)",
    )
    parser.add_argument("--records", type=int, metavar="N", help="per topic of 100-byte values")
    parser.add_argument("--rounds", type=int, metavar="N")
    parser.add_argument(
        "--scenario", action="append", metavar="NAME", help="only this one (may be repeated)"
    )
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="only contestants with this in their name"
    )
    parser.add_argument("--list", action="store_true", help="list scenarios and contestants")
    parser.add_argument("--drop", action="store_true", help="delete the topics in the end")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR")
    return parser


def _present(wanted: Sequence[str] | None) -> list[Contestant]:
    """Return the contestants that were asked for and can run here; says why others cannot."""
    present = []
    for contestant in CONTESTANTS:
        if wanted and not any(text in contestant.name for text in wanted):
            continue
        missing = contestant.missing()
        if missing is None:
            present.append(contestant)
        else:
            print(f"left out: {contestant.name}: {missing}", file=sys.stderr)
    return present


@contextmanager
def _kafka(bootstrap_servers: str | None) -> Iterator[str]:
    """Give the address of a real Kafka, started for this run unless one was named."""
    if bootstrap_servers:
        yield bootstrap_servers
        return
    with RealKafka() as kafka:
        yield kafka.bootstrap_servers


def _list(chosen: Sequence[Scenario], contestants: Sequence[Contestant]) -> None:
    for scenario in chosen:
        print(f"scenario    {scenario.name:10} {scenario.title}")
    for contestant in contestants:
        print(f"contestant  {contestant.name}")


def _show_step(outcome: Sample | Failure) -> None:
    if isinstance(outcome, Failure):
        text = f"FAILED: {outcome.reason}"
    else:
        measurement = outcome.measurement
        text = f"round {outcome.round}: {measurement.cpu_ns:7,.0f} ns CPU"
        text += f", {measurement.wall_ns:7,.0f} ns wall"
    print(f"{outcome.scenario:6} {outcome.contestant:30} {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
