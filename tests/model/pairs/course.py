"""One round: groups of members read the same topics in different ways, then all comes to rest."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka_lite.structs import TopicPartition
from tests.model.handling import committed_records
from tests.model.pairs.book import Book, Written, number_in
from tests.model.pairs.events import EVENTS, act
from tests.model.pairs.journal import Journal, place
from tests.model.pairs.logs import ALL_TROUBLES, Logs, Look, RealLogs
from tests.model.pairs.member import EXCUSED_S, Around, Member
from tests.model.pairs.table import Pair, Table
from tests.model.pairs.ways import WAYS, Way
from tests.model.world import RealWorld, World
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS as PROTOCOLS

LOOK_EVERY_S: Final = 0.05
# When nothing has been finished for so long, nothing will be.
STILL_S: Final = 60.0
STOP_ALL_S: Final = 40.0
KEYS: Final = 6
BAD: Final = 3
MOST_MEMBERS: Final = 3
# The ways of a group that come in most rounds.
FIRST_WAYS: Final = 6
# The kinds of groups in a round, by turns: there are most ways of the first one.
KINDS: Final = (
    ("plain", "transactions", "records"),
    ("plain", "letters", "records"),
    ("plain", "plain", "records"),
    ("plain", "transactions", "records"),
    ("records", "plain", "plain"),
)
# So many events come more often than others in a round, and by so many times.
FAVOURED: Final = 6
FAVOUR: Final = 4
_SEEKS: Final = frozenset(("seek", "looked-up seek"))
EPOCH_NS: Final = 1_700_000_000 * 10**9

ENDINGS: Final = ("stop", "error out of async with")
REBALANCES: Final = tuple(
    f"rebalance: {how}, {protocol}" for how in ("kept", "moved", "lost") for protocol in PROTOCOLS
)
COLUMNS: Final = ("auto-commit", *EVENTS, *ENDINGS, "kill", *REBALANCES, *ALL_TROUBLES)
# Those that the conductor and the members choose.
CHOSEN: Final = (*EVENTS, *ENDINGS, "kill", *ALL_TROUBLES)


def _impossible() -> dict[Pair, str]:
    found: dict[Pair, str] = {}
    for name, way in WAYS.items():
        for protocol in PROTOCOLS:
            if protocol == "eager":
                found[name, "rebalance: kept, eager"] = "each rebalance revokes all"
        if way.kind == "transactions":
            found[name, "auto-commit"] = "the transactions commit"
            for event in ("commit()", "named commit"):
                found[name, event] = "the transactions commit"
            found[name, "assign"] = "its groups subscribe"
        if way.kind == "letters":
            found[name, "assign"] = "its groups subscribe"
        if way.kind not in ("transactions", "letters"):
            found[name, "producer fenced"] = "it has no transactional id"
        if not way.writes:
            found[name, "write refused"] = "it writes nothing"
    return found


@dataclass(frozen=True)
class Plan:
    """How long the parts of a round last, and what is left out of it."""

    wild_s: float = 20.0
    # Events that do not happen, and ways in which nobody reads.
    without: frozenset[str] = frozenset()
    # Kinds of groups, of which each round has three, or fewer.
    kinds: tuple[str, ...] = ("plain", "transactions", "letters", "records")


@dataclass
class Outcome:
    """What came of a round."""

    journal: Journal
    table: Table
    seconds: float = 0.0
    members: int = 0
    # Where groups write outputs, each with the records that they are due of.
    outputs: dict[str, set[int]] = field(default_factory=dict)

    @property
    def violations(self) -> list[str]:
        return self.journal.violations


def new_table(plan: Plan) -> Table:
    """Return a table in which no pair has met."""
    rows = [name for name in WAYS if name not in plan.without]
    columns = [name for name in COLUMNS if name not in plan.without]
    return Table(rows, columns, _impossible())


class GroupPlan(NamedTuple):
    """How the members of a group join it, and the ways in which they read, in turn."""

    kind: str
    protocol: str
    ways: list[Way]


def groups_of(seed: int, plan: Plan) -> list[GroupPlan]:
    """Return the groups of a round."""
    kinds = [*KINDS[seed // 9 % len(KINDS)]]
    kinds = [kind for kind in kinds if kind in plan.kinds] or [*plan.kinds]
    protocols, groups = [*PROTOCOLS], list[GroupPlan]()
    for number, kind in enumerate(kinds):
        protocol = protocols[(seed // 3 + number) % 3]
        if number == seed % 3 and kind in ("plain", "records"):
            protocol = "none"
        ways = [w for w in WAYS.values() if w.kind == kind and w.name not in plan.without]
        if ways and kind == "transactions":
            # Those of a batch do not pass over what `run` has finished behind a commit.
            ways = [ways[seed // 2 % len(ways)]]
        if ways:
            # So that in some rounds all of them come, and in each some of them.
            first = (seed * 5 + number * 3) % len(ways)
            groups.append(GroupPlan(kind, protocol, ways[first:] + ways[:first]))
    return groups


def favoured_in(seed: int, columns: Sequence[str]) -> frozenset[str]:
    """Return the events that come more often than others in a round."""
    return frozenset(random.Random(f"{seed} favoured").sample(columns, min(FAVOURED, len(columns))))


def _is_without_seeks(seed: int) -> bool:
    """Whether nobody seeks in a round, so that logs can be truncated."""
    return seed // 3 % 2 == 0


class Group:
    """The members of one group, and how they read."""

    def __init__(self, around: Around, ways: Sequence[Way]) -> None:
        self.around = around
        self.ways = itertools.cycle(ways)
        self.members: list[Member] = []
        self.kind = ways[0].kind

    @property
    def alive(self) -> list[Member]:
        return [
            m
            for m in self.members
            if m.actor is not None and not m.actor.is_done and not m.actor.is_killed
        ]

    @property
    def staying(self) -> list[Member]:
        return [m for m in self.alive if not m.ending]


class Course:
    """Runs one round."""

    def __init__(self, world: World, logs: Logs, plan: Plan, seed: int, outcome: Outcome) -> None:
        self._world = world
        self._logs = logs
        self._plan = plan
        self._seed = seed
        self._rng = random.Random(f"{seed} course")
        self._journal = logs.journal
        self._outcome = outcome
        self._groups: list[Group] = []
        self._is_calm = False
        self._is_writing = True
        self._favoured = favoured_in(seed, CHOSEN)

    async def run(self) -> None:
        """Run the round, and judge it."""
        async with AsyncExitStack() as stack:
            await self._set_up()
            beside = [asyncio.ensure_future(self._write())]
            for group in self._groups:
                look = await stack.enter_async_context(self._logs.commits_of(group.around.group))
                beside.append(asyncio.ensure_future(self._watch(look)))
            try:
                await self._be_wild()
                self._is_calm = True
                self._is_writing = False
                await asyncio.wait(beside[:1])
                self._journal.note("conductor", "calm")
                await self._rest()
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)
            for task in beside:
                if not task.cancelled() and task.exception() is not None:
                    task.result()
        if not self._journal.violations:
            await self._read_outputs()
        self._outcome.seconds = self._world.now()

    # --- The groups -----------------------------------------------------------------------
    async def _set_up(self) -> None:
        rng, logs = self._rng, self._logs
        for number in range(2):
            await logs.create(f"t{number}", rng.randint(2, 3))
        for number, (kind, protocol, ways) in enumerate(groups_of(self._seed, self._plan)):
            outputs = await logs.create_other(f"out-{number}", 2)
            letters = await logs.create_other(f"dead-{number}", 2)
            around = self._around(f"g{number}", protocol, outputs, letters, kind)
            self._groups.append(Group(around, ways))

    def _around(self, name: str, protocol: str, outputs: str, letters: str, kind: str) -> Around:
        logs, session_s = self._logs, self._logs.session_s
        group = unique(name)
        settings: dict[str, object] = {}
        if protocol != "none":
            settings |= PROTOCOLS[protocol]
            settings |= {"heartbeat_interval_ms": 200}
            if protocol != "consumer":
                settings |= {
                    "session_timeout_ms": int(session_s * 1000),
                    "rebalance_timeout_ms": 8_000,
                }
        self._journal.groups[group].commits_by_name = kind in ("transactions", "letters")
        left_out = set(self._plan.without)
        left_out |= {"subscribe"} if protocol == "none" else {"assign"}
        if _is_without_seeks(self._seed):
            left_out |= _SEEKS
        return Around(
            self._world,
            self._journal,
            self._outcome.table,
            logs.kafka.bootstrap_servers,
            group,
            protocol,
            tuple(logs.topics),
            settings,
            session_s,
            outputs,
            letters,
            lambda: sorted(logs.book.partitions),
            lambda tp: logs.book.begins.get(tp, 0),
            lambda tp: len(logs.book.log(tp)),
            lambda: self._is_calm,
            [event for event in EVENTS if event not in left_out],
            self._favoured,
        )

    def _join(self, group: Group) -> Member:
        number = self._outcome.members = self._outcome.members + 1
        name = f"m{number}-{group.around.group[:2]}"
        way = next(group.ways)
        taken = {member.transactional_id for member in group.alive}
        ids = (f"{group.around.group}-tx{n}" for n in itertools.count())
        commits_by_itself = way.kind not in ("plain", "records") or self._rng.random() < 0.8
        member = Member(
            name,
            way,
            group.around,
            f"{self._seed} {name}",
            act=act,
            commits_by_itself=commits_by_itself,
            transactional_id=next(each for each in ids if each not in taken),
        )
        if way.kind == "transactions":
            member.commits_by_itself = True
        group.members.append(member)
        self._journal.note(
            name, f"joins {group.around.group} by {group.around.protocol}: {way.name}"
        )
        member.actor = self._world.start(name, member.live)
        return member

    def _kill(self, group: Group, member: Member) -> None:
        assert member.actor is not None
        member.meet("kill")

        def note() -> None:
            self._journal.note(member.name, "is killed")
            self._journal.excuse(group.around.group, EXCUSED_S)

        self._world.kill(member.actor, note)

    # --- The wild part --------------------------------------------------------------------
    async def _be_wild(self) -> None:
        rng = self._rng
        ends_at = self._world.now() + self._plan.wild_s
        for group in self._groups:
            self._join(group)
        while self._world.now() < ends_at and not self._journal.violations:
            group = rng.choice(self._groups)
            most = 1 if group.around.protocol == "none" else MOST_MEMBERS
            if len(group.staying) < most and (len(group.alive) < most):
                self._join(group)
            elif group.staying and rng.random() < 0.55:
                self._end_one(group, rng.choice(group.staying))
            else:
                await self._trouble(group)
            await self._pass(rng.uniform(0.1, 0.5))

    def _end_one(self, group: Group, member: Member) -> None:
        endings = [*ENDINGS]
        if group.around.protocol != "consumer":  # there a real Kafka waits for 45 s
            endings.append("kill")
        endings += [each for each in endings if each in self._favoured] * (FAVOUR - 1)
        name = self._rng.choice([each for each in endings if each not in self._plan.without])
        if name == "kill":
            self._kill(group, member)
        else:
            member.ending = name

    async def _trouble(self, group: Group) -> None:
        troubles, table = self._logs.troubles, self._outcome.table
        names = [name for name in troubles if name not in self._plan.without]
        if not names:
            return
        meeting = [(m, m.in_hand()) for each in self._groups for m in each.alive if m.in_hand()]
        counts = {name: sum(table.counts[m.way.name, name] for m, _ in meeting) for name in names}
        in_hand = {tp for _, held in meeting for tp in held} & self._logs.book.ends.keys()
        self._rng.shuffle(names)
        if rare := self._favoured.intersection(names):
            counts.update({name: counts[name] // FAVOUR for name in rare})
        for name in sorted(names, key=counts.__getitem__):
            if not in_hand:
                return
            tp = self._rng.choice(sorted(in_hand))
            about = await troubles[name](tp, group.around.group)
            if about is None or about:
                break
        else:
            return
        self._journal.note("conductor", f"{name}: {tp.topic}/{tp.partition}, {group.around.group}")
        for member, held in meeting:
            is_met = member in group.members if about is None else held & set(about)
            if is_met:
                table.met(member.way.name, name)

    async def _pass(self, seconds: float) -> None:
        ends_at = self._world.now() + seconds
        while self._world.now() < ends_at and not self._journal.violations:
            await asyncio.sleep(min(0.25, max(0.0, ends_at - self._world.now())))
            self._look_at_members()

    def _look_at_members(self) -> None:
        for group in self._groups:
            for member in group.members:
                if member.actor is not None and not member.actor.is_done:
                    member.check_health()
            for member in [m for m in group.members if m.actor is not None and m.actor.is_done]:
                group.members.remove(member)
                self._look_at_end(member)

    def _look_at_end(self, member: Member) -> None:
        actor = member.actor
        assert actor is not None
        if actor.is_killed:
            return
        if actor.failure is not None:
            error = actor.failure
            at = error.__traceback__
            while at is not None and at.tb_next is not None:
                at = at.tb_next
            where = "" if at is None else f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
            member.violate("died", f"{error!r}{where}")
        for complaint in actor.complaints:
            member.violate("left behind", complaint)

    # --- The calm part --------------------------------------------------------------------
    async def _rest(self) -> None:
        """Wait until all is finished and committed, then let all leave."""
        journal = self._journal
        state, ends_at = "", 0.0
        while not journal.violations and (left := self._left()):
            for group in self._groups:
                # The last one may have been told to end before. Where partitions are assigned by
                # the application it is gone first: it may commit still.
                if not (group.alive if group.around.protocol == "none" else group.staying):
                    self._join(group)
            if str(left) != state:
                state, ends_at = str(left), self._world.now() + STILL_S
            elif self._world.now() > ends_at:
                self._tell_lost()
                return
            await asyncio.sleep(LOOK_EVERY_S)
            self._look_at_members()
        for group in self._groups:
            for member in group.alive:
                member.ending = "stop"
        ends_at = self._world.now() + STOP_ALL_S
        while any(group.alive for group in self._groups):
            if self._world.now() > ends_at:
                alive = [m.name for group in self._groups for m in group.alive]
                journal.violate("never ends", "conductor", f"{alive}")
                return
            await asyncio.sleep(LOOK_EVERY_S)
        self._look_at_members()
        for group in self._groups if not journal.violations else ():
            for written in self._unfinished(group):
                journal.violate("lost", group.around.group, place(written))

    def _unfinished(self, group: Group) -> list[Written]:
        return self._journal.left_over(group.around.group, group.around.topics)

    def _left(self) -> dict[str, object]:
        """Return what is not committed yet, and how many records are not finished."""
        left: dict[str, object] = {}
        for group in self._groups:
            name = group.around.group
            commits = self._journal.groups[name].commits
            for tp, end in self._logs.book.ends.items():
                found = commits.get(tp)
                offset = 0
                if found is not None and found.life == self._logs.book.lives[tp]:
                    offset = found.offset
                if offset < end:
                    left[f"{name} {tp.topic}/{tp.partition}"] = offset, end
            if not left and (unfinished := self._unfinished(group)):
                left[name] = len(unfinished)  # which replaced those that were committed
        return left

    def _tell_lost(self) -> None:
        for group in self._groups if not self._journal.violations else ():
            words = [member.explain() for member in group.alive if member.is_reading]
            for written in self._unfinished(group)[:10]:
                self._journal.violate("lost", group.around.group, f"{place(written)}; {words}")
        if not self._journal.violations:
            self._journal.violate("never committed", "conductor", f"{self._left()}")

    @staticmethod
    async def _watch(look: Look) -> None:
        while True:
            await look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _write(self) -> None:
        rng = random.Random(f"{self._seed} records")
        while self._is_writing:
            for tp in sorted(self._logs.book.partitions):
                if rng.random() < 0.5 and tp in self._logs.book.ends:
                    await self._logs.write(tp, rng.randint(1, 3))
            await asyncio.sleep(0.2)

    async def _read_outputs(self) -> None:
        """Hold what groups have written, as readers of committed records see it."""
        for group in self._groups:
            around, name = group.around, group.around.group
            if group.kind == "transactions":
                due = {written.number for written in self._logs.book.present}
                self._outcome.outputs[around.outputs] = due
                found = await self._numbers_in(around.outputs)
                self._journal.check_outputs(name, "outputs", found, due)
            if group.kind == "letters":
                due = {written.number for written in self._logs.book.present if written.is_bad}
                found = await self._numbers_in(around.letters)
                self._journal.check_outputs(name, "letters", found, due)
            if group.kind == "records":
                found = await self._numbers_in(around.letters)
                due = self._journal.groups[name].dead
                self._journal.check_missing(name, "letters", found, due)

    async def _numbers_in(self, topic: str) -> Counter[int]:
        found: Counter[int] = Counter()
        for index in range(2):
            tp = TopicPartition(topic, index)
            for record in await committed_records(self._logs.kafka, tp):
                found[number_in(record.value)] += 1
        return found


# --- A round ------------------------------------------------------------------------------------
def run_round(seed: int, address: str, plan: Plan | None = None) -> Outcome:
    """Run one round on the Kafka at an address."""
    rng = random.Random(f"{seed} round")
    world = RealWorld()
    book = Book(rng, keys=KEYS, bad=BAD)
    journal = Journal(book, world.now)
    plan = plan or Plan()
    outcome = Outcome(journal, new_table(plan))

    async def main() -> None:
        logs = RealLogs(KafkaHandle("real", address), book, journal, rng)
        await Course(world, logs, plan, seed, outcome).run()

    world.run(main)
    return outcome
