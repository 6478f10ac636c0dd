"""Import a package in fresh interpreters, with its bytecode compiled before."""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
import sys
import tempfile
import time

from benchmarks.measure import Measurement, Workload, cpu_seconds


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure what `import subject` takes more than an interpreter that does nothing.

    Each is run `workload.passes` times, in turns; the best of each count.
    """
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        commands = ("pass", f"import {subject}")
        runs: dict[str, list[tuple[float, float]]] = {command: [] for command in commands}
        for command in commands:  # compiles the bytecode, and has the files in memory
            _run(command, environment)
        for _ in range(workload.passes):
            for command in commands:
                runs[command].append(_run(command, environment))
    (bare_wall_s, bare_cpu_s), (wall_s, cpu_s) = (
        (min(wall for wall, _ in runs[command]), min(cpu for _, cpu in runs[command]))
        for command in commands
    )
    figures = {"wall_ms": 1e3 * (wall_s - bare_wall_s), "cpu_ms": 1e3 * (cpu_s - bare_cpu_s)}
    # A part of a package has the package's.
    version: str = importlib.import_module(subject.partition(".")[0]).__version__
    return Measurement(version, figures)


def _run(command: str, environment: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU seconds of an interpreter's life."""
    cpu_before_s, began_s = cpu_seconds(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", command], check=True, env=environment)
    wall_s = time.perf_counter() - began_s
    return wall_s, cpu_seconds(resource.RUSAGE_CHILDREN) - cpu_before_s
