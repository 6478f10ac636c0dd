"""Run queries in a Spark session, and measure them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import aiokafka_lite
from aiokafka_lite.spark import KafkaDataSource
from benchmarks.contestants import Contestant
from benchmarks.measure import Measurement, RunError, Workload
from benchmarks.results import Failure, Sample
from benchmarks.runner import Plan, run
from benchmarks.scenarios import Scenario
from benchmarks.spark.catalogue import LITE, TRANSPORT, UNIX_SOCKETS
from benchmarks.spark.meter import CpuTimes, Meter
from benchmarks.spark.queries import QUERIES, Run, fresh_folder
from benchmarks.spark.transport import TransportSource
from tests.support.spark.connector import CONNECTOR_VERSION
from tests.support.spark.session import (
    connector_settings,
    jvm_process,
    small_settings,
    spark_session,
)

_RAISED: Final = re.compile(r"[\w.]*(Error|Exception)\b")
"""How the last line of a traceback begins."""

_SOURCES: Final = {LITE.subject: KafkaDataSource, TRANSPORT.subject: TransportSource}
"""By what contestants ask for."""


@dataclass(frozen=True, slots=True)
class Machinery:
    """What Spark is given.

    Attributes:
        cores: How many tasks run at a time.
        memory: The JVM's heap, as Spark writes it.
    """

    cores: int = 2
    memory: str = "4g"


def run_in_sessions(
    bootstrap_servers: str, chosen: Sequence[Scenario], machinery: Machinery, warm_rounds: int
) -> Iterator[Sample | Failure]:
    """Run scenarios and yield each outcome as it comes, those of warm-up rounds too, as round 0.

    Raises:
        SparkUnavailableError: Spark cannot run here.
        JarsUnavailableError: Spark's own Kafka source cannot be had.
    """
    for is_unix, group in groupby(chosen, lambda scenario: scenario.name == UNIX_SOCKETS):
        members = tuple(group)
        with _session(machinery, members, is_unix=is_unix) as executor:
            for outcome in run(Plan(bootstrap_servers, members), executor.execute):
                if isinstance(outcome, Failure):
                    yield outcome
                else:
                    number = max(0, outcome.round - warm_rounds)
                    contestant, measurement = outcome.contestant, outcome.measurement
                    yield Sample(outcome.scenario, contestant, number, measurement)


class Executor:
    """Runs queries in one session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def execute(self, task: str, contestant: Contestant, workload: Workload) -> Measurement:
        """Run a query once.

        Raises:
            RunError: It failed, or did not read everything.
        """
        folder = fresh_folder(self._folder)
        run = Run(self._spark, contestant, workload, folder)
        meter = Meter(jvm_process(self._spark).pid, workload.bootstrap_servers)
        try:
            done = QUERIES[task](run)
            wall_s, cpu = meter.read()
            records = done.check()
        except (PySparkException, Py4JError) as error:
            raise RunError(reason(str(error))) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        wall_s = wall_s / done.times if done.wall_s is None else done.wall_s
        return Measurement(_version(contestant), figures(wall_s, cpu, records, done.times), records)


def figures(wall_s: float, cpu: CpuTimes, records: int, times: int) -> dict[str, float]:
    """Return all figures of a run: a record's in microseconds, and each time's in milliseconds.

    Args:
        wall_s: How long each time took.
        cpu: What all times took together.
        records: How many were read, all times together.
        times: How often the same was done.
    """
    per_time = {
        "wall": wall_s,
        "cpu": cpu.spark / times,
        "jvm": cpu.jvm / times,
        "python": cpu.python / times,
        "broker": cpu.broker / times,
    }
    return {
        **{f"{name}_us": seconds * 1e6 * times / records for name, seconds in per_time.items()},
        **{f"{name}_ms": seconds * 1e3 for name, seconds in per_time.items()},
    }


def reason(message: str) -> str:
    """Return what an error of Spark is about: what it begins with, and what a worker raised."""
    lines = [line for line in message.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return " ".join(dict.fromkeys([*lines[:1], *raised[-1:]]))


@contextmanager
def _session(
    machinery: Machinery, scenarios: Sequence[Scenario], *, is_unix: bool
) -> Iterator[Executor]:
    settings = {
        **small_settings(machinery.cores),
        **connector_settings(),
        "spark.driver.memory": machinery.memory,
        "spark.python.unix.domain.socket.enabled": str(is_unix).lower(),
    }
    folder = Path(tempfile.mkdtemp(prefix="aiokafka-lite-bench-spark-"))
    try:
        with spark_session(settings, jvm_options=()) as spark:
            contestants = [each for scenario in scenarios for each in scenario.contestants]
            for subject, source in _SOURCES.items():
                if any(each.subject == subject for each in contestants):
                    spark.dataSource.register(source)
            yield Executor(spark, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _version(contestant: Contestant) -> str:
    on_spark = f"Spark {pyspark.__version__}"
    if contestant is TRANSPORT:
        return on_spark
    own = aiokafka_lite.__version__ if contestant.subject == LITE.subject else CONNECTOR_VERSION
    return f"{own} on {on_spark}"
