"""One member: a consumer, the tasks that read from it, and an application that does other things.

What it does to the records is written into the journal at the moment itself, after all events
that the consumer has published before.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiokafka_lite import AIOKafkaProducer, events
from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.caller import as_if_running
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    FencedInstanceIdError,
    IllegalStateError,
    KafkaError,
)
from aiokafka_lite.events import EventSubscription
from aiokafka_lite.processing import DeadLetters
from aiokafka_lite.producing.producer import TransactionBlock
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.model.pairs.book import number_in
from tests.model.pairs.journal import Journal, short
from tests.model.pairs.table import Table
from tests.model.pairs.ways import Way
from tests.model.world import Actor, World
from tests.support.inside import commit_count

Record = ConsumerRecord[Any, Any]
LOOK_EVERY_S: Final = 0.02
SOUGHT_WITHIN_S: Final = 2.0
# A look-up that takes no longer takes no time.
LOOKED_UP_S: Final = 0.001
STOP_S: Final = 10.0
# A rebalance waits at least for so long for records to be processed.
HOLD_S: Final = 3.0
# For so long a partition with records may give none while health() says that all is well.
SILENT_S: Final = 30.0
NAMED: Final = r"topic='({0})', partition=(\d+)|\b({0})[-/](\d+)\b"


class Boom(Exception):
    """The application's own error, by which `async with` is left."""


class Item(NamedTuple):
    """A record that was returned, and which assignment of its partition it is of."""

    number: int
    tp: TopicPartition
    age: int


@dataclass
class Sought:
    """A seek: in which assignment of the partition, where to, and from where.

    Records of other keys, and those that were on their way, may come before the one sought. None
    from where it left is one of those: when the first of them came is noted.
    """

    age: int
    offset: int
    left_at: int
    sought_at: float
    passed_at: float | None = None


@dataclass
class Around:
    """What the members of one group have in common."""

    world: World
    journal: Journal
    table: Table
    bootstrap_servers: str
    group: str
    protocol: str
    topics: tuple[str, ...]
    settings: Mapping[str, object]
    session_s: float
    # What members write of the records: outputs of transactions, and dead letters.
    outputs: str
    letters: str
    tps: Callable[[], list[TopicPartition]]
    begin_of: Callable[[TopicPartition], int]
    end_of: Callable[[TopicPartition], int]
    is_calm: Callable[[], bool]
    events: Collection[str] = ()
    # Those that come more often than others in this round.
    favoured: Collection[str] = ()


class Hand:
    """Records that one task has in hand: from the read that returns them until they are done."""

    def __init__(self, reader: Reader) -> None:
        self._member = reader.member
        self._rng = reader.rng
        self.since = self._member.around.world.now()
        self.is_ending = False
        self.items: list[Item] = []
        self._member.hands[self] = None

    def add(self, tp: TopicPartition, offset: int, value: bytes | None) -> None:
        """Take a record that was returned just now."""
        member, number = self._member, number_in(value)
        self.items.append(Item(number, tp, member.ages[tp]))
        member.returned_at[tp] = member.around.world.now()
        member.see_sought(tp, offset)
        member.next[tp] = offset + 1
        member.note(f"gets {short(tp)} {offset} (number {number})")
        member.journal.return_(
            member.around.group,
            member.name,
            tp,
            offset,
            number,
        )

    async def work(self) -> None:
        """Take some time, as an application does."""
        if self.items:
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.01, 0.03, 0.1, 0.3)))

    def may_be_finished(self) -> None:
        """Note that a commit, or a transaction, with these begins: it may come to its end."""
        self.is_ending = True
        numbers = [item.number for item in self.items]
        self._member.journal.may_be_finished(self._member.around.group, numbers)

    def is_not_finished(self) -> None:
        """Note that this commit, or transaction, has failed for certain."""
        numbers = [item.number for item in self.items]
        self._member.journal.is_not_finished(self._member.around.group, numbers)

    def finish(self, *, settles: bool = True) -> None:
        """Note that all is done with these."""
        member = self._member
        if not self.items:
            self.drop()
            return
        member.drain()
        kept = {item.number for item in self.items if member.holds(item)}
        numbers = {item.number for item in self.items}
        journal, group = member.journal, member.around.group
        member.note(f"finishes {sorted(numbers)}, holds {len(kept)} of them")
        journal.finish(group, numbers - kept, settles=False)
        journal.finish(group, kept, settles=settles and member.commits_by_itself)
        if settles and not member.commits_by_itself:
            member.unsettled.update(item for item in self.items if item.number in kept)
        self.drop()

    def drop(self) -> None:
        """Have nothing in hand any more."""
        self.items = []
        self._member.hands.pop(self, None)


