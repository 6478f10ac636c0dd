"""Read a topic from its beginning to its end, as fast as can be.

What a client does once (imports, the compilation of message codecs, a grown heap) is no cost of a
record: another consumer of the same kind in the same process reads some records first, and is
closed. What each consumer does anew is counted: the clock starts when it is connected, just before
it is told which partitions to read, and stops after the last record was touched.
"""

from __future__ import annotations

from typing import Final

from benchmarks.contestants.reader import open_reader
from benchmarks.measure import Measurement, Meter, Workload

WARM_UP_RECORDS: Final = 20_000


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure CPU and wall time per record."""
    async with open_reader(subject, workload) as reader:
        await reader.assign()
        await reader.drain(min(workload.records, WARM_UP_RECORDS))
    drained = []
    async with open_reader(subject, workload) as reader:
        meter = Meter()
        await reader.assign()
        for number in range(workload.passes):
            if number:
                await reader.rewind()
            drained.append(await reader.drain(workload.records))
        wall_s, cpu_s = meter.read()
    records = sum(each.records for each in drained)
    touched = [each.touched_bytes for each in drained if each.touched_bytes is not None]
    figures = {"cpu_ns": cpu_s * 1e9 / records, "wall_ns": wall_s * 1e9 / records}
    return Measurement(reader.version, figures, records, sum(touched) if touched else None)
