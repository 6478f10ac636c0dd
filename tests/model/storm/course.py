"""The storm, and the calm behind it.

Three things go on at once: members join and leave, one after the other, as fast as the group can
bear; members crash and are cut off; nodes fail. In the end all of it stops, and the group has to
come to rest.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final
from unittest import mock

from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer import consumer as consumer_module
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from tests.model.course import Course, Plan
from tests.model.habits import Habits
from tests.model.ledger import Assigned, CutOff, Ledger, Violation
from tests.model.liveness import Liveness
from tests.model.member import Member, Surroundings
from tests.model.storm.cluster import SESSION_S, StormCluster
from tests.model.storm.report import Report, report_on, stable_after
from tests.model.world import RealWorld, chances
from tests.support import inside
from tests.support.cluster import unique
from tests.support.failover.cluster import FailingCluster
from tests.support.real_kafka import RealKafka

PROTOCOLS: Final = ("consumer", "classic", "cooperative")
PARTITIONS: Final = 12
# Between two batches of a partition.
WRITTEN_EVERY_S: Final = 0.25
RECORD_BYTES: Final = 40
HEARTBEAT_S: Final = 0.3
# Between two looks at the members' generations.
COUNTED_EVERY_S: Final = 0.05
# Between two members that come or go, two that crash or are cut off, two failures of nodes.
CHANGES_S: Final = (0.1, 0.6)
# By the classic protocol each rebalance waits for one that has crashed, until its session is over.
CRASHES_S: Final = {"consumer": (8.0, 18.0), "classic": (20.0, 40.0), "cooperative": (20.0, 40.0)}
FIRST_CRASH_S: Final = 5.0
FAULTS_S: Final = (10.0, 20.0)
# So long after the last crash the storm goes on without one: its effects belong to the storm.
LAST_CRASH_S: Final = SESSION_S + 2.0
STABLE_WITHIN_S: Final = 5.0
CALM_S: Final = 12.0
SILENT_S: Final = 15.0
# Between two looks for the coordinator of a member that is cut off.
CUT_EVERY_S: Final = 0.3


class Storm(Course):
    """Runs one storm over one group.

    Args:
        protocol: One of PROTOCOLS.
        rebalances: How many there have to be.
        members: How many members there are, more or less.
        longest_s: When to end though there were not so many.
    """

    _excuses_owners = False

    def __init__(
        self,
        world: RealWorld,
        cluster: StormCluster,
        seed: int,
        *,
        protocol: str,
        rebalances: int,
        members: int,
        longest_s: float,
        show: Callable[[str], None],
    ) -> None:
        super().__init__(world, cluster, Plan(protocols=(protocol,)), seed)
        self._real_world = world
        self._storm = cluster
        self._protocol = protocol
        self._wanted = rebalances
        self._size = members
        self._longest_s = longest_s
        self._show = show
        self._generations: set[int] = set()
        self._group = unique("storm")
        self._is_over = asyncio.Event()
        # Who does not reach the coordinator now.
        self._cut: set[Member] = set()
        self.report = Report()

    @property
    def _is_spoilt(self) -> bool:
        return False  # all that goes wrong is to be seen

    async def run(self) -> None:
        """Run the storm and the calm, and judge."""
        await self._set_up()
        beside = [
            *(asyncio.ensure_future(self._write(index)) for index in range(PARTITIONS)),
            asyncio.ensure_future(self._lively.watch()),
            asyncio.ensure_future(self._count()),
        ]
        weather = [
            asyncio.ensure_future(each())
            for each in (self._have_members_crash, self._have_nodes_fail)
        ]
        try:
            for _ in range(self._size):
                self._join(self._group, self._as_worker)
            await self._have_members_come_and_go()
            await asyncio.wait(weather)
            since = self._world.now()
            await self._pass(CALM_S)
            self._look_for_stability(since)
            until = self._world.now()
            self._is_producing = False
            await asyncio.wait(beside[:PARTITIONS])
            await self._finish()
        finally:
            for task in (*beside, *weather):
                task.cancel()
            await asyncio.wait((*beside, *weather))
            await self._storm.close()
        for task in (*beside, *weather):
            if not task.cancelled():
                task.result()
        await self._judge()
        stable_s = self.report.stable_s
        self.report = report_on(self._ledger, until, self._storm.written_at)
        self.report.stable_s = stable_s
        self.report.rebalances = self._rebalances
        self.report.written = sum(self._storm.acknowledged.values())

    async def _set_up(self) -> None:
        cluster = self._storm
        topic = await cluster.create_topic(unique("storm"), PARTITIONS)
        around = Surroundings(
            self._world,
            self._ledger,
            cluster.bootstrap_servers,
            self._group,
            cluster.partitions,
            cluster.sent,
            cluster.acknowledged,
            lambda: True,
            is_mixed=False,
            without=frozenset({"commit of some"}),
        )
        self._groups[self._group] = around
        self._topic = topic
        await cluster.watch_commits(self._groups)
        classic = (RangePartitionAssignor,)
        cooperative = (CooperativeStickyPartitionAssignor,)
        self._assignors = {self._group: cooperative if self._protocol == "cooperative" else classic}
        self._lively = Liveness(
            cluster, self._members, self._groups, silent_s=SILENT_S, ownerless_s=SILENT_S
        )

    def _as_worker(self, habits: Habits) -> Habits:
        """It gets, works, commits by itself, and leaves when it is told to."""
        return replace(
            habits,
            topics=(self._topic,),
            auto_commit=True,
            heartbeat_s=HEARTBEAT_S,
            rebalance_s=SESSION_S,
            max_poll_s=60.0,
            listener=self._rng.choice(("none", "plain", "async")),
            ending="stop",
            works_last=False,
            instance_id=None,
        )

    def _as_finisher(self, habits: Habits) -> Habits:
        return replace(super()._as_finisher(habits), instance_id=None)

    # --- Records and figures --------------------------------------------------------------
    async def _write(self, index: int) -> None:
        rng = random.Random(f"{self._seed} records {index}")
        tp = sorted(self._storm.sent)[index]
        while self._is_producing:
            await self._storm.produce({tp: rng.randint(3, 10)}, RECORD_BYTES)
            await asyncio.sleep(WRITTEN_EVERY_S * rng.uniform(0.5, 1.5))

    @property
    def _rebalances(self) -> int:
        """How many generations or epochs members were seen in, but for the first."""
        return max(0, len(self._generations) - 1)

    async def _count(self) -> None:
        seen, began, shown = 0, self._world.now(), self._world.now()
        while True:
            await asyncio.sleep(COUNTED_EVERY_S)
            for member in self._running():
                if member.standing.is_running:
                    with suppress(Exception):  # it may be about to end, in its thread
                        self._generations.add(inside.generation(member.consumer))
            self._generations.discard(-1)
            entries = self._ledger.entries
            for position in range(seen, len(entries)):
                entry = entries[position]
                if isinstance(entry, Assigned):
                    self._generations.add(entry.generation)
            seen = max(seen, len(entries))
            now = self._world.now()
            if now - shown > 10.0:
                shown = now
                self._show(
                    f"{now - began:5.0f} s: {self._rebalances} rebalances, "
                    f"{len(self._running())} members, {self.outcome.members} joined, "
                    f"{self.outcome.crashes} crashed, {self.outcome.faults} faults, "
                    f"{sum(self._storm.acknowledged.values())} records, "
                    f"{len(self._ledger.violations)} violations"
                )

    # --- The weather ----------------------------------------------------------------------
    async def _have_members_come_and_go(self) -> None:
        """Have members join and leave until there were enough rebalances."""
        rng = self._rng
        ends_at = self._world.now() + self._longest_s
        while True:
            is_enough = self._world.now() > ends_at or (
                self._rebalances >= self._wanted and not self._is_over.is_set()
            )
            if is_enough and self._is_over.is_set():
                return
            if is_enough:
                # What was done to members is to be known before the storm ends.
                self._is_over.set()
                ends_at = self._world.now() + LAST_CRASH_S
            mine = self._staying()
            if len(mine) <= 2 or (len(mine) < self._size + 2 and rng.random() < 0.5):
                self._join(self._group, self._as_worker)
            else:
                rng.choice(mine).end()
            await self._pass(rng.uniform(*CHANGES_S))

    def _staying(self) -> list[Member]:
        """Return who runs, was not told to leave, and can reach everything."""
        return [m for m in self._running() if not m.is_ending and m not in self._cut]

    async def _have_members_crash(self) -> None:
        rng = random.Random(f"{self._seed} crashes")
        cutting = list[asyncio.Task[None]]()
        pause_s = FIRST_CRASH_S
        while await self._storms_for(pause_s):
            pause_s = rng.uniform(*CRASHES_S[self._protocol])
            mine = [m for m in self._staying() if m.standing.is_running]
            rng.shuffle(mine)
            if len(mine) > 2 and rng.random() < 0.6:
                cutting.append(asyncio.ensure_future(self._cut_off(mine.pop(), rng)))
            if len(mine) > 2 and rng.random() < 0.8:
                self._crash(mine.pop())
            if len(mine) > 3 and rng.random() < 0.3:
                self._crash(mine.pop())
        await asyncio.gather(*cutting)

    async def _cut_off(self, member: Member, rng: random.Random) -> None:
        """Cut a member off from the node that coordinates it, for longer than its session."""
        actor, now = member.actor, self._world.now
        assert actor is not None
        is_silent = rng.random() < 0.5
        how = "silently" if is_silent else "with resets"
        self._ledger.write(CutOff(at=now(), group=self._group, who=member.name, words=how))
        self._cut.add(member)
        port, ends_at = None, now() + SESSION_S
        while now() < ends_at:
            # When another node coordinates the group, it is cut off from that, too.
            with suppress(asyncio.TimeoutError):
                async with timeout(CUT_EVERY_S):
                    found = await self._storm.port_of_coordinator(self._group)
                if found != port:
                    port, ends_at = found, now() + SESSION_S * rng.uniform(1.1, 1.7)
                    cut = partial(actor.loop.cut_off, port, is_silent=is_silent)
                    self._real_world.call(actor, cut)
            self._lively.trouble(now() + SILENT_S)
            await asyncio.sleep(CUT_EVERY_S)
        self._real_world.call(actor, actor.loop.heal)
        self._cut.discard(member)
        over = CutOff(at=now(), group=self._group, who=member.name, words="over", is_over=True)
        self._ledger.write(over)

    async def _have_nodes_fail(self) -> None:
        rng = random.Random(f"{self._seed} nodes")
        cluster = self._storm
        kinds = (
            cluster.kill_coordinator,
            cluster.move_coordinator,
            cluster.shut_coordinator_down,
            cluster.move_coordinator,
        )
        number = rng.randrange(len(kinds))
        while await self._storms_for(rng.uniform(*FAULTS_S)):
            self.outcome.faults += 1
            failing = asyncio.ensure_future(kinds[number % len(kinds)](self._group))
            number += 1
            while not failing.done():
                self._lively.trouble(self._world.now() + SILENT_S)
                await asyncio.wait({failing}, timeout=1.0)
            failing.result()

    async def _storms_for(self, seconds: float) -> bool:
        """Wait, and return whether the storm still goes on."""
        with suppress(asyncio.TimeoutError):
            async with timeout(seconds):
                await self._is_over.wait()
        return not self._is_over.is_set()

    # --- The calm -------------------------------------------------------------------------
    def _look_for_stability(self, since: float) -> None:
        owned = [each.standing.owned for each in self._running()]
        stable_s = stable_after(self._ledger, since, sorted(self._storm.sent), owned)
        self.report.stable_s = stable_s
        if stable_s is None or stable_s > STABLE_WITHIN_S:
            words = f"{stable_s} s after the storm; owned: {list(map(sorted, owned))}"
            order = self._ledger.next_order()
            self._ledger.violate(Violation("not stable", words, self._group, order=order))


def run_storm(
    kafka: RealKafka,
    protocol: str,
    *,
    rebalances: int,
    seed: int = 1,
    members: int = 6,
    longest_s: float = 780.0,
    show: Callable[[str], None] = print,
) -> tuple[Report, Ledger]:
    """Run a storm on three nodes that are up; return its figures, and what happened."""
    rng = random.Random(f"{seed} storm")
    ledger, world = Ledger(), RealWorld()
    storms: list[Storm] = []

    async def main() -> None:
        cluster = StormCluster(world, ledger, rng, FailingCluster(kafka))
        storm = Storm(
            world,
            cluster,
            seed,
            protocol=protocol,
            rebalances=rebalances,
            members=members,
            longest_s=longest_s,
            show=show,
        )
        storms.append(storm)
        await storm.run()

    with mock.patch.object(consumer_module, "chance_for", chances(rng)):
        world.run(main)
    return storms[0].report, ledger
