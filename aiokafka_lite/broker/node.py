"""One node of the cluster: its addresses, connections and requests.

    Endpoint per listener ─ Processor per connection
        ─ RequestChannel ─ Dispatcher ─ handlers/

Topics and records belong to the cluster (cluster.py). A stopped node keeps its address.

With TLS, the handshake runs in a task, on a copy of the accepted socket. So unfinished handshakes
are counted, time out, and end with the node. On a simulated loop, the loop itself shakes hands."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from aiokafka_lite import _compat
from aiokafka_lite._sockets import is_real
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.broker.cluster import EmbeddedCluster
from aiokafka_lite.broker.fetch_sessions import FetchSessionCache
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.network.dispatcher import (
    Dispatcher,
    FaultPort,
    Purgatory,
    RequestChannel,
    RequestWork,
)
from aiokafka_lite.broker.network.processor import Host, Processor
from aiokafka_lite.broker.network.request_log import RequestLog
from aiokafka_lite.broker.security.listener import Listener
from aiokafka_lite.broker.share.sessions import ShareSessionCache
from aiokafka_lite.broker.topics import TRANSACTION_STATE_TOPIC, Node
from aiokafka_lite.broker.transactions.coordinator import TransactionCoordinator
from aiokafka_lite.errors import KafkaConnectionError

log = logging.getLogger(__name__)

LISTEN_BACKLOG: Final = 1_024
# The loop's iterations from accepting a socket to `connection_made`.
TURNS_TO_ARRIVE: Final = 3


class Endpoint:
    """A listening address of a node, with the same port at each start."""

    def __init__(self, node: Host, listener: Listener, address: Node) -> None:
        self.node = node
        self.listener = listener
        self.address = address
        self._server: asyncio.Server | None = None
        self._handshakes: TaskScope | None = None
        # Set by open().
        self._loop: asyncio.AbstractEventLoop

    @property
    def handshake_count(self) -> int:
        return 0 if self._handshakes is None else len(self._handshakes.task_names)

    @property
    def bootstrap_servers(self) -> str:
        host = self.address.host
        return f"{f'[{host}]' if ':' in host else host}:{self.address.port}"

    # Opening and closing

    async def open(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._handshakes = TaskScope(f"node-{self.node.id}-{self.listener.name}")
        host, port = self.address.host, self.address.port
        context = self.node.cluster.security.ssl_context(self.listener)
        simulation = simulation_of(loop)
        factory: Callable[[], asyncio.BaseProtocol] = self._new_processor
        tls: dict[str, Any] = {}
        if context is not None and simulation is None:
            factory = partial(_Arrival, self, context)
        elif context is not None:  # there is no socket to copy
            timeout_s = self.node.cluster.config.sasl_authentication_timeout_s
            tls = {"ssl": context, "ssl_handshake_timeout": timeout_s}
        if simulation is not None and not port:
            port = simulation.free_port()
        try:
            self._server = server = await loop.create_server(
                factory, host, port, backlog=LISTEN_BACKLOG, **tls
            )
        except OSError as error:
            reason = (
                "another program listens on this port: stop it, or choose another port"
                if error.errno == errno.EADDRINUSE
                else error.strerror or str(error)
            )
            raise KafkaConnectionError(f"cannot listen on {host}:{port}: {reason}") from error
        if simulation is None:
            port = server.sockets[0].getsockname()[1]
        self.address = self.address._replace(port=port)

    async def stop_accepting(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        await close_server(server)
        if self._handshakes is not None:
            await self._handshakes.close()

    # Connections

    def _new_processor(self) -> Processor:
        return Processor(self.node, self.listener, self._loop)

    # TLS

    def shake_hands(self, arrived: socket.socket, context: ssl.SSLContext, peer: str) -> None:
        if self._handshakes is None or not self.node.has_room:
            log.warning(
                "connection from %s is refused: max_connections=%d is reached, "
                "or the node is stopping",
                peer, self.node.cluster.config.max_connections,
            )  # fmt: skip
            arrived.close()
            return
        self._handshakes.spawn(self._shaken_hands(arrived, context, peer), name=peer)

    async def _shaken_hands(
        self, arrived: socket.socket, context: ssl.SSLContext, peer: str
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._new_processor,
                arrived,
                ssl=context,
                ssl_handshake_timeout=self.node.cluster.config.sasl_authentication_timeout_s,
            )
        except OSError as error:  # ssl.SSLError is one
            reason = error.reason if isinstance(error, ssl.SSLError) else None
            log.warning(
                "connection from %s is closed: the TLS handshake failed: %s",
                peer,
                reason or str(error) or type(error).__name__,
            )


async def close_server(server: asyncio.Server) -> None:
    """Close a server's listening sockets.

    asyncio never closes the socket of a connection that it accepts before Server.close() and whose
    transport it creates after it. So accepting stops first.
    """
    loop = server.get_loop()
    for listening in filter(is_real, server.sockets):
        try:
            loop.remove_reader(listening.fileno())
        except NotImplementedError:
            pass  # a proactor's loop accepts in another way
    for _ in range(TURNS_TO_ARRIVE):
        await asyncio.sleep(0)
    server.close()
    await asyncio.sleep(0)


class _Arrival(asyncio.Protocol):
    """The protocol of a connection until its socket is taken for the TLS handshake."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext) -> None:
        self._endpoint = endpoint
        self._context = context

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No bytes were read before connection_made, so the ClientHello is still in the socket.
        accepted = transport.get_extra_info("socket")
        arrived = socket.socket(fileno=os.dup(accepted.fileno()))
        arrived.setblocking(False)
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        cast("asyncio.Transport", transport).abort()  # closes its own descriptor only
        self._endpoint.shake_hands(arrived, self._context, f"{peer[0]}:{peer[1]}")


IDLE_CHECKS_PER_TIMEOUT: Final = 4


class BrokerNode:
    """A node: created with the cluster, opened in its loop, then started and stopped."""

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
        self.share_sessions: ShareSessionCache
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
        self.share_sessions = ShareSessionCache(config.group_share_max_share_sessions)
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
        await self._end_connections(Processor.abort)

    async def stop_listening(self) -> None:
        """Accept no more connections. Existing ones stay open."""
        if not self._is_accepting:
            return
        self._is_accepting = self.is_up = False
        # The locks of its sessions end like those of a node that has crashed.
        self.share_sessions.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for endpoint in self.endpoints.values():
            await endpoint.stop_accepting()

    async def close_connections(self) -> None:
        """Close connections after their last bytes, and abort them after `stop_timeout_s`."""
        if not await self._end_connections(Processor.close):
            await self._end_connections(Processor.abort)

    async def _end_connections(self, end: Callable[[Processor], None]) -> bool:
        """Return False if some connections are open after `stop_timeout_s`.

        The transports of a simulated host that has crashed never report their end.
        """
        self._all_closed = self._loop.create_future()
        for processor in tuple(self._processors):
            end(processor)
        if self._processors:
            try:
                async with _compat.timeout(self.cluster.config.stop_timeout_s):
                    await self._all_closed
            except asyncio.TimeoutError:
                return False
        return True

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
        if self.is_up:
            for member in self.share_sessions.close_of(processor):
                self.cluster.share_partitions.release_member(member, self.id)
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
