"""The process of one run: does a task with one contestant and prints the measurement."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from benchmarks.measure import Measurement, Workload


def main(task: str, subject: str, loop_module: str, workload_json: str) -> None:
    """Run a module of `benchmarks.tasks` on a loop of `loop_module`'s."""
    measure: Callable[[str, Workload], Awaitable[Measurement]]
    measure = importlib.import_module(f"benchmarks.tasks.{task}").measure
    new_event_loop: Callable[[], asyncio.AbstractEventLoop]
    new_event_loop = importlib.import_module(loop_module).new_event_loop
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    workload = Workload.from_json(workload_json)
    measurement = loop.run_until_complete(measure(subject, workload))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    print(json.dumps(asdict(measurement)))


if __name__ == "__main__":
    main(*sys.argv[1:])
