"""One member of a group: an application around a consumer, and what it writes into the ledger.

The application does one thing at a time. By its next get it says that it has finished what it
was handed before; a clean stop and a commit of positions say so, too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar, cast

from aiokafka_lite import events
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    IllegalGenerationError,
    IllegalStateError,
    KafkaError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from aiokafka_lite.events import EventSubscription
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.model.habits import CALM, WILD, Habits
from tests.model.ledger import (
    Assigned,
    Entry,
    Finished,
    Handed,
    Joined,
    Ledger,
    Note,
    Raised,
    Revoked,
    Stopped,
    Stopping,
    Subscribed,
    Violation,
)
from tests.model.world import Actor, World

T = TypeVar("T")
Record: TypeAlias = ConsumerRecord

# How much longer than it was told a call may take.
GRACE_S: Final = 1.0
# How long a get of partitions may go on that a rebalance has taken away.
TAKEN_AWAY_S: Final = 3.0
START_S: Final = 40.0
STOP_S: Final = 10.0
TOLD_EVERY_S: Final = 0.5


# What the coordinator says of a member's epoch or generation: a `CommitFailedError` at most.
EPOCH_ERRORS: Final = (
    FencedMemberEpochError,
    IllegalGenerationError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)


class Boom(Exception):
    """What applications and listeners raise here."""


@dataclass
class Surroundings:
    """What a member knows of the round that it is in."""

    world: World
    ledger: Ledger
    bootstrap_servers: str
    group: str
    # How many partitions topics have, and where they end.
    partitions: Mapping[str, int]
    # Behind the last record that was sent, and the last that was acknowledged.
    ends: Mapping[TopicPartition, int]
    acknowledged: Mapping[TopicPartition, int]
    is_calm: Callable[[], bool]
    # Whether its groups may have members of both protocols.
    is_mixed: bool
    # Actions that nobody does.
    without: frozenset[str]


@dataclass(eq=False)
class Call:
    """A call that runs."""

    name: str
    due_at: float


@dataclass
class Standing:
    """What others see of a member at any moment."""

    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    paused: set[TopicPartition] = field(default_factory=set)
    # And when the partitions were given up last.
    paused_before: set[TopicPartition] = field(default_factory=set)
    # Since when it does nothing but getting of these (None: of all).
    getting_since: float | None = None
    getting: frozenset[TopicPartition] | None = None
    # When something last happened to a partition that a record has to come after.
    stirred_at: dict[TopicPartition, float] = field(default_factory=dict)
    # When its loop was last seen blocked: it has done nothing until then.
    blocked_at: float = 0.0
    next: dict[TopicPartition, int] = field(default_factory=dict)
    # Where the first hand-out of this assignment began.
    first: dict[TopicPartition, int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    topics: frozenset[str] = frozenset()
    is_running: bool = False
    words: dict[TopicPartition, str] = field(default_factory=dict)
    verdict: str = ""
    # What the consumer says of itself.
    positions: dict[TopicPartition, int | None] = field(default_factory=dict)


class Member:
    """The application of one member; `live` is its whole life."""

    def __init__(
        self,
        name: str,
        habits: Habits,
        around: Surroundings,
        seed: str,
        *,
        make_listener: Callable[[Member], ConsumerRebalanceListener | None],
        actions: Mapping[str, Callable[[Member], Awaitable[None]]],
    ) -> None:
        self.name = name
        self._make_listener = make_listener
        self._actions = actions
        self.habits = habits
        self.around = around
        self.rng = random.Random(seed)  # its own, so that others' courses do not change it
        self.standing = Standing()
        self.actor: Actor | None = None
        self.consumer: AIOKafkaConsumer
        self._subscription: EventSubscription
        self.in_work: list[tuple[TopicPartition, int, int]] = []
        # Ends of what was handed out, in assignments that are over.
        self.stale: dict[TopicPartition, int] = {}
        # And in this one.
        self._handed_to: dict[TopicPartition, int] = {}
        self.numbers = 0
        self._ending = False
        self.listener_depth = 0

    # --- The ledger -----------------------------------------------------------------------
    def write(self, entry: Entry) -> None:
        """Write down what happens now, after what the consumer told of before."""
        self.drain()
        self._write(entry)

    def _write(self, entry: Entry) -> None:
        entry.at, entry.who, entry.group = self.around.world.now(), self.name, self.around.group
        self.around.ledger.write(entry)

    def violate(self, rule: str, words: str, tp: TopicPartition | None = None) -> None:
        if self.actor is not None and self.actor.is_killed:
            return  # its tasks were all cancelled, which is no way to end
        ledger = self.around.ledger
        violation = Violation(rule, words, self.around.group, tp, self.name, ledger.next_order())
        ledger.violate(violation)

    def raised(self, name: str, error: Exception) -> None:
        """Write down an error that the application got."""
        self.write(Raised(words=f"{name}: {error!r}", error=type(error).__name__))

    def drain(self) -> None:
        """Write down the events that are there."""
        while True:
            step = self._subscription.__anext__()
            try:
                step.send(None)
            except StopIteration as found:
                self._note_event(found.value)
            except StopAsyncIteration:
                return
            else:
                step.close()
                return

    async def _watch(self) -> None:
        async for event in self._subscription:
            self._note_event(event)

    def _note_event(self, event: events.ConsumerEvent) -> None:
        standing = self.standing
        now = self.around.world.now()
        if isinstance(event, events.Assigned):
            self._write(Assigned(generation=event.generation, tps=event.partitions))
            new = event.partitions - standing.owned
            standing.owned, standing.generation = event.partitions, event.generation
            # What was paused since the rebalance was called for stays, if the consumer says so.
            asked_for = (standing.paused | standing.paused_before) & event.partitions
            standing.paused = asked_for & self.consumer.paused()
            standing.stirred_at.update(dict.fromkeys(new, now))
            for tp in new:
                standing.next.pop(tp, None)
                standing.first.pop(tp, None)
        elif isinstance(event, (events.Revoked, events.Lost)):
            self.let_go(event.partitions, event.name)
        elif isinstance(event, events.TaskFailed):
            self._write(Note(words=f"task {event.task} failed: {event.error!r}"))
            if not isinstance(event.error, FencedInstanceIdError):
                self.violate("a task died", f"{event.task}: {event.error!r}")
        elif isinstance(event, events.EventsDropped):
            raise AssertionError("the model is too slow to hear all events")
        else:
            self._write(Note(words=f"{event.name}: {event.as_dict()}"))

    def let_go(self, tps: Iterable[TopicPartition], how: str) -> None:
        self._write(Revoked(tps=frozenset(tps), how=how))
        gone, standing = frozenset(tps), self.standing
        for tp in gone & self._handed_to.keys():
            self.stale[tp] = self._handed_to.pop(tp)
        standing.owned -= gone
        standing.paused_before = standing.paused & gone
        standing.paused -= gone

    def handed(self, found: Mapping[TopicPartition, list[Record]]) -> None:
        """Note what a get returned."""
        self.drain()
        now = self.around.world.now()
        for tp, records in found.items():
            offsets = [record.offset for record in records]
            gaps = ""
            if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
                gaps = str(offsets)
            for record in records:
                if not (record.value or b"").startswith(b"%d " % record.offset):
                    self.violate("a record of another place", f"{record!r:.200}", tp)
            self._write(
                Handed(
                    tp=tp,
                    first=offsets[0],
                    next=offsets[-1] + 1,
                    gaps=gaps,
                    is_in_callback=self.listener_depth > 0,
                )
            )
            self.standing.next[tp] = offsets[-1] + 1
            self.standing.first.setdefault(tp, offsets[0])
            self.standing.stirred_at[tp] = now
            self._handed_to[tp] = offsets[-1] + 1
            self.in_work.append((tp, offsets[0], offsets[-1] + 1))

    def finish(self, why: str) -> None:
        """Note that the application has finished all that it was handed."""
        if self.in_work:
            self.write(Finished(ranges=tuple(self.in_work), why=why))
            self.in_work.clear()

    # --- Calls ----------------------------------------------------------------------------
    async def call(self, name: str, awaitable: Awaitable[T], within_s: float) -> T:
        """Await a call that has to return in time, whatever happens."""
        call = Call(name, self.around.world.now() + within_s)
        self.standing.calls.append(call)
        try:
            return await awaitable
        except EPOCH_ERRORS as error:
            self.violate("an epoch error reaches the application", f"{name}: {error!r}")
            raise
        finally:
            self.standing.calls.remove(call)

    def owned(self) -> list[TopicPartition]:
        """Return what the consumer has, as `standing` knows it from now on, too."""
        self.drain()
        return sorted(self.consumer.assignment())

    def some(self) -> list[TopicPartition]:
        """Return some of its partitions."""
        owned = self.owned()
        return self.rng.sample(owned, self.rng.randint(1, len(owned))) if owned else []

    # --- Life -----------------------------------------------------------------------------
    async def live(self) -> None:
        """Start, do what applications do, and end."""
        habits, around = self.habits, self.around
        make = AIOKafkaConsumer
        self.consumer = make(
            bootstrap_servers=around.bootstrap_servers,
            client_id=self.name,
            group_id=around.group,
            **habits.settings(),  # type: ignore[arg-type]
        )
        self._subscription = self.consumer.events(max_buffered=100_000)
        self._write(
            Joined(
                settings=habits.text(),
                is_eager=habits.is_eager,
                hears_within_s=habits.hears_within_s if around.is_mixed else 0.0,
            )
        )
        self.subscribe(habits.topics)
        beside = [asyncio.ensure_future(self._watch()), asyncio.ensure_future(self._tell())]
        try:
            await self._run()
        finally:
            self.consumer._closed = True  # a killed one's: nobody is to be warned of it
            for task in beside:
                task.cancel()
            self.standing.is_running = False

    async def _tell(self) -> None:
        """Tell others time and again how the consumer is."""
        while True:
            await asyncio.sleep(TOLD_EVERY_S)
            health = self.consumer.health()
            standing = self.standing
            standing.verdict = f"{health.verdict}: {'; '.join(health.reasons)}"
            standing.positions = {
                TopicPartition(each["topic"], each["partition"]): each["position"]
                for each in cast("list[dict[str, Any]]", self.consumer.metrics()["partitions"])
            }
            standing.words = {tp: self.consumer.explain(tp) for tp in standing.owned}

    async def _run(self) -> None:
        try:
            if await self._start():
                await self._work()
        except ConsumerStoppedError:
            pass  # by its listener
        except FencedInstanceIdError as error:
            self.write(Note(words=f"fenced: {error}"))
        await self._end()

    def subscribe(self, topics: Iterable[str]) -> None:
        self.consumer.subscribe(topics, listener=self._make_listener(self))
        self._write(Subscribed(topics=frozenset(topics)))
        self.standing.topics = frozenset(topics)

    async def _start(self) -> bool:
        tries = 3
        while tries:
            tries -= 1
            try:
                if tries and self.rng.random() < 0.15:
                    done = await self.cancelled("start", self.consumer.start, START_S)
                    if done is None:
                        if self.consumer._closed:  # its listener has stopped it
                            return False
                        continue
                else:
                    await self.call("start", self.consumer.start(), START_S)
            except (ConsumerStoppedError, FencedInstanceIdError):
                raise
            except KafkaError as error:
                self.raised("start failed", error)
                continue
            self.standing.is_running = True
            return True
        return False

    async def cancelled(
        self, name: str, operation: Callable[[], Awaitable[T]], within_s: float
    ) -> tuple[T] | None:
        """Await an operation, or cancel it some turns or moments later; None: it was cancelled."""

        async def run() -> T:  # nothing is made that is cancelled before it begins
            return await self.call(name, operation(), within_s)

        task = asyncio.ensure_future(run())
        try:
            if self.rng.random() < 0.5:
                for _ in range(self.rng.randint(0, 30)):
                    await asyncio.sleep(0)
            else:
                await asyncio.wait({task}, timeout=self.rng.uniform(0.0, 0.5))
            if not task.done():
                self.write(Note(words=f"{name} is cancelled"))
                task.cancel()
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            return None
        return (task.result(),)

    async def _work(self) -> None:
        world = self.around.world
        ends_at = world.now() + self.habits.life_s
        while not self._ending and (self.around.is_calm() or world.now() < ends_at):
            weights = CALM if self.around.is_calm() else WILD
            name = self.rng.choices(list(weights), list(weights.values()))[0]
            if name in self.around.without:
                continue
            if self.around.is_calm() and self.standing.paused:
                name = "resume"
            if self.around.is_calm() and not self.standing.topics:
                name = "subscribe to others"
            try:
                await self._do(name)
            except (ConsumerStoppedError, FencedInstanceIdError):
                raise
            except (KafkaError, IllegalStateError, Boom) as error:
                self.raised(name, error)
                await asyncio.sleep(0.02)

    @property
    def is_ending(self) -> bool:
        """Whether the application was told to end."""
        return self._ending

    def end(self) -> None:
        """Have the application end when it is done with what it does."""
        self._ending = True

    async def _do(self, name: str) -> None:
        if name != "get":
            self.standing.getting_since = None
        await self._actions[name](self)

    # --- The end --------------------------------------------------------------------------
    async def _end(self) -> None:
        how = "stop" if self._ending else self.habits.ending
        if self.habits.works_last and not self._ending and self.standing.is_running:
            try:
                await self._actions["work and block"](self)
            except (KafkaError, ConsumerStoppedError, IllegalStateError, Boom) as error:
                self.raised("at last", error)
        consumer = self.consumer
        self.standing.getting_since = None
        if how == "by an error":
            self.write(Stopping(how=how, owed={}))
            leaving = consumer.__aexit__(Boom, Boom(), None)
            await self.call("__aexit__", leaving, STOP_S + GRACE_S)
            self.write(Stopped(how=how, left=None, owed={}, is_told=False))
            return
        self.finish(how)
        owed = {tp: self.standing.next[tp] for tp in self.owned() if tp in self.standing.next}
        if not self.habits.auto_commit:
            owed = {}
        self.write(Stopping(how=how, owed=owed))
        left: Mapping[TopicPartition, OffsetAndMetadata]
        if how == "short stop":
            timeout_s = self.rng.choice((0.0, 0.01, 0.2))
            left = await self.call("stop", consumer.stop(timeout_s), timeout_s + GRACE_S)
        elif how == "cancelled stop":
            await self.cancelled("stop", consumer.stop, STOP_S + GRACE_S)
            left = await self.call("stop", consumer.stop(), STOP_S + GRACE_S)
        else:
            left = await self.call("stop", consumer.stop(), STOP_S + GRACE_S)
        offsets = {tp: offset.offset for tp, offset in left.items()}
        self.write(Stopped(how=how, left=offsets, owed=owed))
