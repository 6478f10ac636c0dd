"""The logs of a round on a cluster, and what can happen to them and their brokers."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignment.finished import decode
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.model.pairs.book import Book
from tests.model.pairs.journal import Commit, Journal
from tests.support.cluster import KafkaHandle, unique
from tests.support.inside import cluster

# The requests of members that are answered late, or whose answers are lost.

# Tells the journal what a group has committed by now.
Look = Callable[[], Awaitable[None]]
Trouble = Callable[[TopicPartition, str], Awaitable[Collection[TopicPartition] | None]]


class Logs(ABC):
    """Topics, their records and the commits of groups.

    Attributes:
        topics: The topics that groups read, with how many partitions each is created with.
    """

    kind: str
    # The least session timeout that its groups allow.
    session_s: float

    def __init__(
        self, kafka: KafkaHandle, book: Book, journal: Journal, rng: random.Random
    ) -> None:
        self.kafka = kafka
        self.book = book
        self.journal = journal
        self.rng = rng
        self.topics: dict[str, int] = {}

    async def create(self, name: str, partitions: int) -> str:
        """Create a topic that groups read."""
        name = await self.create_other(name, partitions)
        self.topics[name] = partitions
        self.book.open(name, partitions)
        return name

    @abstractmethod
    async def create_other(self, name: str, partitions: int) -> str:
        """Create a topic that groups write to."""

    @abstractmethod
    async def write(self, tp: TopicPartition, count: int) -> None:
        """Write records to a log."""

    @property
    @abstractmethod
    def troubles(self) -> Mapping[str, Trouble]:
        """What can happen to a partition and a group; each returns what it is about; None: all."""

    @abstractmethod
    def commits_of(self, group: str) -> AbstractAsyncContextManager[Look]:
        """Return what tells the journal what a group has committed, within a block."""

    def _see(
        self,
        group: str,
        tp: TopicPartition,
        entry: OffsetAndMetadata,
        life: int,
        topic_id: bytes | None,
    ) -> None:
        ranges: tuple[tuple[int, int], ...] = ()
        if entry.metadata and topic_id:
            finished = decode(topic_id, entry.offset, entry.metadata)
            if finished is not None:
                ranges = tuple((first, end) for first, end in finished.ranges)
        self.journal.see_commit(group, tp, Commit(entry.offset, ranges, life))

    # --- Troubles of every cluster ----------------------------------------------------------
    async def _delete_records(
        self, tp: TopicPartition, group: str
    ) -> Collection[TopicPartition] | None:
        """Have retention pass the positions of a partition's readers."""
        end = len(self.book.log(tp))
        if end - self.book.begins[tp] < 2:
            return ()
        begin = end - self.rng.randint(0, 2)
        self.book.delete_before(tp, begin)
        await self._delete_before(tp, begin)
        return {tp}

    @abstractmethod
    async def _delete_before(self, tp: TopicPartition, begin: int) -> None:
        """Have a log begin at an offset."""

    async def _recreate(self, tp: TopicPartition, group: str) -> Collection[TopicPartition] | None:
        return await self._recreate_with(tp.topic, self.topics[tp.topic])

    async def _recreate_smaller(
        self, tp: TopicPartition, group: str
    ) -> Collection[TopicPartition] | None:
        return await self._recreate_with(tp.topic, max(1, self.topics[tp.topic] - 1))

    @abstractmethod
    async def _recreate_with(self, topic: str, partitions: int) -> Collection[TopicPartition]:
        """Delete a topic, and create it again."""


class RealLogs(Logs):
    """Logs of a real Kafka of one node, under names that nobody else has."""

    kind = "real"
    session_s = 6.0

    def __init__(
        self, kafka: KafkaHandle, book: Book, journal: Journal, rng: random.Random
    ) -> None:
        super().__init__(kafka, book, journal, rng)
        # So that no record of a deleted topic is written into its successor.
        self._changing = asyncio.Lock()

    async def create_other(self, name: str, partitions: int) -> str:
        return await self.kafka.create_topic(unique(name), partitions)

    @asynccontextmanager
    async def commits_of(self, group: str) -> AsyncIterator[Look]:
        async with AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap_servers,
            group_id=group,
            enable_auto_commit=False,
            metadata_max_age_ms=200,
            allow_auto_create_topics=False,
        ) as reader:
            cluster(reader).watch("commits", self.topics)  # for their ids
            yield partial(self._look, reader, group)

    async def _look(self, reader: AIOKafkaConsumer, group: str) -> None:
        tps = sorted(self.book.partitions)
        if len(tps) < 2:  # the other topic is being deleted; of one there would be no dict
            return
        lives = {tp: self.book.lives[tp] for tp in tps}
        ids = {topic: cluster(reader).view.topic_id(topic) for topic in self.topics}
        try:
            found = await reader.committed(*tps, metadata=True)
        except KafkaError:
            return  # the coordinator moves, or a topic is not there
        for tp, entry in found.items():
            if entry is not None and self.book.lives.get(tp) == lives[tp]:
                self._see(group, tp, entry, lives[tp], ids[tp.topic])

    async def write(self, tp: TopicPartition, count: int) -> None:
        async with self._changing:
            if tp in self.book.ends:
                new = self.book.write(tp, count)
                await self.kafka.produce(*tp, [(each.key, each.value) for each in new])

    async def _delete_records(
        self, tp: TopicPartition, group: str
    ) -> Collection[TopicPartition] | None:
        async with self._changing:  # the book knows of records before they are written
            return await super()._delete_records(tp, group)

    async def _delete_before(self, tp: TopicPartition, begin: int) -> None:
        await self.kafka.delete_records(*tp, begin)

    async def _recreate_with(self, topic: str, partitions: int) -> Collection[TopicPartition]:
        async with self._changing:
            before = {tp for tp in self.book.partitions if tp.topic == topic}
            self.book.close(topic)
            self.journal.deleted(topic)
            await self.kafka.delete_topic(topic)
            await self.kafka.create_topic(topic, partitions)
            self.book.open(topic, partitions)
            self.journal.recreated(topic)
        return before

    @property
    def troubles(self) -> Mapping[str, Trouble]:
        return {
            "topic recreated": self._recreate,
            "topic recreated smaller": self._recreate_smaller,
            "retention past the position": self._delete_records,
        }


ALL_TROUBLES: Final = (
    "topic recreated",
    "topic recreated smaller",
    "retention past the position",
)
