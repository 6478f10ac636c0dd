"""A member of a share group without the consumer's interface: records, and settling by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from aiokafka_lite._chance import Chance
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.arguments import authenticator
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.sharing.leases import LostLeases, RecordLease
from aiokafka_lite.consumer.sharing.sharing import Leasing
from aiokafka_lite.errors import KafkaError
from tests.support.cluster import KafkaHandle

MAX_FRAME_BYTES = 64 << 20
WAIT_S = 60.0


class Member:
    """A member that wants `free` records beyond those that it has."""

    def __init__(self, kafka: KafkaHandle, group_id: str, *topics: str, free: int = 100) -> None:
        self.free = free
        self.lost: list[LostLeases] = []
        self.errors: list[KafkaError] = []
        self._ready = asyncio.Event()
        self.config = ConsumerConfig[bytes, bytes](
            *topics, bootstrap_servers=kafka.bootstrap_servers, group_id=group_id
        )
        client = self.config.client_config(max_frame_bytes=MAX_FRAME_BYTES)
        self.scope = TaskScope("share")
        rng = Chance()
        self.cluster = Cluster(
            client, scope=self.scope, rng=rng, authenticate=authenticator(None, client)
        )
        self.leasing = Leasing(
            self.config,  # type: ignore[arg-type] # its group_id may be None
            self.cluster,
            self.scope,
            topics=topics,
            want=lambda: self.free,
            on_ready=self._ready.set,
            on_lost=self.lost.append,
            on_error=self.errors.append,
            events=Events(),
            rng=rng,
            open_cluster=partial(BlockingCluster, client) if kafka.kind == "real" else None,
        )

    async def take(self, most: int = 1_000_000, timeout_s: float = WAIT_S) -> list[RecordLease]:
        """Return the leases of records, at least one unless the time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while not (taken := self.leasing.take_nowait(most)):
            self._ready.clear()
            self.scope.raise_if_failed()
            try:
                await asyncio.wait_for(self._ready.wait(), until - loop.time())
            except asyncio.TimeoutError:
                return []
        return [self.leasing.lease(each.range, record) for each in taken for record in each.records]

    @property
    def lost_offsets(self) -> list[int]:
        return sorted(
            offset
            for lost in self.lost
            for first, last in lost.offsets
            for offset in range(first, last + 1)
        )


@asynccontextmanager
async def member(
    kafka: KafkaHandle, group_id: str, *topics: str, free: int = 100
) -> AsyncIterator[Member]:
    made = Member(kafka, group_id, *topics, free=free)
    loop = asyncio.get_running_loop()
    try:
        await made.cluster.start(group_id=group_id)
        made.leasing.start()
        yield made
        await made.leasing.close(loop.time() + 10)
        made.scope.raise_if_failed()
    finally:
        await made.cluster.close()
        await made.scope.close()
