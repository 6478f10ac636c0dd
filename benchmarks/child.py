"""The process of one run: reads a workload with one contestant and prints the measurement."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from benchmarks.measure import Measurement, Workload


def main(contestant: str, loop_name: str, workload_json: str) -> None:
    """Run `contestant` ("module:function") on the named loop ("-" for none)."""
    module_name, _, function_name = contestant.partition(":")
    module = importlib.import_module(f"benchmarks.contestants.{module_name}")
    function: Callable[[Workload], Measurement | Awaitable[Measurement]]
    function = getattr(module, function_name)
    workload = Workload(**json.loads(workload_json))
    if loop_name == "-":
        measurement = function(workload)
    else:
        loop = _new_loop(loop_name)
        asyncio.set_event_loop(loop)
        running = function(workload)
        assert inspect.iscoroutine(running)
        measurement = loop.run_until_complete(running)
        loop.close()
    assert isinstance(measurement, Measurement)
    print(json.dumps(asdict(measurement)))


def _new_loop(name: str) -> asyncio.AbstractEventLoop:
    loop = importlib.import_module(name).new_event_loop()
    assert isinstance(loop, asyncio.AbstractEventLoop)
    return loop


if __name__ == "__main__":
    main(*sys.argv[1:])
