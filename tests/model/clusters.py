"""The cluster of a round: topics, records, commits as the log has them, and faults."""

from __future__ import annotations

import asyncio
import bisect
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Final

from aiokafka_lite import records
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, partition_for
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import for_code
from aiokafka_lite.protocol.codec import decode_key, decode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    GROUP_KEY_CLASSES,
    OffsetCommitKey,
    OffsetCommitValue,
)
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.structs import TopicPartition
from tests.model.ledger import Committed, Entry, Ledger
from tests.model.world import World
from tests.support.cluster import PRODUCE_BY_NAME, KafkaHandle, unique
from tests.support.waiting import until
from tests.support.wire import RawClient

# Milliseconds; clocks of a machine's processes agree, but for rounding.
CLOCK_SLACK_S: Final = 0.005
# What a fault may still do to a client after its end: a request waited for, a back-off.
AFTERMATH_S: Final = 8.0
# After so long a commit that has arrived was refused.
FORGOTTEN_S: Final = 60.0


def value_of(offset: int, size: int) -> bytes:
    """Return the value of the record at an offset."""
    return (b"%d " % offset).ljust(size, b".")


class ModelCluster(ABC):
    """What a round needs of a cluster. `sent` and `acknowledged` are where partitions end."""

    least_session_s: float
    most_session_s: float
    settle_s: float

    def __init__(self, world: World, ledger: Ledger, rng: random.Random) -> None:
        self.world = world
        self.ledger = ledger
        self.rng = rng
        self.sent: dict[TopicPartition, int] = {}
        self.acknowledged: dict[TopicPartition, int] = {}
        self.partitions: dict[str, int] = {}

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """Where it is."""

    @abstractmethod
    async def create_topic(self, name: str, partitions: int) -> str:
        """Create a topic; return its name."""

    @abstractmethod
    async def add_partition(self, topic: str) -> None:
        """Add a partition to a topic."""

    @abstractmethod
    async def produce(self, counts: dict[TopicPartition, int], size: int) -> None:
        """Write so many records to these partitions."""

    @abstractmethod
    async def read_commits(self, groups: Iterable[str]) -> None:
        """Put what groups have committed into the ledger, at the end of the round."""

    @abstractmethod
    def committed(self, group: str, tp: TopicPartition) -> int | None:
        """Return what a group has committed, 0 for nothing; None if that cannot be told now."""

    @abstractmethod
    async def begin_fault(self) -> float:
        """Have something happen to the cluster; return until when that may have effects."""

    @abstractmethod
    async def end_faults(self) -> None:
        """Let nothing happen any more."""

    def _know(self, topic: str, count: int) -> None:
        for index in range(self.partitions.get(topic, 0), count):
            tp = TopicPartition(topic, index)
            self.sent[tp] = self.acknowledged[tp] = 0
        self.partitions[topic] = count


def decoded_commit(
    key: bytes | None, value: bytes | None
) -> tuple[str, TopicPartition, OffsetCommitValue] | None:
    """Return group, partition and value of a record of committed offsets, None of others."""
    if key is None or value is None:
        return None
    whose = decode_key(GROUP_KEY_CLASSES, key)
    if not isinstance(whose, OffsetCommitKey):
        return None
    commit = decode_versioned(OffsetCommitValue, value)
    return whose.group, TopicPartition(whose.topic, whose.partition), commit


