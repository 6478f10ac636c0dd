"""One connection to one broker without an event loop, for Spark's readers and planners.

It is a shell around a `Wire`. Several requests may be in flight. ``receive`` waits for one response
and keeps those that arrive before it.

A response that arrived in time is accepted even if ``receive`` is called later. One too large for
the socket's buffer then gets its time again.

Any number of threads may use a connection: writes and reads are each serialised. ``send`` and
``close`` may be called while another thread waits in ``receive``; ``close`` wakes it.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, TypeVar

from aiokafka_lite._forks import leave_to_parent, notify_of_forks
from aiokafka_lite.client import blocking_socket
from aiokafka_lite.client.config import Address, ClientConfig
from aiokafka_lite.client.versions import (
    FirstVersions,
    MeantBroker,
    MisroutedError,
    ask_api_versions,
    not_negotiated,
)
from aiokafka_lite.client.wire import Pending, Wire, Wired
from aiokafka_lite.errors import (
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    RequestTimedOutError,
    TLSError,
)
from aiokafka_lite.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from aiokafka_lite.protocol.prepared import AnyRequest
from aiokafka_lite.protocol.schema import Response

if TYPE_CHECKING:
    from aiokafka_lite.client.sasl import Mechanism

R = TypeVar("R", bound=Response)
T = TypeVar("T")


def run(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine without an event loop, and return its result.

    Raises:
        RuntimeError: It suspended.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} needs an event loop, but no loop is running")


class BlockingConnection(Wired):
    """A connection, open from ``open`` until an error or ``close``.

    Attributes:
        wire: The requests in flight.
        is_lost: Whether the network or the peer has closed it.
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
        self.wire = Wire(
            address,
            client_id=config.client_id,
            max_frame_bytes=config.max_frame_bytes,
            node_id=node_id,
            clock=clock,
        )
        self.is_lost = False
        self._address = address
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._mechanism = mechanism
        self._rng = rng
        self._renew_at = math.inf
        self._socket: blocking_socket.BlockingSocket | None = None
        self._sending = threading.RLock()
        self._receiving = threading.Lock()  # always acquired after _sending
        notify_of_forks(self)

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
        first_versions: FirstVersions | None = None,
        cluster_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> BlockingConnection:
        """Connect, negotiate versions, and authenticate if there is a mechanism.

        Each step takes at most `connect_timeout_s` of the config. With `cluster_id` and `node_id`,
        another broker at this address is refused (KIP-1242). `receive_buffer_bytes` is SO_RCVBUF,
        at most twice net.core.rmem_max. None: the kernel adapts it, up to net.ipv4.tcp_rmem.

        Raises:
            InsecureConfigError: Credentials would be sent to another machine without TLS.
            KafkaConfigurationError: SASL without a mechanism, or a mechanism without SASL.
            KafkaError: As `Connection.open`; AuthenticationFailedError if the credentials are
                refused.
        """
        config.check_address(address)
        if config.uses_sasl != (mechanism is not None):
            raise KafkaConfigurationError(
                f"security_protocol={config.security_protocol} "
                + ("needs a SASL mechanism" if config.uses_sasl else "takes no SASL mechanism")
            )
        meant = MeantBroker(cluster_id, node_id)

        async def attempt(version: int) -> BlockingConnection:
            self = cls(
                address,
                config,
                mechanism=mechanism,
                node_id=node_id,
                clock=clock,
                sleep=sleep,
                rng=rng or random.Random(),
            )
            self._connect(receive_buffer_bytes, version, meant)
            return self

        first_versions = first_versions or FirstVersions(clock)
        return run(first_versions.open(address, attempt, is_identified=meant.is_known))

    def _connect(self, receive_buffer_bytes: int | None, version: int, meant: MeantBroker) -> None:
        config = self._config
        self._socket = blocking_socket.connect(
            self._address,
            ssl_context=config.ssl_context if config.uses_tls else None,
            connect_timeout_s=config.connect_timeout_s,
            receive_buffer_bytes=receive_buffer_bytes,
        )
        try:
            self._negotiate(version, meant)
            self._authenticate()
        except BaseException:
            self.close()
            raise
        self.wire.trust()

    def _negotiate(self, version: int, meant: MeantBroker) -> None:
        async def ask(request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
            self.wire.speak(request, version)
            return self.request_now(request, timeout_s=self._config.connect_timeout_s)

        try:
            self.wire.offer(run(ask_api_versions(ask, self.peer, version, meant)))
        except (TLSError, MisroutedError):
            raise  # its message has the cause
        except (KafkaConnectionError, RequestTimedOutError) as error:
            raise not_negotiated(error, self.peer) from error

    def _authenticate(self) -> None:
        if self._mechanism is None:
            return
        # Imported only if SASL is used.
        from aiokafka_lite.client.blocking_sasl import authenticate

        timeout_s = self._config.connect_timeout_s
        lifetime_s = authenticate(self, self._mechanism, timeout_s=timeout_s, clock=self._clock)
        self.wire.begin_session(lifetime_s)
        self._renew_at = self.wire.renewal_at(self._rng)

    def _renew(self) -> None:
        """Authenticate again on the live connection (KIP-368); no response is lost.

        Brokers accept no requests in between: responses on their way arrive first, requests wait.
        """
        with self._sending:
            if self._renew_at > self._clock():
                return  # another thread has done so
            while exchange := next(iter(self.wire.in_flight.values()), None):
                self._await(exchange)
            try:
                self._authenticate()
            except BaseException as error:
                # The SASL conversation cannot be continued.
                what = f"an exception interrupted the renewal of the SASL session with {self.peer}"
                self._fail(error if isinstance(error, KafkaError) else KafkaConnectionError(what))
                raise
            finally:
                if self.error is not None:
                    self._release()

    def is_usable(self) -> bool:
        """Whether a request may be sent; notices that the peer has closed the connection.

        If no response is due, a readable socket has lost its peer. One whose session has ended is
        not kept.
        """
        sock = self._socket
        if sock is None or self.error is not None:
            return False
        if not self._sending.acquire(blocking=False):
            return True  # another thread is using it
        try:  # with the lock, because a response must not be taken for the end
            if self.wire.in_flight:
                return True
            if self._clock() >= self.wire.session_ends_at:
                return False
            if sock.is_quiet():
                return True
            self._fail(self.wire.lost(None))
        finally:
            self._sending.release()
        self._release()
        return False

    def close(self) -> None:
        """Close now; unanswered requests get KafkaConnectionError. Idempotent."""
        text = f"the connection to {self.peer} was closed by this client"
        self._fail(KafkaConnectionError(text), is_lost=False)
        self._release()

    def _fail(self, error: KafkaError, *, is_lost: bool = True) -> None:
        if self.wire.poison(error):
            self.is_lost = is_lost
        if (sock := self._socket) is not None:
            sock.shut_down()

    def _interrupted(self, what: str) -> KafkaConnectionError:
        reason = f"because an exception interrupted the {what}"
        return KafkaConnectionError(f"the connection to {self.peer} was closed, {reason}")

    def _release(self) -> None:
        """Close the socket when no other thread uses it; `_fail` has woken them."""
        with self._sending, self._receiving:
            sock, self._socket = self._socket, None
            if sock is not None:
                sock.close()
                self.wire.reader.clear()

    def note_fork(self) -> None:
        # Threads that may have held the locks do not exist in the child.
        self._sending, self._receiving = threading.RLock(), threading.Lock()
        self.wire.orphan()
        sock, self._socket = self._socket, None
        if sock is not None:
            leave_to_parent(sock.fileno(), sock)

    # --- Requests --------------------------------------------------------------------------
    def request(self, request: AnyRequest[R], *, timeout_s: float) -> R:
        return self.receive(self.send(request, timeout_s=timeout_s))

    def send(self, request: AnyRequest[R], *, timeout_s: float) -> Pending[R]:
        """Send a request, after a throttling pause, and return its exchange for ``receive``.

        `timeout_s` is how long the broker may take after it is sent.

        Raises:
            KafkaConnectionError: The connection is or was closed, or the peer does not read.
            KafkaError: As `Wire.ask`.
        """
        self.wire.check(request)
        if (muted_s := self.muted_until - self._clock()) > 0:
            self._sleep(muted_s)
        if self._clock() >= self._renew_at:
            self._renew()
        return self._send(request, timeout_s)

    def request_now(self, request: AnyRequest[R], *, timeout_s: float) -> R:
        """Like `request`, without any waiting before; for the opening of the connection."""
        return self.receive(self._send(request, timeout_s))

    def _send(self, request: AnyRequest[R], timeout_s: float) -> Pending[R]:
        exchange: Pending[R] = Pending(self.wire)
        try:
            with self._sending:
                encoded = self.wire.ask(exchange, request, timeout_s)
                self._write(memoryview(encoded), exchange)
        finally:
            if self.error is not None:
                self._release()
        return exchange

    def _write(self, encoded: memoryview, exchange: Pending[R]) -> None:
        sock = self._socket
        if sock is None:
            raise self.wire.refusal()
        try:
            while encoded:
                encoded = encoded[sock.send(encoded, exchange.deadline - self._clock()) :]
        except TimeoutError:
            self._fail(
                KafkaConnectionError(
                    f"sending {exchange.request_class.__name__} to {self.peer} took longer than "
                    f"{exchange.timeout_s:g} s, so the connection was closed"
                )
            )
        except OSError as error:
            self._fail(self.wire.lost(error, is_sending=True))
        except BaseException:
            # The stream ends in the middle of a request.
            self._fail(self._interrupted("sending of a request"))
            raise
        if self.error is not None:
            raise self.wire.refusal()

    def receive(self, exchange: Pending[R]) -> R:
        """Wait for the response to a request, and return it decoded.

        Raises:
            RequestTimedOutError: No response in time; the connection is closed.
            KafkaConnectionError: The connection is or was closed.
            KafkaProtocolError: The peer broke the protocol. The connection is closed unless only
                the response's content is malformed.
        """
        if not exchange.is_done:
            self._await(exchange)
        return exchange.result()

    def _await(self, exchange: Pending[R]) -> None:
        try:
            with self._receiving:
                while not exchange.is_done:
                    self._receive_one(exchange)
        finally:
            if self.error is not None:
                self._release()

    def _receive_one(self, exchange: Pending[R]) -> None:
        """Receive the next response, to any request, within an exchange's time."""
        sock = self._socket
        if sock is None:
            raise self.wire.refusal()
        try:
            self._receive_answer(sock, exchange)
        except TimeoutError:
            self._fail(self.wire.silent(exchange))
        except OSError as error:
            self._fail(self.wire.lost(error))
        except KafkaError as error:
            self._fail(error)
        except BaseException:
            # Received bytes may be lost.
            self._fail(self._interrupted("receiving of a response"))
            raise

    def _receive_answer(self, sock: blocking_socket.BlockingSocket, exchange: Pending[R]) -> None:
        wire = self.wire
        count = 0
        is_late = self._clock() >= exchange.deadline
        while wire.receive(count) is None:
            try:
                count = sock.receive_into(
                    wire.reader.missing(),
                    exchange.deadline - self._clock(),
                    is_all_wanted=wire.reader.rest is not None,
                )
            except TimeoutError:
                if not wire.move_deadline(exchange):
                    raise
                count = 0
                continue
            if count == 0:
                self._fail(wire.lost(None))
                return
            if is_late:
                # No thread has received before. The peer has answered, but its socket was full, so
                # the rest needs time.
                is_late = False
                exchange.begin_time(self._clock())
