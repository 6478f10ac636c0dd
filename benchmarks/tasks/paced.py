"""Read records that come one by one at a steady pace, as they are written meanwhile.

Each value begins with the time at which it was handed to the producer. The clock starts when the
first record is some time ago, with the arrival of one, and stops with the arrival of another.
"""

from __future__ import annotations

import asyncio
import struct
import time
from array import array
from collections.abc import Sequence
from typing import Final

from benchmarks.contestants.reader import open_reader
from benchmarks.measure import Measurement, Meter, StarvedError, Workload, percentile
from benchmarks.servers import ServerMeter

WRITTEN_AT: Final = struct.Struct(">q")
"""`time.monotonic_ns()`, which on one machine is the same for every process."""


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure the CPU time per record, and how old records are when they are handed out.

    The broker's CPU time in the same window is measured, too, where it can be had.
    """
    window = _Window(workload.settle_s, workload.seconds, ServerMeter(workload.bootstrap_servers))
    timeout_s = workload.settle_s + workload.seconds + workload.wait_s
    async with open_reader(subject, workload) as reader:
        await reader.assign()
        try:
            await asyncio.wait_for(reader.read(window.take), timeout_s)
        except asyncio.TimeoutError:
            reason = f"only {len(window.ages_ns)} records within {timeout_s:g} s"
            raise StarvedError(reason) from None
    ages_ms = [age_ns / 1e6 for age_ns in sorted(window.ages_ns)]
    figures = {
        "cpu_us": window.cpu_s * 1e6 / len(ages_ms),
        "p50_ms": percentile(ages_ms, 50),
        "p99_ms": percentile(ages_ms, 99),
        **window.broker,
    }
    return Measurement(reader.version, figures, len(ages_ms))


class _Window:
    def __init__(self, settle_s: float, seconds: float, server: ServerMeter) -> None:
        self.ages_ns: Final = array("q")
        self.cpu_s = 0.0
        self.broker: dict[str, float] = {}
        self._server: Final = server
        self._settle_ns: Final = int(settle_s * 1e9)
        self._length_ns: Final = int(seconds * 1e9)
        self._begin_ns: int | None = None
        self._meter: Meter | None = None

    def take(self, values: Sequence[bytes | None]) -> bool:
        now_ns = time.monotonic_ns()
        if self._meter is None:
            if self._begin_ns is None:
                self._begin_ns = now_ns + self._settle_ns
            if now_ns >= self._begin_ns:
                self._begin_ns = now_ns
                self._server.restart()
                self._meter = Meter()
            return True
        assert self._begin_ns is not None
        append = self.ages_ns.append
        for value in values:
            assert value is not None
            (written_ns,) = WRITTEN_AT.unpack_from(value)
            append(now_ns - written_ns)
        if now_ns < self._begin_ns + self._length_ns:
            return True
        wall_s, self.cpu_s = self._meter.read()
        self.broker = self._server.share(wall_s)
        return False
