"""One connection to one broker on an event loop: the shell around a `Wire`.

It adds a transport, a timer and waiting tasks. The timer is moved ahead for an earlier deadline,
and otherwise only when it fires, so that a request costs no timer. If the loop was blocked, or the
kernel waits for a large piece, unread bytes may exist: then deadlines are checked a little later,
after reads.

There are two ways to wait for a response:

- ``await exchange``: the task wakes in the loop's next iteration and decodes there. So decoding
  delays no other callback, a cancelled task does not decode, and errors are raised in the task.
- ``on_done``, an argument of ``send``: called with the exchange, out of the read callback that
  received the last byte. That avoids a task switch, which costs more than a small response.

``on_done`` is called in the loop's thread, exactly once unless the exchange is abandoned before, in
the broker's order. Errors are reported in the loop's next iteration, so it may itself send, close,
or abandon exchanges. It must be short. An exception closes the connection and is passed to
``on_bug``.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from asyncio.trsock import TransportSocket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Final, NamedTuple, TypeVar, cast

from aiokafka_lite._compat import override, timeout
from aiokafka_lite._forks import leave_to_parent, notify_of_forks
from aiokafka_lite._sockets import discard_unacknowledged, real_socket
from aiokafka_lite._tasks import Event
from aiokafka_lite._threads import resolve
from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.client.channel import Channel
from aiokafka_lite.client.config import Address, ClientConfig, check_plaintext_credentials
from aiokafka_lite.client.low_water import LowWaterMark
from aiokafka_lite.client.network_errors import (
    NETWORK_ERRORS,
    caused,
    hosts,
    is_numeric,
    not_connected,
    unresolved,
)
from aiokafka_lite.client.versions import (
    ApiVersions,
    FirstVersions,
    MeantBroker,
    MisroutedError,
    ask_api_versions,
    not_negotiated,
)
from aiokafka_lite.client.wire import Exchange, Wire, Wired, WireState
from aiokafka_lite.errors import (
    KafkaConnectionError,
    KafkaError,
    RequestTimedOutError,
    TLSError,
)
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from aiokafka_lite.protocol.prepared import AnyRequest
from aiokafka_lite.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

# Returns the lifetime of the session in seconds, 0 if it does not end.
Authenticate = Callable[["Connection"], Awaitable[float]]
OnBug = Callable[[BaseException], None]


# A timer that is this late shows that the loop was blocked.
LATE_S: Final = 0.1
# How long deadlines then wait for reads, at least and at most.
GRACE_S: Final = (0.1, 1.0)
# How often for one request, so that a lost peer is found although the loop is always blocked.
MOST_GRACES: Final = 8


class Connection(Wired, Channel, asyncio.BufferedProtocol):
    """Open from ``open`` until it is poisoned or closed. For one event loop.

    `closed` is completed with the reason for that, `ended` when the transport is closed.
    """

    __slots__ = (
        "__weakref__",
        "_can_write",
        "_drained",
        "_graced_id",
        "_graces",
        "_on_bug",
        "_renewed",
        "_timer",
        "closed",
        "ended",
        "loop",
    )

    def __init__(
        self,
        address: Address,
        config: ClientConfig,
        *,
        node_id: int | None,
        on_bug: OnBug,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.wire = Wire(
            address,
            client_id=config.client_id,
            max_frame_bytes=config.max_frame_bytes,
            node_id=node_id,
            clock=self.loop.time,
        )
        self.closed: asyncio.Future[KafkaError] = self.loop.create_future()
        self._reader = self.wire.reader
        self._on_bug = on_bug
        # Set while the session is renewed: completed when requests may be sent again.
        self._renewed: asyncio.Future[None] | None = None
        # Retired, or about to be renewed: the last response in flight is awaited.
        self._is_draining = False
        self._drained: asyncio.Future[None] | None = None
        self._transport = None
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self._can_write = Event()
        self._can_write.set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        # A request whose deadline waits for reads, and how often it has waited.
        self._graced_id: int | None = None
        self._graces = 0
        notify_of_forks(self, has_descriptor=True)

    # --- Opening and closing ---------------------------------------------------------------
    @classmethod
    async def open(
        cls,
        address: Address,
        config: ClientConfig,
        *,
        on_bug: OnBug,
        first_versions: FirstVersions,
        authenticate: Authenticate | None = None,
        node_id: int | None = None,
        known_versions: Callable[[], ApiVersions | None] = lambda: None,
        cluster_id: str | None = None,
        deadline: float | None = None,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> Connection:
        """Connect, negotiate versions, and authenticate; a cancellation leaves no connection.

        Each step takes at most ``connect_timeout_s``, and all end at the deadline. Only waiting for
        a `turn` to authenticate has no limit. Until then, responses are limited to 64 KiB. With
        `cluster_id` and `node_id`, another broker at the address is refused (KIP-1242).
        """
        check_plaintext_credentials(
            config.security_protocol, [address], is_allowed=config.allow_plaintext_credentials
        )
        limit = StepLimit(config.connect_timeout_s, deadline)
        ssl_context = config.ssl_context if config.uses_tls else None
        meant = MeantBroker(cluster_id, node_id)

        def unconnected() -> Connection:
            return cls(address, config, node_id=node_id, on_bug=on_bug)

        async def attempt(version: int) -> Connection:
            connection = await dial(
                unconnected,
                address,
                ssl_context=ssl_context,
                limit=limit,
                receive_buffer_bytes=config.receive_buffer_bytes,
            )
            try:
                if (known := known_versions()) is not None:
                    connection.wire.offer(known)
                else:
                    await connection._negotiate(limit.left_s(), version, meant)
            except BaseException:
                connection.close()
                raise
            return connection

        connection = await first_versions.open(address, attempt, is_identified=meant.is_known)
        try:
            if authenticate is not None:
                async with turn():
                    await connection._authenticate(authenticate, limit.left_s())
        except BaseException:
            connection.close()
            raise
        connection.wire.trust()
        return connection

    async def _negotiate(self, timeout_s: float, version: int, meant: MeantBroker) -> None:
        async def ask(request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
            self.wire.speak(request, version)
            return await self.send(request, timeout_s=timeout_s)

        try:
            self.wire.offer(await ask_api_versions(ask, self.peer, version, meant))
        except (TLSError, MisroutedError):
            raise  # its message has the cause
        except (KafkaConnectionError, RequestTimedOutError) as error:
            raise not_negotiated(error, self.peer) from error

    async def _authenticate(self, authenticate: Authenticate, timeout_s: float) -> None:
        try:
            async with timeout(timeout_s):
                self.wire.begin_session(await authenticate(self))
        except asyncio.TimeoutError as error:
            text = f"did not finish authentication within {timeout_s:g} s"
            if self.wire.in_flight or self.is_closed:  # a request's own time may end just before
                text = f"{self.peer} {text}"
            else:
                text = (
                    f"this client {text}: {self.peer} waits for credentials. With OAUTHBEARER, "
                    "check the token provider"
                )
            raise KafkaConnectionError(text) from error

    async def renew(self, authenticate: Authenticate, timeout_s: float) -> None:
        """Authenticate again on the live connection (KIP-368); no response is lost.

        Responses on their way arrive first. Requests must wait for `until_renewed`, because brokers
        accept none in between. A failure poisons the connection.
        """
        self._renewed = renewed = self.loop.create_future()
        self.wire.begin_renewal()
        try:
            await self._drain()
            if self.error is None:
                await self._authenticate(authenticate, timeout_s)
        except KafkaError as error:
            self._fail(error)
        except BaseException:
            self.close()  # the SASL conversation cannot be continued
            raise
        finally:
            self.wire.end_renewal()
            self._renewed = None
            renewed.set_result(None)

    async def until_renewed(self) -> None:
        if self._renewed is not None:
            await asyncio.shield(self._renewed)

    async def _drain(self) -> None:
        if self.wire.in_flight:
            self._drained = self.loop.create_future()
            self._is_draining = True
            try:
                await self._drained
            finally:
                self._drained = None
                self._is_draining = False

    @override
    def _last_answer_arrived(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self.wire.state is WireState.RETIRED:
            self.close()

    def retire(self) -> None:
        """Close when every response has arrived; refuse further requests."""
        if self.wire.error is None:
            self.wire.retire()
            self._is_draining = True
            if not self.wire.in_flight:
                self._last_answer_arrived()

    def close(self) -> None:
        """Close now; waiters get KafkaConnectionError. Idempotent."""
        self._fail(KafkaConnectionError(f"the connection to {self.peer} was closed by this client"))

    def give_up(self, error: KafkaError) -> None:
        """Close now, because the peer is silent; waiters get the error. Idempotent.

        An unanswered commit must not arrive after a later one.
        """
        if self._transport is not None and self.wire.error is None:
            discard_unacknowledged(self._transport)
        self._fail(error)

    def hang_up(self) -> None:
        """Shut the socket down after the loop was closed; garbage collection closes it."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if isinstance(sock, TransportSocket):  # uvloop closes its sockets with the loop
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # it is shut down already
                pass

    async def wait_closed(self) -> None:
        await asyncio.wait([self.ended])

    @override
    def _fail(self, error: KafkaError) -> None:
        if not self.wire.poison(error):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_draining:
            self._last_answer_arrived()
        self._can_write.set()
        self._reader.clear()
        if self._transport is not None:
            # Not close(): that would wait to write unsent bytes, and for the end of TLS, which
            # sized frames do not need.
            self._transport.abort()
        if not self.closed.done():  # else a task that awaited it was cancelled
            self.closed.set_result(error)

    def note_fork(self) -> None:
        self.wire.orphan()
        transport, self._transport = self._transport, None
        if transport is not None:
            sock = real_socket(transport)
            leave_to_parent(-1 if sock is None else sock.fileno(), transport)

    # --- Requests --------------------------------------------------------------------------
    async def request(self, request: AnyRequest[R], *, timeout_s: float) -> R:
        """Send a request and return its decoded response.

        The request is written before the first suspension, unless the peer is slow to read.
        ``timeout_s`` is how long the broker may take. For a shorter limit cancel the call: the
        connection stays, and the late response is dropped.
        """
        if not self._can_write.is_set():
            await self._wait_writable(request.request_class, timeout_s)
        return await self.send(request, timeout_s=timeout_s)

    def send(
        self,
        request: AnyRequest[R],
        *,
        timeout_s: float,
        max_version: int | None = None,
        on_done: Callable[[Exchange[R]], None] | None = None,
    ) -> Exchange[R]:
        """Send a request at once, even if earlier bytes are unsent. `on_done` gets later errors."""
        wire = self.wire
        exchange: Exchange[R] = Exchange(wire, on_done, self)
        encoded = wire.ask(exchange, request, timeout_s, max_version)
        self.write(encoded, exchange.deadline)
        return exchange

    async def _wait_writable(self, request_class: type[Request[R]], timeout_s: float) -> None:
        try:
            async with timeout(timeout_s):
                await self._can_write.wait()
        except asyncio.TimeoutError:
            raise RequestTimedOutError(
                f"{self.peer} did not read earlier requests within {timeout_s:g} s, so "
                f"{request_class.__name__} was not sent"
            ) from None

    # --- Deadlines -------------------------------------------------------------------------
    @override
    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._ring)
        self._timer_at = when

    def _ring(self) -> None:
        late_s = self.loop.time() - self._timer_at
        self._timer, self._timer_at = None, math.inf
        try:
            is_unread = late_s > LATE_S or self._wanted_bytes > 1
            if is_unread and self._may_wait_for_reads():
                self._want(1)
                least_s, most_s = GRACE_S
                self._set_timer(self.loop.time() + max(least_s, min(late_s, most_s)))
            else:
                self._check_deadlines()
        except Exception as error:  # noqa: BLE001 -- reported, see callback_failed
            self.callback_failed(error)

    def _may_wait_for_reads(self) -> bool:
        overdue_id = self.wire.overdue_id()
        if overdue_id is None:
            return False
        if overdue_id != self._graced_id:
            self._graced_id, self._graces = overdue_id, 0
        self._graces += 1
        return self._graces <= MOST_GRACES

    def _check_deadlines(self) -> None:
        try:
            next_deadline = self.wire.expire()
        except KafkaConnectionError as error:
            self.give_up(error)
            return
        if next_deadline < math.inf:
            self._set_timer(next_deadline)

    # --- asyncio.BufferedProtocol ----------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._low_water, self._wanted_bytes = LowWaterMark(transport), 1

    @override
    def callback_failed(self, error: BaseException) -> None:
        text = (
            f"the connection to {self.peer} was closed, because a response callback raised an "
            "exception"
        )
        self._fail(caused(KafkaConnectionError(text), error))
        self._on_bug(error)

    def eof_received(self) -> bool:
        return False  # the transport closes itself, connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        self._fail(self.wire.lost(exc))

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()


