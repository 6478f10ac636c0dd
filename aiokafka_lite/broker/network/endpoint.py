"""A node's address for one listener.

With TLS, the handshake runs in a task, on a copy of the accepted socket. So unfinished handshakes
are counted, time out, and end with the node. On a simulated loop, the loop itself shakes hands.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from aiokafka_lite._sockets import is_real
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.broker.network.processor import Host, Processor
from aiokafka_lite.broker.security.listener import Listener
from aiokafka_lite.broker.topics import Node
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
