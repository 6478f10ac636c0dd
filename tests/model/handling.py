"""A storm of members that `run`: they join, leave and are killed while handlers are at work.

Everything that handlers do is written down at the moment itself. What must not be:

- a record that nobody finished, once all have come to rest;
- a record begun before those ahead of it of its key were finished, or beside one of its key;
- a commit, or what its metadata say, that covers a record that nobody has finished;
- a record begun again though a commit that was acknowledged before has covered it;
- a record handled twice where nobody was killed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignment.finished import decode
from aiokafka_lite.consumer.caller import as_if_running
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.events import Assigned
from aiokafka_lite.processing import DeadLetters, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.model.world import Actor, World
from tests.support.cluster import KafkaHandle
from tests.support.inside import cluster

Record = ConsumerRecord[bytes | None, bytes | None]
Place = tuple[TopicPartition, int]
BAD: Final = b"bad"
LOOK_EVERY_S: Final = 0.05
# For so long nothing happens: then nothing will.
STILL_S: Final = 20.0
STOP_S: Final = 20.0


@dataclass(frozen=True)
class Plan:
    """What a storm has.

    Attributes:
        kills: Members are killed; otherwise they only leave.
        longest_s: How long a handler may take.
        bad: Of each hundred records so many are bad, and go to the dead letters.
        settings: Of all members.
    """

    rebalances: int = 30
    partitions: int = 3
    keys: int = 12
    most_members: int = 4
    kills: bool = True
    longest_s: float = 0.3
    bad: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass
class Journal:
    """What happened so far."""

    begun: Counter[Place] = field(default_factory=Counter)
    finished: Counter[Place] = field(default_factory=Counter)
    # By key: who is at work on what.
    at_work: dict[tuple[TopicPartition, bytes], dict[int, str]] = field(default_factory=dict)
    of_key: dict[tuple[TopicPartition, bytes], list[int]] = field(default_factory=dict)
    covered: set[Place] = field(default_factory=set)
    bad: set[Place] = field(default_factory=set)
    letters: Counter[Place] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    rebalances: int = 0
    kills: int = 0
    # Begun and not covered by a commit, when a member was killed, summed up over all kills.
    at_stake: int = 0

    @property
    def repeated(self) -> int:
        """How many times a record was begun that had been begun before."""
        return sum(count - 1 for count in self.begun.values())


class BadRecordError(Exception):
    """A handler's word for a record that it can do nothing with."""


class Member:
    """A consumer that runs a handler, in a loop of its own."""

    def __init__(
        self,
        name: str,
        kafka: KafkaHandle,
        topic: str,
        dead_letters: DeadLetters | None,
        plan: Plan,
        journal: Journal,
        seed: str,
    ) -> None:
        self.name = name
        self._dead_letters = dead_letters
        self.actor: Actor | None = None
        self.is_leaving = asyncio.Event()
        self._kafka = kafka
        self._topic = topic
        self._plan = plan
        self._journal = journal
        self._rng = random.Random(seed)
        self.consumer: AIOKafkaConsumer | None = None
        # What it has begun and not finished.
        self.flights: set[Place] = set()

    async def live(self) -> None:
        """Run until it is to leave."""
        settings = {
            "bootstrap_servers": self._kafka.bootstrap_servers,
            "group_id": f"group-of-{self._topic}",
            "client_id": self.name,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 6_000,
            "rebalance_timeout_ms": 8_000,
            "heartbeat_interval_ms": 100,
            "fetch_max_wait_ms": 50,
            **self._plan.settings,
        }
        consumer = AIOKafkaConsumer(self._topic, **settings)  # type: ignore[arg-type]
        self.consumer = consumer
        watching = asyncio.ensure_future(self._count(consumer))
        try:
            await consumer.start()
            running = asyncio.ensure_future(
                consumer.run(
                    self._handle,
                    concurrency=self._rng.choice((3, 10, 30)),
                    retry=Retry(dead=BadRecordError),
                    dead_letter=self._dead_letters,
                )
            )
            leaving = asyncio.ensure_future(self.is_leaving.wait())
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            left = await consumer.stop(STOP_S)
            # A leader that was killed holds up the rebalance, and with it a last commit.
            if left and not self._plan.kills:
                self._journal.violations.append(f"{self.name} could not commit {left}")
            await running
        finally:
            watching.cancel()
            await consumer.stop(1)

    async def _count(self, consumer: AIOKafkaConsumer) -> None:
        async for event in consumer.events():
            if isinstance(event, Assigned):
                self._journal.rebalances += 1

    async def _handle(self, record: Record) -> None:
        journal, tp = self._journal, TopicPartition(record.topic, record.partition)
        key = record.key or b""
        place, lane = (tp, record.offset), (tp, key)
        at_work = journal.at_work.setdefault(lane, {})
        if at_work:
            journal.violations.append(f"{self.name} begins {place} of {key!r} beside {at_work}")
        if place in journal.covered:
            journal.violations.append(f"{self.name} begins {place}, which a commit covers")
        earlier = [o for o in journal.of_key[lane] if o < record.offset]
        if missing := [o for o in earlier if not journal.finished[tp, o]]:
            journal.violations.append(f"{self.name} begins {place} before {missing} of its key")
        journal.begun[place] += 1
        at_work[record.offset] = self.name
        self.flights.add(place)
        try:
            await asyncio.sleep(self._rng.random() * self._plan.longest_s)
        except BaseException:
            if self.actor is None or not self.actor.is_killed:
                at_work.pop(record.offset)
                self.flights.discard(place)
            raise
        at_work.pop(record.offset)
        self.flights.discard(place)
        journal.finished[place] += 1
        if record.value == BAD:
            raise BadRecordError  # whether its letter is written is looked at in the end

    def forget(self) -> None:
        """Note that nobody works on what it was at work on: it was killed."""
        for tp, offset in self.flights:
            for (lane_tp, _), at_work in self._journal.at_work.items():
                if lane_tp == tp and at_work.get(offset) == self.name:
                    del at_work[offset]


