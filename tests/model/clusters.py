"""The cluster of a round: topics, records, commits as the log has them, and faults."""

from __future__ import annotations

import asyncio
import bisect
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Final

from aiokafka_lite import errors, records
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, partition_for
from aiokafka_lite.broker.writing import NewRecord
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import for_code
from aiokafka_lite.protocol.codec import decode_key, decode_versioned
from aiokafka_lite.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from aiokafka_lite.protocol.messages.find_coordinator import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.group_records import (
    KEY_CLASSES,
    OffsetCommitKey,
    OffsetCommitValue,
)
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.records import RecordSet
from aiokafka_lite.structs import TopicPartition
from tests.model.ledger import Committed, Entry, Fault, Ledger
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


# --- Embedded -------------------------------------------------------------------------------
class EmbeddedCluster(ModelCluster):
    """A broker in the conductor's loop."""

    least_session_s, most_session_s = 1.0, 3.0
    settle_s = 0.0

    def __init__(
        self, world: World, ledger: Ledger, rng: random.Random, broker: Broker, *, has_faults: bool
    ) -> None:
        super().__init__(world, ledger, rng)
        self._broker = broker
        self._has_faults = has_faults
        self._read_to: dict[int, int] = {}
        # Commits that have arrived, and of which the log has no record yet.
        self._arrived: list[tuple[str, TopicPartition, int, str, Committed]] = []
        # The place of the latest commit that the log has.
        self._newest: dict[tuple[str, TopicPartition], float] = {}
        self._down: list[int] = []
        self._watch_requests()

    @property
    def bootstrap_servers(self) -> str:
        return self._broker.bootstrap_servers

    async def create_topic(self, name: str, partitions: int) -> str:
        self._broker.create_topic(name, partitions)
        self._know(name, partitions)
        return name

    async def add_partition(self, topic: str) -> None:
        count = self.partitions[topic] + 1
        self._broker.add_partitions(topic, count)
        self._know(topic, count)

    async def produce(self, counts: dict[TopicPartition, int], size: int) -> None:
        for tp, count in counts.items():
            first = self.sent[tp]
            new = [
                NewRecord(value_of(first + n, size), None, (), tp.partition) for n in range(count)
            ]
            self._broker.produce_all(tp.topic, new)
            self.sent[tp] = self.acknowledged[tp] = first + count
        self.look_for_commits()

    def _watch_requests(self) -> None:
        self._broker.on(OffsetCommitRequest, when=self._arrives).delay(0.0, times=None)
        self._broker.on(OffsetFetchRequest, when=self._is_asked).delay(0.0, times=None)

    def _arrives(self, context: RequestContext, request: Request[Response]) -> bool:
        self.look_for_commits()
        assert isinstance(request, OffsetCommitRequest)
        order, now = self.ledger.next_order(), self.world.now()
        for topic in request.topics:
            name = topic.name
            if not name:
                known = self._broker.topic_by_id(topic.topic_id)
                name = "" if known is None else known.name
            for partition in topic.partitions:
                tp = TopicPartition(name, partition.partition_index)
                entry = Committed(
                    order=order,
                    at=now,
                    group=request.group_id,
                    who=context.client_id or "",
                    tp=tp,
                    offset=partition.committed_offset,
                    mark=partition.committed_metadata or "",
                    log_offset=-1,
                )
                self._arrived.append((request.group_id, tp, entry.offset, entry.mark, entry))
        return False

    def _is_asked(self, context: RequestContext, request: Request[Response]) -> bool:
        self.look_for_commits()
        return False

    def look_for_commits(self) -> None:
        """Put commits that have reached the log since into the ledger, where they arrived."""
        topic = self._broker.topic(GROUP_METADATA_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            log = partition.log
            position = self._read_to.get(partition.index, 0)
            while position < log.high_watermark:
                view = log.read(position, 1 << 20)
                batch = RecordSet(topic.name, partition.index, view, fetch_offset=position)  # type: ignore[union-attr]
                for record in batch.take(1 << 30):
                    self._note(record.key, record.value, record.offset)
                position = batch.next_offset
            self._read_to[partition.index] = position

    def _note(self, key: bytes | None, value: bytes | None, log_offset: int) -> None:
        found = decoded_commit(key, value)
        if found is None:
            return
        group, tp, commit = found
        entry = self._arrival_of(group, tp, commit)
        entry.log_offset = log_offset
        if entry.order < self._newest.get((group, tp), 0.0):
            entry.order, entry.at = self.ledger.next_order(), self.world.now()
            entry.is_late = True
        self.ledger.write(entry)
        self._newest[group, tp] = entry.order
        forgotten_at = self.world.now() - FORGOTTEN_S
        self._arrived = [each for each in self._arrived if each[-1].at > forgotten_at]

    def _arrival_of(self, group: str, tp: TopicPartition, commit: OffsetCommitValue) -> Committed:
        """Return the latest that said so: earlier ones may have been refused."""
        for index, (*kind, entry) in reversed([*enumerate(self._arrived)]):
            if (*kind,) == (group, tp, commit.offset, commit.metadata):
                del self._arrived[index]
                return entry
        at, offset, mark = self.world.now(), commit.offset, commit.metadata
        return Committed(at=at, group=group, tp=tp, offset=offset, mark=mark, log_offset=-1)

    async def read_commits(self, groups: Iterable[str]) -> None:
        self.look_for_commits()

    def committed(self, group: str, tp: TopicPartition) -> int | None:
        return self._broker.committed(group).get(tp, 0)

    # Faults

    async def begin_fault(self) -> float:
        if not self._has_faults:
            return 0.0
        names = ["lost answer", "slow", "refused", "reset", "coordinator moves", "leader moves"]
        if len(self._broker.nodes) > 1 and not self._down:
            names += ["node down", "node hangs"]
        name = self.rng.choice(names)
        lasts_s = self.rng.uniform(0.2, 2.0)
        until = self.world.now() + lasts_s + AFTERMATH_S
        self.ledger.write(Fault(at=self.world.now(), name=name, until=until))
        await self._FAULTS[name](self, lasts_s)
        return until

    async def _lose_answers(self, lasts_s: float) -> None:
        api = self.rng.choice(("Heartbeat", "OffsetCommit", "Fetch", "JoinGroup", "SyncGroup"))
        times, handled = self.rng.randint(1, 2), self.rng.random() < 0.5
        if self.rng.random() < 0.5:
            self._broker.on(api).silence(times, handled=handled)
        else:
            self._broker.on(api).disconnect(times, handled=handled, reset=self.rng.random() < 0.5)

    async def _be_slow(self, lasts_s: float) -> None:
        api = self.rng.choice((None, "Heartbeat", "OffsetCommit", "OffsetFetch", "SyncGroup"))
        self._broker.on(api).delay(self.rng.uniform(0.02, 0.4), self.rng.randint(1, 5))

    async def _refuse(self, lasts_s: float) -> None:
        api, *kinds = self.rng.choice(REFUSALS)
        kind = self.rng.choice(kinds)
        assert isinstance(kind, type)
        self._broker.on(str(api)).fail(kind, self.rng.randint(1, 3))

    async def _reset(self, lasts_s: float) -> None:
        self._broker.on().disconnect(self.rng.randint(1, 4), reset=self.rng.random() < 0.5)

    async def _move_coordinator(self, lasts_s: float) -> None:
        if self._broker.has_topic(GROUP_METADATA_TOPIC):
            tp = TopicPartition(GROUP_METADATA_TOPIC, 0)
            self._move(tp)

    async def _move_leader(self, lasts_s: float) -> None:
        self._move(self.rng.choice(sorted(self.sent)))

    def _move(self, tp: TopicPartition) -> None:
        others = [n.id for n in self._broker.live_nodes if n.id != self._broker.leader_of(tp)]
        if others:
            self._broker.move_leader(tp, self.rng.choice(others))

    async def _stop_node(self, lasts_s: float) -> None:
        node_id = self.rng.choice(sorted(self._broker.nodes))
        self._down.append(node_id)
        await self._broker.stop_node(node_id, clean=self.rng.random() < 0.5)
        await asyncio.sleep(lasts_s)
        await self._start_nodes()

    async def _start_nodes(self) -> None:
        for node_id in tuple(self._down):
            self._down.remove(node_id)
            await self._broker.start_node(node_id)

    async def _hang_node(self, lasts_s: float) -> None:
        node_id = self.rng.choice(sorted(self._broker.nodes))
        with self._broker.on(node=node_id).silence(None, handled=self.rng.random() < 0.5):
            await asyncio.sleep(lasts_s)

    _FAULTS: Final = {
        "lost answer": _lose_answers,
        "slow": _be_slow,
        "refused": _refuse,
        "reset": _reset,
        "coordinator moves": _move_coordinator,
        "leader moves": _move_leader,
        "node down": _stop_node,
        "node hangs": _hang_node,
    }

    async def end_faults(self) -> None:
        await self._start_nodes()
        self._broker.faults.clear()
        self._watch_requests()


REFUSALS: Final[tuple[tuple[str | type[errors.BrokerResponseError], ...], ...]] = (
    ("Heartbeat", errors.NotCoordinatorError, errors.CoordinatorNotAvailableError),
    ("OffsetCommit", errors.NotCoordinatorError, errors.CoordinatorLoadInProgressError),
    ("OffsetFetch", errors.NotCoordinatorError, errors.CoordinatorLoadInProgressError),
    ("JoinGroup", errors.NotCoordinatorError, errors.CoordinatorLoadInProgressError),
    ("SyncGroup", errors.NotCoordinatorError, errors.CoordinatorNotAvailableError),
    ("Fetch", errors.NotLeaderForPartitionError, errors.ReplicaNotAvailableError),
    ("ListOffsets", errors.NotLeaderForPartitionError),
    ("FindCoordinator", errors.CoordinatorNotAvailableError),
)


def decoded_commit(
    key: bytes | None, value: bytes | None
) -> tuple[str, TopicPartition, OffsetCommitValue] | None:
    """Return group, partition and value of a record of committed offsets, None of others."""
    if key is None or value is None:
        return None
    whose = decode_key(KEY_CLASSES, key)
    if not isinstance(whose, OffsetCommitKey):
        return None
    commit = decode_versioned(OffsetCommitValue, value)
    return whose.group, TopicPartition(whose.topic, whose.partition), commit


@asynccontextmanager
async def embedded(
    world: World, ledger: Ledger, rng: random.Random, *, nodes: int, has_faults: bool
) -> AsyncIterator[EmbeddedCluster]:
    """Run a broker in this loop, for one round."""
    async with Broker(
        group_consumer_session_timeout_ms=3000,
        nodes=nodes,
        rng=random.Random(rng.random()),
        clock=lambda: 1_700_000_000_000 + int(world.now() * 1000),
        group_min_session_timeout_ms=100,
        offsets_topic_partitions=1,
        request_log_size=0,
        stop_timeout_s=1.0,
    ) as broker:
        yield EmbeddedCluster(world, ledger, rng, broker, has_faults=has_faults)
        assert broker.failure is None, broker.failure


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
