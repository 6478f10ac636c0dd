"""A connection to a broker without its socket: requests in flight, and what answers mean.

`Connection` (event loops) and `BlockingConnection` (threads) are shells around a `Wire`. A shell
moves bytes, waits, keeps timers and wakes up whoever waits. The wire does none of that: it says
which bytes to send, and which request was answered by the bytes that came.

Theory of operation. A wire is usable until it is poisoned:

    state      what is sent                    how it ends
    OPENING    ApiVersions, SASL               `trust`: opening is over
    OPEN       everything                      `begin_renewal`, `retire`
    RENEWING   SASL; others wait (KIP-368)     `end_renewal`, `retire`
    RETIRED    nothing; answers still come     the shell closes it once nothing is in flight
    POISONED   nothing, for good               never: the client opens another connection

`TRANSITIONS` has this as data. `poison` is called by the shell, which closes the socket with it. So
whatever breaks the connection is raised here, or returned, as an error for `poison`. The first
error stays, and every request in flight gets it.

    what went wrong                           what becomes of the connection
    the network, the peer closed it           poisoned, see `Wire.lost`
    the size of a frame is impossible         poisoned: the stream is out of step
    an answer to a request not in flight      poisoned: the stream is out of step
    the oldest request is not answered        poisoned: the broker is silent
    a younger request is not answered         only that request fails
    an answer cannot be decoded               only that request fails: frames carry their size

A request is in flight from `ask` to its answer, in the order sent. When whoever asked was cancelled
or timed out it stays, so that the late answer is recognised and dropped, and is never taken for
another's.

Deadlines. Brokers answer one connection's requests in order, so what a deadline means depends on
the place in the queue. The oldest request's deadline says that the broker is silent: poison. A
younger one's says that it waited too long behind others (a JoinGroup waits for other members):
only that request fails, the connection goes on.

A deadline limits silence. Bytes of an answer move it: the oldest request has its whole time again
from the latest of them, unless they trickle (`LEAST_BYTES_PER_S`).

Nothing is decoded when it arrives: `Pending.result` does that for whoever asked.

References: https://kafka.apache.org/protocol (requests, in order on one connection), KIP-219
(throttle_time_ms: the broker mutes us, we hold back), KIP-368 (sessions end), KIP-511.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from aiokafka_lite.client.frames import UNCHECKED_BYTES, FrameReader
from aiokafka_lite.client.network_errors import caused, explain, is_refusal
from aiokafka_lite.client.versions import NOTHING_OFFERED, ApiVersions, Choice
from aiokafka_lite.errors import (
    CorrelationIdError,
    IllegalArgumentError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    RequestTimedOutError,
    TLSError,
)
from aiokafka_lite.protocol.framing import (
    piecewise_decoder,
    read_correlation_id,
    response_correlation_id,
    response_decoder,
)
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.prepared import AnyRequest, PreparedRequest, prepared
from aiokafka_lite.protocol.schema import Request, Response, Struct

if TYPE_CHECKING:
    import random
    from asyncio import Future

    from aiokafka_lite.client.config import Address

R = TypeVar("R", bound=Response)
R_co = TypeVar("R_co", bound=Response, covariant=True)

MAX_CORRELATION_ID: Final = 2**31 - 1
# How much a broker is believed.
MAX_SMALL_ANSWER_BYTES: Final = 16 * 1024 * 1024
MAX_THROTTLE_S: Final = 60.0
# The two answers whose size follows from the cluster, not from what was asked.
LARGE_ANSWERS: Final = (FetchRequest, MetadataRequest)
# An answer that comes slower than this does not move its deadline.
LEAST_BYTES_PER_S: Final = 1024
# Between the pieces of an answer: after a longer pause the next bytes are read as they come.
SLOW_S: Final = 0.5
# Below it an answer holds some hundreds of anything: decoded in less than a millisecond.
LONG_FRAME_BYTES: Final = 16 * 1024
# Part of a session's lifetime after which it is renewed: between these, drawn each time.
RENEWED_AT: Final = (0.80, 0.90)
# Brokers take an authentication within a second of the last one for a mistake.
LEAST_RENEWAL_S: Final = 1.05


class WireState(enum.Enum):
    """What a wire can be used for."""

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
    """The connection was lost between credentials and what the broker says of them.

    It may be a refusal: tried again, but in no hurry, since accounts are locked after a few.
    """


class Asked:
    """The fields of a request in flight; `Pending` describes them."""

    __slots__ = (
        "_wire",
        "deadline",
        "decode",
        "error",
        "frame",
        "on_done",
        "request_class",
        "timeout_s",
        "version",
        "waiter",
    )

    timeout_s: float
    deadline: float
    frame: memoryview | None
    on_done: Callable[[Any], None] | None
    waiter: Future[None] | None

    def answered(self) -> None:
        """Report the response, if it arrived in time."""
        if self.frame is None:
            return
        if self.on_done is not None:
            self.on_done(self)
        if self.waiter is not None and not self.waiter.done():  # else it was cancelled
            self.waiter.set_result(None)

    def begin_time(self, now: float) -> None:
        """Set the deadline of a request that the broker has from `now` on."""
        self.deadline = now + self.timeout_s


class Pending(Asked, Generic[R_co]):
    """A request in flight and its outcome.

    A shell creates the object, and `Wire.ask` sets the fields of the request.

    Attributes:
        request_class: The class of the request.
        version: The version in which the request was sent.
        timeout_s: How long the broker may take.
        deadline: Time of the wire's clock when that is over.
        frame: The response's bytes, None before they arrived. The memory is kept as long as this.
        error: Why there is and will be no response, or None. `result` raises a copy of the error.
        on_done: Called with this when there is an outcome (connection.py), or None.
        waiter: Done when there is an outcome. None if no task waits.
    """

    __slots__ = ()

    _wire: Wire
    request_class: type[Request[R_co]]
    version: int
    decode: Callable[[memoryview], R_co]
    error: KafkaError | None

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.on_done = None
        self.waiter = None
        self.frame = None
        self.error = None

    @property
    def is_done(self) -> bool:
        """Whether there is an answer or an error."""
        return self.frame is not None or self.error is not None

    @property
    def silent_since(self) -> float:
        """Time of the wire's clock since which no byte of an answer came, or it was asked."""
        return max(self.deadline - self.timeout_s, self._wire.received_at)

    @property
    def is_arriving(self) -> bool:
        """Whether a part of an answer has come, of this one if it is the oldest request."""
        return self._wire.reader.received_bytes > 0

    def result(self) -> R_co:
        """Decode and return the answer; byte fields of record sets stay slices of its frame.

        Raises:
            KafkaError: Why there is no answer.
            KafkaProtocolError: The answer is malformed.
            RuntimeError: There is neither yet.
        """
        if self.error is not None:
            raise own_copy(self.error)
        if self.frame is None:
            raise RuntimeError(f"no response from {self} has arrived yet")
        try:
            response = self.decode(self.frame)
        except KafkaProtocolError as error:
            raise self._bad_answer(error) from error
        self._heed_throttle(response)
        return response

    def result_in_pieces(self, element: type[Struct]) -> tuple[R_co, Iterator[Struct] | None]:
        """Decode a long answer as far as to its very many elements; else as `result`.

        Returns:
            The answer, and what decodes the elements, a millisecond's worth at a time (see
            `PiecewiseDecoder`); None if all is decoded.

        Raises: as `result`, and the iterator KafkaProtocolError as well.
        """
        if self.frame is None or len(self.frame) < LONG_FRAME_BYTES:
            return self.result(), None
        try:
            pieces = piecewise_decoder(self.request_class, self.version, element)(self.frame)
            response: R_co = next(pieces)  # type: ignore[assignment] # the first is the message
        except KafkaProtocolError as error:
            raise self._bad_answer(error) from error
        self._heed_throttle(response)
        return response, self._named(pieces)

    def _named(self, pieces: Iterator[Struct]) -> Iterator[Struct]:
        try:
            yield from pieces
        except KafkaProtocolError as error:
            raise self._bad_answer(error) from error

    def _bad_answer(self, error: KafkaProtocolError) -> KafkaProtocolError:
        return type(error)(f"invalid response from {self}: {error.args[0]}")

    def _heed_throttle(self, response: Response) -> None:
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._wire.throttle(throttle_ms / 1000)

    def fail(self, error: KafkaError) -> None:
        """Take an error as the outcome, unless there is one already."""
        if not self.is_done:
            self.error = error

    def __str__(self) -> str:
        name = self.request_class.__name__.removesuffix("Request")
        return f"{self._wire.peer} to {name} v{self.version}"