# --- Real -----------------------------------------------------------------------------------
class RealCommits(ModelCluster):
    """A real Kafka, as far as its log of commits is read."""

    least_session_s, most_session_s = 6.0, 9.0
    settle_s = 0.5

    def __init__(self, world: World, ledger: Ledger, rng: random.Random) -> None:
        super().__init__(world, ledger, rng)
        self._begins: dict[TopicPartition, int] = {}

    @abstractmethod
    async def until_coordinated(self, group: str) -> None:
        """Wait for the group's coordinator: for its first, a fresh Kafka makes the log."""

    async def watch_commits(self, groups: Collection[str]) -> None:
        """Note where the log of commits ends now."""
        for group in groups:
            await self.until_coordinated(group)
        async with self._reader() as reader:
            # A node that was made right now may not have heard of it.
            await until(lambda: bool(reader.partitions_for_topic(GROUP_METADATA_TOPIC)))
            known = reader.partitions_for_topic(GROUP_METADATA_TOPIC) or set()
            tps = {
                TopicPartition(GROUP_METADATA_TOPIC, partition_for(group, len(known)))
                for group in groups
            }
            self._begins = await reader.end_offsets(tps)

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[AIOKafkaConsumer]:
        reader = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers, client_id="reader of commits"
        )
        reader.assign([TopicPartition(GROUP_METADATA_TOPIC, 0)])
        async with reader:
            yield reader

    async def read_commits(self, groups: Iterable[str]) -> None:
        wanted = set(groups)
        entries = self.ledger.in_order()
        async with self._reader() as reader:
            ends = await reader.end_offsets(self._begins)
            reader.assign(self._begins)
            for tp, begin in self._begins.items():
                reader.seek(tp, begin)
            left = {tp for tp, end in ends.items() if end > self._begins[tp]}
            while left:
                for batch in (await reader.getmany(timeout_ms=1000)).values():
                    for record in batch:
                        found = decoded_commit(record.key, record.value)
                        if found is not None and found[0] in wanted:
                            self._note(found, record.offset, entries)
                for tp in tuple(left):
                    if await reader.position(tp) >= ends[tp]:
                        left.discard(tp)

    def _note(
        self,
        found: tuple[str, TopicPartition, OffsetCommitValue],
        log_offset: int,
        entries: list[Entry],
    ) -> None:
        group, tp, commit = found
        at = commit.commit_timestamp / 1000
        index = bisect.bisect_right(entries, at + CLOCK_SLACK_S, key=lambda entry: entry.at)
        self.ledger.write(
            Committed(
                order=entries[index - 1].order + 0.5,
                at=at,
                group=group,
                tp=tp,
                offset=commit.offset,
                mark=commit.metadata,
                log_offset=log_offset,
            )
        )

    def committed(self, group: str, tp: TopicPartition) -> int | None:
        return None


class RealCluster(RealCommits):
    """A real Kafka of one node, with topics and groups of names that nobody else has."""

    def __init__(
        self, world: World, ledger: Ledger, rng: random.Random, address: str, client: RawClient
    ) -> None:
        super().__init__(world, ledger, rng)
        self._handle = KafkaHandle("real", address)
        self._client = client

    @property
    def bootstrap_servers(self) -> str:
        return self._handle.bootstrap_servers

    async def create_topic(self, name: str, partitions: int) -> str:
        name = await self._handle.create_topic(unique(name), partitions)
        self._know(name, partitions)
        return name

    async def add_partition(self, topic: str) -> None:
        count = self.partitions[topic] + 1
        await self._handle.add_partitions(topic, count)
        self._know(topic, count)

    async def produce(self, counts: dict[TopicPartition, int], size: int) -> None:
        topics: dict[str, TopicProduceData] = {}
        now_ms = int(self.world.now() * 1000)  # older ones would be beyond their retention
        for tp, count in counts.items():
            first = self.sent[tp]
            rows = [(now_ms, None, value_of(first + n, size), ()) for n in range(count)]
            self.sent[tp] = first + count
            data = PartitionProduceData(
                index=tp.partition, records=memoryview(records.build_batch(rows))
            )
            topic = topics.setdefault(tp.topic, TopicProduceData(name=tp.topic, partition_data=[]))
            topic.partition_data.append(data)
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=list(topics.values()))
        answer = await self._client.request(request, PRODUCE_BY_NAME)
        for topic_answer in answer.responses:
            for result in topic_answer.partition_responses:
                if result.error_code:
                    raise for_code(result.error_code)(topic_answer.name)
                tp = TopicPartition(topic_answer.name, result.index)
                self.acknowledged[tp] = self.sent[tp]

    async def until_coordinated(self, group: str) -> None:
        request = FindCoordinatorRequest(coordinator_keys=[group])
        while (await self._client.request(request)).coordinators[0].error_code:  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.1)

    async def begin_fault(self) -> float:
        """Leave a Kafka that others use as it is."""
        return 0.0

    async def end_faults(self) -> None:
        """There are none."""


@asynccontextmanager
async def real(
    world: World, ledger: Ledger, rng: random.Random, address: str
) -> AsyncIterator[RealCluster]:
    """Use a real Kafka, for one round."""
    async with RawClient(address) as client:
        yield RealCluster(world, ledger, rng, address, client)
