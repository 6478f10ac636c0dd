"""Java's own ConsumerPerformance, in a JVM with its default compiler settings.

The JVM's start-up and the group's first rebalance are in every run; so it runs twice, for one
record and for all of them, and what counts is the difference. The compiler warms up in the longer
run only, so the figure means little with less than some two million records.
"""

from __future__ import annotations

import resource
import subprocess
import time
from typing import Final

from benchmarks.measure import WAIT_S, Measurement, StarvedError, Workload, cpu_seconds
from tests.support.real_kafka import KAFKA_VERSION, java_command, kafka_libs

MAIN_CLASS: Final = "org.apache.kafka.tools.ConsumerPerformance"
_RUN_TIMEOUT_S: Final = 120.0
_RECORDS_COLUMN: Final = 4


def consumer_performance(workload: Workload) -> Measurement:
    """Read with Java's KafkaConsumer.

    The tool adds up the lengths of keys and values too, but shows them in MiB only.
    """
    start_wall_s, start_cpu_s, _ = _run(workload, records=1)
    wall_s, cpu_s, records = _run(workload, workload.records)
    if records < workload.records:
        raise StarvedError(f"ConsumerPerformance read {records} of {workload.records} records")
    return Measurement(records, None, wall_s - start_wall_s, cpu_s - start_cpu_s, KAFKA_VERSION)


def _run(workload: Workload, records: int) -> tuple[float, float, int]:
    """Run the tool once; returns its wall time, its CPU time and how many records it read."""
    command = [
        java_command(),
        "-Xms512m",
        "-Xmx512m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp",
        f"{kafka_libs()}/*",
        MAIN_CLASS,
        *("--bootstrap-server", workload.bootstrap_servers),
        *("--topic", workload.topic),
        *("--num-records", str(records)),
        *("--timeout", str(int(WAIT_S * 1000))),
        "--hide-header",
    ]
    cpu_before_s, started = cpu_seconds(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=_RUN_TIMEOUT_S
    )
    wall_s = time.perf_counter() - started
    cpu_s = cpu_seconds(resource.RUSAGE_CHILDREN) - cpu_before_s
    # start, end, MB, MB/s, records, records/s, rebalance ms, ...
    figures = done.stdout.strip().splitlines()[-1].split(", ")
    return wall_s, cpu_s, int(figures[_RECORDS_COLUMN])
