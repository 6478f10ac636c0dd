"""Consumers that wait in a long poll and are moved, each by the calls that its application makes.

A mover is assigned the workload's partitions and waits at their ends. The last partition is the one
that is moved, to its last record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from benchmarks.measure import RunError, Workload

if TYPE_CHECKING:
    import confluent_kafka


class Handed(NamedTuple):
    """A record that the application was handed."""

    partition: int
    offset: int


class Mover(Protocol):
    """A consumer that waits at the ends of its partitions."""

    @property
    def version(self) -> str:
        """The client's version."""

    @property
    def last(self) -> Handed:
        """The record that the partition is moved to."""

    def seek(self) -> None:
        """Move the partition to its last record."""

    def pause(self) -> None:
        """Pause the partition."""

    def resume(self) -> None:
        """Read the partition again, from where it stands."""

    def unassign(self) -> None:
        """Give the partition up, and go on with the others."""

    def assign(self) -> None:
        """Read the partition, too, from its last record on."""

    async def get(self, timeout_s: float) -> Sequence[Handed]:
        """Wait for records in one get; return those that come, none when the time is up."""


def open_mover(name: str, workload: Workload) -> AbstractAsyncContextManager[Mover]:
    """Return the mover that the function of this module opens which `name` says."""
    return {"lite": lite, "aiokafka": aiokafka, "confluent": confluent}[name](workload)


# --- The asyncio clients -------------------------------------------------------------------
class Record(Protocol):
    """A record, of either client."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


# Mappings are invariant in their keys: one type will not do for two clients.
TP = TypeVar("TP")


class Consumer(Protocol[TP]):
    """What both consumers have in common."""

    def assign(self, partitions: Iterable[TP], /) -> None: ...
    def seek(self, partition: TP, offset: int, /) -> None: ...
    def pause(self, *partitions: TP) -> None: ...
    def resume(self, *partitions: TP) -> None: ...
    async def getmany(self, *, timeout_ms: int) -> Mapping[TP, Sequence[Record]]: ...


class AsyncioMover(Generic[TP]):
    """A client that has aiokafka's surface; its consumer is started."""

    def __init__(
        self, consumer: Consumer[TP], partitions: Sequence[TP], version: str, last: Handed
    ) -> None:
        self.version: Final = version
        self.last: Final = last
        self._consumer: Final = consumer
        *self._others, self._moved = partitions
        consumer.assign(partitions)

    def seek(self) -> None:
        self._consumer.seek(self._moved, self.last.offset)

    def pause(self) -> None:
        self._consumer.pause(self._moved)

    def resume(self) -> None:
        self._consumer.resume(self._moved)

    def unassign(self) -> None:
        self._consumer.assign(self._others)

    def assign(self) -> None:
        self._consumer.assign([*self._others, self._moved])
        self.seek()

    async def get(self, timeout_s: float) -> Sequence[Handed]:
        batches = await self._consumer.getmany(timeout_ms=round(timeout_s * 1000))
        return [
            Handed(record.partition, record.offset)
            for batch in batches.values()
            for record in batch
        ]


class ForgetfulMover(AsyncioMover[TP]):
    """One whose `assign` forgets all positions: the application seeks those that go on, too."""

    def unassign(self) -> None:
        super().unassign()
        self._seek_others()

    def assign(self) -> None:
        super().assign()
        self._seek_others()

    def _seek_others(self) -> None:
        for tp in self._others:
            self._consumer.seek(tp, self.last.offset + 1)


@asynccontextmanager
async def lite(workload: Workload) -> AsyncIterator[Mover]:
    """Move a consumer of ours, with its defaults."""
    from aiokafka_lite import AIOKafkaConsumer, TopicPartition, __version__

    partitions = [TopicPartition(*each) for each in workload.partitions()]
    async with AIOKafkaConsumer(bootstrap_servers=workload.bootstrap_servers) as consumer:
        yield AsyncioMover(consumer, partitions, __version__, _last(workload))


@asynccontextmanager
async def aiokafka(workload: Workload) -> AsyncIterator[Mover]:
    """Move one of aiokafka's, with its defaults."""
    from aiokafka import AIOKafkaConsumer, TopicPartition, __version__

    partitions = [TopicPartition(*each) for each in workload.partitions()]
    async with AIOKafkaConsumer(bootstrap_servers=workload.bootstrap_servers) as consumer:
        yield ForgetfulMover(consumer, partitions, __version__, _last(workload))


# --- confluent-kafka -----------------------------------------------------------------------
class ConfluentMover:
    """Calls that block the event loop, on which nothing else runs."""

    def __init__(
        self,
        consumer: confluent_kafka.Consumer,
        at_ends: list[confluent_kafka.TopicPartition],
        moved: confluent_kafka.TopicPartition,
        version: str,
        last: Handed,
    ) -> None:
        self.version: Final = version
        self.last: Final = last
        self._consumer: Final = consumer
        self._moved: Final = moved
        consumer.assign(at_ends)

    def seek(self) -> None:
        self._consumer.seek(self._moved)

    def pause(self) -> None:
        self._consumer.pause([self._moved])

    def resume(self) -> None:
        self._consumer.resume([self._moved])

    def unassign(self) -> None:
        self._consumer.incremental_unassign([self._moved])

    def assign(self) -> None:
        self._consumer.incremental_assign([self._moved])

    async def get(self, timeout_s: float) -> Sequence[Handed]:
        message = self._consumer.poll(timeout_s)
        if message is None:
            return ()
        partition, offset = message.partition(), message.offset()
        if message.error() is not None or partition is None or offset is None:
            raise RunError(f"poll: {message.error()}")
        return (Handed(partition, offset),)


@asynccontextmanager
async def confluent(workload: Workload) -> AsyncIterator[Mover]:
    """Move one of confluent-kafka's, with its defaults."""
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    from benchmarks.contestants.confluent import CONNECT_TIMEOUT_S, VERSION

    last = _last(workload)
    at_ends = [TopicPartition(*each, OFFSET_END) for each in workload.partitions()]
    moved = TopicPartition(workload.topics[0], *last)
    # It has a group's name always, of which it makes no use.
    settings = {"bootstrap.servers": workload.bootstrap_servers, "group.id": "bench-moves"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        consumer.list_topics(timeout=CONNECT_TIMEOUT_S)
        yield ConfluentMover(consumer, at_ends, moved, VERSION, last)
    finally:
        consumer.close()


def _last(workload: Workload) -> Handed:
    """Return the last record of the last partition: records go round all of them."""
    count = workload.partition_count
    return Handed(count - 1, workload.records // count - 1)
