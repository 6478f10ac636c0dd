"""Run the contestants: each run in a process of its own, the rounds interleaved."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from benchmarks.contestants import Contestant
from benchmarks.measure import Measurement, RunError, Workload
from benchmarks.results import Failure, Sample
from benchmarks.scenarios import Scenario
from benchmarks.servers import Servers

RUN_TIMEOUT_S: Final = 300.0
_LAST_LINES: Final = 1

Execute = Callable[[str, Contestant, Workload], Measurement]
"""Does a task with a contestant once; raises RunError."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        bootstrap_servers: The real Kafka.
        scenarios: In this order.
        reads_once: Whether every topic is read before the first client that is measured.
        seed: Of the order of contestants.
    """

    bootstrap_servers: str
    scenarios: Sequence[Scenario]
    reads_once: bool = False
    seed: int = 0


def run(plan: Plan, execute: Execute | None = None) -> Iterator[Sample | Failure]:
    """Run the plan and yield each outcome as it comes.

    In every round each contestant runs once, in an order that differs from round to round, so that
    a disturbance does not always hit the same one. One that fails is left out of the scenario's
    further rounds.
    """
    execute = execute if execute is not None else execute_in_process
    rng = random.Random(plan.seed)
    with Servers(plan.bootstrap_servers, reads_once=plan.reads_once) as servers:
        for scenario in plan.scenarios:
            if scenario.course:
                from benchmarks.failover import run_course  # needs Java and all three clients

                yield from run_course(scenario)
                continue
            try:
                with accompanied(scenario, scenario.workload(plan.bootstrap_servers)):
                    yield from _rounds(scenario, servers, execute, rng)
            except RunError as error:
                yield Failure(scenario.name, "producer", str(error))


def _rounds(
    scenario: Scenario, servers: Servers, execute: Execute, rng: random.Random
) -> Iterator[Sample | Failure]:
    remaining = list(scenario.contestants)
    for number in range(1, scenario.rounds + 1):
        rng.shuffle(remaining)
        for contestant in tuple(remaining):
            try:
                address = servers.address(contestant.server, scenario.topics)
                workload = scenario.workload(address)
                measurement = execute(contestant.task or scenario.task, contestant, workload)
                scenario.check(measurement)
            except RunError as error:
                remaining.remove(contestant)
                yield Failure(scenario.name, contestant.name, str(error))
            else:
                yield Sample(scenario.name, contestant.name, number, measurement)


def accompanied(scenario: Scenario, workload: Workload) -> AbstractContextManager[None]:
    """Have the scenario's records written while the `with` lasts, if they come at a pace.

    Raises:
        RunError: They could not be written.
    """
    if not scenario.rate:
        return nullcontext()
    from benchmarks.pacing import producing  # needs confluent-kafka

    return producing(workload, scenario.rate)


def child_arguments(task: str, contestant: Contestant, workload: Workload) -> list[str]:
    """Return what Python is told to do a task with one contestant."""
    names = [task, contestant.subject, contestant.loop]
    return ["-m", "benchmarks.child", *names, workload.to_json()]


def execute_in_process(task: str, contestant: Contestant, workload: Workload) -> Measurement:
    """Do a task with one contestant once in a new process.

    Raises:
        RunError: The process failed, or did not end in time.
    """
    command = child_arguments(task, contestant, workload)
    # What pip installed has bytecode; a checkout may have it, too.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    try:
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"did not end within {RUN_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunError(" ".join(lines[-_LAST_LINES:]))
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))