class Reader:
    """One task that reads."""

    def __init__(self, member: Member, number: int) -> None:
        self.member = member
        self.consumer = member.consumer
        self.rng = random.Random(f"{member.seed} reader {number}")
        self.iterator = aiter(member.consumer)
        self.turn: asyncio.Task[None] | None = None
        # Its latest one, which may be over.
        self.transaction: TransactionBlock[Any, Any] | None = None
        self._hand: Hand | None = None
        self._limit: Any = None

    # --- Records, for ways ------------------------------------------------------------------
    def hold(self, *records: Record) -> Hand:
        """Take records that were returned just now."""
        self.member.drain()
        hand = self._hand = Hand(self)
        for record in records:
            hand.add(TopicPartition(record.topic, record.partition), record.offset, record.value)
        return hand

    def hold_all(self, found: Mapping[TopicPartition, Iterable[Record]]) -> Hand:
        """Take what a read returned just now."""
        return self.hold(*(record for records in found.values() for record in records))

    def finish(self) -> None:
        """Note that the next read begins, which says that the last one's records are processed."""
        if self._hand is not None:
            self._hand.finish()
            self._hand = None

    def check_order(self, record: Record, *, by_key: bool) -> None:
        """Hold a record that a handler begins with against those before it."""
        member = self.member
        number = number_in(record.value)
        member.journal.check_order(member.around.group, member.name, number, by_key=by_key)

    # --- Turns ------------------------------------------------------------------------------
    async def read(self) -> None:
        """Take turns until the consumer is stopped."""
        member = self.member
        while not member.is_over:
            turn = self.turn = asyncio.ensure_future(self._one_turn())
            try:
                await asyncio.wait({turn})
            except asyncio.CancelledError:
                turn.cancel()
                await asyncio.wait({turn})
                raise
            if turn.cancelled():
                continue
            error = turn.exception()
            if error is None or isinstance(error, asyncio.TimeoutError):
                continue
            if isinstance(error, ConsumerStoppedError):
                return
            if not isinstance(error, (KafkaError, IllegalStateError)):
                raise error
            member.raised("a turn", error, member.known)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _one_turn(self) -> None:
        async with timeout(None) as self._limit:
            await self.member.way.turn(self)

    def expire(self, after_s: float) -> None:
        """Let the timeout around the turn pass soon."""
        at = asyncio.get_running_loop().time() + after_s
        # async-timeout, before Python 3.11, has another name for it.
        reschedule = getattr(self._limit, "reschedule", None) or self._limit.update
        with contextlib.suppress(RuntimeError):  # it is over already
            reschedule(at)


