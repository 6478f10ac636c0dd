"""One node of the cluster: its addresses, connections and requests.

    Endpoint per listener ─ Processor per connection
        ─ RequestChannel ─ Dispatcher ─ handlers/

Topics and records belong to the cluster (cluster.py). A stopped node keeps its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from aiokafka_lite import _compat
from aiokafka_lite.broker.cluster import EmbeddedCluster
from aiokafka_lite.broker.fetching.session import FetchSessionCache
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.network.dispatcher import Dispatcher
from aiokafka_lite.broker.network.endpoint import Endpoint
from aiokafka_lite.broker.network.processor import Processor
from aiokafka_lite.broker.network.request_log import RequestLog
from aiokafka_lite.broker.network.work import FaultPort, Purgatory, RequestChannel, RequestWork
from aiokafka_lite.broker.security.listener import Listener
from aiokafka_lite.broker.topics import TRANSACTION_STATE_TOPIC, Node
from aiokafka_lite.broker.transactions.coordinator import TransactionCoordinator

IDLE_CHECKS_PER_TIMEOUT: Final = 4


class BrokerNode:
    """A node: created with the cluster, opened in its loop, then started and stopped.

    Port 0 of an address chooses a free one permanently.
    """

    def __init__(
        self,
        cluster: EmbeddedCluster,
        addresses: Mapping[Listener, Node],
        faults: FaultPort,
        requests: RequestLog,
    ) -> None:
        self.cluster = cluster
        self.faults = faults
        self.requests = requests
        self.endpoints: Mapping[str, Endpoint] = {
            listener.name: Endpoint(self, listener, address)
            for listener, address in addresses.items()
        }
        self.id = self.address.id
        self._connections_of: dict[str, int] = {}
        self._processors: dict[Processor, None] = {}
        self._is_accepting = False
        self.is_up = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Future[None] | None = None
        # Created by open(), which has a loop.
        self._loop: asyncio.AbstractEventLoop
        self.on_bug: Callable[[str, BaseException], None]
        self.channel: RequestChannel[RequestWork]
        self.fetch_sessions: FetchSessionCache
        self.groups: GroupCoordinator
        self.transactions: TransactionCoordinator

    @property
    def address(self) -> Node:
        """The address of the first listener, with id and rack."""
        return next(iter(self.endpoints.values())).address

    def address_on(self, listener: str) -> Node:
        return self.endpoints[listener].address

    @property
    def bootstrap_servers(self) -> str:
        return next(iter(self.endpoints.values())).bootstrap_servers

    def coordinator(self, topic: str) -> GroupCoordinator | TransactionCoordinator:
        """Return the coordinator whose log the topic is."""
        return self.transactions if topic == TRANSACTION_STATE_TOPIC else self.groups

    # Starting and stopping

    def open(self, purgatory: Purgatory, on_bug: Callable[[str, BaseException], None]) -> None:
        cluster, config, self.on_bug = self.cluster, self.cluster.config, on_bug
        self._loop = cluster.loop
        self.fetch_sessions = FetchSessionCache(
            config.max_fetch_sessions, config.fetch_session_eviction_s, cluster.rng
        )
        self.groups = GroupCoordinator(cluster)
        self.transactions = TransactionCoordinator(cluster.transactions)
        self.channel = RequestChannel(config.queued_max_requests, self._loop)
        dispatcher = Dispatcher(self.channel, purgatory, cluster.scope, self.faults)
        cluster.scope.spawn(dispatcher.run(), name=f"dispatcher-{self.id}")

    async def start(self) -> None:
        self._all_closed = None
        self._is_accepting = True
        self.fetch_sessions.clear()
        try:
            for endpoint in self.endpoints.values():
                await endpoint.open()
        except BaseException:
            await self.stop_listening()
            raise
        self.is_up = True
        self._schedule_idle_check()

    async def kill(self) -> None:
        """Stop listening and abort all connections, like a killed process. Idempotent."""
        await self.stop_listening()
        self._all_closed = self._loop.create_future()
        await self._abort_connections()

    async def stop_listening(self) -> None:
        """Accept no more connections. Existing ones stay open."""
        if not self._is_accepting:
            return
        self._is_accepting = self.is_up = False
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for endpoint in self.endpoints.values():
            await endpoint.stop_accepting()

    async def close_connections(self) -> None:
        """Close connections after their last bytes, and abort them after `stop_timeout_s`."""
        self._all_closed = all_closed = self._loop.create_future()
        for processor in tuple(self._processors):
            processor.close()
        if self._processors:
            try:
                async with _compat.timeout(self.cluster.config.stop_timeout_s):
                    await asyncio.shield(all_closed)
            except asyncio.TimeoutError:
                await self._abort_connections()

    async def _abort_connections(self) -> None:
        for processor in tuple(self._processors):
            processor.abort()
        if self._processors and self._all_closed is not None:
            # The transports of a simulated host that has crashed never report their end.
            with suppress(asyncio.TimeoutError):
                async with _compat.timeout(self.cluster.config.stop_timeout_s):
                    await asyncio.shield(self._all_closed)

    # Connections

    @property
    def has_room(self) -> bool:
        shaking_hands = sum(endpoint.handshake_count for endpoint in self.endpoints.values())
        taken = len(self._processors) + shaking_hands
        return self._is_accepting and taken < self.cluster.config.max_connections

    def admit(self, processor: Processor) -> bool:
        """Add a connection. Return False if there are too many."""
        self._processors[processor] = None
        of_address = self._connections_of.get(processor.peer_host, 0) + 1
        self._connections_of[processor.peer_host] = of_address
        config = self.cluster.config
        return (
            self._is_accepting
            and len(self._processors) <= config.max_connections
            and of_address <= config.max_connections_per_ip
        )

    def dismiss(self, processor: Processor) -> None:
        if processor in self._processors:
            del self._processors[processor]
            self._connections_of[processor.peer_host] -= 1
            if not self._connections_of[processor.peer_host]:
                del self._connections_of[processor.peer_host]
        if self._all_closed is not None and not self._processors and not self._all_closed.done():
            self._all_closed.set_result(None)

    @property
    def connections(self) -> Sequence[Processor]:
        return tuple(self._processors)

    @property
    def connection_count(self) -> int:
        return len(self._processors)

    def _schedule_idle_check(self) -> None:
        interval_s = self.cluster.config.connections_max_idle_s / IDLE_CHECKS_PER_TIMEOUT
        self._idle_timer = self._loop.call_later(interval_s, self._close_idle)

    def _close_idle(self) -> None:
        idle_since = self._loop.time() - self.cluster.config.connections_max_idle_s
        for processor in tuple(self._processors):
            if processor.is_idle and processor.last_active_at <= idle_since:
                processor.close()
        self._schedule_idle_check()