# --- Opening a transport (KIP-302) ----------------------------------------------------------
P = TypeVar("P", bound=asyncio.BaseProtocol)

# TCP keep-alive, for balancers and firewalls that forget idle connections: seconds until the first
# probe (two names), seconds between probes, and unanswered probes.
KEEP_ALIVE: Final[Mapping[str, int]] = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPALIVE": 60,
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 4,
}


class StepLimit(NamedTuple):
    """A limit for each step of opening a connection, and a deadline for all of them."""

    step_s: float
    deadline: float | None = None

    def left_s(self) -> float:
        if self.deadline is None:
            return self.step_s
        left_s = self.deadline - asyncio.get_running_loop().time()
        return max(0.0, min(self.step_s, round(left_s, 3)))  # for messages


async def dial(
    protocol_factory: Callable[[], P],
    address: Address,
    *,
    ssl_context: ssl.SSLContext | None,
    limit: StepLimit,
    receive_buffer_bytes: int | None = None,
) -> P:
    """Connect to the first address that accepts. Cancellation leaves no connection open."""
    loop = asyncio.get_running_loop()
    failures: dict[str, BaseException] = {}
    timeout_s = limit.left_s()
    for host in await _resolve(address, timeout_s):
        try:
            async with timeout(limit.left_s()):
                sock, target = None, dict[str, Any](host=host, port=address.port)
                if receive_buffer_bytes is not None and simulation_of(loop) is None:
                    sock = await _connected(**target, receive_buffer_bytes=receive_buffer_bytes)
                    target = {"sock": sock}
                try:
                    transport, protocol = await loop.create_connection(
                        protocol_factory,
                        **target,
                        ssl=ssl_context,
                        # SNI has no trailing dot (RFC 6066), fully qualified names may have one.
                        server_hostname=address.host.rstrip(".") if ssl_context else None,
                    )
                except BaseException:
                    if sock is not None:
                        sock.close()
                    raise
        except asyncio.TimeoutError:
            failures[host] = TimeoutError()  # another class before Python 3.11
        except NETWORK_ERRORS as error:
            failures[host] = error
        else:
            if (real := real_socket(transport)) is not None:
                _keep_alive(real)
            return protocol
    raise not_connected(address, failures, timeout_s=timeout_s, uses_tls=ssl_context is not None)


def _keep_alive(sock: socket.socket) -> None:
    """Enable keep-alive as far as the system supports it. A lost connection is ignored."""
    with suppress(OSError, ValueError):  # uvloop: ValueError once the socket closed
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def _connected(host: str, port: int, receive_buffer_bytes: int) -> socket.socket:
    """Return a socket whose receive buffer is set before connecting, which fixes TCP's window."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, kind, protocol, _, sockaddr = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


async def _resolve(address: Address, timeout_s: float) -> list[str]:
    if is_numeric(address.host):
        return [address.host]
    try:
        async with timeout(timeout_s):
            found = await resolve(*address)
    except asyncio.TimeoutError:
        raise unresolved(address, TimeoutError(), timeout_s) from None
    except NETWORK_ERRORS as error:
        raise unresolved(address, error, timeout_s) from error
    return hosts(found)
