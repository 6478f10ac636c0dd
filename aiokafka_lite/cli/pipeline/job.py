"""A run of the pipeline: the session, the signals, a line for each batch."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pyspark.errors import PySparkException

from aiokafka_lite.cli.loops import Interrupted
from aiokafka_lite.cli.pipeline.problems import QueryError
from aiokafka_lite.cli.pipeline.session import spark_session
from aiokafka_lite.spark.pipeline import BatchMetrics, Pipeline, PipelineOptions


@dataclass(frozen=True, slots=True)
class FlightsOptions:
    """What is wanted of the flights."""

    partition_count: int
    limit: int | None
    plot: Path | None
    """Directory of the plot; None: none."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What the user asked for."""

    pipeline: Callable[[str], PipelineOptions]
    """Takes the bootstrap servers, which may be those of a broker that is still to start."""
    bootstrap_servers: str | None
    topic: str
    trigger_s: float | None
    """None: read once what is there."""
    metrics: Path | None
    master: str | None
    conf: Mapping[str, str]
    flights: FlightsOptions | None


def run_job(options: JobOptions) -> None:
    """Run the pipeline on a topic that is there.

    Raises:
        CommandError, KafkaError: It could not be done; each says what to do.
        Interrupted: A signal ended it, behind a batch.
    """
    assert options.bootstrap_servers is not None  # noqa: S101 - the command line saw to it
    run_pipeline(options, options.pipeline(options.bootstrap_servers), print_line)


def print_line(text: str) -> None:
    """Print a line now."""
    print(text, flush=True)


def run_pipeline(
    options: JobOptions, wanted: PipelineOptions, say: Callable[[str], None]
) -> list[BatchMetrics]:
    """Run the pipeline to its end; returns the figures of the batches."""
    batches: list[BatchMetrics] = []

    def on_batch(metrics: BatchMetrics) -> None:
        batches.append(metrics)
        say(metrics.line())

    with spark_session(options.master, options.conf, is_short=options.flights is not None) as spark:
        started = time.monotonic()
        pipeline = Pipeline(spark, wanted, on_batch=on_batch, metrics_file=options.metrics)
        with _stopping_on_signals(pipeline, say) as received, _query_errors():
            if options.trigger_s is None:
                tables = pipeline.run_once()
            else:
                say(f"Reading {wanted.topic!r} every {options.trigger_s:g} s; Ctrl-C ends it")
                tables = pipeline.run_continuously(options.trigger_s)
        seconds = time.monotonic() - started
        rows = sum(metrics.rows for metrics in batches)
        say(
            f"{rows:,} new records in {len(batches)} batches, {seconds:.1f} s; the tables in "
            f"{wanted.out} end with batch {tables.batch}"
        )
    if received and options.trigger_s is None:
        raise Interrupted(received[0])
    return batches


@contextmanager
def _stopping_on_signals(pipeline: Pipeline, say: Callable[[str], None]) -> Iterator[list[int]]:
    """End the run behind its batch at the first SIGINT or SIGTERM; a second one ends it at once.

    Yields the signals that came.
    """
    received: list[int] = []
    handlers = {}

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append(number)
        pipeline.stop()
        signal.signal(
            number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
        )
        say("Ending behind this batch; once more ends it at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, on_signal)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _query_errors() -> Iterator[None]:
    """Say in a line or two what Spark failed of."""
    try:
        yield
    except PySparkException as error:
        raise QueryError(error) from error
