"""A connection to a broker without its socket: requests in flight, and their responses.

`Connection` is a shell around a `Wire`: it moves bytes, waits and keeps timers. The wire encodes
requests and matches responses to them.

    state      requests                         ends by
    OPENING    ApiVersions, SASL                `trust`
    OPEN       all                              `begin_renewal`, `retire`
    RENEWING   SASL; others wait (KIP-368)      `end_renewal`, `retire`
    RETIRED    no more; responses still arrive  the shell closes it when none is in flight
    POISONED   no more, permanently             never: the client opens another connection

Errors that break the connection are raised or returned here. The shell passes them to `poison`, and
closes the socket. The first error stays, and every request in flight gets it.

    fault                                  the connection
    network failure, closed by the peer    poisoned, see `Wire.lost`
    impossible frame size                  poisoned: the stream is out of step
    response to no request in flight       poisoned: the stream is out of step
    the oldest request is overdue          poisoned: the broker is silent
    a younger request is overdue           that request fails
    a response cannot be decoded           that request fails: frames carry their size

A request is in flight from `ask` to its response. Cancelled and timed-out requests stay, so that
their late responses are recognised and dropped. Brokers answer in order, so a younger request may
wait behind others (a JoinGroup waits for members).

A deadline limits silence: with bytes of its response, the oldest request's time begins again,
unless they trickle (`LEAST_BYTES_PER_S`). KIP-219: with throttle_time_ms the broker mutes us.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from aiokafka_lite.client.frames import UNCHECKED_BYTES, Frame, FrameReader
from aiokafka_lite.client.network_errors import caused, explain, is_refusal
from aiokafka_lite.client.versions import NOTHING_OFFERED, ApiVersions, Choice
from aiokafka_lite.errors import (
    CorrelationIdError,
    ForkedError,
    IllegalArgumentError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    RequestTimedOutError,
    TLSError,
)
from aiokafka_lite.protocol.framing import (
    encode_request,
    piecewise_decoder,
    read_correlation_id,
    response_decoder,
)
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.prepared import AnyRequest, PreparedRequest
from aiokafka_lite.protocol.schema import Request, Response, Struct

if TYPE_CHECKING:
    import random
    from asyncio import Future

    from aiokafka_lite.client.config import Address

R = TypeVar("R", bound=Response)
R_co = TypeVar("R_co", bound=Response, covariant=True)

MAX_CORRELATION_ID: Final = 2**31 - 1
# Limits for values of a broker.
MAX_SMALL_ANSWER_BYTES: Final = 16 * 1024 * 1024
MAX_THROTTLE_S: Final = 60.0
# Requests whose responses depend on the cluster's size.
LARGE_ANSWERS: Final = (FetchRequest, MetadataRequest)
# A slower response does not move its deadline.
LEAST_BYTES_PER_S: Final = 1024
# After a longer pause within a response, the next bytes are read as they arrive.
SLOW_S: Final = 0.5
# Shorter responses are decoded in less than a millisecond.
LONG_FRAME_BYTES: Final = 16 * 1024
# A session is renewed after a part of its lifetime that is drawn between these.
RENEWED_AT: Final = (0.80, 0.90)
# Brokers refuse to authenticate again within a second.
LEAST_RENEWAL_S: Final = 1.05


class WireState(enum.Enum):
    OPENING = "opening"
    OPEN = "open"
    RENEWING = "renewing"
    RETIRED = "retired"
    POISONED = "poisoned"


TRANSITIONS: Final[Mapping[WireState, frozenset[WireState]]] = MappingProxyType(
    {
        WireState.OPENING: frozenset({WireState.OPEN, WireState.POISONED}),
        WireState.OPEN: frozenset({WireState.RENEWING, WireState.RETIRED, WireState.POISONED}),
        WireState.RENEWING: frozenset({WireState.OPEN, WireState.RETIRED, WireState.POISONED}),
        WireState.RETIRED: frozenset({WireState.POISONED}),
        WireState.POISONED: frozenset(),
    }
)


class UnansweredCredentialsError(KafkaConnectionError):
    """The connection was lost after credentials: perhaps a refusal, so it is retried slowly."""


class Asked:
    timeout_s: float
    deadline: float

    def __init__(
        self, wire: Wire, on_done: Callable[[Any], None] | None = None, connection: Any = None
    ) -> None:
        self._wire = wire
        self.on_done = on_done
        self.connection = connection
        self.waiter: Future[None] | None = None
        self.frame: Frame | None = None
        self.error: KafkaError | None = None

    def answered(self) -> None:
        if self.frame is None:
            return
        if self.on_done is not None:
            self.on_done(self)
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():  # else it was cancelled
            self.waiter.set_result(None)

    def begin_time(self, now: float) -> None:
        """Set the deadline of a request that the broker has from `now` on."""
        self.deadline = now + self.timeout_s


class Exchange(Asked, Generic[R_co]):
    """A request in flight and its outcome; `Wire.ask` sets the request's fields.

    The memory of `frame`, the response's bytes, lives as long as this. `on_done`: see
    connection.py.
    """

    __slots__ = ()

    request_class: type[Request[R_co]]
    version: int
    decode: Callable[[memoryview], R_co]

    def __await__(self) -> Generator[object, None, R_co]:
        if not self.is_done:
            if self.waiter is None:
                self.waiter = self.connection.loop.create_future()
            yield from self.waiter.__await__()
        return self.result()

    def abandon(self) -> None:
        """Never call ``on_done``; a late response is dropped undecoded."""
        self.on_done = None

    @property
    def is_done(self) -> bool:
        return self.frame is not None or self.error is not None

    @property
    def silent_since(self) -> float:
        return max(self.deadline - self.timeout_s, self._wire.received_at)

    @property
    def is_arriving(self) -> bool:
        """Whether a part of the oldest request's response has arrived."""
        return self._wire.reader.received_bytes > 0

    def result(self) -> R_co:
        """Decode and return the response; record sets are slices of its frame."""
        if self.error is not None:
            raise own_copy(self.error)
        if self.frame is None:
            raise RuntimeError(f"no response from {self} has arrived yet")
        try:
            response = self.decode(memoryview(self.frame))
        except KafkaProtocolError as error:
            raise self._bad_answer(error) from error
        self._apply_throttle(response)
        return response

    def result_in_pieces(self, element: type[Struct]) -> tuple[R_co, Iterator[Struct] | None]:
        """Decode a long response; the iterator decodes its elements, a millisecond at a time."""
        if self.frame is None or len(self.frame) < LONG_FRAME_BYTES:
            return self.result(), None
        try:
            decode = piecewise_decoder(self.request_class, self.version, element)
            pieces = decode(memoryview(self.frame))
            response: R_co = next(pieces)  # type: ignore[assignment] # the first is the message
        except KafkaProtocolError as error:
            raise self._bad_answer(error) from error
        self._apply_throttle(response)
        return response, self._named(pieces)

    def _named(self, pieces: Iterator[Struct]) -> Iterator[Struct]:
        try:
            yield from pieces
        except KafkaProtocolError as error:
            raise self._bad_answer(error) from error

    def _bad_answer(self, error: KafkaProtocolError) -> KafkaProtocolError:
        return type(error)(f"invalid response from {self}: {error.args[0]}")

    def _apply_throttle(self, response: Response) -> None:
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._wire.throttle(throttle_ms / 1000)

    def fail(self, error: KafkaError) -> None:
        if self.is_done:
            return
        self.error = error
        if self.on_done is not None:
            self.connection.loop.call_soon(self._report)
        self.wake()

    def _report(self) -> None:
        if self.on_done is not None:
            try:
                self.on_done(self)
            except Exception as error:  # noqa: BLE001 -- reported, see callback_failed
                self.connection.callback_failed(error)

    def __str__(self) -> str:
        name = self.request_class.__name__.removesuffix("Request")
        return f"{self._wire.peer} to {name} v{self.version}"


