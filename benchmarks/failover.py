"""Contestants that read side by side while the brokers under them fail.

Unlike other scenarios, all run at the same time, from a cluster of their own: what a failure costs
differs from one to the next by seconds, whoever reads. The course itself is that of the tests.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from benchmarks.contestants import AIOKAFKA, CONFLUENT, OURS, Contestant
from benchmarks.measure import Measurement
from benchmarks.results import Failure, Sample
from benchmarks.scenarios import Scenario
from tests.support.failover.course import Course, CourseError, Outcome, running
from tests.support.failover.scenarios import ELECTION, hang, kill_each, restart_each
from tests.support.failover.verdict import Findings
from tests.support.real_kafka import KafkaUnavailableError, RealKafka

HEAP_MIB: Final = 256
READERS: Final[Mapping[str, str]] = {OURS: "lite", AIOKAFKA: "aiokafka", CONFLUENT: "confluent"}
PACKAGES: Final[Mapping[str, str]] = {OURS: "aiokafka-lite"}
COURSES: Final[Mapping[str, Callable[[Course], Awaitable[None]]]] = {
    "kill": kill_each,
    "restart": restart_each,
    "hang": hang,
}


def run_course(scenario: Scenario) -> Iterator[Sample | Failure]:
    """Have all contestants read while the scenario's faults happen, and yield what each got."""
    for number in range(1, scenario.rounds + 1):
        try:
            outcome = asyncio.run(_run(scenario))
        except (CourseError, KafkaUnavailableError, TimeoutError) as error:
            yield Failure(scenario.name, "the cluster", str(error))
            return
        print(outcome)
        for contestant in scenario.contestants:
            findings = outcome.findings[READERS[contestant.client]]
            yield Sample(scenario.name, contestant.name, number, measured(contestant, findings))


async def _run(scenario: Scenario) -> Outcome:
    names = [READERS[contestant.client] for contestant in scenario.contestants]
    with RealKafka(3, heap_mib=HEAP_MIB, jvm_options=()) as kafka:
        async with running(kafka, names, required=names[:1]) as course:
            await COURSES[scenario.course](course)
            return await course.finish()


def measured(contestant: Contestant, findings: Findings) -> Measurement:
    """Return the figures of one contestant; moving leaders back is no fault that counts."""
    names = [name for name in findings.effects if not name.startswith(ELECTION)]
    effects = [findings.effects[name] for name in names]
    figures = {
        "silence_s": findings.median_silence_s(names),
        "silence_max_s": max(effect.partition_silence_s for effect in effects),
        "behind_s": max(effect.late_s for effect in effects),
        "age_p99_s": max(effect.age_p99_s for effect in effects),
        "rebalances": float(findings.rebalances),
        "lost": float(findings.lost),
        "repeated": float(findings.repeated),
        "disordered": float(findings.disordered),
    }
    version = importlib.metadata.version(PACKAGES.get(contestant.client, contestant.client))
    return Measurement(version, figures, findings.records)
