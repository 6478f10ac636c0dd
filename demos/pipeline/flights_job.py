"""The flights through the pipeline: load, run, check, show, draw."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.cli.loops import run as run_on_loop
from demos.flights.dataset import read_airline_names
from demos.flights.job import check_reachable, ensure_loaded, read_data_set
from demos.flights.report import Reporter
from demos.parquet import PipelineOptions
from demos.pipeline.flights import (
    differences,
    expected_tables,
    read_tables,
)
from demos.pipeline.job import FlightsOptions, PipelineJobOptions, run_pipeline
from demos.pipeline.problems import TablesElsewhereError
from demos.pipeline.report import show_delays, show_differences, show_tables


def run_flights(options: PipelineJobOptions, flights: FlightsOptions) -> bool:
    """Run the flights through the pipeline. Returns whether the tables are correct."""
    reporter = Reporter()
    started = time.monotonic()
    with ExitStack() as stack:
        bootstrap_servers = options.bootstrap_servers
        if bootstrap_servers is None:
            bootstrap_servers = stack.enter_context(BrokerThread()).bootstrap_servers
            reporter.say(f"Embedded broker at {bootstrap_servers}")
        else:
            run_on_loop(check_reachable(bootstrap_servers))
        wanted = options.pipeline(bootstrap_servers)
        directory = _directory(wanted, options)
        expectation = run_on_loop(read_data_set(flights.partition_count, flights.limit, reporter))
        if options.bootstrap_servers is None:
            _delete_earlier(directory, reporter)
        run_on_loop(
            ensure_loaded(
                bootstrap_servers, options.topic, expectation, reporter, limit=flights.limit
            )
        )
        run_pipeline(options, wanted, reporter.say)
    assert options.metrics is not None  # noqa: S101 - the tables are in a local directory
    lines = options.metrics.read_text(encoding="utf-8").splitlines()
    found = read_tables(directory, late=sum(json.loads(line)["late"] for line in lines))
    expected = expected_tables(flights.limit)
    show_tables(reporter.console, found, directory)
    names = read_airline_names()
    show_delays(reporter.console, found.delays, names)
    wrong = differences(expected, found)
    if wrong:
        show_differences(reporter.console, wrong)
    else:
        reporter.say(
            f"Checked: the raw table has each of the {expected.raw:,} flights once, and all "
            f"{expected.aggregate_rows:,} rows of the aggregate table match the data set"
        )
    if flights.plot is not None:
        # Imported here, because matplotlib takes a second to load.
        from demos.pipeline.plot import plot

        reporter.say(f"Plot: {plot(found.delays, names, flights.plot)}")
    reporter.say(f"All in {time.monotonic() - started:.0f} s")
    return not wrong


def _directory(wanted: PipelineOptions, options: PipelineJobOptions) -> Path:
    """Return the directory of the tables, whose files are read for the check."""
    if "://" in wanted.out or options.metrics is None:
        raise TablesElsewhereError(
            "--flights checks the tables by reading their files, so --out must be a local path, "
            f"not {wanted.out}"
        )
    return Path(wanted.out)


def _delete_earlier(directory: Path, reporter: Reporter) -> None:
    """Delete tables of an earlier run, whose broker does not exist any more."""
    if (directory / "_pipeline" / "settings.json").is_file():
        shutil.rmtree(directory)
        reporter.say(
            f"Deleted the tables in {directory}: an earlier run read their records from an "
            "embedded broker that no longer exists"
        )
