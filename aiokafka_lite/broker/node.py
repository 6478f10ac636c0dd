"""One node of the cluster: where it listens, its connections, and what it has in flight.

    acceptor ─ Processor per connection ─ RequestChannel ─ Dispatcher ─ handlers/<api>.py

Topics and records belong to the cluster (server.py): the nodes are views of it, each of which
answers for the partitions that it leads or has a replica of. A node can be stopped and started
again; it keeps its address.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiokafka_lite import _compat
from aiokafka_lite.broker.channel import RequestChannel
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.dispatcher import Dispatcher
from aiokafka_lite.broker.fetch_session import FetchSessionCache
from aiokafka_lite.broker.group import GroupCoordinator
from aiokafka_lite.broker.processor import Processor, Work
from aiokafka_lite.broker.topics import Node
from aiokafka_lite.errors import KafkaConnectionError

if TYPE_CHECKING:
    from aiokafka_lite.broker.server import Broker

log = logging.getLogger(__name__)

IDLE_CHECKS_PER_TIMEOUT: Final = 4
LISTEN_BACKLOG: Final = 1_024
# Turns of the loop from a socket's being accepted to its `connection_made`.
TURNS_TO_ARRIVE: Final = 3


class BrokerNode:
    """A node: made with the cluster, opened inside its loop, then started and stopped at will.

    Args:
        cluster: What the node is a part of.
        address: Its id, where it listens (port 0 takes a free one, and keeps it) and its rack.
    """

    def __init__(self, cluster: Broker, address: Node) -> None:
        self.cluster = cluster
        self.address = address
        self.faults: Final = cluster.faults
        self.requests: Final = cluster.requests
        self._processors: dict[Processor, None] = {}
        self._server: asyncio.Server | None = None
        self._closed_server: asyncio.Server | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None
        # Made by open(), which has a loop.
        self._loop: asyncio.AbstractEventLoop
        self.channel: RequestChannel[Work]
        self.fetch_sessions: FetchSessionCache
        self.groups: GroupCoordinator

    @property
    def id(self) -> int:
        """The node's id, as clients know it."""
        return self.address.id

    @property
    def is_up(self) -> bool:
        """The node accepts connections."""
        return self._server is not None

    @property
    def bootstrap_servers(self) -> str:
        """ "host:port" for clients."""
        host = self.address.host
        return f"{f'[{host}]' if ':' in host else host}:{self.address.port}"

    # Starting and stopping

    def open(self, on_bug: Callable[[str, BaseException], None]) -> None:
        """Make what lives as long as the cluster does; must be called in the cluster's loop."""
        cluster, config = self.cluster, self.cluster.config
        self._loop = cluster.loop
        self.fetch_sessions = FetchSessionCache(
            config.max_fetch_sessions, config.fetch_session_eviction_s, cluster.rng
        )
        self.groups = GroupCoordinator(cluster)
        self.channel = RequestChannel(config.queued_max_requests, self._loop)
        dispatcher = Dispatcher(
            self.channel, cluster.purgatory, cluster.scope, cluster.faults, on_bug
        )
        cluster.scope.spawn(dispatcher.run(), name=f"dispatcher-{self.id}")

    async def start(self) -> None:
        """Listen.

        Raises:
            KafkaConnectionError: It cannot listen there.
        """
        host, port = self.address.host, self.address.port
        self._all_gone = None
        try:
            self._server = await self._loop.create_server(
                lambda: Processor(self, self._loop), host, port, backlog=LISTEN_BACKLOG
            )
        except OSError as error:
            reason = (
                "another program listens there: stop it, or choose another port"
                if error.errno == errno.EADDRINUSE
                else error.strerror or str(error)
            )
            raise KafkaConnectionError(f"cannot listen on {host}:{port}: {reason}") from error
        bound_port = self._server.sockets[0].getsockname()[1]
        self.address = self.address._replace(port=bound_port)
        self._schedule_idle_check()

    async def stop(self) -> None:
        """Stop listening, and close connections as soon as they took their last bytes. Idempotent.

        Connections get `stop_timeout_s` for that.
        """
        await self.stop_listening()
        await self.close_connections()

    async def kill(self) -> None:
        """Stop listening and abort every connection, as the end of a process would. Idempotent."""
        await self.stop_listening()
        self._all_gone = self._loop.create_future()
        await self._abort_connections()
        await self._wait_closed()

    async def stop_listening(self) -> None:
        """Accept no more connections; those that are open stay open."""
        if self._server is None:
            return
        self._closed_server, self._server = self._server, None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._stop_accepting(self._closed_server)

    async def close_connections(self) -> None:
        """Close connections as soon as they took their last bytes, after `stop_timeout_s` all."""
        self._all_gone = gone = self._loop.create_future()
        for processor in tuple(self._processors):
            processor.close()
        if self._processors:
            try:
                async with _compat.timeout(self.cluster.config.stop_timeout_s):
                    await asyncio.shield(gone)
            except asyncio.TimeoutError:
                await self._abort_connections()
        await self._wait_closed()

    async def _abort_connections(self) -> None:
        for processor in tuple(self._processors):
            processor.abort()
        if self._processors and self._all_gone is not None:
            await self._all_gone

    async def _wait_closed(self) -> None:
        closed, self._closed_server = self._closed_server, None
        if closed is not None:
            await closed.wait_closed()

    async def _stop_accepting(self, server: asyncio.Server) -> None:
        """Close the listening sockets, and let those connections arrive that were accepted.

        asyncio loses a connection that it has accepted but whose transport it makes only after
        Server.close(): nobody ever closes that socket. So it is kept from accepting first.
        """
        for listening in server.sockets:
            try:
                self._loop.remove_reader(listening.fileno())
            except NotImplementedError:
                pass  # a proactor's loop accepts in another way
        for _ in range(TURNS_TO_ARRIVE):
            await asyncio.sleep(0)
        server.close()
        await asyncio.sleep(0)

    # Connections (what a Processor needs of its server)

    @property
    def max_frame_bytes(self) -> int:
        return self.cluster.config.max_frame_bytes

    def admit(self, processor: Processor) -> bool:
        self._processors[processor] = None
        return self.is_up and len(self._processors) <= self.cluster.config.max_connections

    def dismiss(self, processor: Processor) -> None:
        self._processors.pop(processor, None)
        if self._all_gone is not None and not self._processors and not self._all_gone.done():
            self._all_gone.set_result(None)

    def context(self, processor: Processor, version: int, client_id: str | None) -> RequestContext:
        return RequestContext(
            broker=self.cluster,
            node=self,
            api_version=version,
            client_id=client_id,
            client_host=processor.peer_host,
        )

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
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
