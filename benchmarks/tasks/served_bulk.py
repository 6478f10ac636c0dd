"""Read a topic as `bulk` does, and measure what the broker needs for it."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.measure import Measurement, Workload
from benchmarks.servers import ServerMeter
from benchmarks.tasks import bulk


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure the client's wall time and the broker's CPU time per record."""
    meter = ServerMeter(workload.bootstrap_servers)
    measured = await bulk.measure(subject, workload)
    # What is read to warm up is the broker's work too.
    records = measured.records + min(workload.records, bulk.WARM_UP_RECORDS)
    figures = {"wall_ns": measured.figures["wall_ns"], **meter.figures(records)}
    return replace(measured, figures=figures)
