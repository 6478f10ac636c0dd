"""Write a topic as fast as a client can, each record acknowledged by all replicas."""

from __future__ import annotations

from typing import Final

from benchmarks.contestants.producers import open_writer
from benchmarks.loading import count_records, written_topic
from benchmarks.measure import Measurement, Meter, RunError, Workload
from benchmarks.servers import ServerMeter

WARM_UP_RECORDS: Final = 20_000


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure CPU and wall time a record, from the first `send` to the last acknowledgement.

    The producer has written some records before, so that it is connected, knows the topic and has
    its id. What the topic holds in the end is counted.

    Raises:
        RunError: Records were not acknowledged, or are missing, or are there twice.
    """
    topic = workload.written
    assert topic is not None
    values = [*topic.values()]
    warm_up = min(WARM_UP_RECORDS, topic.records)
    with written_topic(workload.bootstrap_servers, topic) as written:
        async with open_writer(subject, workload, written.name) as writer:
            await writer.write(values, warm_up)
            server, meter = ServerMeter(workload.bootstrap_servers), Meter()
            await writer.write(values, topic.records)
            wall_s, cpu_s = meter.read()
            figures = {
                "cpu_ns": cpu_s * 1e9 / topic.records,
                "wall_ns": wall_s * 1e9 / topic.records,
                **server.figures(topic.records),
            }
        found = count_records(workload.bootstrap_servers, written)
    if found != warm_up + topic.records:
        raise RunError(f"there are {found} records, expected {warm_up + topic.records}")
    return Measurement(writer.version, figures, topic.records)
