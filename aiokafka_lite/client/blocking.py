"""One connection to one broker, without an event loop: for Spark's readers and planners.

Theory of operation. It is the connection of connection.py for callers that wait: requests go on
the wire at once, and several may be in flight; ``receive`` waits for the answer to one of them,
and keeps those that come before it for whoever asks for them. The first thing that goes wrong
closes the connection for good, and every request without an answer has that error.

Deadlines. A request's time begins when it is sent, and bytes do not prolong it: a peer that
trickles is given up as one that is silent. An answer that arrived in time and was not asked for
before its time was over is taken all the same; one too large for the socket's buffer is given as
much time again.

Threads. Any number may use a connection: requests are written one after another, and so are
answers read. So one thread may wait in ``receive`` while another calls ``send`` or ``close``,
which wakes it up. ``receive`` decodes the answer's fields, and leaves record sets as they came,
slices of a frame that nobody writes to as long as one of them is looked at.

Forks. A child of the process has its parent's connections closed, with ForkedError as the reason,
without the parent's broker learning of it (forking.py).
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from aiokafka_lite._compat import Never, override
from aiokafka_lite.client import blocking_socket
from aiokafka_lite.client.config import Address, ClientConfig
from aiokafka_lite.client.exchange import Pending, own_copy
from aiokafka_lite.client.forking import ForkAware
from aiokafka_lite.client.frames import UNCHECKED_BYTES, FrameReader
from aiokafka_lite.client.limits import MAX_CORRELATION_ID, MAX_THROTTLE_S, answer_limit_bytes
from aiokafka_lite.client.losses import lost, out_of_step
from aiokafka_lite.client.sessions import renewal_delay_s
from aiokafka_lite.client.unsuspended import run
from aiokafka_lite.client.versions import ApiVersions, Choice, ask_api_versions
from aiokafka_lite.errors import (
    IllegalArgumentError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    RequestTimedOutError,
    TLSError,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.framing import read_correlation_id
from aiokafka_lite.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from aiokafka_lite.protocol.prepared import AnyRequest, PreparedRequest, prepared
from aiokafka_lite.protocol.schema import Response

if TYPE_CHECKING:
    from aiokafka_lite.client.sasl import Mechanism

R = TypeVar("R", bound=Response)
R_co = TypeVar("R_co", bound=Response, covariant=True)


class BlockingExchange(Pending[R_co]):
    """A request on the wire; ``BlockingConnection.receive`` gets its answer."""

    __slots__ = ()


class BlockingConnection(ForkAware):
    """A connection, open from ``open`` until something goes wrong or ``close``.

    Attributes:
        peer: Host, port and node id, for messages.
        node_id: None where it is not known.
        api_versions: What the broker offers.
        error: Why it was closed, None while it is open.
        is_lost: Whether the network or the peer brought that about, and not this process.
        last_used: Time of the clock of the latest request.
        muted_until: Time until which the broker asks us to hold back (KIP-219).
    """

    def __init__(
        self,
        address: Address,
        config: ClientConfig,
        *,
        mechanism: Mechanism | None,
        node_id: int | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        rng: random.Random,
    ) -> None:
        self.peer = f"{address}" if node_id is None else f"{address} (node {node_id})"
        self.node_id = node_id
        self.api_versions = ApiVersions({}, self.peer)
        self.error: KafkaError | None = None
        self.is_lost = False
        self.last_used = clock()
        self.muted_until = 0.0
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._mechanism = mechanism
        self._rng = rng
        self._is_trusted = False
        # When the session is to be renewed, and when it ends (KIP-368).
        self._renew_at = self._session_ends_at = math.inf
        self._socket: blocking_socket.BlockingSocket | None = None
        self._reader = FrameReader(self.peer, self._frame_limit_bytes)
        self._in_flight: dict[int, Pending[Response]] = {}
        self._last_correlation_id = 0
        self._opened_id = -1  # the last one of opening
        self._sending = threading.RLock()
        self._receiving = threading.Lock()  # taken after _sending, where both are

    # --- Opening and closing ---------------------------------------------------------------
    @classmethod
    def open(
        cls,
        address: Address,
        config: ClientConfig,
        *,
        mechanism: Mechanism | None = None,
        node_id: int | None = None,
        receive_buffer_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> BlockingConnection:
        """Connect, negotiate versions, and authenticate when there is a mechanism.

        Until then answers are limited to 64 KiB. Each step takes at most
        ``config.connect_timeout_s``.

        Args:
            address: Where to; every address that it resolves to is tried.
            config: Whose settings are used, its bootstrap servers apart.
            mechanism: How to authenticate.
            node_id: Whose address it is, for messages.
            receive_buffer_bytes: SO_RCVBUF. None leaves it to the kernel, which makes it larger
                as it is needed, up to net.ipv4.tcp_rmem; a size given stays, and is at most twice
                net.core.rmem_max.
            clock: Tells the time in seconds.
            sleep: Waits for so many seconds, where a broker asks us to hold back.
            rng: Draws when sessions are renewed.

        Raises:
            InsecureConfigError: Credentials would be sent to another machine without TLS.
            KafkaConfigurationError: There is a mechanism where SASL is not spoken, or none.
            KafkaConnectionError: No address of the host could be reached, or the peer hung up.
            TLSError: TLS could not be agreed on.
            KafkaProtocolError: The peer does not speak Kafka's protocol.
            AuthenticationFailedError: The broker refuses the credentials.
        """
        config.check_address(address)
        if config.uses_sasl != (mechanism is not None):
            raise KafkaConfigurationError(
                f"security_protocol={config.security_protocol} "
                + ("needs a SASL mechanism" if config.uses_sasl else "takes no SASL mechanism")
            )
        self = cls(
            address,
            config,
            mechanism=mechanism,
            node_id=node_id,
            clock=clock,
            sleep=sleep,
            rng=rng or random.Random(),
        )
        self._socket = blocking_socket.connect(
            address,
            ssl_context=config.ssl_context if config.uses_tls else None,
            connect_timeout_s=config.connect_timeout_s,
            receive_buffer_bytes=receive_buffer_bytes,
        )
        try:
            self._negotiate()
            self._authenticate()
        except BaseException:
            self.close()
            raise
        self._is_trusted = True
        self._opened_id = self._last_correlation_id
        return self

    def _negotiate(self) -> None:
        async def ask(request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
            # Nothing can be negotiated yet.
            decode = framing.response_decoder(ApiVersionsRequest, version)
            timeout_s = self._config.connect_timeout_s
            return self.receive(self._send(prepared(request), (version, decode), timeout_s))

        try:
            self.api_versions = run(ask_api_versions(ask, self.peer))
        except TLSError:
            raise  # it says what is missing
        except (KafkaConnectionError, RequestTimedOutError) as error:
            raise KafkaConnectionError(
                f"{error.args[0]} while versions were negotiated: check that this is a Kafka "
                "listener, and that security_protocol is the listener's"
            ) from error

    def _authenticate(self) -> None:
        if self._mechanism is None:
            return
        # Imported here: only where SASL is used.
        from aiokafka_lite.client.blocking_sasl import authenticate

        timeout_s = self._config.connect_timeout_s
        lifetime_s = authenticate(self, self._mechanism, timeout_s=timeout_s, clock=self._clock)
        self._renew_at = self._session_ends_at = math.inf
        if lifetime_s:
            now = self._clock()
            self._renew_at = now + renewal_delay_s(lifetime_s, self._rng)
            self._session_ends_at = now + lifetime_s

    def _renew(self) -> None:
        """Authenticate again on the live connection (KIP-368); no answer is lost.

        A broker takes nothing in between: answers on their way arrive first, others wait to send.
        """
        with self._sending:
            if self._renew_at > self._clock():
                return  # another thread has done so
            while exchange := next(iter(self._in_flight.values()), None):
                self._await(exchange)
            try:
                self._authenticate()
            except BaseException as error:
                # Half-way through a conversation nothing else can be said.
                what = f"a session with {self.peer} was not renewed"
                self._fail(error if isinstance(error, KafkaError) else KafkaConnectionError(what))
                raise
            finally:
                if self.error is not None:
                    self._release()

    @property
    def is_closed(self) -> bool:
        """Whether requests are refused."""
        return self.error is not None

    @property
    def in_flight_count(self) -> int:
        """Requests whose answer has not arrived."""
        return len(self._in_flight)

    def is_usable(self) -> bool:
        """Whether a request may be sent; a connection that the peer has closed is noticed here.

        Where no answer is due, a socket that can be read has lost its peer, or its step. One whose
        session is over is not worth being saved then, either.
        """
        sock = self._socket
        if sock is None or self.error is not None:
            return False
        if not self._sending.acquire(blocking=False):
            return True  # somebody is using it
        try:  # nobody sends meanwhile, whose answer would be taken for the end
            if self._in_flight:
                return True
            if self._clock() >= self._session_ends_at:
                return False
            if sock.is_quiet():
                return True
            self._fail(lost(self.peer, None))
        finally:
            self._sending.release()
        self._release()
        return False

    def close(self) -> None:
        """Close now; requests without an answer get KafkaConnectionError. Idempotent."""
        text = f"the connection to {self.peer} was closed by this client"
        self._fail(KafkaConnectionError(text), is_lost=False)
        self._release()

    def _fail(self, error: KafkaError, *, is_lost: bool = True) -> None:
        """Refuse all use: the first error stays, every request without an answer gets it."""
        if self.error is None:
            self.error = error
            self.is_lost = is_lost
        exchanges, self._in_flight = self._in_flight, {}
        for exchange in exchanges.values():
            exchange.fail(self.error)
        if (sock := self._socket) is not None:
            sock.shut_down()

    def _release(self) -> None:
        """Close the socket, once no other thread is using it, which `_fail` has woken up."""
        with self._sending, self._receiving:
            sock, self._socket = self._socket, None
            if sock is not None:
                sock.close()
                self._reader.clear()

    @override
    def _give_up_socket(self) -> tuple[int, object] | None:
        # Threads that may have held them are not here to release them.
        self._sending, self._receiving = threading.RLock(), threading.Lock()
        self._in_flight = {}
        sock, self._socket = self._socket, None
        return None if sock is None else (sock.fileno(), sock)

    # --- Requests --------------------------------------------------------------------------
    def request(self, request: AnyRequest[R], *, timeout_s: float) -> R:
        """Send a request and return its decoded answer.

        Raises: as ``send`` and ``receive``.
        """
        return self.receive(self.send(request, timeout_s=timeout_s))

    def send(self, request: AnyRequest[R], *, timeout_s: float) -> BlockingExchange[R]:
        """Send a request and return what to receive its answer with.

        Where the broker has asked us to hold back, that is waited out first.

        Args:
            request: What is asked; it must be something that gets an answer.
            timeout_s: How long the broker may take, from when it is sent.

        Raises:
            IllegalArgumentError: The request gets no answer.
            IncompatibleBrokerVersion: The broker has no version of this request that we know.
            KafkaConnectionError: The connection is or was closed, or the peer takes nothing.
        """
        if not isinstance(request, PreparedRequest):
            request = prepared(request)
        if not request.expects_response:
            raise IllegalArgumentError(f"{request!r} gets no answer: ask for one (acks)")
        choice = self.api_versions.choice(request.request_class, request.usable_max_version)
        if (muted_s := self.muted_until - self._clock()) > 0:
            self._sleep(muted_s)
        if self._clock() >= self._renew_at:
            self._renew()
        return self._send(request, choice, timeout_s)

    def request_now(self, request: PreparedRequest[R], *, timeout_s: float) -> R:
        """Like `request`, whatever has to be waited for; for what authenticates."""
        choice = self.api_versions.choice(request.request_class, request.usable_max_version)
        return self.receive(self._send(request, choice, timeout_s))

    def _send(
        self, request: PreparedRequest[R], choice: Choice[R], timeout_s: float
    ) -> BlockingExchange[R]:
        version, decode = choice
        try:
            with self._sending:
                if self.error is not None or self._socket is None:
                    self._refuse()
                correlation_id = self._next_correlation_id()
                encoded = request.encode(version, correlation_id, self._config.client_id)
                self.last_used = self._clock()
                exchange = BlockingExchange(
                    self,
                    request.request_class,
                    version,
                    decode,
                    timeout_s,
                    self.last_used + timeout_s,
                )
                self._in_flight[correlation_id] = exchange
                self._write(self._socket, memoryview(encoded), exchange)
        finally:
            if self.error is not None:
                self._release()
        return exchange

    def _refuse(self) -> Never:
        raise own_copy(self.error or KafkaConnectionError(f"{self.peer} is not connected"))

    def _write(
        self,
        sock: blocking_socket.BlockingSocket,
        encoded: memoryview,
        exchange: BlockingExchange[R],
    ) -> None:
        try:
            while encoded:
                encoded = encoded[sock.send(encoded, exchange.deadline - self._clock()) :]
        except TimeoutError:
            self._fail(
                KafkaConnectionError(
                    f"{self.peer} has not taken {exchange.request_class.__name__} within "
                    f"{exchange.timeout_s:g} s: the connection was given up"
                )
            )
        except OSError as error:
            self._fail(lost(self.peer, error))
        except BaseException:
            # Half-way through a request nothing else can be said.
            self._fail(KafkaConnectionError(f"a request to {self.peer} was interrupted"))
            raise
        if self.error is not None:
            self._refuse()

    def receive(self, exchange: BlockingExchange[R]) -> R:
        """Wait for the answer to a request that was sent here, and return it decoded.

        Answers to other requests that come first are kept for those who ask for them.

        Raises:
            RequestTimedOutError: There is none in time; the connection is closed.
            KafkaConnectionError: The connection is or was closed.
            KafkaProtocolError: The peer broke the protocol; the connection is closed unless it is
                only the answer's content that is malformed.
        """
        if not exchange.is_done:
            self._await(exchange)
        return exchange.result()

    def _await(self, exchange: Pending[R]) -> None:
        """Receive what comes until a request has its answer, or an error."""
        try:
            with self._receiving:
                while not exchange.is_done:
                    self._receive_one(exchange)
        finally:
            if self.error is not None:
                self._release()

    def _receive_one(self, exchange: Pending[R]) -> None:
        """Receive the next answer, whosever it is, within an exchange's time."""
        sock = self._socket
        if sock is None:
            self._refuse()
        try:
            frame = self._receive_frame(sock, exchange)
            if frame is None:
                self._fail(lost(self.peer, None, is_unanswered=self._is_unanswered()))
                return
            answered = self._in_flight.pop(read_correlation_id(frame)[0], None)
            if answered is None:
                self._fail(out_of_step(self.peer, frame))
                return
            answered.answered(frame)
        except TimeoutError:
            text = f"no answer from {exchange} in {exchange.timeout_s:g} s"
            exchange.fail(RequestTimedOutError(text))
            self._fail(
                KafkaConnectionError(
                    f"{self.peer} stopped answering: {text}; the connection was given up"
                )
            )
        except OSError as error:
            self._fail(lost(self.peer, error, is_unanswered=self._is_unanswered()))
        except KafkaError as error:
            self._fail(error)
        except BaseException:
            # The bytes may be lost of which the reader was not told.
            self._fail(KafkaConnectionError(f"an answer of {self.peer} was interrupted"))
            raise

    def _receive_frame(
        self, sock: blocking_socket.BlockingSocket, exchange: Pending[R]
    ) -> memoryview | None:
        """Return the next frame, None where the stream ends before it."""
        reader = self._reader
        count = 0
        is_late = self._clock() >= exchange.deadline
        while (frame := reader.next_frame(count)) is None:
            count = sock.receive_into(
                reader.missing,
                exchange.deadline - self._clock(),
                is_all_wanted=reader.is_in_place,
            )
            if count == 0:
                return None
            if is_late:
                # Nobody has received meanwhile. The peer has answered: the rest could not be sent,
                # as what the socket holds was full.
                is_late = False
                exchange.deadline = self._clock() + exchange.timeout_s
        return frame

    def _is_unanswered(self) -> bool:
        return self._last_correlation_id - self._opened_id == len(self._in_flight) == 1

    def _next_correlation_id(self) -> int:
        """Return the next one after the largest, or after those that are in flight since then."""
        correlation_id = self._last_correlation_id
        while True:
            correlation_id = correlation_id + 1 if correlation_id < MAX_CORRELATION_ID else 1
            if correlation_id not in self._in_flight:
                self._last_correlation_id = correlation_id
                return correlation_id

    def throttle(self, duration_s: float) -> None:
        """Note that the broker asks us to hold back; a broker is believed up to a minute."""
        until = self._clock() + min(duration_s, MAX_THROTTLE_S)
        self.muted_until = max(self.muted_until, until)

    def _frame_limit_bytes(self) -> int:
        if not self._is_trusted:
            return UNCHECKED_BYTES
        return answer_limit_bytes(tuple(self._in_flight.values()), self._config.max_frame_bytes)
