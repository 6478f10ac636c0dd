"""The clients of a storm: a producer, two groups of readers, and a transactional copy."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeAlias

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.errors import CommitFailedError, KafkaError, TransactionAbortableError
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.simulation.history import Kind
from aiokafka_lite.structs import ConsumerRecord, RecordMetadata, TopicPartition
from tests.chaos.storm.journal import COPY, INPUT, PARTITIONS, READERS, Journal, value_of

Consumer: TypeAlias = AIOKafkaConsumer[bytes | None, bytes | None]
Life: TypeAlias = Callable[[], Awaitable[None]]
Record: TypeAlias = ConsumerRecord[bytes | None, bytes | None]

TICK_S: Final = 0.02
# While more records than these wait for acknowledgements, no others are sent.
MOST_PENDING: Final = 50_000
YIELDS_EACH: Final = 10
# Two of the readers have fewer requests, for the sake of the nodes.
LEAST_BYTES: Final = 65_536
COMMIT_S: Final = 1.0
REPLACED_S: Final = (15.0, 60.0)
# health() reports a standstill of 30 s, to within 5 s.
STANDSTILL_S: Final = 36.0


class _Listener(ConsumerRebalanceListener):
    def __init__(self, journal: Journal, who: str, commit: Life | None) -> None:
        self._journal, self._who, self._commit = journal, who, commit

    def _note(self, kind: Kind, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            self._journal.note(kind, self._who, tp.partition)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._note(Kind.ASSIGNED, assigned)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._note(Kind.REVOKED, revoked)
        if self._commit is not None:
            await self._commit()

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._note(Kind.LOST, lost)


class Clients:
    """All clients, in one event loop.

    Attributes:
        standstill_s: By reader, the longest time without progress while records waited.
        degraded_s: By reader, the seconds in which a member's health() was not "ok".
        problems: Records that were refused, and standstills with each member's health() "ok".
    """

    def __init__(self, bootstrap_servers: str, journal: Journal, rng: random.Random) -> None:
        self._where, self._journal, self._rng = bootstrap_servers, journal, rng
        self._consumers: defaultdict[str, set[Consumer]] = defaultdict(set)
        self.standstill_s, self.degraded_s = dict.fromkeys(READERS, 0.0), dict.fromkeys(READERS, 0)
        self.problems: list[str] = []
        self.has_ended = asyncio.Event()

    def start(self) -> list[asyncio.Task[None]]:
        """Start all readers. Each task runs until it is cancelled."""
        lives: list[Life] = [partial(self._run, "run-0"), partial(self._run, "run-1"), self._copy]
        lives += [partial(self._loop, "loop-0")]
        endless = (*map(self._live, lives), self._replace("loop-1"), self._watch())
        return [asyncio.ensure_future(each) for each in endless]

    async def produce(self, rate: int) -> None:
        """Send numbered records to all partitions in turn, until `has_ended` is set."""
        journal, total = self._journal, 0
        async with AIOKafkaProducer(bootstrap_servers=self._where, linger_ms=20) as producer:
            began = journal.now()
            while not self.has_ended.is_set():
                due = int((journal.now() - began) * rate) - total
                for _ in range(min(due, MOST_PENDING + sum(journal.acked) - total, rate // 4)):
                    number, index = divmod(total, PARTITIONS)
                    key = b"%d" % index  # with one for each partition, `run` keeps its order
                    sending = await producer.send(INPUT, value_of(number), key, index)
                    sending.add_done_callback(partial(self._answered, index, number))
                    journal.sent[index] = number + 1
                    total += 1
                await asyncio.sleep(TICK_S)
            await producer.flush()

    def _answered(self, index: int, number: int, answer: asyncio.Future[RecordMetadata]) -> None:
        if (error := answer.exception()) is not None:
            self.problems.append(f"{self._journal.now():.0f} s: refused: {error!r}")
            return
        self._journal.acked[index] += 1
        self._journal.note(Kind.ACKED, "producer", index, answer.result().offset, number)

    # --- Readers --------------------------------------------------------------------------
    async def _live(self, life: Life) -> None:
        """Read until cancelled. After an error, begin again as another process would."""
        while True:
            try:
                await life()
            except KafkaError as error:
                self._journal.errors[repr(error)] += 1
            await asyncio.sleep(0.5)

    @asynccontextmanager
    async def _consumer(self, who: str, **settings: Any) -> AsyncIterator[Consumer]:
        name = who.partition("-")[0]
        settings |= {"bootstrap_servers": self._where, "group_id": name, "client_id": who}
        consumer: Consumer = AIOKafkaConsumer(auto_offset_reset="earliest", **settings)
        commit = partial(self._commit, consumer) if name == "loop" else None
        listener = None if name == COPY else _Listener(self._journal, who, commit)
        consumer.subscribe([INPUT], listener=listener)
        self._consumers[name].add(consumer)
        try:
            async with consumer:
                yield consumer
        finally:
            self._consumers[name].discard(consumer)

    def _read(self, who: str, record: Record) -> None:
        number = self._journal.reach(who.partition("-")[0], record.partition, record.value)
        self._journal.note(Kind.RETURNED, who, record.partition, record.offset, number)

    async def _run(self, who: str) -> None:
        async def handle(record: Record) -> None:
            if record.offset % YIELDS_EACH == 0:
                await asyncio.sleep(0)
            self._read(who, record)

        async with self._consumer(who, fetch_min_bytes=LEAST_BYTES) as consumer:
            await consumer.run(handle)

    async def _loop(self, who: str) -> None:
        settings = {"group_protocol": "classic", "enable_auto_commit": False}
        async with self._consumer(who, **settings) as consumer:
            commits_at = 0.0
            try:
                async for record in consumer:
                    self._read(who, record)
                    if self._journal.now() > commits_at:
                        await self._commit(consumer)
                        commits_at = self._journal.now() + COMMIT_S
            finally:
                await self._commit(consumer)

    async def _commit(self, consumer: Consumer) -> None:
        try:
            await consumer.commit()
        except KafkaError as error:
            self._journal.errors[f"commit: {error!r}"] += 1

    async def _replace(self, who: str) -> None:
        """Replace a member of the loops now and then."""
        while True:
            member = asyncio.ensure_future(self._live(partial(self._loop, who)))
            try:
                await asyncio.sleep(self._rng.uniform(*REPLACED_S))
            finally:
                member.cancel()
                await asyncio.wait([member])

    async def _copy(self) -> None:
        settings = {"isolation_level": "read_committed", "fetch_min_bytes": LEAST_BYTES}
        producer = AIOKafkaProducer(bootstrap_servers=self._where, transactional_id=COPY)
        async with self._consumer(COPY, enable_auto_commit=False, **settings) as consumer, producer:
            while True:
                if not (found := await consumer.getmany(timeout_ms=500, max_records=2_000)):
                    continue
                try:
                    async with producer.transaction():
                        for tp, records in found.items():
                            for record in records:
                                await producer.send(COPY, record.value, record.key, tp.partition)
                        offsets = {tp: records[-1].offset + 1 for tp, records in found.items()}
                        group = consumer.group_metadata()
                        await producer.send_offsets_to_transaction(offsets, group)
                except (CommitFailedError, TransactionAbortableError) as error:
                    self._journal.errors[f"aborted: {error!r}"] += 1
                    await consumer.seek_to_committed()
                else:
                    for tp, records in found.items():
                        self._journal.reach(COPY, tp.partition, records[-1].value)

    # --- Health ---------------------------------------------------------------------------
    def verdicts(self, name: str) -> set[str]:
        """Return the verdicts of health() of a reader's members."""
        return {consumer.health().verdict for consumer in self._consumers[name]}

    async def _watch(self) -> None:
        stands = {(name, index): (0, 0.0) for name in READERS for index in range(PARTITIONS)}
        while True:
            await asyncio.sleep(1.0)
            now, verdicts = self._journal.now(), {name: self.verdicts(name) for name in READERS}
            for name in READERS:
                self.degraded_s[name] += verdicts[name] != {"ok"}
            for (name, index), (before, since) in stands.items():
                reached = self._journal.reached[name][index]
                if reached != before or reached >= self._journal.acked[index]:
                    stands[name, index] = reached, now
                    continue
                self.standstill_s[name] = max(self.standstill_s[name], now - since)
                if now - since > STANDSTILL_S and verdicts[name] == {"ok"}:
                    where = f"{name} stands still in partition {index} for {now - since:.0f} s"
                    self.problems.append(f"{now:.0f} s: {where}, and health() is ok")
