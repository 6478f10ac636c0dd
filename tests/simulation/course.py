"""One seed's run: begin, faults, calm, end; then the rules."""

from __future__ import annotations

import asyncio
import operator
from dataclasses import dataclass, field
from typing import Final

from aiokafka_lite.simulation.engine import Loop
from aiokafka_lite.simulation.history import History, Kind, Violation
from aiokafka_lite.simulation.world import LOOK_EACH_S, Process, World
from aiokafka_lite.structs import TopicPartition
from tests.simulation.applications import Producer, Reader
from tests.simulation.cluster import GroupCluster, GroupFacts
from tests.simulation.faults import Faults
from tests.simulation.member import Member
from tests.simulation.plan import SHARING, Plan
from tests.simulation.rules import Run, check
from tests.support import inside

# After faults have stopped, producers go on for so long: each writes at least one record.
GOES_ON_S: Final = 1.5
# Then all must have settled within so long.
SETTLED_WITHIN_S: Final = 40.0
# All hosts together run fewer callbacks between two looks.
MOST_STEPS_OF_A_LOOK: Final = 20_000
# A member has fewer tasks: those of its clients, and its handlers.
MOST_TASKS: Final = 40
# Metrics take longer than all else that a look does.
METRICS_EACH: Final = 20


@dataclass
class Outcome:
    """What became of a seed."""

    plan: Plan
    history: History
    violations: list[Violation] = field(default_factory=list)
    digest: str = ""
    virtual_s: float = 0.0
    steps: int = 0
    timeline: str = ""