class Wire:
    """A connection's requests and answers, and whether it can be used.

    All fields are written here only. Threads may use a wire at the same time if one of them at
    most asks, and one receives.

    Attributes:
        peer: Host, port and node id, for messages.
        node_id: None where it is not known.
        state: What it can be used for.
        api_versions: What the broker offers.
        error: Why the wire was poisoned, None before.
        reader: Where bytes that arrive belong.
        in_flight: The requests without an answer, given-up ones included, by correlation id.
        last_correlation_id: The latest request's.
        last_used: Time of the latest request.
        received_at: Time when bytes of an answer came of which more is missing.
        muted_until: Time until which the broker asks us to hold back (KIP-219).
        session_lifetime_s: How long the broker accepts requests after authentication, 0 for as
            long as the connection lives (KIP-368).
        session_ends_at: Time when it does not accept any more.
    """

    __slots__ = (
        "_choices",
        "_client_id",
        "_clock",
        "_max_frame_bytes",
        "_moved",
        "_opened_id",
        "_session_began_at",
        "api_versions",
        "error",
        "in_flight",
        "last_correlation_id",
        "last_used",
        "muted_until",
        "node_id",
        "peer",
        "reader",
        "received_at",
        "session_ends_at",
        "session_lifetime_s",
        "state",
    )

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
        self.in_flight: dict[int, Pending[Response]] = {}
        self.last_correlation_id = 0
        self.last_used = clock()
        self.received_at = -math.inf
        # Which request's deadline moved last, when, and how much of its answer there was.
        self._moved: tuple[Pending[Response] | None, float, int] = (None, 0.0, 0)
        self.muted_until = 0.0
        self.session_lifetime_s = 0.0
        self.session_ends_at = math.inf
        self._session_began_at = 0.0
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._clock = clock
        self._opened_id = -1  # the last one of opening
        # By request and the newest version that it may use: what was negotiated, or is spoken.
        self._choices: Mapping[tuple[type[Request[Response]], int], Choice[Response]]
        self._choices = self.api_versions.choices

    # --- States ----------------------------------------------------------------------------
    def _go(self, state: WireState) -> None:
        before = self.state
        if before is WireState.POISONED:
            return  # nothing brings it back
        if state not in TRANSITIONS[before]:
            raise AssertionError(
                f"the connection to {self.peer} cannot change from state {before} to {state}"
            )
        self.state = state
        if self.error is not None:  # another thread has poisoned it meanwhile
            self.state = WireState.POISONED

    def trust(self) -> None:
        """End opening: from now on answers may be large."""
        self._go(WireState.OPEN)
        if self.last_correlation_id:
            self._opened_id = self.last_correlation_id

    def begin_renewal(self) -> None:
        """Let others than who authenticates wait, if anything may be sent at all."""
        if self.state is WireState.OPEN:
            self._go(WireState.RENEWING)

    def end_renewal(self) -> None:
        """Let everybody ask again; nothing happens where the wire was retired meanwhile."""
        if self.state is WireState.RENEWING:
            self._go(WireState.OPEN)

    def retire(self) -> None:
        """Refuse further requests; answers still come. Idempotent."""
        if self.state is not WireState.RETIRED:
            self._go(WireState.RETIRED)

    def poison(self, error: KafkaError) -> bool:
        """Refuse all use for good: the first error stays, and every request in flight gets it.

        Returns whether this is the first.
        """
        is_first = self.error is None
        if self.error is None:
            self.error = error
        self.state = WireState.POISONED
        # Each time: another thread may have asked while the first one was poisoning.
        pending, self.in_flight = self.in_flight, {}
        for each in pending.values():
            each.fail(self.error)
        return is_first

    def orphan(self, error: KafkaError) -> None:
        """Refuse all use in a forked child: whoever waits for an answer is the parent's."""
        self.error = error
        self.state = WireState.POISONED
        self.in_flight = {}

    def name_node(self, node_id: int) -> None:
        """Take note of which node a bootstrap server is, for messages."""
        self.node_id = node_id
        self.peer = self.reader.peer = f"{self.peer} (node {node_id})"

    # --- Requests --------------------------------------------------------------------------
    def offer(self, api_versions: ApiVersions) -> None:
        """Choose versions from what the broker offers."""
        self.api_versions = api_versions
        self._choices = api_versions.choices

    def speak(self, request: Request[Response], version: int) -> None:
        """Use a version of a request that could not be negotiated, until `offer` is called."""
        choice = version, response_decoder(type(request), version)
        self._choices = {(type(request), request.usable_max_version): choice}

    def check(self, request: PreparedRequest[Response]) -> None:
        """Raise what `ask` raises because of the request itself."""
        if not request.expects_response:
            raise IllegalArgumentError(
                f"cannot wait for a response to {request!r}, because brokers send no response if "
                "acks=0"
            )
        self.api_versions.choice(request.request_class, request.usable_max_version, peer=self.peer)

    def ask(
        self,
        pending: Pending[R],
        request: AnyRequest[R],
        timeout_s: float,
        max_version: int | None = None,
    ) -> bytes:
        """Put a request in flight and return what to send.

        Args:
            pending: A new one, which stands for the request from now on.
            request: What is asked; it must be something that gets an answer.
            timeout_s: How long the broker may take.
            max_version: The newest version to use, where that is not the newest we know.

        Raises:
            IllegalArgumentError: The request gets no answer, or a value does not fit its field.
            IncompatibleBrokerVersion: The broker has no version of this request that we know.
            KafkaError: The wire was poisoned, or retired.
        """
        if not isinstance(request, PreparedRequest):
            request = prepared(request)
        if not request.expects_response:
            self.check(request)
        newest = request.usable_max_version  # what it says may need an older one than we know
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
        encoded = request.encode(version, correlation_id, self._client_id)
        pending.request_class = request.request_class
        pending.version = version
        pending.decode = decode
        pending.timeout_s = timeout_s
        self.put_in_flight(correlation_id, pending, self._clock())
        return encoded

    def next_id(self) -> int:
        """Return the correlation id of the next request."""
        correlation_id = self.last_correlation_id + 1
        if correlation_id > MAX_CORRELATION_ID or correlation_id in self.in_flight:
            correlation_id = self._free_correlation_id()
        self.last_correlation_id = correlation_id
        return correlation_id

    def put_in_flight(self, correlation_id: int, pending: Asked, now: float) -> None:
        """Expect the response to a request that is sent `now`, for the first time or again."""
        self.last_used = now
        pending.frame = None
        # A broker that mutes us does not read the request before it unmutes us (KIP-219).
        pending.begin_time(now if now > self.muted_until else self.muted_until)
        self.in_flight[correlation_id] = pending  # type: ignore[assignment] # each is a Pending

    def _free_correlation_id(self) -> int:
        """Return the next one after the largest, or after those that are in flight since then."""
        correlation_id = self.last_correlation_id
        while True:
            correlation_id = correlation_id + 1 if correlation_id < MAX_CORRELATION_ID else 1
            if correlation_id not in self.in_flight:
                return correlation_id

    def refusal(self) -> KafkaError:
        """Return what to raise of requests where nothing can be sent."""
        if self.error is not None:
            return own_copy(self.error)
        return KafkaConnectionError(f"the connection to {self.peer} is being closed: try again")

    # --- Answers ---------------------------------------------------------------------------
    def receive(self, count: int) -> Pending[Response] | None:
        """Return the next request that was answered, None when more bytes are needed.

        Called until it returns None, as several answers may have come at once. Whoever has given
        the request up gets no frame of the late answer.

        Args:
            count: How many bytes were written to where the reader wants them since the last call.

        Raises:
            KafkaProtocolError: The frame is impossible, too large, or answers no request.
        """
        frame = self.reader.next_frame(count)
        if frame is None:
            if count:
                now = self._clock()
                if now > self.received_at + SLOW_S and self.reader.received_bytes > count:
                    self.reader.wanted_bytes = 1  # a good piece would be long in coming
                self.received_at = now
            return None
        pending = self.in_flight.pop(read_correlation_id(frame)[0], None)
        if pending is None:
            raise CorrelationIdError(
                f"{self.peer} sent a response with correlation id "
                f"{response_correlation_id(frame)}, but no request with this id is in flight"
            )
        if pending.error is None:
            pending.frame = frame
        return pending

    def answer_limit_bytes(self) -> int:
        """Return how large an answer may be, given what was asked and of whom."""
        if self.state is WireState.OPENING:
            return UNCHECKED_BYTES
        for pending in tuple(self.in_flight.values()):  # another thread may be asking
            if issubclass(pending.request_class, LARGE_ANSWERS):
                return self._max_frame_bytes
        return min(MAX_SMALL_ANSWER_BYTES, self._max_frame_bytes)

    def throttle(self, duration_s: float) -> None:
        """Note that the broker asks us to hold back; a broker is believed up to a minute."""
        until = self._clock() + min(duration_s, MAX_THROTTLE_S)
        self.muted_until = max(self.muted_until, until)

    def overdue_id(self) -> int | None:
        """Return the correlation id of the first request whose deadline has passed."""
        now, in_flight = self._clock(), self.in_flight
        return next((number for number in in_flight if in_flight[number].deadline <= now), None)

    def expire(self) -> float:
        """Fail what is overdue; return when to call this again, infinity if nothing is in flight.

        Raises:
            KafkaConnectionError: The oldest request is overdue: to poison the wire with.
        """
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
            # Its turn comes later: from now on its deadline only tells whether the broker lives.
            pending.deadline = now + pending.timeout_s
        return min((pending.deadline for pending in self.in_flight.values()), default=math.inf)

    def move_deadline(self, pending: Pending[Response]) -> bool:
        """Give the oldest request its time again if its answer is coming; whether it is."""
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

    def silent(self, pending: Pending[Response]) -> KafkaConnectionError:
        """Fail a request that the broker should have answered; return what to poison with."""
        error = _overdue(pending)
        pending.fail(error)
        return KafkaConnectionError(
            f"{self.peer} stopped answering, so the connection was closed: {error.args[0]}"
        )

    def lost(
        self, error: BaseException | None, *, is_sending: bool = False
    ) -> KafkaConnectionError:
        """Return what to poison with when the network, or the peer, has ended the connection.

        Args:
            error: What was raised; None where the peer has closed the connection.
            is_sending: Whether it was noticed by sending.
        """
        error_class = TLSError if is_refusal(error) else KafkaConnectionError
        # Nothing was answered but which versions there are, which brokers tell those too of whom
        # they expect SASL.
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
        """Take note of an authentication, after which requests are accepted for so long.

        Args:
            lifetime_s: 0 for as long as the connection lives.
        """
        self._session_began_at = self._clock()
        self.session_lifetime_s = lifetime_s
        self.session_ends_at = self._session_began_at + lifetime_s if lifetime_s else math.inf

    def renewal_at(self, rng: random.Random) -> float:
        """Draw when to authenticate again, infinity where the session does not end."""
        if not self.session_lifetime_s:
            return math.inf
        delay_s = max(self.session_lifetime_s * rng.uniform(*RENEWED_AT), LEAST_RENEWAL_S)
        return self._session_began_at + delay_s


