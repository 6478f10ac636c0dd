"""One round: members come, go and crash while records flow, then all comes to rest.

A round has some cycles of a wild part and a calm one, in which every partition has to be read.
At its end all members stop, others read what is left, and everything must have been finished by
somebody, and committed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from unittest import mock

from aiokafka_lite.consumer import consumer as consumer_module
from aiokafka_lite.structs import TopicPartition
from tests.model.actions import ACTIONS
from tests.model.clusters import RealCommits, real
from tests.model.habits import Habits, draw, draw_assignors
from tests.model.ledger import Crashed, Ledger, Note, Violation
from tests.model.listener import make_listener
from tests.model.liveness import Liveness
from tests.model.member import Member, Surroundings
from tests.model.verdict import Verdict
from tests.model.world import RealWorld, World, chances

PRODUCE_EVERY_S: Final = 0.1
# How long stopping members may take, and those who read what is left.
STOP_ALL_S: Final = 60.0
DRAIN_S: Final = 60.0
SLACK_S: Final = 0.02


@dataclass(frozen=True)
class Plan:
    """How long the parts of a round last, in seconds, and how many take part."""

    wild_s: float = 20.0
    calm_s: float = 40.0
    cycles: int = 1
    silent_s: float = 15.0
    # A crashed static member keeps its partitions for as long as the group waits for it to join,
    # its session, and as long again for another such member: 9 s each.
    ownerless_s: float = 35.0
    most_members: int = 4
    without: frozenset[str] = frozenset()
    # By which protocols groups are joined: each member draws one.
    protocols: tuple[str, ...] = ("classic",)


@dataclass
class Outcome:
    """What came of a round."""

    ledger: Ledger
    seconds: float = 0.0
    members: int = 0
    crashes: int = 0
    handed: int = 0
    commits: int = 0
    faults: int = 0

    @property
    def violations(self) -> list[Violation]:
        return self.ledger.violations


class Course:
    """Runs one round."""

    # Whether a member may hand out in another's place after a fault.
    _excuses_owners = True

    def __init__(self, world: World, cluster: RealCommits, plan: Plan, seed: int) -> None:
        self._world = world
        self._cluster = cluster
        self._plan = plan
        self._seed = seed
        self._rng = random.Random(f"{seed} course")
        self._ledger = cluster.ledger
        self._members: list[Member] = []
        self._groups: dict[str, Surroundings] = {}
        self._is_calm = False
        self._is_producing = True
        self._lively: Liveness
        self._reported: set[str] = set()
        self.outcome = Outcome(self._ledger)

    async def run(self) -> None:
        """Run the round, and judge it."""
        await self._set_up()
        beside = [
            asyncio.ensure_future(self._produce()),
            asyncio.ensure_future(self._lively.watch()),
        ]
        try:
            for _ in range(self._plan.cycles):
                await self._be_wild()
                await self._be_calm()
                if self._ledger.violations:
                    break
            self._is_producing = False
            await asyncio.wait(beside[:1])  # to its end: what is sent has to be acknowledged
            if not self._ledger.violations:
                await self._finish()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
        for task in beside:
            if not task.cancelled() and task.exception() is not None:
                task.result()
        await self._judge()

    async def _set_up(self) -> None:
        rng, cluster = self._rng, self._cluster
        for number in range(rng.randint(2, 3)):
            await cluster.create_topic(f"t{number}", rng.randint(1, 4))
        prefix = f"{min(cluster.partitions)}-"
        for number in range(rng.randint(1, 2)):
            group = f"{prefix}g{number}"
            self._groups[group] = Surroundings(
                self._world,
                self._ledger,
                cluster.bootstrap_servers,
                group,
                cluster.partitions,
                cluster.sent,
                cluster.acknowledged,
                lambda: self._is_calm,
                not {"consumer", "auto"}.isdisjoint(self._plan.protocols),
                self._plan.without,
            )
        await cluster.watch_commits(self._groups)
        self._assignors = {
            group: draw_assignors(rng, self._plan.protocols) for group in self._groups
        }
        self._lively = Liveness(
            cluster,
            self._members,
            self._groups,
            silent_s=self._plan.silent_s,
            ownerless_s=self._plan.ownerless_s,
        )

    async def _produce(self) -> None:
        rng = random.Random(f"{self._seed} records")
        while self._is_producing:
            counts = {
                tp: rng.randint(1, 4) for tp in sorted(self._cluster.sent) if rng.random() < 0.7
            }
            size = 40 if rng.random() < 0.97 else 20_000
            if counts:
                await self._cluster.produce(counts, size)
            await asyncio.sleep(PRODUCE_EVERY_S)

    # --- Members --------------------------------------------------------------------------
    def _running(self, group: str | None = None) -> list[Member]:
        return [
            m
            for m in self._members
            if m.actor is not None
            and not m.actor.is_done
            and not m.actor.is_killed
            and group in (None, m.around.group)
        ]

    def _draw_protocol(self, rng: random.Random) -> str:
        protocols = self._plan.protocols
        # Without a draw where there is one: courses stay what they were.
        drawn = protocols[0] if len(protocols) == 1 else rng.choice(protocols)
        return "classic" if drawn == "cooperative" else drawn

    def _join(self, group: str, change: Callable[[Habits], Habits] | None = None) -> Member:
        rng = self._rng
        instance = None
        if rng.random() < 0.25:
            taken = {m.habits.instance_id for m in self._running(group)}
            free = [i for i in (f"{group}-i{n}" for n in range(3)) if i not in taken]
            instance = rng.choice(free) if free else None
        # All members of a group know one assignor in common, the first.
        known = self._assignors[group]
        own = known if rng.random() < 0.5 else known[:1]
        habits = draw(
            rng,
            sorted(self._cluster.partitions),
            least_session_s=self._cluster.least_session_s,
            most_session_s=self._cluster.most_session_s,
            assignors=own,
            protocol=self._draw_protocol(rng),
            instance_id=instance,
            without=self._plan.without,
        )
        if change is not None:
            habits = change(habits)
        number = self.outcome.members
        name = f"m{number}" + ("" if habits.instance_id is None else f"@{habits.instance_id}")
        member = Member(
            name,
            habits,
            self._groups[group],
            f"{self._seed} {name}",
            make_listener=make_listener,
            actions=ACTIONS,
        )
        self._members.append(member)
        member.actor = self._world.start(name, member.live)
        self._lively.disturb(group)
        self.outcome.members += 1
        return member

    def _crash(self, member: Member) -> None:
        assert member.actor is not None
        group = member.around.group

        def note() -> None:
            self._ledger.write(Crashed(at=self._world.now(), group=group, who=member.name))
            self._lively.disturb(group)

        if self._world.kill(member.actor, note):
            self.outcome.crashes += 1

    def _look_at_members(self) -> None:
        """Find what members died of, and what their loops were told."""
        for member in self._members:
            actor = member.actor
            if actor is None or not actor.is_done or member.name in self._reported:
                continue
            self._reported.add(member.name)
            self._lively.disturb(member.around.group)
            if actor.is_killed:
                continue
            if actor.failure is not None:
                error = actor.failure
                at = error.__traceback__
                while at is not None and at.tb_next is not None:
                    at = at.tb_next
                where = "" if at is None else f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
                member.violate("an error that is none of Kafka's", f"{error!r}{where}")
            for complaint in actor.complaints:
                member.violate("left behind", complaint)

    @property
    def _is_spoilt(self) -> bool:
        """Whether there is no sense in going on."""
        return bool(self._ledger.violations)

    async def _pass(self, seconds: float) -> None:
        ends_at = self._world.now() + seconds
        while self._world.now() < ends_at and not self._is_spoilt:
            await asyncio.sleep(min(0.5, max(0.0, ends_at - self._world.now())))
            self._look_at_members()

    # --- The parts ------------------------------------------------------------------------
    async def _be_wild(self) -> None:
        rng, plan = self._rng, self._plan
        self._is_calm = False
        self._lively.disturb()
        ends_at = self._world.now() + plan.wild_s
        while self._world.now() < ends_at and not self._ledger.violations:
            group = rng.choice(sorted(self._groups))
            mine = self._running(group)
            choice = rng.random()
            if len(mine) < 2 or (choice < 0.35 and len(mine) < plan.most_members):
                self._join(group)
            elif choice < 0.45:
                self._crash(rng.choice(mine))
            elif choice < 0.65:
                until = await self._cluster.begin_fault()
                if until:
                    self.outcome.faults += 1
                    self._lively.trouble(until)
            elif choice < 0.68:
                topic = rng.choice(sorted(self._cluster.partitions))
                if self._cluster.partitions[topic] < 6:
                    await self._cluster.add_partition(topic)
                    self._note(f"a partition more of {topic}")
                    self._lively.disturb()
            await self._pass(rng.uniform(0.1, 1.2))
            for each in self._groups:
                self._lively.disturb(each)

    def _note(self, words: str) -> None:
        self._ledger.write(Note(at=self._world.now(), who="conductor", words=words))

    async def _be_calm(self) -> None:
        await self._cluster.end_faults()
        self._is_calm = True
        self._note("calm")
        for group in self._groups:
            if not self._running(group):
                self._join(group)
        await self._pass(self._plan.calm_s)

    async def _finish(self) -> None:
        """Stop all members, let others read what is left, and stop those."""
        self._note("the end")
        await self._stop_all()
        finishers = [self._join(group, self._as_finisher) for group in sorted(self._groups)]
        ends_at = self._world.now() + DRAIN_S
        while not all(map(self._has_drained, finishers)) and not self._is_spoilt:
            await self._pass(0.5)
            if self._world.now() > ends_at:
                for member in finishers:
                    if not self._has_drained(member):
                        member.violate("not all is read at the end", f"{member.standing}")
                break
        if not self._is_spoilt:
            await self._stop_all()
            self.is_at_end = True

    is_at_end = False

    def _as_finisher(self, habits: Habits) -> Habits:
        """It reads at once what others have left: a slow worker might need longer than there is."""
        topics = tuple(sorted(self._cluster.partitions))
        return replace(
            habits,
            topics=topics,
            auto_commit=True,
            listener="none",
            life_s=0.0,
            way="getmany",
            most_records=None,
            work_s=0.0,
        )

    def _has_drained(self, member: Member) -> bool:
        standing, cluster = member.standing, self._cluster
        return standing.owned == cluster.sent.keys() and all(
            standing.next.get(tp, standing.positions.get(tp) or 0) >= end
            for tp, end in cluster.acknowledged.items()
        )

    async def _stop_all(self) -> None:
        for member in self._running():
            member.end()
        self._lively.disturb()
        ends_at = self._world.now() + STOP_ALL_S
        while left := self._running():
            await asyncio.sleep(0.05)
            if self._world.now() > ends_at:
                for member in left:
                    member.violate("a member does not end", f"{member.standing}")
                break
        self._look_at_members()

    async def _judge(self) -> None:
        outcome = self.outcome
        await asyncio.sleep(self._cluster.settle_s)
        await self._cluster.read_commits(self._groups)
        verdict = Verdict(self._ledger, slack_s=SLACK_S, excuses_owners=self._excuses_owners)
        verdict.judge()
        if self.is_at_end:
            verdict.check_end(self._cluster.acknowledged, sorted(self._groups))
        outcome.seconds = self._world.now()
        outcome.handed = sum(type(e).__name__ == "Handed" for e in self._ledger.entries)
        outcome.commits = sum(map(len, verdict.commits.values()))


def run_round(
    seed: int,
    address: str,
    plan: Plan | None = None,
    without: Iterable[str] = (),
    protocols: Sequence[str] = ("classic",),
) -> Outcome:
    """Run one round on the Kafka at an address.

    What the `without` name is not done, for as long as it is known not to work. Each member joins
    by one of the `protocols`.
    """
    rng = random.Random(f"{seed} round")
    ledger = Ledger()
    world = RealWorld()
    chosen = replace(plan or Plan(), without=frozenset(without), protocols=tuple(protocols))
    outcomes: list[Outcome] = []

    async def main() -> None:
        async with real(world, ledger, rng, address) as opened:
            course = Course(world, opened, chosen, seed)
            outcomes.append(course.outcome)
            await course.run()

    # A consumer's back-offs have some jitter, which has to come from the seed, too.
    with mock.patch.object(consumer_module, "chance_for", chances(rng)):
        world.run(main)
    return outcomes[0]


__all__ = ["Course", "Outcome", "Plan", "TopicPartition", "run_round"]
