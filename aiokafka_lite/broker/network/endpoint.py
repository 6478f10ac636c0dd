"""Where one node listens for one of the cluster's listeners.

A plain connection is a `Processor` at once. With TLS, the socket is taken from the transport that
accepted it and shakes hands in a task of its own: so a connection that never finishes is counted,
ends in time, and is closed when the node stops.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.network.processor import Host, Processor
from aiokafka_lite.broker.security.listener import Listener
from aiokafka_lite.broker.topics import Node
from aiokafka_lite.errors import KafkaConnectionError

log = logging.getLogger(__name__)

LISTEN_BACKLOG: Final = 1_024
# Turns of the loop from a socket's being accepted to its `connection_made`.
TURNS_TO_ARRIVE: Final = 3


class Endpoint:
    """One listening address of a node; opened and closed with it, at the same port each time."""

    def __init__(self, node: Host, listener: Listener, address: Node) -> None:
        self.node = node
        self.listener = listener
        self.address = address
        self._server: asyncio.Server | None = None
        self._handshakes: TaskScope | None = None
        # Known from open() on.
        self._loop: asyncio.AbstractEventLoop

    @property
    def handshake_count(self) -> int:
        """Connections that are not yet through with TLS."""
        return 0 if self._handshakes is None else len(self._handshakes.task_names)

    @property
    def bootstrap_servers(self) -> str:
        """ "host:port" for clients."""
        host = self.address.host
        return f"{f'[{host}]' if ':' in host else host}:{self.address.port}"

    # Opening and closing

    async def open(self) -> None:
        """Listen.

        Raises:
            KafkaConnectionError: It cannot listen there.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._handshakes = TaskScope(f"node-{self.node.id}-{self.listener.name}")
        host, port = self.address.host, self.address.port
        context = self.node.cluster.security.ssl_context(self.listener)
        factory: Callable[[], asyncio.BaseProtocol]
        factory = self._new_processor if context is None else _TlsGate(self, context).arrival
        try:
            self._server = await loop.create_server(factory, host, port, backlog=LISTEN_BACKLOG)
        except OSError as error:
            reason = (
                "another program listens on this port: stop it, or choose another port"
                if error.errno == errno.EADDRINUSE
                else error.strerror or str(error)
            )
            raise KafkaConnectionError(f"cannot listen on {host}:{port}: {reason}") from error
        bound_port = self._server.sockets[0].getsockname()[1]
        self.address = self.address._replace(port=bound_port)

    async def stop_accepting(self) -> None:
        """Close the listening sockets, and let those connections arrive that were accepted."""
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
        """Go on with a socket that was accepted, in a task."""
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
    """Close a server's listening sockets, after those connections have arrived that it accepted.

    asyncio loses a connection that it has accepted but whose transport it makes only after
    Server.close(): nobody ever closes that socket. So the server is kept from accepting first.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        try:
            loop.remove_reader(listening.fileno())
        except NotImplementedError:
            pass  # a proactor's loop accepts in another way
    for _ in range(TURNS_TO_ARRIVE):
        await asyncio.sleep(0)
    server.close()
    await asyncio.sleep(0)


class _TlsGate:
    """Takes sockets from the transports that accepted them."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext) -> None:
        self._endpoint = endpoint
        self._context = context

    def arrival(self) -> asyncio.BaseProtocol:
        return _Arrival(self)

    def take(self, transport: asyncio.Transport) -> None:
        # In connection_made nothing was read yet: the client's hello is still in the socket.
        accepted = transport.get_extra_info("socket")
        arrived = socket.socket(fileno=os.dup(accepted.fileno()))
        arrived.setblocking(False)
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        transport.abort()  # closes its own descriptor only
        self._endpoint.shake_hands(arrived, self._context, f"{peer[0]}:{peer[1]}")


class _Arrival(asyncio.Protocol):
    """The protocol of a connection that is only passed on."""

    def __init__(self, gate: _TlsGate) -> None:
        self._gate = gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gate.take(cast("asyncio.Transport", transport))