class Wired:
    """What connections of both kinds say of their wire."""

    __slots__ = ()

    wire: Wire

    @property
    def peer(self) -> str:
        """Host, port and node id, for messages."""
        return self.wire.peer

    @property
    def api_versions(self) -> ApiVersions:
        """What the broker offers."""
        return self.wire.api_versions

    @property
    def error(self) -> KafkaError | None:
        """Why the connection was poisoned or closed, None while it is open."""
        return self.wire.error

    @property
    def is_closed(self) -> bool:
        """Whether requests are refused because the connection is poisoned or closed."""
        return self.wire.error is not None

    @property
    def in_flight_count(self) -> int:
        """Requests whose answer has not arrived, given-up ones included."""
        return len(self.wire.in_flight)

    @property
    def last_used(self) -> float:
        """Time of the latest request."""
        return self.wire.last_used

    @property
    def muted_until(self) -> float:
        """Time until which the broker asks us to hold back (KIP-219)."""
        return self.wire.muted_until


def _overdue(pending: Pending[Response]) -> RequestTimedOutError:
    return RequestTimedOutError(f"no answer from {pending} in {round(pending.timeout_s, 3):g} s")


def own_copy(error: KafkaError) -> KafkaError:
    """Return a copy to raise: one exception raised in several tasks would mix tracebacks."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own
