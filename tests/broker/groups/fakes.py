"""A log in memory, a broker's services and invented time, for tests of the coordinator alone."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine, Mapping, Sequence
from typing import TypeVar

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.configs import ShareGroupSettings
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.kip848.machine import ConsumerGroupSettings
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.topics import NewTopic
from aiokafka_lite.errors import NoError
from aiokafka_lite.protocol.messages.group_members import (
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from aiokafka_lite.records import iter_batches, patch_batch

T = TypeVar("T")

# A node without a rack.
ELSEWHERE = 9


class _Jump(selectors.SelectSelector):
    """Instead of waiting, says how long it was asked to wait."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.skipped_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer when nothing is left to do."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.skipped_s


def run_in_virtual_time(coro: Coroutine[object, None, T]) -> T:
    """Run a coroutine to its end; its sleeps and timers cost nothing."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coro)
    finally:
        loop.close()


class MemoryLog:
    """One partition's batches; ``failure`` is raised by the next appends."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.log_start_offset = 0
        self.high_watermark = 0
        self.failure: Exception | None = None

    def append(self, batch: bytes) -> int:
        if self.failure is not None:
            raise self.failure
        base_offset = self.high_watermark
        patched = bytearray(batch)
        patch_batch(patched, base_offset=base_offset, leader_epoch=0)
        ((header, _),) = iter_batches(memoryview(patched))
        self.batches.append((base_offset, bytes(patched)))
        self.high_watermark = header.last_offset + 1
        return base_offset

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Return one batch, however small ``max_bytes`` is."""
        return memoryview(next(b for start, b in reversed(self.batches) if start <= offset))


class _NextIds(random.Random):
    """Its bytes are those of `next_id`, or the number of the call."""

    next_id: bytes | None = None
    count = 0

    def randbytes(self, n: int) -> bytes:
        self.count += 1
        return self.next_id or self.count.to_bytes(n, "big")


class FakeTopics:
    """Topics that come, grow and go, in a catalog; the id of each is made of its number."""

    RACKS = ("r1", "r2")

    def __init__(self, coordinators: int = 2) -> None:
        self._ids = _NextIds()
        config = BrokerConfig(
            nodes=len(self.RACKS), racks=self.RACKS, offsets_topic_partitions=coordinators
        )
        self.catalog = TopicCatalog(config, DiskQueue(), self._ids, lambda key: None, list)
        self._ids.count = 0

    def create(self, name: str, partitions: int, *racks: str) -> bytes:
        return self.add(name, [racks] * partitions)

    def add(
        self, name: str, racks: Sequence[Sequence[str]], topic_id: bytes | None = None
    ) -> bytes:
        """Add or replace a topic whose replicas are in these racks, by partition."""
        if name in self.catalog.topics:
            self.delete(name)
        self._ids.next_id = topic_id
        replicas = [[*map(self._node_in, names), ELSEWHERE] for names in racks]
        config = self.catalog.parse_config({})
        topic_id = self.catalog.create(NewTopic(name, replicas, config)).topic_id
        self._ids.next_id = None
        return topic_id

    def _node_in(self, rack: str) -> int:
        return 1 + self.RACKS.index(rack)

    def grow(self, name: str, partitions: int) -> None:
        topic = self.catalog.topics[name]
        more = partitions - topic.partition_count
        self.catalog.add_partitions(topic, [[ELSEWHERE]] * more)

    def delete(self, name: str) -> None:
        self.catalog.delete(self.catalog.topics[name])


class FakeSharePartitions:
    """Which partitions groups may fetch."""

    def __init__(self) -> None:
        self.started: set[tuple[str, bytes, int]] = set()

    def start(self, group_id: str, topic_id: bytes, partition: int) -> None:
        self.started.add((group_id, topic_id, partition))

    def is_started(self, group_id: str, topic_id: bytes, partition: int) -> bool:
        return (group_id, topic_id, partition) in self.started

    def forget(self, *, group_id: str) -> None:
        self.started = {each for each in self.started if each[0] != group_id}


class Services:
    """What a coordinator asks of its broker; must be made inside a running loop."""

    def __init__(self, config: BrokerConfig | None = None, partitions: int = 2) -> None:
        self.now_ms = 1_000
        self.rng = random.Random(1)
        self.scope = TaskScope("test")
        self.config = config or BrokerConfig(
            group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=10
        )
        self.consumer_settings = ConsumerGroupSettings()
        self.share_settings = ShareGroupSettings()
        self.share_partitions = FakeSharePartitions()
        self.topics = FakeTopics(partitions)
        self.catalog = self.topics.catalog
        self.partition_count = partitions
        self.logs: dict[int, MemoryLog] = {}

    def clock(self) -> int:
        return self.now_ms

    def consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings:
        return self.consumer_settings

    def share_group_settings(self, group_id: str) -> ShareGroupSettings:
        return self.share_settings

    def partition(self, topic: str, index: int) -> MemoryLog:
        return self.logs.setdefault(index, MemoryLog())


def sync_call(
    member_id: str,
    generation: int,
    instance_id: str | None = None,
    protocol_type: str | None = None,
    protocol: str | None = None,
    assignments: Mapping[str, bytes] | None = None,
    *,
    group_id: str = "g",
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group_id,
        member_id=member_id,
        generation_id=generation,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocol_name=protocol,
        assignments=[
            SyncGroupRequestAssignment(member_id=key, assignment=value)
            for key, value in (assignments or {}).items()
        ],
    )


def leaver(member_id: str = "", instance_id: str | None = None) -> MemberIdentity:
    return MemberIdentity(member_id=member_id, group_instance_id=instance_id)


def elect_all(coordinator: GroupCoordinator, services: Services) -> None:
    """Have a coordinator serve every group."""
    coordinator.elect(range(services.partition_count))


def unused_group() -> ClassicGroup:
    return ClassicGroup(
        "g",
        BrokerConfig(),
        new_suffix=str,
        clock=lambda: 0,
        now=lambda: 0.0,
        write=lambda record: NoError,
    )


def classic_group(coordinator: GroupCoordinator, group_id: str = "g") -> ClassicGroup:
    """Return a group of the classic protocol."""
    group = coordinator.groups[group_id]
    assert isinstance(group, ClassicGroup)
    return group
