"""Read a topic with Java's own ConsumerPerformance, in a JVM with its default compiler settings.

It cannot be asked for its CPU time in the middle. The JVM's start-up and the group's first
rebalance are in every run; so it runs twice, for one record and for all of them, and what counts is
the difference. The compiler warms up in the longer run only, so the figure means little with less
than some two million records.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.measure import Measurement, RunError, StarvedError, Workload, cpu_seconds
from tests.support.real_kafka import KAFKA_VERSION, java_command, kafka_libs

_PACKAGE: Final = "org.apache.kafka.tools"
_RUN_TIMEOUT_S: Final = 120.0
_RECORDS_COLUMN: Final = 4


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure CPU and wall time per record of the tool `subject`.

    It adds up the lengths of keys and values too, but shows them in MiB only.
    """
    start_wall_s, start_cpu_s, _ = _run(subject, workload, records=1)
    wall_s, cpu_s, records = _run(subject, workload, workload.records)
    if records < workload.records:
        raise StarvedError(f"{subject} read {records} of {workload.records} records")
    figures = {
        "cpu_ns": (cpu_s - start_cpu_s) * 1e9 / records,
        "wall_ns": (wall_s - start_wall_s) * 1e9 / records,
    }
    return Measurement(KAFKA_VERSION, figures, records)


def _run(tool: str, workload: Workload, records: int) -> tuple[float, float, int]:
    """Run the tool once; returns its wall time, its CPU time and how many records it read."""
    (topic,) = workload.topics
    cpu_before_s, started = cpu_seconds(resource.RUSAGE_CHILDREN), time.perf_counter()
    printed = run_tool(tool, consumer_arguments(workload, topic, records))
    wall_s = time.perf_counter() - started
    cpu_s = cpu_seconds(resource.RUSAGE_CHILDREN) - cpu_before_s
    # start, end, MB, MB/s, records, records/s, rebalance ms, ...
    figures = printed.splitlines()[-1].split(", ")
    return wall_s, cpu_s, int(figures[_RECORDS_COLUMN])


def consumer_arguments(workload: Workload, topic: str, records: int) -> list[str]:
    """Return what ConsumerPerformance is told."""
    return [
        *("--bootstrap-server", workload.bootstrap_servers),
        *("--topic", topic),
        *("--num-records", str(records)),
        *("--timeout", str(int(workload.wait_s * 1000))),
        "--hide-header",
    ]


def run_tool(tool: str, arguments: Sequence[str]) -> str:
    """Run one of Kafka's tools; returns what it printed.

    Raises:
        RunError: It failed, or did not end in time.
    """
    command = [
        java_command(),
        "-Xms512m",
        "-Xmx512m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp",
        f"{kafka_libs()}/*",
        f"{_PACKAGE}.{tool}",
        *arguments,
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_RUN_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{tool} did not end within {_RUN_TIMEOUT_S:g} s") from None
    if done.returncode != 0 or not done.stdout.strip():
        raise RunError(f"{tool} failed: {(done.stdout + done.stderr).strip()[-300:]}")
    return done.stdout.strip()
