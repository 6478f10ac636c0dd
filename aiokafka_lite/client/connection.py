"""One connection to one broker: requests in flight, matched with answers by correlation id.

Theory of operation. A connection is open or poisoned. While it is open, every request on the
wire is an ``Exchange`` in ``_in_flight``, in the order sent; its answer completes it (exchange.py
says who learns of that when). The first thing that goes wrong (the peer closes, a frame is
broken, an answer matches no request, the broker stalls) poisons the connection: the socket is
closed and every exchange gets the error. Nothing brings a poisoned connection back; the pool
opens another.

An exchange leaves ``_in_flight`` only by its answer. When its waiter was cancelled or timed out
it stays, so that the late answer is recognised and dropped, and is never taken for another's.

Deadlines. Brokers answer one connection's requests in order, so what a deadline means depends on
the place in the queue. The oldest request's deadline says that the broker is silent: poison. A
younger one's says that it waited too long behind others (a JoinGroup waits for other members):
only that request fails, the connection goes on. A frame that stalls half-way, or trickles, is
caught the same way: the deadline is the request's, bytes do not prolong it. One timer serves the
whole connection; it is set when nothing is set or for an earlier deadline, and otherwise only
moves when it fires, so a request costs no timer.

The read callback decodes nothing: it matches raw frames with exchanges. An answer that cannot be
decoded is its requester's affair; the connection stays in step, since frames carry their size.

References: https://kafka.apache.org/protocol (requests, in order on one connection), KIP-219
(throttle_time_ms: the broker mutes us, we hold back), KIP-511.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from asyncio.trsock import TransportSocket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar, cast

from aiokafka_lite._compat import Buffer, override, timeout
from aiokafka_lite._event import Event
from aiokafka_lite.client.causes import caused
from aiokafka_lite.client.config import DEFAULT_MAX_FRAME_BYTES, Address
from aiokafka_lite.client.dial import StepLimit, dial
from aiokafka_lite.client.exchange import Exchange, own_copy
from aiokafka_lite.client.forking import ForkAware
from aiokafka_lite.client.frames import UNCHECKED_BYTES, FrameReader
from aiokafka_lite.client.limits import MAX_CORRELATION_ID, MAX_THROTTLE_S, answer_limit_bytes
from aiokafka_lite.client.losses import lost, out_of_step
from aiokafka_lite.client.low_water import LowWaterMark
from aiokafka_lite.client.versions import ApiVersions, Choice, ask_api_versions
from aiokafka_lite.errors import (
    IllegalArgumentError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    RequestTimedOutError,
    TLSError,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.framing import read_correlation_id
from aiokafka_lite.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from aiokafka_lite.protocol.prepared import AnyRequest, PreparedRequest, prepared
from aiokafka_lite.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

# Returns after how many seconds the session ends, 0 if it does not.
Authenticate = Callable[["Connection"], Awaitable[float]]
OnBug = Callable[[BaseException], None]


class Connection(ForkAware, asyncio.BufferedProtocol):
    """A connection, open from ``open`` until it is poisoned or closed.

    Used from one event loop. All fields are written here only.

    Attributes:
        loop: The event loop it belongs to.
        peer: Host, port and node id, for messages.
        error: Why the connection was poisoned or closed, None while it is open.
        closed: Completed with that reason.
        api_versions: What the broker offers.
        last_used: Loop time of the latest request.
        muted_until: Loop time until which the broker asks us to hold back (KIP-219).
        session_lifetime_s: How long the broker accepts requests after authentication, 0 for as
            long as the connection lives (KIP-368).
    """

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        max_frame_bytes: int,
        node_id: int | None,
        on_bug: OnBug | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.peer = f"{address}" if node_id is None else f"{address} (node {node_id})"
        self.node_id = node_id
        self.api_versions = ApiVersions({}, self.peer)
        self.closed: asyncio.Future[KafkaError] = self.loop.create_future()
        self.last_used = self.loop.time()
        self.muted_until = 0.0
        self._client_id = client_id
        self._on_bug = on_bug or self._tell_the_loop
        self._max_frame_bytes = max_frame_bytes
        self._is_trusted = False
        self._is_retired = False
        self.session_lifetime_s = 0.0
        # Set while the session is renewed: completed when requests may be sent again.
        self._renewed: asyncio.Future[None] | None = None
        # Retired, or about to be renewed: the last answer in flight makes a difference.
        self._is_draining = False
        self._drained: asyncio.Future[None] | None = None
        self.error: KafkaError | None = None
        self._transport: asyncio.Transport | None = None
        self._transport_closed = Event()
        self._can_write = Event()
        self._can_write.set()
        self._reader = FrameReader(self.peer, self._frame_limit_bytes)
        # By request and the newest version that it may use.
        self._choices: dict[tuple[type[Request[Response]], int], Choice[Response]] = {}
        self._in_flight: dict[int, Exchange[Response]] = {}
        self._last_correlation_id = 0
        self._opened_id = -1  # the last one of opening
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    # --- Opening and closing ---------------------------------------------------------------
    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        connect_timeout_s: float = 10.0,
        ssl_context: ssl.SSLContext | None = None,
        authenticate: Authenticate | None = None,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        node_id: int | None = None,
        on_bug: OnBug | None = None,
        known_versions: Callable[[], ApiVersions | None] = lambda: None,
        deadline: float | None = None,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> Connection:
        """Connect, negotiate versions, and authenticate when asked to.

        ``known_versions``, which is asked once there is a connection, saves the question for them.

        ``authenticate`` is given the fresh connection and returns the session's lifetime; until
        then answers are limited to 64 KiB. Each step takes at most ``connect_timeout_s``, and all
        end by ``deadline``, a loop time. ``authenticate`` waits for its ``turn``, for as long as
        that takes.
        ``on_bug`` is told of bugs that the connection was given up for (else the loop's exception
        handler is). Cancellation leaves nothing open.

        Raises:
            KafkaConnectionError: No address of the host could be reached, or the peer hung up.
            TLSError: TLS could not be agreed on.
            KafkaProtocolError: The peer does not speak Kafka's protocol.
            KafkaError: Whatever ``authenticate`` raises.
        """
        address = Address(host, port)
        limit = StepLimit(connect_timeout_s, deadline)
        connection = await dial(
            lambda: cls(
                address,
                client_id=client_id,
                max_frame_bytes=max_frame_bytes,
                node_id=node_id,
                on_bug=on_bug,
            ),
            address,
            ssl_context=ssl_context,
            limit=limit,
        )
        try:
            await connection._negotiate(limit.left_s(), known_versions())
            if authenticate is not None:
                async with turn():
                    await connection._authenticate(authenticate, limit.left_s())
        except BaseException:
            connection.close()
            raise
        connection._is_trusted = True
        if connection._last_correlation_id:
            connection._opened_id = connection._last_correlation_id
        return connection

    def name_node(self, node_id: int) -> None:
        """Take note of which node a bootstrap server is, for messages."""
        self.node_id = node_id
        self.peer = self._reader.peer = f"{self.peer} (node {node_id})"
        self.api_versions = self.api_versions.of_peer(self.peer)

    async def _negotiate(self, timeout_s: float, known: ApiVersions | None) -> None:
        if known is not None:
            self.api_versions = known
            return

        async def ask(request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
            # Nothing can be negotiated yet.
            decode = framing.response_decoder(ApiVersionsRequest, version)
            self._choices[ApiVersionsRequest, request.usable_max_version] = version, decode
            return await self.send(request, timeout_s=timeout_s)

        try:
            self.api_versions = await ask_api_versions(ask, self.peer)
            self._choices.clear()
        except TLSError:
            raise  # it says what is missing
        except (KafkaConnectionError, RequestTimedOutError) as error:
            raise KafkaConnectionError(
                f"{error.args[0]} while versions were negotiated (connected to {self.peer}): check "
                "that this is a Kafka listener, and that security_protocol is the listener's"
            ) from error

    async def _authenticate(self, authenticate: Authenticate, timeout_s: float) -> None:
        try:
            async with timeout(timeout_s):
                self.session_lifetime_s = await authenticate(self)
        except asyncio.TimeoutError as error:
            text = f"{self.peer} did not finish authentication within {timeout_s:g} s"
            raise KafkaConnectionError(text) from error

    async def renew(self, authenticate: Authenticate, timeout_s: float) -> None:
        """Authenticate again on the live connection (KIP-368); no answer is lost.

        Answers that are on their way arrive first. Until it is over requests must wait for
        `until_renewed`, for a broker takes nothing in between. A failure poisons the connection
        with the reason.
        """
        self._renewed = renewed = self.loop.create_future()
        try:
            await self._drain()
            if self.error is None:
                await self._authenticate(authenticate, timeout_s)
        except KafkaError as error:
            self._fail(error)
        except BaseException:
            self.close()  # half-way through a conversation nothing else can be said
            raise
        finally:
            self._renewed = None
            renewed.set_result(None)

    @property
    def is_renewing(self) -> bool:
        """Requests have to wait while the session is renewed."""
        return self._renewed is not None

    async def until_renewed(self) -> None:
        """Wait until requests may be sent, or the connection is lost."""
        if self._renewed is not None:
            await asyncio.shield(self._renewed)

    async def _drain(self) -> None:
        """Wait until every answer has arrived, or the connection is lost."""
        if self._in_flight:
            self._drained = self.loop.create_future()
            self._is_draining = True
            try:
                await self._drained
            finally:
                self._drained = None
                self._is_draining = self._is_retired

    def _last_answer_arrived(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._is_retired:
            self.close()

    @property
    def is_closed(self) -> bool:
        """Whether requests are refused because the connection is poisoned or closed."""
        return self.error is not None

    @property
    def in_flight_count(self) -> int:
        """Requests whose answer has not arrived, given-up ones included."""
        return len(self._in_flight)

    def retire(self) -> None:
        """Close as soon as every answer has arrived; further requests are refused."""
        self._is_retired = self._is_draining = True
        if not self._in_flight:
            self._last_answer_arrived()

    def close(self) -> None:
        """Close now; waiters get KafkaConnectionError. Idempotent."""
        self._fail(KafkaConnectionError(f"the connection to {self.peer} was closed by this client"))

    def give_up(self, error: KafkaError) -> None:
        """Close now, as the peer has stopped answering; waiters get the error. Idempotent."""
        self._fail(error)

    def hang_up(self) -> None:
        """Tell the peer that this is over, where the loop is closed and could not any more.

        The descriptor goes with the transport, when that is collected.
        """
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if isinstance(sock, TransportSocket):  # uvloop closes its sockets with the loop
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # it is over already
                pass

    async def wait_closed(self) -> None:
        """Wait until the socket is closed as well."""
        await self._transport_closed.wait()

    def _fail(self, error: KafkaError) -> None:
        """Poison: the first error stays, every waiter gets it, the socket goes."""
        if self.error is not None:
            return
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        exchanges, self._in_flight = self._in_flight, {}
        for exchange in exchanges.values():
            exchange.fail(error)
        if self._is_draining:
            self._last_answer_arrived()
        self._can_write.set()
        self._reader.clear()
        if self._transport is not None:
            # Not close(): it would linger over bytes for a peer that takes none, and over the
            # farewell of TLS, which sized frames do not need.
            self._transport.abort()
        if not self.closed.done():  # else somebody who awaited it was cancelled
            self.closed.set_result(error)

    @override
    def _give_up_socket(self) -> tuple[int, object] | None:
        transport, self._transport = self._transport, None
        if transport is None:
            return None
        sock: socket.socket | None = transport.get_extra_info("socket")
        return -1 if sock is None else sock.fileno(), transport

    # --- Requests --------------------------------------------------------------------------
    async def request(
        self, request: AnyRequest[R], *, timeout_s: float, max_version: int | None = None
    ) -> R:
        """Send a request and return its decoded answer.

        The request is on the wire before the first suspension, unless the peer is too slow to
        take what was sent before. ``timeout_s`` is how long the broker may take (see the module's
        text); a shorter wait of the caller's own is a cancellation, which costs the connection
        nothing: the late answer is dropped.

        Raises:
            RequestTimedOutError: No answer within ``timeout_s``.
            KafkaConnectionError: The connection is or was closed.
            IncompatibleBrokerVersion: The broker has no version of this request that we know.
            KafkaProtocolError: The peer broke the protocol.
        """
        if not self._can_write.is_set():
            await self._wait_writable(prepared(request).request_class, timeout_s)
        return await self.send(request, timeout_s=timeout_s, max_version=max_version)

    def send(
        self,
        request: AnyRequest[R],
        *,
        timeout_s: float,
        max_version: int | None = None,
        on_done: Callable[[Exchange[R]], None] | None = None,
    ) -> Exchange[R]:
        """Send a request at once, whatever is still buffered, and return its exchange.

        What is raised here is not told to ``on_done``; for its rules see exchange.py.

        Raises: as ``request``, except for what becomes of the exchange.
        """
        if not isinstance(request, PreparedRequest):
            request = prepared(request)
        if not request.expects_response:
            raise IllegalArgumentError(f"{request!r} gets no answer: ask for one (acks)")
        newest = request.usable_max_version  # what it says may need an older one than we know
        if max_version is not None and max_version < newest:
            newest = max_version
        choice: Choice[R] | None = self._choices.get(  # type: ignore[assignment] # R is the class's
            (request.request_class, newest)
        )
        if choice is None:
            choice = self._choose(request.request_class, newest)
        version, decode = choice
        transport = self._transport
        if self.error is not None:
            raise own_copy(self.error)
        if transport is None or self._is_retired:
            raise KafkaConnectionError(f"the connection to {self.peer} is being closed: try again")
        correlation_id = self._last_correlation_id + 1
        if correlation_id > MAX_CORRELATION_ID or correlation_id in self._in_flight:
            correlation_id = self._free_correlation_id()
        self._last_correlation_id = correlation_id
        encoded = request.encode(version, correlation_id, self._client_id)
        self.last_used = now = self.loop.time()
        # A broker that mutes us does not read the request before it unmutes us (KIP-219).
        deadline = (now if now > self.muted_until else self.muted_until) + timeout_s
        exchange = Exchange(
            self, request.request_class, version, decode, timeout_s, deadline, on_done
        )
        self._in_flight[correlation_id] = exchange
        if deadline < self._timer_at:
            self._set_timer(deadline)
        try:
            transport.write(encoded)
        except (OSError, RuntimeError) as error:  # uvloop: RuntimeError once the transport closed
            self._fail(lost(self.peer, error))
        return exchange

    def _choose(self, request_class: type[Request[R]], newest: int) -> Choice[R]:
        """Choose the version to use, once for each of these."""
        choice = self.api_versions.choice(request_class, newest)
        self._choices[request_class, newest] = choice
        return choice

    def throttle(self, duration_s: float) -> None:
        """Note that the broker asks us to hold back; a broker is believed up to a minute."""
        until = self.loop.time() + min(duration_s, MAX_THROTTLE_S)
        self.muted_until = max(self.muted_until, until)

    def _free_correlation_id(self) -> int:
        """Return the next one after the largest, or after those that are in flight since then."""
        correlation_id = self._last_correlation_id
        while True:
            correlation_id = correlation_id + 1 if correlation_id < MAX_CORRELATION_ID else 1
            if correlation_id not in self._in_flight:
                return correlation_id

    async def _wait_writable(self, request_class: type[Request[R]], timeout_s: float) -> None:
        try:
            async with timeout(timeout_s):
                await self._can_write.wait()
        except asyncio.TimeoutError:
            raise RequestTimedOutError(
                f"{self.peer} has not taken what was sent within {timeout_s:g} s: "
                f"{request_class.__name__} was not sent"
            ) from None

    # --- Deadlines -------------------------------------------------------------------------
    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._ring)
        self._timer_at = when

    def _ring(self) -> None:
        self._timer, self._timer_at = None, math.inf
        try:
            self._check_deadlines()
        except Exception as error:  # noqa: BLE001 -- told, see callback_failed
            self.callback_failed(error)

    def _check_deadlines(self) -> None:
        now = self.loop.time()
        oldest = next(iter(self._in_flight.values()), None)
        for exchange in self._in_flight.values():
            if exchange.deadline > now:
                continue
            error = RequestTimedOutError(f"no answer from {exchange} in {exchange.timeout_s:g} s")
            exchange.fail(error)
            if exchange is oldest:
                self._fail(
                    KafkaConnectionError(
                        f"{self.peer} stopped answering: {error.args[0]}; "
                        "the connection was given up"
                    )
                )
                return
            # Its turn comes later: from now on its deadline only tells whether the broker lives.
            exchange.deadline = now + exchange.timeout_s
        if self._in_flight:
            self._set_timer(min(exchange.deadline for exchange in self._in_flight.values()))

    # --- asyncio.BufferedProtocol ----------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._low_water = LowWaterMark(transport)

    def get_buffer(self, sizehint: int) -> Buffer:
        try:
            return self._reader.missing
        except Exception as error:  # noqa: BLE001 -- told, see callback_failed
            self.callback_failed(error)
            return bytearray(1)

    def buffer_updated(self, nbytes: int) -> None:
        if self.error is not None:
            return
        try:
            while True:
                try:
                    if (frame := self._reader.next_frame(nbytes)) is None:
                        if self._reader.wanted_bytes != self._low_water.wanted_bytes:
                            self._low_water.want(self._reader.wanted_bytes)
                        return
                    exchange = self._in_flight.pop(read_correlation_id(frame)[0], None)
                    if exchange is None:
                        raise out_of_step(self.peer, frame)
                except KafkaProtocolError as error:
                    self._fail(error)
                    return
                exchange.answered(frame)
                if self._is_draining and not self._in_flight:
                    self._last_answer_arrived()
                nbytes = 0  # what is behind it came along
        except Exception as error:  # noqa: BLE001 -- told, see callback_failed
            self.callback_failed(error)

    def callback_failed(self, error: BaseException) -> None:
        """Give the connection up for a bug that the event loop would log, leaving all waiting."""
        text = f"the connection to {self.peer} was given up: an answer's callback failed"
        self._fail(caused(KafkaConnectionError(text), error))
        self._on_bug(error)

    def _tell_the_loop(self, bug: BaseException) -> None:
        self.loop.call_exception_handler({"message": f"a bug: {self.peer}", "exception": bug})

    def eof_received(self) -> bool:
        return False  # the transport closes itself, connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport_closed.set()
        is_unanswered = self._last_correlation_id - self._opened_id == len(self._in_flight) == 1
        self._fail(lost(self.peer, exc, is_unanswered=is_unanswered))

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def _frame_limit_bytes(self) -> int:
        if not self._is_trusted:
            return UNCHECKED_BYTES
        return answer_limit_bytes(self._in_flight.values(), self._max_frame_bytes)
