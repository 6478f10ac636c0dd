"""Run the contestants: each run in a process of its own, the rounds interleaved."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.contestants import Contestant
from benchmarks.measure import Measurement, Workload
from benchmarks.results import Failure, Sample
from benchmarks.scenarios import PARTITION_COUNT, Scenario

RUN_TIMEOUT_S: Final = 300.0
_LAST_LINES: Final = 1

Execute = Callable[[Contestant, Workload], Measurement]


class RunError(Exception):
    """A contestant's process failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and how often."""

    bootstrap_servers: str
    scenarios: Sequence[Scenario]
    contestants: Sequence[Contestant]
    rounds: int
    seed: int = 0


def run(plan: Plan, execute: Execute | None = None) -> Iterator[Sample | Failure]:
    """Run the plan and yield each outcome as it comes.

    In every round each contestant runs once, in an order that differs from round to round, so that
    a disturbance does not always hit the same one. One that fails is left out of the scenario's
    further rounds.
    """
    execute = execute if execute is not None else execute_in_process
    rng = random.Random(plan.seed)
    for scenario in plan.scenarios:
        workload = Workload(
            plan.bootstrap_servers, scenario.topic, PARTITION_COUNT, scenario.records
        )
        remaining = list(plan.contestants)
        for number in range(1, plan.rounds + 1):
            rng.shuffle(remaining)
            for contestant in tuple(remaining):
                try:
                    measurement = execute(contestant, workload)
                    _check(scenario, measurement)
                except RunError as error:
                    remaining.remove(contestant)
                    yield Failure(scenario.name, contestant.name, str(error))
                else:
                    yield Sample(scenario.name, contestant.name, number, measurement)


def _check(scenario: Scenario, measurement: Measurement) -> None:
    """Refuse a measurement of less work, or of other work, than was asked for."""
    if measurement.records != scenario.records:
        raise RunError(f"read {measurement.records} records, expected {scenario.records}")
    touched_bytes = measurement.touched_bytes
    if touched_bytes is not None and touched_bytes != scenario.touched_bytes:
        raise RunError(f"touched {touched_bytes} bytes, expected {scenario.touched_bytes}")


def execute_in_process(contestant: Contestant, workload: Workload) -> Measurement:
    """Run one contestant once in a new process.

    Raises:
        RunError: The process failed, or did not end in time.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.child",
        contestant.function,
        contestant.loop or "-",
        json.dumps(asdict(workload)),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"did not end within {RUN_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunError(" ".join(lines[-_LAST_LINES:]))
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))