class Member:
    """The application of one member; `live` is its whole life."""

    def __init__(
        self,
        name: str,
        way: Way,
        around: Around,
        seed: str,
        *,
        act: Callable[[Member], Any],
        commits_by_itself: bool,
        transactional_id: str,
    ) -> None:
        self.name = name
        self.way = way
        self.around = around
        self.seed = seed
        self.journal = around.journal
        self.rng = random.Random(seed)
        self.actor: Actor | None = None
        self.consumer: AIOKafkaConsumer
        self.producer: AIOKafkaProducer | None = None
        # Whether what is finished is committed without the application's doing.
        self.commits_by_itself = commits_by_itself
        self.transactional_id = transactional_id
        self._act = act
        self._named = re.compile(NAMED.format("|".join(map(re.escape, around.topics))))
        self._events: EventSubscription
        self.hands: dict[Hand, None] = {}  # in their order, as courses are to be the same again
        self.readers: list[Reader] = []
        self.owned: frozenset[TopicPartition] = frozenset()
        # All partitions that it ever had.
        self.known: set[TopicPartition] = set()
        # How often each partition came and went.
        self.ages: Counter[TopicPartition] = Counter()
        self.unsettled: set[Item] = set()
        self.next: dict[TopicPartition, int] = {}
        self._sought: dict[TopicPartition, Sought] = {}
        self.returned_at: dict[TopicPartition, float] = {}
        self.paused: set[TopicPartition] = set()
        # The numbers of records whose handlers have failed for good.
        self._bad: dict[tuple[TopicPartition, int], int] = {}
        self.ending = ""
        # An error ends it: what its tasks say from now on is too late.
        self.is_leaving = False
        # It gives partitions up by itself, whatever its tasks have in hand.
        self.is_giving_up = False
        self.is_over = False
        self.is_reading = False
        self.blocked_at = 0.0
        self.generation = -1

    # --- Notes ----------------------------------------------------------------------------
    def note(self, words: str) -> None:
        """Keep a line."""
        self.journal.note(self.name, words)

    def violate(self, rule: str, words: str) -> None:
        """Note that a rule is broken, unless this one was killed."""
        if self.actor is None or not self.actor.is_killed:
            self.journal.violate(rule, f"{self.name} ({self.way.name})", words)

    def in_hand(self) -> set[TopicPartition]:
        """Return the partitions of which it has records in hand."""
        return {item.tp for hand in self.hands for item in hand.items if self.holds(item)}

    def meet(self, event: str, tps: Collection[TopicPartition] | None = None) -> None:
        """Count an event that happens now, if records (of these partitions) are in hand."""
        in_hand = self.in_hand()
        if in_hand and (tps is None or not in_hand.isdisjoint(tps)):
            self.around.table.met(self.way.name, event)

    def raised(self, where: str, error: BaseException, about: Collection[TopicPartition]) -> None:
        """Note an error that the application got, and hold the partitions that it names."""
        self.note(f"{where}: {error!r:.300}")
        named = {
            TopicPartition(found[1] or found[3], int(found[2] or found[4]))
            for found in self._named.finditer(str(error))
        }
        if others := named - set(about):
            words = f"{where}: {error!r:.300} names {sorted(map(short, others))}"
            self.violate("names what it has nothing to do with", words)

    def sought(self, tp: TopicPartition, offset: int) -> None:
        """Note that the application asks for the records of a partition from an offset on."""
        self.note(f"seeks {offset} of {short(tp)}")
        self.journal.seek(self.around.group, tp, offset)
        self.ages[tp] += 1  # what was returned before is no promise any more
        self._sought[tp] = Sought(
            self.ages[tp], offset, self.next.get(tp, 0), self.around.world.now()
        )
        self.next[tp] = offset

    def found(self, tp: TopicPartition, offset: int) -> None:
        """Note that a seek was looked up: what was returned meanwhile may be returned again."""
        sought, was_returned = self._sought.get(tp), self.next.get(tp, offset) != offset
        if sought is not None and (
            was_returned or self.around.world.now() > sought.sought_at + LOOKED_UP_S
        ):
            self.journal.seek(self.around.group, tp, offset)
            if sought.age != self.ages[tp]:
                del self._sought[tp]  # the partition has gone meanwhile
                return
            self.ages[tp] += 1
            sought.age = self.ages[tp]

    def see_sought(self, tp: TopicPartition, offset: int) -> None:
        """Note a record that is returned after a seek of its partition."""
        sought = self._sought.get(tp)
        if sought is None:
            return
        # Records before the log's present begin may have been buffered.
        wanted = max(sought.offset, self.around.begin_of(tp))
        is_found = sought.offset <= offset <= wanted
        if sought.age != self.ages[tp] or is_found or wanted >= sought.left_at:
            del self._sought[tp]
        elif offset >= sought.left_at and sought.passed_at is None:
            sought.passed_at = self.around.world.now()

    def check_sought(self) -> None:
        """Find records that were asked for by a seek, and did not come though later ones have."""
        for tp, sought in list(self._sought.items()):
            is_recreated = self.journal.is_recreated_since(tp.topic, sought.sought_at)
            if is_recreated or not self.journal.has_partition(tp):
                del self._sought[tp]
                continue
            is_late = sought.passed_at is not None and (
                self.around.world.now() > sought.passed_at + SOUGHT_WITHIN_S
            )
            if is_late and sought.age == self.ages[tp] and tp not in self.in_hand():
                del self._sought[tp]
                words = f"{short(tp)}: {sought.offset} never came after a seek there"
                self.violate("passed over after a seek", words)

    def holds(self, item: Item) -> bool:
        """Whether a record's partition has been assigned ever since it was returned."""
        return not self.is_leaving and item.tp in self.owned and self.ages[item.tp] == item.age

    # --- The consumer's events --------------------------------------------------------------
    def drain(self) -> None:
        """Take in the events that are there."""
        while True:
            step = self._events.__anext__()
            try:
                step.send(None)
            except StopIteration as found:
                self._take_in(found.value)
            except StopAsyncIteration:
                return
            else:
                step.close()
                return

    async def _watch(self) -> None:
        async for event in self._events:
            self._take_in(event)

    def _take_in(self, event: events.ConsumerEvent) -> None:
        now, protocol = self.around.world.now(), self.around.protocol
        if isinstance(event, events.Assigned) and protocol == "none":
            pass  # the application knew
        elif isinstance(event, events.Assigned):
            new = event.partitions - self.owned
            if event.generation != self.generation:
                self.meet(f"rebalance: kept, {protocol}", event.partitions & self.owned)
            self.generation = event.generation
            self.owned |= event.partitions
            self.known |= event.partitions
            self._go(self.owned - event.partitions)
            for tp in new:
                self.ages[tp] += 1
                self.returned_at[tp] = now
                self.next.pop(tp, None)
            self.note(f"is assigned {sorted(map(short, event.partitions))} in {event.generation}")
        elif isinstance(event, events.WorkAwaited):
            self.meet(f"rebalance: moved, {protocol}", event.offsets.keys())
            self.note(str(event))
        elif isinstance(event, (events.Revoked, events.Lost)):
            if protocol != "none" and not self.ending:
                how = "moved" if isinstance(event, events.Revoked) else "lost"
                self.meet(f"rebalance: {how}, {protocol}", event.partitions)
            if isinstance(event, events.Lost):
                # Nothing could be committed any more.
                self.journal.excuse(self.around.group, EXCUSED_S)
            self.note(f"{event.name} {sorted(map(short, event.partitions))}: {event.reason}")
            if isinstance(event, events.Revoked):
                self._check_waited(event.partitions)
            self._go(event.partitions)
        elif isinstance(event, events.RecordDead):
            self.note(f"{event}"[:300])
            if self.way.kind == "records":
                dead = self._bad[event.tp, event.offset]
                self.journal.groups[self.around.group].dead.add(dead)
        elif isinstance(event, events.TaskFailed):
            if not isinstance(event.error, FencedInstanceIdError):
                self.violate("a task died", f"{event.task}: {event.error!r}")
        else:
            self.note(f"{event.as_dict()}"[:300])

    def _go(self, tps: Collection[TopicPartition]) -> None:
        if self.way.reading_finishes and self.way.tasks > 1:
            # What is finished behind another task's record is not committed.
            for tp in self.owned.intersection(tps):
                self.journal.unsettle(self.around.group, tp, self.first_in_hand(tp))
        self.owned -= frozenset(tps)
        self.paused -= set(tps)
        for tp in tps:
            self.ages[tp] += 1

    def _check_waited(self, tps: Collection[TopicPartition]) -> None:
        """Find partitions that go although records of them are being processed."""
        now, journal = self.around.world.now(), self.journal
        if self.way.reading_finishes or self.ending or self.is_giving_up:
            return
        if journal.is_excused(self.around.group):
            return
        for hand in self.hands:
            held = [item for item in hand.items if item.tp in tps and self.holds(item)]
            taken = {item.tp for item in held if not journal.is_gone(item.number)}
            taken = {tp for tp in taken if not journal.is_recreated(tp.topic)}
            if taken and not hand.is_ending and now < hand.since + HOLD_S:
                words = f"{sorted(map(short, taken))}, in hand since {hand.since:.3f}"
                self.violate("not waited for", words)

    def let_go(self, tps: Collection[TopicPartition]) -> None:
        """Note that the application itself gives partitions up."""
        self.drain()
        self._go(tps)

    def finish_all(self) -> None:
        """Note that the application says it is done with all that was returned."""
        for hand in tuple(self.hands):
            hand.finish()

    def first_in_hand(self, tp: TopicPartition) -> int:
        """Return the first offset of a partition that it has in hand, of the present log."""
        numbers = [
            item.number
            for hand in self.hands
            for item in hand.items
            if item.tp == tp and self.holds(item) and self.journal.is_in_log(item.number)
        ]
        return min(map(self.journal.offset_of, numbers), default=self.around.end_of(tp))

    async def commit(self) -> None:
        """Commit what is processed."""
        if self.way.commit_finishes:
            self.finish_all()
        self.drain()
        before = {item for item in self.unsettled if self.holds(item)}
        await self.consumer.commit()
        self.drain()
        kept = {item.number for item in before if self.holds(item)}
        self.unsettled -= before
        self.journal.finish(self.around.group, kept, settles=True)

    # --- For ways -------------------------------------------------------------------------
    @property
    def outputs(self) -> str:
        return self.around.outputs

    def dead_letters(self, kind: str) -> DeadLetters | None:
        """Return where bad records go."""
        if kind == "transactional":
            return DeadLetters(self.around.letters, transactional_id=self.transactional_id)
        return DeadLetters(self.around.letters)

    def expect_letter(self, record: Record) -> None:
        """Note that a handler can do nothing with a record."""
        tp = TopicPartition(record.topic, record.partition)
        self._bad[tp, record.offset] = number_in(record.value)

    async def working_producer(self) -> AIOKafkaProducer:
        """Return a producer that can go on: another one after an error that is final."""
        if self.producer is not None and self.producer.fatal_error is not None:
            self.note(f"a producer is over: {self.producer.fatal_error!r:.200}")
            old, self.producer = self.producer, None
            await old.stop()
        if self.producer is None:
            producer = self.new_producer()
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            self.producer = producer
        return self.producer

    def new_producer(self) -> AIOKafkaProducer:
        """Return a producer with its transactional id."""
        return AIOKafkaProducer(
            bootstrap_servers=self.around.bootstrap_servers,
            client_id=self.name,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=10_000,
            request_timeout_ms=8_000,
        )

    # --- Life -----------------------------------------------------------------------------
    async def live(self) -> None:
        """Start, read and do other things, end."""
        around = self.around
        make: Any = AIOKafkaConsumer  # its settings are a dict
        self.consumer = make(
            bootstrap_servers=around.bootstrap_servers,
            client_id=self.name,
            group_id=around.group,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=200,
            metadata_max_age_ms=1_000,
            allow_auto_create_topics=False,  # the conductor creates again what it deletes
            **{
                "enable_auto_commit": self.commits_by_itself,
                "auto_commit_interval_ms": self.rng.choice((50, 200, 1000)),
                **around.settings,
                **self.way.settings,
            },
        )
        self._events = self.consumer.events(max_buffered=100_000)
        self.subscribe()
        watching = asyncio.ensure_future(self._watch())
        tasks: list[asyncio.Task[None]] = []
        try:
            async with self.consumer:
                self.readers = [Reader(self, number) for number in range(self.way.tasks)]
                self.is_reading = True
                tasks += [asyncio.ensure_future(reader.read()) for reader in self.readers]
                tasks += [asyncio.ensure_future(self._count_commits())]
                await self._be_busy()
                await self._end()
        except Boom:
            pass
        except ConsumerStoppedError:
            pass
        finally:
            self.is_over, self.is_reading = True, False
            self.consumer._closed = True
            for task in tasks:
                task.cancel()
            try:
                if tasks:  # a transaction that is being committed has an outcome first
                    await asyncio.wait(tasks)
            finally:
                watching.cancel()
                self.drain()
                if self.producer is not None:
                    await self.producer.stop()
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def subscribe(self) -> None:
        """Subscribe, or assign all, as the group does it."""
        if self.around.protocol == "none":
            self.assign(self.around.tps())
        else:
            self.consumer.subscribe(self.around.topics)

    def assign(self, tps: Collection[TopicPartition]) -> None:
        """Assign partitions, which no event tells of."""
        new = frozenset(tps) - self.owned
        self.let_go(self.owned - frozenset(tps))
        self.consumer.assign(tps)
        self.owned |= new
        self.known |= new
        now = self.around.world.now()
        for tp in new:
            self.ages[tp] += 1
            self.returned_at[tp] = now
            self.next.pop(tp, None)

    async def _be_busy(self) -> None:
        """Do other things until it is to end."""
        while not self.ending:
            await self._pause(self.rng.uniform(0.1, 0.6))
            if self.around.is_calm() or self.ending:
                if self.around.protocol == "none" and not self.owned.issuperset(self.around.tps()):
                    self.assign(self.around.tps())  # a topic has more partitions again
                if self.paused:
                    self.consumer.resume(*self.paused & self.consumer.assignment())
                    self.paused.clear()
                if self.commits_by_itself or self.ending:
                    continue
            try:
                await (self.commit() if self.around.is_calm() else self._act(self))
            except (KafkaError, IllegalStateError) as error:
                if isinstance(error, ConsumerStoppedError):
                    return
                self.raised("an event", error, self.known)

    async def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        while not self.ending and loop.time() < ends_at:  # noqa: ASYNC110 -- another loop ends it
            await asyncio.sleep(LOOK_EVERY_S)

    async def _end(self) -> None:
        await self._until_in_hand()
        self.note(f"ends by {self.ending}")
        if not self.around.is_calm():
            self.meet(self.ending)
        if self.ending == "error out of async with":
            self.is_leaving = True
            if self.way.reading_finishes and self.way.tasks > 1:
                # What is finished behind another task's record is not committed.
                self.journal.excuse(self.around.group, EXCUSED_S)
            raise Boom
        if self.way.reading_finishes:
            self.finish_all()
        if left := await self.consumer.stop(STOP_S):
            self.note(f"could not commit {left}")
            self.journal.excuse(self.around.group, EXCUSED_S)

    async def _until_in_hand(self) -> None:
        for _ in range(50):
            if self.in_hand() or self.around.is_calm():
                break
            await asyncio.sleep(0.01)

    async def _count_commits(self) -> None:
        """Count the commits that the consumer makes by itself."""
        count = 0
        while self.commits_by_itself:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                before, count = count, commit_count(self.consumer)
            except ConsumerStoppedError:
                return
            if count > before and not self.around.is_calm():
                self.meet("auto-commit")

    def explain(self) -> str:
        """Return what the consumer says of itself; called by the conductor."""
        assert self.actor is not None
        with as_if_running(self.actor.loop):
            said = [self.consumer.explain(tp) for tp in sorted(self.owned)]
            return f"{self.name} ({self.way.name}): {self.consumer.health().reasons} {said}"

    # --- Health ---------------------------------------------------------------------------
    def check_health(self) -> None:
        """Hold what health() says against what was returned; called by the conductor."""
        actor, now = self.actor, self.around.world.now()
        if actor is None or actor.is_blocked or actor.is_killed or not self.is_reading:
            return
        self.check_sought()
        for tp in self.owned:
            lag = self.around.end_of(tp) - self.next.get(tp, 0)
            since = max(self.returned_at.get(tp, now), self.blocked_at)
            if (
                lag <= 0
                or tp in self.paused
                or any(tp in (i.tp for i in h.items) for h in self.hands)
            ):
                self.returned_at[tp] = now
            elif now - since > SILENT_S:
                with as_if_running(actor.loop):
                    position = self.consumer.positions().get(tp)
                    health, words = self.consumer.health(), self.consumer.explain(tp)
                self.returned_at[tp] = now
                is_at_end = position is not None and position.offset >= self.around.end_of(tp)
                if health.verdict == "ok" and not is_at_end:
                    self.violate("silent and ok", f"{short(tp)}: {words}")


# After a kill, a missed session, a stop that was cut short: as long as a group may take over.
EXCUSED_S: Final = 25.0