async def committed_records(kafka: KafkaHandle, tp: TopicPartition) -> list[Record]:
    """Return all records of a partition that are committed, once no transaction is open."""
    found: list[Record] = []
    end = 0
    for isolation_level in ("read_uncommitted", "read_committed"):
        async with AIOKafkaConsumer(
            bootstrap_servers=kafka.bootstrap_servers, isolation_level=isolation_level
        ) as reader:
            reader.assign([tp])
            if isolation_level == "read_uncommitted":
                end = (await reader.end_offsets([tp]))[tp]
                continue
            await reader.seek_to_beginning(tp)
            while await reader.position(tp) < end:
                found += (await reader.getmany(timeout_ms=100)).get(tp, [])
    return found


class Storm:
    """One storm, driven by the conductor."""

    def __init__(self, world: World, kafka: KafkaHandle, plan: Plan, seed: int) -> None:
        self._world = world
        self._kafka = kafka
        self._plan = plan
        self._seed = seed
        self._rng = random.Random(f"{seed} storm")
        self.journal = Journal()
        self._members: list[Member] = []
        self._ends: Counter[TopicPartition] = Counter()
        self._number = 0
        self._topic = self._dead_topic = ""
        self._transactional: dict[str, Member] = {}
        self._is_producing = True

    async def run(self) -> None:
        """Let the storm blow, then let it come to rest."""
        self._topic = await self._kafka.create_topic(partitions=self._plan.partitions)
        if self._plan.bad:
            self._dead_topic = await self._kafka.create_topic(partitions=2)
        reader = AIOKafkaConsumer(
            bootstrap_servers=self._kafka.bootstrap_servers,
            group_id=f"group-of-{self._topic}",
            enable_auto_commit=False,
        )
        async with reader:
            beside = [
                asyncio.ensure_future(self._produce()),
                asyncio.ensure_future(self._watch(reader)),
            ]
            try:
                await self._blow()
                self._is_producing = False
                await asyncio.wait(beside[:1])  # to its end: what is sent has to be there
                await self._rest(reader)
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)
            for task in beside:
                if not task.cancelled() and task.exception() is not None:
                    task.result()
            await self._look(reader)
        if self._plan.bad:
            await self._count_letters()

    # --- Members --------------------------------------------------------------------------
    def _alive(self) -> list[Member]:
        return [m for m in self._members if m.actor is not None and not m.actor.is_done]

    def _join(self) -> None:
        self._number += 1
        name = f"m{self._number}"
        seed = f"{self._seed} {name}"
        dead_letters = None
        transactional_id = self._free_id()
        if self._plan.bad:
            dead_letters = DeadLetters(self._dead_topic, transactional_id=transactional_id)
        member = Member(
            name, self._kafka, self._topic, dead_letters, self._plan, self.journal, seed
        )
        self._transactional[transactional_id] = member
        self._members.append(member)
        member.actor = self._world.start(name, member.live)

    def _free_id(self) -> str:
        """Return a transactional id that no member has who is alive."""
        alive = self._alive()
        for number in itertools.count():
            name = f"{self._topic}-{number}"
            if self._transactional.get(name) not in alive:
                return name
        raise AssertionError

    def _leave(self, member: Member) -> None:
        assert member.actor is not None
        member.actor.loop.call_soon_threadsafe(member.is_leaving.set)

    def _kill(self, member: Member) -> None:
        assert member.actor is not None
        journal = self.journal

        def note() -> None:
            places = tuple(journal.begun)
            journal.at_stake += sum(1 for place in places if place not in journal.covered)
            member.forget()

        if self._world.kill(member.actor, note):
            journal.kills += 1

    async def _blow(self) -> None:
        rng, journal = self._rng, self.journal
        self._join()
        while journal.rebalances < self._plan.rebalances and not journal.violations:
            await asyncio.sleep(rng.uniform(0.1, 1.5))
            alive = [m for m in self._alive() if not m.is_leaving.is_set()]
            if len(alive) < 2 or (len(alive) < self._plan.most_members and rng.random() < 0.5):
                self._join()
            elif self._plan.kills and rng.random() < 0.5:
                self._kill(rng.choice(alive))
            else:
                self._leave(rng.choice(alive))

    async def _rest(self, reader: AIOKafkaConsumer) -> None:
        """Wait until all is finished and committed, then let all leave."""
        journal = self.journal
        if not [m for m in self._alive() if not m.is_leaving.is_set()]:
            self._join()
        places = [(tp, offset) for tp, end in self._ends.items() for offset in range(end)]
        count, ends_at = 0, 0.0
        while not journal.violations and (left := [p for p in places if not journal.finished[p]]):
            if len(left) != count:
                count, ends_at = len(left), self._world.now() + STILL_S
            elif self._world.now() > ends_at:
                journal.violations.append(
                    f"never finished: {left[:20]}, {count} in all: {self._words()}"
                )
                return
            await asyncio.sleep(LOOK_EVERY_S)
        for member in self._alive():
            self._leave(member)
        while alive := self._alive():
            if self._world.now() > ends_at + STILL_S + STOP_S:
                journal.violations.append(f"never ends: {[m.name for m in alive]}")
                return
            await asyncio.sleep(LOOK_EVERY_S)
        for member in self._members:
            assert member.actor is not None
            if member.actor.failure is not None and not member.actor.is_killed:
                journal.violations.append(f"{member.name} died of {member.actor.failure!r}")
            journal.violations += [] if member.actor.is_killed else member.actor.complaints
        committed = await self._look(reader)
        for tp, end in self._ends.items():
            if committed.get(tp) != end:
                journal.violations.append(f"{tp} ends at {end}, committed {committed.get(tp)}")
        if not self._plan.kills and journal.repeated:
            journal.violations.append(f"{journal.repeated} repeated, though nobody was killed")

    def _words(self) -> str:
        """Say what the members that are alive say of themselves."""
        tps = [TopicPartition(self._topic, number) for number in range(self._plan.partitions)]
        words: list[str] = []
        for member in self._alive():
            consumer, actor = member.consumer, member.actor
            if consumer is not None and actor is not None:
                with as_if_running(actor.loop):
                    said = [consumer.explain(tp) for tp in tps]
                    words.append(f"{member.name}: {consumer.health().reasons} {said}")
        return "; ".join(words)

    # --- Records and commits --------------------------------------------------------------
    async def _produce(self) -> None:
        rng, journal = random.Random(f"{self._seed} records"), self.journal
        while self._is_producing:
            for number in range(self._plan.partitions):
                tp = TopicPartition(self._topic, number)
                keys = [b"%d" % rng.randrange(self._plan.keys) for _ in range(rng.randint(0, 4))]
                for key in keys:
                    journal.of_key.setdefault((tp, key), []).append(self._ends[tp])
                    self._ends[tp] += 1
                records = [
                    (key, BAD if rng.randrange(100) < self._plan.bad else b"") for key in keys
                ]
                begin = self._ends[tp] - len(keys)
                for offset, (_, value) in enumerate(records, begin):
                    if value == BAD:
                        journal.bad.add((tp, offset))
                if records:
                    await self._kafka.produce(self._topic, number, records)
            await asyncio.sleep(0.1)

    async def _count_letters(self) -> None:
        """Hold the letters that are committed against the records that are bad."""
        journal = self.journal
        for tp in [TopicPartition(self._dead_topic, number) for number in range(2)]:
            for letter in await committed_records(self._kafka, tp):
                why = dict(letter.headers)
                partition, offset = (int(why[f"__dlq.errors.{n}"]) for n in ("partition", "offset"))
                journal.letters[TopicPartition(self._topic, partition), offset] += 1
        if lost := journal.bad - journal.letters.keys():
            journal.violations.append(f"without a letter: {sorted(lost)[:20]}, {len(lost)} in all")
        if again := {place: n for place, n in journal.letters.items() if n > 1}:
            journal.violations.append(f"letters written more than once: {again}")

    async def _watch(self, reader: AIOKafkaConsumer) -> None:
        while True:
            try:
                await self._look(reader)
            except KafkaError:
                pass  # the coordinator is not there yet
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self, reader: AIOKafkaConsumer) -> dict[TopicPartition, int]:
        """Note what is committed, and hold it against what is finished."""
        journal = self.journal
        tps = [TopicPartition(self._topic, number) for number in range(self._plan.partitions)]
        found = await reader.committed(*tps, metadata=True)
        offsets: dict[TopicPartition, int] = {}
        for tp, entry in found.items():
            if entry is None:
                continue
            offsets[tp] = entry.offset
            covered = set(range(entry.offset))
            topic_id = cluster(reader).view.topic_id(self._topic)
            if entry.metadata and topic_id:
                finished = decode(topic_id, entry.offset, entry.metadata)
                if finished is None:
                    journal.violations.append(f"{tp}: unreadable metadata {entry.metadata}")
                else:
                    covered |= {o for first, end in finished.ranges for o in range(first, end)}
            if early := [offset for offset in covered if not journal.finished[tp, offset]]:
                journal.violations.append(f"{tp}: a commit covers {early}, not finished")
            journal.covered |= {(tp, offset) for offset in covered}
        return offsets
