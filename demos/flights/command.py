"""`python -m demos flights`: real flights through a consumer group, checked."""

from __future__ import annotations

import argparse
import importlib.util
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from aiokafka_lite.cli.arguments import positive_int, positive_seconds
from aiokafka_lite.cli.loops import LoopKind
from aiokafka_lite.cli.loops import run as run_on_loop
from aiokafka_lite.cli.main import decoder_note
from aiokafka_lite.cli.problems import MissingExtraError
from demos.arguments import bootstrap_servers, loopback_address
from demos.flights.dataset import DISTRIBUTION

if TYPE_CHECKING:
    from demos.flights.job import FlightsJobOptions


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "load 336,776 flights into a topic, and compute delays with a consumer group"
    parser = subparsers.add_parser("flights", help=summary, description=summary)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--bootstrap",
        type=bootstrap_servers,
        metavar="HOST:PORT",
        help="the Kafka cluster to use (default: start an embedded broker)",
    )
    where.add_argument(
        "--listen",
        type=loopback_address,
        default=("127.0.0.1", 0),
        metavar="HOST:PORT",
        help="the address of the embedded broker (default: 127.0.0.1, a free port)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the embedded broker running until Ctrl-C"
    )
    parser.add_argument("--loop", type=LoopKind, choices=list(LoopKind), default=LoopKind.ASYNCIO)
    parser.add_argument("--topic", default="flights", help="default: flights")
    parser.add_argument(
        "--partitions", type=positive_int, default=4, metavar="N", help="default: 4"
    )
    parser.add_argument(
        "--workers", type=positive_int, default=2, metavar="N", help="group members (default: 2)"
    )
    parser.add_argument(
        "--limit", type=positive_int, metavar="N", help="use only the first N flights"
    )
    parser.add_argument(
        "--stall-timeout",
        type=positive_seconds,
        default=60.0,
        metavar="SECONDS",
        help="stop with an error after SECONDS without records (default: 60)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out"),
        metavar="DIR",
        help=("the directory of the plot (default: out)"),
    )
    parser.add_argument("--no-plot", action="store_true", help="draw no plot")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the job. Returns 0 if its figures are correct, otherwise 1."""
    _require_demo_extra(with_plot=not options.no_plot)
    # Imported here, because these modules import packages of the extra.
    from demos.flights.job import run_job
    from demos.flights.report import Reporter

    reporter = Reporter()
    note = decoder_note()
    if note is not None:
        reporter.say(note)
    is_right = run_on_loop(run_job(_job_options(options), reporter), options.loop)
    return 0 if is_right else 1


def _job_options(options: argparse.Namespace) -> FlightsJobOptions:
    from demos.flights.job import FlightsJobOptions

    return FlightsJobOptions(
        bootstrap_servers=options.bootstrap,
        listen=options.listen,
        topic=options.topic,
        partition_count=options.partitions,
        worker_count=options.workers,
        limit=options.limit,
        stall_timeout_s=options.stall_timeout,
        plot_directory=None if options.no_plot else options.out,
        keep_broker=options.keep,
    )


def _require_demo_extra(*, with_plot: bool) -> None:
    try:
        metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise MissingExtraError(DISTRIBUTION, extra="demo") from None
    for package in ("rich", "matplotlib") if with_plot else ("rich",):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra="demo")
