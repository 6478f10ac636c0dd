"""Read or write a topic with Java's own performance tools, and believe the rate they tell.

That rate leaves out the JVM's start and the consumer's first rebalance, but not the time in which
the compiler warms up. What the broker needs is measured over the whole run.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.loading import count_records, written_topic
from benchmarks.measure import Measurement, RunError, StarvedError, Workload
from benchmarks.servers import ServerMeter
from benchmarks.tasks.java import consumer_arguments, run_tool
from benchmarks.topics import Topic
from tests.support.real_kafka import KAFKA_VERSION

# start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, ...
_RECORDS_COLUMN: Final = 4
_FETCH_MS_COLUMN: Final = 7
_RATE: Final = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure the wall time a record of ConsumerPerformance or ProducerPerformance."""
    meter = ServerMeter(workload.bootstrap_servers)
    records, wall_ns = {"ConsumerPerformance": _consume, "ProducerPerformance": _produce}[subject](
        workload
    )
    return Measurement(KAFKA_VERSION, {"wall_ns": wall_ns, **meter.figures(records)}, records)


def _consume(workload: Workload) -> tuple[int, float]:
    (topic,) = workload.topics
    printed = run_tool("ConsumerPerformance", consumer_arguments(workload, topic, workload.records))
    figures = printed.splitlines()[-1].split(", ")
    records = int(figures[_RECORDS_COLUMN])
    if records < workload.records:
        raise StarvedError(f"read {records} of {workload.records} records")
    return records, int(figures[_FETCH_MS_COLUMN]) * 1e6 / records


def _produce(workload: Workload) -> tuple[int, float]:
    assert workload.written is not None
    with (
        tempfile.NamedTemporaryFile("wb", suffix=".txt") as payloads,
        written_topic(workload.bootstrap_servers, workload.written) as topic,
    ):
        arguments = _producer_arguments(workload, topic, Path(payloads.name))
        printed = run_tool("ProducerPerformance", arguments)
        told = _RATE.findall(printed.splitlines()[-1])
        if not told:
            raise RunError(f"ProducerPerformance told no rate: {printed[-300:]}")
        ((_, rate),) = told
        return count_records(workload.bootstrap_servers, topic), 1e9 / float(rate)


def _producer_arguments(workload: Workload, topic: Topic, payloads: Path) -> Sequence[str]:
    properties = [f"compression.type={topic.codec}"]
    if workload.batch_bytes:
        properties.append(f"batch.size={workload.batch_bytes}")
    if topic.codec == "none":
        shape = ["--record-size", str(topic.value_bytes)]
    else:  # its random letters can hardly be compressed
        payloads.write_bytes(b"\n".join(topic.values()))
        shape = ["--payload-file", str(payloads)]
    return [
        *("--bootstrap-server", workload.bootstrap_servers),
        *("--topic", topic.name),
        *("--num-records", str(topic.records)),
        *("--throughput", "-1"),
        *shape,
        "--command-property",
        *properties,
    ]
