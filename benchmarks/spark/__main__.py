"""`python -m benchmarks.spark`: run the comparison with Spark's own source, and keep it in out/."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.__main__ import EXIT_USAGE, chosen_of, compare, list_all, parser_of
from benchmarks.measure import RunError
from benchmarks.results import Failure, Sample
from benchmarks.spark.catalogue import FULL, QUICK, Size, scenarios
from benchmarks.spark.goals import SPARK_GOALS
from benchmarks.spark.sessions import Machinery, run_in_sessions
from tests.support.maven import JarsUnavailableError
from tests.support.spark.session import SparkUnavailableError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks of the Spark source.

    Returns:
        1 when a contestant failed; 3 when a goal was missed and `--strict` was given.
    """
    options = _parser().parse_args(arguments)
    size = _size(options)
    chosen = chosen_of(scenarios(size), options.scenario, options.only)
    if not chosen:
        print("nothing to run: see --list", file=sys.stderr)
        return EXIT_USAGE
    if options.list:
        list_all(chosen)
        return 0
    # SIGTERM ends it as Ctrl-C does, so that no JVM and no Kafka are left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machinery = Machinery(options.cores, options.memory)
    print(f"Spark: local[{machinery.cores}], heap {machinery.memory}", file=sys.stderr)

    def outcomes(bootstrap_servers: str) -> Iterator[Sample | Failure]:
        try:
            yield from run_in_sessions(bootstrap_servers, chosen, machinery, size.warm_rounds)
        except (SparkUnavailableError, JarsUnavailableError) as error:
            raise RunError(str(error)) from error

    return compare("spark", options, chosen, scenarios(size), outcomes, SPARK_GOALS)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "python -m benchmarks.spark",
        "Compare the Spark source with Spark's own, the JVM connector.",
    )
    parser.add_argument("--partitions", type=int, metavar="N", help="of the topic that is planned")
    parser.add_argument("--warm", type=int, metavar="N", help="rounds that do not count")
    parser.add_argument("--cores", type=int, default=2, metavar="N", help="of Spark (%(default)s)")
    parser.add_argument("--memory", default="4g", help="the JVM's heap (%(default)s)")
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


if __name__ == "__main__":
    sys.exit(main())