class Wire:
    """A connection's requests and responses, and its state. All fields are written only here.

    `in_flight` has the requests without a response, abandoned ones included, by correlation id.
    Until `muted_until` the broker asks for no requests (KIP-219). A `session_lifetime_s` of 0 has
    no limit.
    """

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        max_frame_bytes: int,
        node_id: int | None,
        clock: Callable[[], float],
    ) -> None:
        self.peer = f"{address}" if node_id is None else f"{address} (node {node_id})"
        self.node_id = node_id
        self.state = WireState.OPENING
        self.api_versions = NOTHING_OFFERED
        self.error: KafkaError | None = None
        self.reader = FrameReader(self.peer, self.answer_limit_bytes)
        self.in_flight: dict[int, Exchange[Response]] = {}
        self.last_correlation_id = 0
        self.last_used = clock()
        self.received_at = -math.inf
        # The request whose deadline moved last, when, and the received bytes of its response.
        self._moved: tuple[Exchange[Response] | None, float, int] = (None, 0.0, 0)
        self.muted_until = 0.0
        self.session_lifetime_s = 0.0
        self._session_began_at = 0.0
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._clock = clock
        self._opened_id = -1  # the last id of opening
        # Versions by request and the newest one that it may use.
        self._choices: Mapping[tuple[type[Request[Response]], int], Choice[Response]]
        self._choices = self.api_versions.choices

    # --- States ----------------------------------------------------------------------------
    def _go(self, state: WireState) -> None:
        before = self.state
        if before is WireState.POISONED:
            return  # it stays poisoned
        if state not in TRANSITIONS[before]:
            raise AssertionError(
                f"the connection to {self.peer} cannot change from state {before} to {state}"
            )
        self.state = state

    def trust(self) -> None:
        """End opening: responses may be large from now on."""
        self._go(WireState.OPEN)
        if self.last_correlation_id:
            self._opened_id = self.last_correlation_id

    def begin_renewal(self) -> None:
        """Let all requests except SASL wait, if the wire is open."""
        if self.state is WireState.OPEN:
            self._go(WireState.RENEWING)

    def end_renewal(self) -> None:
        """End the renewal, unless the wire was retired."""
        if self.state is WireState.RENEWING:
            self._go(WireState.OPEN)

    def retire(self) -> None:
        """Refuse further requests; responses still arrive. Idempotent."""
        if self.state is not WireState.RETIRED:
            self._go(WireState.RETIRED)

    def poison(self, error: KafkaError) -> bool:
        """Refuse all use; return whether this is the first error, which all requests get."""
        if self.error is not None:
            return False
        self.error = error
        self.state = WireState.POISONED
        pending, self.in_flight = self.in_flight, {}
        for each in pending.values():
            each.fail(error)
        return True

    def orphan(self) -> None:
        """Refuse all use in a forked child; the requests belong to the parent."""
        self.error = ForkedError(
            f"the connection to {self.peer} belongs to the parent process, so this forked process "
            "cannot use it: create another client in this process"
        )
        self.state = WireState.POISONED
        self.in_flight = {}

    def name_node(self, node_id: int) -> None:
        """Note the node id of a bootstrap server, for messages."""
        self.node_id = node_id
        self.peer = self.reader.peer = f"{self.peer} (node {node_id})"

    # --- Requests --------------------------------------------------------------------------
    def offer(self, api_versions: ApiVersions) -> None:
        self.api_versions = api_versions
        self._choices = api_versions.choices

    def speak(self, request: Request[Response], version: int) -> None:
        """Use a version of a request that could not be negotiated, until `offer`."""
        choice = version, response_decoder(type(request), version)
        self._choices = {(type(request), request.usable_max_version): choice}

    def ask(
        self,
        pending: Exchange[R],
        request: AnyRequest[R],
        timeout_s: float,
        max_version: int | None = None,
    ) -> bytes:
        """Put a request in flight and return its bytes."""
        if not request.expects_response:
            raise IllegalArgumentError(
                f"cannot wait for a response to {request!r}, because brokers send no response if "
                "acks=0"
            )
        newest = request.usable_max_version  # its values may need an older version
        if max_version is not None:
            newest = min(newest, max_version)
        choice: Choice[R] | None = self._choices.get(  # type: ignore[assignment] # R is the class's
            (request.request_class, newest)
        )
        if choice is None:
            choice = self.api_versions.choice(request.request_class, newest, peer=self.peer)
        if self.error is not None or self.state is WireState.RETIRED:
            raise self.refusal()
        correlation_id = self.next_id()
        version, decode = choice
        if isinstance(request, PreparedRequest):
            encoded = request.encode(version, correlation_id, self._client_id)
        else:
            encoded = encode_request(request, version, correlation_id, self._client_id)
        pending.request_class = request.request_class
        pending.version = version
        pending.decode = decode
        pending.timeout_s = timeout_s
        self.put_in_flight(correlation_id, pending, self._clock())
        return encoded

    def next_id(self) -> int:
        correlation_id = self.last_correlation_id + 1
        if correlation_id > MAX_CORRELATION_ID or correlation_id in self.in_flight:
            correlation_id = self._free_correlation_id()
        self.last_correlation_id = correlation_id
        return correlation_id

    def put_in_flight(self, correlation_id: int, pending: Asked, now: float) -> None:
        """Expect the response to a request that is sent `now`, also repeatedly."""
        self.last_used = now
        pending.frame = None
        # A broker that mutes us reads the request after that (KIP-219).
        pending.begin_time(now if now > self.muted_until else self.muted_until)
        self.in_flight[correlation_id] = pending  # type: ignore[assignment] # each is an Exchange

    def _free_correlation_id(self) -> int:
        correlation_id = self.last_correlation_id
        while True:
            correlation_id = correlation_id + 1 if correlation_id < MAX_CORRELATION_ID else 1
            if correlation_id not in self.in_flight:
                return correlation_id

    def refusal(self) -> KafkaError:
        if self.error is not None:
            return own_copy(self.error)
        return KafkaConnectionError(f"the connection to {self.peer} is being closed: try again")

    # --- Responses -------------------------------------------------------------------------
    def receive(self, count: int) -> Exchange[Response] | None:
        """Return the next request with a response, None when more bytes are needed.

        Several responses may arrive at once, so call it until then. A failed request gets no frame.
        """
        frame = self.reader.next_frame(count)
        if frame is None:
            if count:
                now = self._clock()
                if now > self.received_at + SLOW_S and self.reader.received_bytes > count:
                    self.reader.wanted_bytes = 1  # a large piece would take long
                self.received_at = now
            return None
        correlation_id = read_correlation_id(frame)[0]
        pending = self.in_flight.pop(correlation_id, None)
        if pending is None:
            raise CorrelationIdError(
                f"{self.peer} sent a response with correlation id "
                f"{correlation_id}, but no request with this id is in flight"
            )
        if pending.error is None:
            pending.frame = frame
        return pending

    def answer_limit_bytes(self) -> int:
        if self.state is WireState.OPENING:
            return UNCHECKED_BYTES
        for pending in self.in_flight.values():
            if issubclass(pending.request_class, LARGE_ANSWERS):
                return self._max_frame_bytes
        return min(MAX_SMALL_ANSWER_BYTES, self._max_frame_bytes)

    def throttle(self, duration_s: float) -> None:
        until = self._clock() + min(duration_s, MAX_THROTTLE_S)
        self.muted_until = max(self.muted_until, until)

    def overdue_id(self) -> int | None:
        now, in_flight = self._clock(), self.in_flight
        return next((number for number in in_flight if in_flight[number].deadline <= now), None)

    def expire(self) -> float:
        """Fail overdue requests; raise for the oldest. Return when to call again, or infinity."""
        now = self._clock()
        oldest = next(iter(self.in_flight.values()), None)
        for pending in self.in_flight.values():
            if pending.deadline > now:
                continue
            if pending is oldest:
                if self.move_deadline(pending):
                    continue
                raise self.silent(pending)
            pending.fail(_overdue(pending))
            # It may become the oldest: then its deadline shows whether the broker is silent.
            pending.deadline = now + pending.timeout_s
        return min((pending.deadline for pending in self.in_flight.values()), default=math.inf)

    def move_deadline(self, pending: Exchange[Response]) -> bool:
        """Restart the oldest request's time if its response is arriving; return whether it is."""
        now, received_bytes = self._clock(), self.reader.received_bytes
        moved, since, known_bytes = self._moved
        if moved is not pending:
            since, known_bytes = pending.deadline - pending.timeout_s, 0
        came_bytes = received_bytes - known_bytes
        if came_bytes < LEAST_BYTES_PER_S * (now - since):
            return False
        self._moved = pending, now, received_bytes
        pending.deadline = self.received_at + pending.timeout_s
        return pending.deadline > now

    def silent(self, pending: Exchange[Response]) -> KafkaConnectionError:
        """Fail the overdue oldest request; return the error to poison with."""
        error = _overdue(pending)
        pending.fail(error)
        return KafkaConnectionError(
            f"{self.peer} stopped answering, so the connection was closed: {error.args[0]}"
        )

    def lost(
        self, error: BaseException | None, *, is_sending: bool = False
    ) -> KafkaConnectionError:
        """Return the error to poison with after the network, or the peer (None), ended it."""
        error_class = TLSError if is_refusal(error) else KafkaConnectionError
        # Only ApiVersions was answered, which brokers also do for clients without SASL.
        is_unanswered = self.last_correlation_id - self._opened_id == len(self.in_flight) == 1
        hint = ""
        if is_unanswered and not is_sending:
            hint = (
                " (if the listener requires SASL, set security_protocol to SASL_SSL or "
                "SASL_PLAINTEXT)"
            )
        text = f"lost the connection to {self.peer}: {explain(error)}{hint}"
        return caused(error_class(text), error)

    # --- Sessions (KIP-368) ----------------------------------------------------------------
    def begin_session(self, lifetime_s: float) -> None:
        """Note an authentication; requests are accepted for `lifetime_s` (0: no limit)."""
        self._session_began_at = self._clock()
        self.session_lifetime_s = lifetime_s

    def renewal_at(self, rng: random.Random) -> float:
        """Draw when to authenticate again."""
        if not self.session_lifetime_s:
            return math.inf
        delay_s = max(self.session_lifetime_s * rng.uniform(*RENEWED_AT), LEAST_RENEWAL_S)
        return self._session_began_at + delay_s


class Wired:
    """Properties of a connection. The first base, or plain Python refuses `__weakref__`."""

    __slots__ = ()

    wire: Wire

    @property
    def peer(self) -> str:
        return self.wire.peer

    @property
    def api_versions(self) -> ApiVersions:
        return self.wire.api_versions

    @property
    def error(self) -> KafkaError | None:
        return self.wire.error

    @property
    def is_closed(self) -> bool:
        return self.wire.error is not None

    @property
    def in_flight_count(self) -> int:
        """Requests without a response, abandoned ones included."""
        return len(self.wire.in_flight)

    @property
    def last_used(self) -> float:
        return self.wire.last_used

    @property
    def muted_until(self) -> float:
        return self.wire.muted_until


def _overdue(pending: Exchange[Response]) -> RequestTimedOutError:
    return RequestTimedOutError(f"no answer from {pending} in {round(pending.timeout_s, 3):g} s")


def own_copy(error: KafkaError) -> KafkaError:
    """Return a copy to raise: one exception raised in several tasks would mix tracebacks."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own
