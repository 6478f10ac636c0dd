"""A run of the pipeline: the session, the signals, a line for each batch."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from aiokafka_lite._signals import StopSignals
from aiokafka_lite.cli.problems import Interrupted
from demos.parquet import BatchMetrics, Pipeline, PipelineOptions
from demos.pipeline.problems import QueryError
from demos.pipeline.session import spark_session


@dataclass(frozen=True, slots=True)
class FlightsOptions:
    partition_count: int
    limit: int | None
    plot: Path | None
    """Directory of the plot; None: none."""


@dataclass(frozen=True, slots=True)
class PipelineJobOptions:
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


def run_job(options: PipelineJobOptions) -> None:
    assert options.bootstrap_servers is not None  # noqa: S101 - the command line saw to it
    run_pipeline(options, options.pipeline(options.bootstrap_servers), print_line)


def print_line(text: str) -> None:
    print(text, flush=True)


def run_pipeline(
    options: PipelineJobOptions, wanted: PipelineOptions, say: Callable[[str], None]
) -> list[BatchMetrics]:
    """Run the pipeline to its end. Returns the metrics of the batches."""
    batches: list[BatchMetrics] = []

    def on_batch(metrics: BatchMetrics) -> None:
        batches.append(metrics)
        say(metrics.line())

    is_short = options.flights is not None
    with (
        Stopping(say).on_signals() as stopping,
        spark_errors(stopping),
        spark_session(options.master, options.conf, is_short=is_short) as spark,
    ):
        started = time.monotonic()
        pipeline = Pipeline(spark, wanted, on_batch=on_batch, metrics_file=options.metrics)
        with stopping.behind_a_batch_of(pipeline):
            if options.trigger_s is None:
                tables = pipeline.run_once()
            else:
                say(
                    f"Reading new records of {wanted.topic!r} every {options.trigger_s:g} s. "
                    "Ctrl-C stops the pipeline"
                )
                tables = pipeline.run_continuously(options.trigger_s)
        seconds = time.monotonic() - started
        rows = sum(metrics.rows for metrics in batches)
        say(
            f"{rows:,} new records in {len(batches)} batches, {seconds:.1f} s. The latest batch in "
            f"the tables of {wanted.out} is number {tables.batch}"
        )
    if options.trigger_s is None:
        stopping.raise_if_received()
    return batches


class Stopping:
    """Handles the first SIGINT or SIGTERM, so that the current batch is finished.

    PySpark's own handler would interrupt its communication with the JVM, with a long traceback.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._signals = StopSignals()
        self._pipeline: Pipeline | None = None
        self._received: int | None = None

    @contextmanager
    def on_signals(self) -> Iterator[Stopping]:
        self._signals.take(self._heed)
        try:
            yield self
        finally:
            self._signals.give_back()

    def _heed(self, number: int) -> None:
        """Remember the first signal. A second one has its usual effect."""
        if self._received is not None:
            self._signals.give_back()
            signal.raise_signal(number)
            return
        self._received = number
        when = "as soon as Spark has started"
        if self._pipeline is not None:
            self._pipeline.stop()
            when = "after this batch"
        self._say(f"Stopping {when} (a second signal stops the pipeline immediately)")

    @contextmanager
    def behind_a_batch_of(self, pipeline: Pipeline) -> Iterator[None]:
        """Let a signal stop the pipeline inside of the `with`, and raise for an earlier one."""
        self._pipeline = pipeline
        self.raise_if_received()
        try:
            yield
        finally:
            self._pipeline = None

    def raise_if_received(self) -> None:
        if self._received is not None:
            raise Interrupted(self._received)


# Without its JVM, Spark fails with these, or with a PySparkException of this name.
_NO_JVM: Final = (Py4JNetworkError, ConnectionRefusedError, ConnectionResetError)
_NO_JVM_NAME: Final = "JAVA_GATEWAY_EXITED"


@contextmanager
def spark_errors(stopping: Stopping) -> Iterator[None]:
    """Shorten Spark's errors to a line or two.

    A signal to all processes, for example when a service is stopped, ends the JVM, too.
    """
    try:
        yield
    except (PySparkException, Py4JError, *_NO_JVM) as error:
        reason = QueryError(error)
        if isinstance(error, _NO_JVM) or _NO_JVM_NAME in str(reason):
            stopping.raise_if_received()
        raise reason from error