class Course(World):
    """Runs a plan in its loop."""

    cluster: GroupCluster

    def __init__(self, loop: Loop, plan: Plan) -> None:
        super().__init__(loop, self._new_cluster(loop, plan), History(lambda: loop.now))
        self.plan = plan
        self.members: list[Member] = []
        self.producers: list[Producer] = []
        self.readers: list[Reader] = []
        self.violations: list[Violation] = []
        self._steps = self._look_count = 0

    @staticmethod
    def _new_cluster(loop: Loop, plan: Plan) -> GroupCluster:
        return GroupCluster(loop, plan)

    # Members

    @property
    def processes(self) -> list[Process]:
        return [*self.members]

    def hosts(self) -> list[str]:
        members = [member.name for member in self.members if not member.is_killed]
        producers = [producer.name for producer in self.producers]
        return members + producers + [reader.name for reader in self.readers]

    def faulty_partitions(self) -> list[TopicPartition]:
        return self.cluster.input_partitions()

    def start(self, slot: int) -> None:
        name = self._new_name("m", slot)
        self.members.append(Member(self.loop, self.cluster, self.plan, self.history, name, slot))

    def start_twin_of(self, first: Producer) -> None:
        """Start a second producer with the transactional id of one."""
        name = f"{first.id}.{len(self.producers)}"
        self.producers.append(
            Producer(self.loop, self.cluster, self.plan, self.history, name, first.kind, first)
        )

    def alive_members(self) -> list[Member]:
        return [member for member in self.members if member.is_alive]

    async def stop(self, process: Process) -> None:
        await super().stop(process)
        await asyncio.sleep(1.0)
        left = self.loop.net.tasks_on(process.name)
        if left and not process.is_killed:
            self._violated("task left", f"{process.name} has left {', '.join(left)}")
        if self.loop.net.connections_of(process.name) and not process.is_killed:
            self._violated("connection left", f"{process.name} has left connections")

    def _violated(self, rule: str, text: str) -> None:
        self.violations.append(Violation(rule, text, self.loop.now))

    # The run

    async def run(self) -> GroupFacts:
        plan, history = self.plan, self.history
        await self.cluster.start()
        for _ in range(plan.members):
            self.start(self.new_slot())
        for number, kind in enumerate(plan.producers):
            name = f"p{number}"
            self.producers.append(Producer(self.loop, self.cluster, plan, history, name, kind))
        if plan.has_reader:
            self.readers.append(Reader(self.loop, self.cluster, plan, history, "r0"))
        faults = Faults(self, plan.faults)
        faults.start()
        await self._look_until(plan.calm_at_s)
        await faults.stop()
        history.note(Kind.CALM, "course")
        if plan.may_miss_partitions:
            self.start(self.new_slot())
        await self._look_until(self.loop.now + GOES_ON_S)
        ended = [asyncio.ensure_future(producer.end()) for producer in self.producers]
        if (await asyncio.wait(ended, timeout=SETTLED_WITHIN_S))[1]:
            self._violated("producer stands", "a producer does not end")
        await self._settle()
        facts = self.cluster.facts()
        await asyncio.gather(*(reader.end() for reader in self.readers))
        await asyncio.gather(*(self.stop(member) for member in self.alive_members()))
        self.cluster.read_commits(history)
        facts.committed = self.cluster.broker.committed("g")
        await self.cluster.broker.stop()
        if self.cluster.broker.failure is not None:
            self._violated("broker failed", repr(self.cluster.broker.failure))
        return facts

    def look(self) -> None:
        super().look()
        self.cluster.count_requests()
        self._look_count += 1
        steps, self._steps = self.loop.steps - self._steps, self.loop.steps
        if steps > MOST_STEPS_OF_A_LOOK:
            self._violated("hot loop", f"{steps} callbacks in {LOOK_EACH_S} s")
        for member in self.alive_members():
            self._look_at(member)

    def _look_at(self, member: Member) -> None:
        """Hold a member's memory and tasks against their bounds."""
        # A member that names its commits has tasks of its own, which wait in an outage.
        has_own = self.plan.habit == "names commits"
        if not has_own and len(self.loop.net.tasks_on(member.name)) > MOST_TASKS:
            self._violated("tasks grow", f"{member.name} has more than {MOST_TASKS} tasks")
        if member.consumer is None:
            return
        if not self._look_count % METRICS_EACH:
            member.consumer.metrics()  # works in any state
        limit_bytes = self.plan.buffer_bytes
        budget = inside.budget(member.consumer)
        # A delayed record may be larger than was reserved for it, while other bytes are reserved.
        buffered_bytes = budget.buffered_bytes if self.plan.has_delays else budget.used_bytes
        if limit_bytes is not None and buffered_bytes > limit_bytes:
            text = f"{member.name} has buffered {buffered_bytes} of {limit_bytes} bytes"
            self._violated("buffer", text)

    async def _look_until(self, at_s: float) -> None:
        while self.loop.now < at_s:
            await asyncio.sleep(min(LOOK_EACH_S, at_s - self.loop.now))
            self.look()

    async def _settle(self) -> None:
        until = self.loop.now + SETTLED_WITHIN_S
        while (missing := self._unsettled()) and self.loop.now < until:
            await asyncio.sleep(LOOK_EACH_S)
            self.look()
        if missing:
            why = "; ".join(
                f"{member.name}: {member.consumer.health()}"
                for member in self.alive_members()
                if member.consumer is not None
            )
            self._violated("not settled", f"{missing}. {why}")
            if all(
                member.consumer is not None and member.consumer.health().verdict == "ok"
                for member in self.alive_members()
            ):
                self._violated("silent", f"all members are healthy, and {missing}")
        else:
            self.history.note(Kind.SETTLED, "course")

    def _unsettled(self) -> str:
        facts = self.cluster.progress()
        run = Run(self.plan, self.history, facts)
        for tp, offset, value in run.unread(Kind.HANDLED):
            if not run.is_dead(value):
                return f"{value!r} at {tp.topic}/{tp.partition}@{offset} is not handled"
        ends = facts.ends() | self.cluster.delay_facts().ends()
        for tp, end in ends.items():
            if facts.committed.get(tp, 0) < end:
                return (
                    f"{tp.topic}/{tp.partition} is committed to {facts.committed.get(tp)} of {end}"
                )
        for reader in self.readers:
            if behind := reader.behind(facts.ends()):
                return f"the reader's {behind}"
        return ""


def course_of(loop: Loop, plan: Plan) -> Course:
    """Return the course of a plan."""
    if plan.way == SHARING:
        from tests.simulation.sharing import ShareCourse  # it is a Course, too

        return ShareCourse(loop, plan)
    return Course(loop, plan)


def run_plan(plan: Plan, *, is_traced: bool = False) -> Outcome:
    """Run a plan and hold it against the rules."""
    loop = Loop(plan.seed, plan.order, is_traced=is_traced)
    asyncio.set_event_loop(loop)
    course = course_of(loop, plan)
    outcome = Outcome(plan, course.history)
    try:
        facts = loop.run(course.run())
    except Exception as error:  # noqa: BLE001 — reported
        course.history.note(Kind.RAISED, "course", note=repr(error), value=b"KafkaError")
        outcome.violations.append(Violation("course failed", repr(error), loop.now))
        facts = None
    course.history.events = sorted(course.history.events, key=operator.attrgetter("at_s"))
    outcome.violations += course.violations
    if facts is not None:
        outcome.violations += check(Run(plan, course.history, facts))
    outcome.violations += [Violation("unhandled", repr(error)) for error in loop.unhandled]
    outcome.digest, outcome.virtual_s, outcome.steps = loop.digest(), loop.now, loop.steps
    if is_traced:
        outcome.timeline = loop.timeline()
    asyncio.set_event_loop(None)
    loop.close()
    return outcome
