"""A source fetches from one broker, one request ahead of the application.

At most one request is in flight, and at most one response waits that no read has asked for. A read
that asks for it first lets the next request go out, from the offsets after it, which batch headers
contain. So the next response arrives while the application works.

    lend ready cursors -> reserve bytes -> request -> settle each partition -> buffer
            ^                                                                    |
            +----------- response taken, cursor ready again, bytes released -----+

Usually this needs no task switch: `advance` sends the next request, called by the response that a
read waits for, or by the read that takes a response. The task (`run`) does everything that waits:
it connects, backs off, and settles large responses a slice at a time.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from aiokafka_lite._tasks import Event
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.wire import Exchange
from aiokafka_lite.consumer.assignment.cursor import Cursor, Place
from aiokafka_lite.consumer.buffer.budget import Reservation
from aiokafka_lite.consumer.fetching.answer import Answers
from aiokafka_lite.consumer.fetching.choice import Choice
from aiokafka_lite.consumer.fetching.counts import NodeCounts
from aiokafka_lite.consumer.fetching.in_flight import InFlight
from aiokafka_lite.consumer.fetching.quick_lane import QuickLane
from aiokafka_lite.consumer.fetching.session import FULL_EPOCH, FetchSession
from aiokafka_lite.errors import (
    BrokerResponseError,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    FrameTooLargeError,
    InvalidFetchSessionEpoch,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    RequestTimedOutError,
    for_code,
)
from aiokafka_lite.protocol.messages.fetch import FetchResponse, PartitionData
from aiokafka_lite.protocol.schema import Struct
from aiokafka_lite.records import decoders

if TYPE_CHECKING:
    from aiokafka_lite.consumer.fetching.sources import Sources

log = logging.getLogger(__name__)

# How long a broker may be silent beyond fetch_max_wait_ms before its connection is closed. Each
# unanswered request doubles that for the next one, up to request_timeout_ms, and halves its size.
FETCH_STALL_S: Final = 10.0
# The least size after unanswered requests.
LEAST_PIECE_BYTES: Final = 64 * 1024
MOST_UNANSWERED: Final = 10
# Places in which a cursor may be requested next to a long poll, at once or soon.
ASKED_BESIDE: Final = (Place.READY, Place.BACKING_OFF)
# Back-offs that end this much before a long poll do not wait for it.
BESIDE_S: Final = 0.02
# When a broker is this late, others are asked whether it still leads.
OVERDUE_S: Final = 1.0
# The same for the rest of a response: over a slow link the kernel needs long for a large piece.
PIECE_OVERDUE_S: Final = 5.0
# Errors of the fetch session, after which another one is opened.
SESSION_ERRORS: Final = (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    FetchSessionTopicIdError,
)

# Errors after which the broker may be gone.
UNREACHABLE: Final = (KafkaConnectionError, NodeNotReadyError, RequestTimedOutError)


class Step(enum.Enum):
    """The result of `advance`: the next action of the task."""

    WAIT = enum.auto()  # a response, a read or a partition wakes it
    CONNECT = enum.auto()  # there is no connection that takes a request now
    MAKE_ROOM = enum.auto()  # the byte budget is used up
    END = enum.auto()  # no partition is left to fetch from this broker


class Source:
    """The fetch task of one broker: owns its session, its request in flight and its backoff.

    Cursors that it reads as a follower have it as their preferred replica.
    """

    def __init__(self, sources: Sources, node_id: int, lane: Lane, counts: NodeCounts) -> None:
        self.node_id = node_id
        self.lane = lane
        self.counts = counts
        self.is_short_of_bytes = False
        self._sources = sources
        self._buffer = sources.buffer
        self._loop = asyncio.get_running_loop()
        self._session = FetchSession()
        self.choice: Choice = Choice(sources.buffer, sources.budget, self._session)
        self._in_flight = InFlight()
        # When the next backoff of a cursor ends; None: a response is awaited before that.
        self._retry_at: float | None = None
        self._answers = Answers(sources, self, self._session)
        # Created when a cursor becomes fetchable next to a long poll.
        self._quick: QuickLane | None = None
        self._wake = Event()
        self._backoff = Backoff(sources.config.retry_backoff_s, LONGEST_BACKOFF_S, sources.rng)
        # An answer takes longer than this if the broker is slow.
        self._late_s = min(FETCH_STALL_S, sources.config.request_timeout_s)
        # Unanswered requests, less those answered in time since.
        self._unanswered_count = 0
        self._failing_since: float | None = None
        self._is_closed = False
        # Handles responses; chosen with the first request.
        self._on_answer: Callable[[Exchange[FetchResponse]], None] | None = None

    def _choose_on_answer(self) -> Callable[[Exchange[FetchResponse]], None]:
        """Return the handler of responses: the compiled one for small responses, if possible."""
        sources = self._sources
        if not sources.config.client_rack and decoders.current() is not decoders.DECODERS["python"]:
            try:
                from aiokafka_lite.consumer.fetching.small import SmallAnswers
            except ModuleNotFoundError:
                pass  # the extension is not built
            else:
                return SmallAnswers(self, sources, self._session, self._in_flight, self._backoff)
        return self.answered

    # --- Notifications --------------------------------------------------------------------
    def moved(self, cursor: Cursor) -> None:
        self.choice.moved(cursor)
        place = cursor.place
        if place is not Place.IN_FLIGHT and self._quick is not None:
            self._quick.end(cursor)
        request = self._in_flight
        if request.exchange is None or (request.is_awaited and place in ASKED_BESIDE):
            self._wake.set()

    def left(self, cursor: Cursor) -> None:
        self.choice.left(cursor)
        if self._quick is not None:
            self._quick.end(cursor)
        if self._in_flight.exchange is None:
            self._wake.set()

    def choose_anew(self) -> None:
        self.choice.choose_anew()
        if self._in_flight.exchange is None:
            self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def response_taken(self) -> None:
        self.advance()
        if self._in_flight.exchange is None or self._retry_at is not None:
            self._wake.set()

    @property
    def failing_since(self) -> float | None:
        return self._failing_since if self.choice.cursors else None

    def is_overdue(self, now: float) -> bool:
        """Whether the response is late, even for a long poll."""
        exchange = self._in_flight.exchange
        if exchange is None:
            return False
        overdue_s = self._sources.config.fetch_max_wait_s + OVERDUE_S
        if exchange.is_arriving:
            overdue_s = max(overdue_s, PIECE_OVERDUE_S)
        return now > exchange.silent_since + overdue_s

    # --- Queries --------------------------------------------------------------------------
    @property
    def answer_s(self) -> float:
        """How long the broker may be silent after a request."""
        config = self._sources.config
        stall_s = self._late_s * 2.0**self._unanswered_count
        return config.fetch_max_wait_s + min(stall_s, config.request_timeout_s)

    @property
    def partition_count(self) -> int:
        return len(self.choice.cursors)

    @property
    def is_failing(self) -> bool:
        return self._backoff.failures > 0

    @property
    def in_flight_since(self) -> float | None:
        return None if self._in_flight.exchange is None else self._in_flight.sent_at

    @property
    def is_throttled(self) -> bool:
        return self._in_flight.is_throttled

    @property
    def error(self) -> Exception | None:
        return self._in_flight.error

    @property
    def is_settling(self) -> bool:
        return self._answers.is_settling

    def close(self) -> None:
        """Let the broker drop the session, if the request can be sent at once.

        The broker evicts sessions that are left open when it needs their place (after two minutes).
        """
        self._is_closed = True
        request = self._session.closing()
        if request is not None:
            self._sources.cluster.pool.send_nowait(self.node_id, request, self.lane)

    # --- The task -------------------------------------------------------------------------
    async def run(self) -> None:
        """Fetch until no partition is left; run again after an error, with a new session."""
        self._is_closed = self._sources.is_closed
        try:
            if not self.choice.ready:
                # Connect while positions are being looked up, after those requests were sent.
                await asyncio.sleep(0)
                self._sources.cluster.pool.ready(self.node_id, self.lane)
            while True:
                self._wake.clear()
                if self._in_flight.error is not None:
                    await self._recover(self._in_flight.error)
                while self._answers.is_settling:
                    await asyncio.sleep(0)
                    self._settle_more()
                step = self.advance()
                if step is Step.END:
                    self.close()
                    self._sources.source_ended(self)
                    return
                if step is Step.CONNECT:
                    await self._connect()
                    continue
                if step is Step.MAKE_ROOM:
                    # Chunks that no read takes must not delay other partitions.
                    self._buffer.make_room(is_behind=self.is_behind)
                await self._wake.wait(self._retry_at)
        finally:
            self._is_closed = True
            self._answers.give_up()
            self._in_flight.note_error(None)
            self._give_up_request()
            self._session.replace()

    async def _connect(self) -> None:
        pool = self._sources.cluster.pool
        delay_s = pool.connection_delay(self.node_id, self.lane)
        if delay_s > 0:
            # Throttled (KIP-219), or about to reconnect: cursors and bytes are chosen when the
            # request can be sent.
            await self._wake.wait(self._loop.time() + delay_s)
            return
        try:
            await pool.connect(self.node_id, self.lane)
        except KafkaError as error:
            self._in_flight.note_error(error)
            self._note_failure(error)

    async def _recover(self, error: Exception) -> None:
        if not isinstance(error, KafkaError) or not (
            error.retriable or isinstance(error, BrokerResponseError)
        ):
            raise error  # every retry would fail: the application receives it
        now = self._loop.time()
        for cursor in tuple(self.choice.cursors):
            if cursor.preferred_replica is not None:
                self._sources.give_back(cursor, now)
        if isinstance(error, FrameTooLargeError) and error.size_bytes is not None:
            found = self.choice.search_oversized()
            if found is not None:
                # Rarely needed, so it is imported here.
                from aiokafka_lite.consumer.fetching.oversized import too_large

                sticky = too_large(found, error.size_bytes, error.limit_bytes)
                self._buffer.put_error(found, sticky, is_sticky=True)
        self._sources.node_failed(self.node_id, error)
        if error.invalid_metadata or isinstance(error, UNREACHABLE):
            self._sources.cluster.invalidate()
            self._sources.search.hurry()
        await asyncio.sleep(self._backoff.next_delay_s())
        self._in_flight.note_error(None)

    # --- Cursors of the next request --------------------------------------------------------
    def _lend(self, now: float) -> float | None:
        if now >= self._sources.replicas.lease_ends_at:
            self._sources.end_leases(now)
        return self.choice.lend(now, self._sources.config.max_partition_fetch_bytes)

    @property
    def is_behind(self) -> bool:
        """Whether the next request is known to yield records."""
        if self.choice.claim is not None:
            return True
        return any(self._sources.is_behind(loan.cursor) for loan in self._session.loans)

    # --- Requests -------------------------------------------------------------------------
    def advance(self) -> Step:
        step = self._try_to_send()
        if step is not Step.MAKE_ROOM and self.choice.claim is not None:
            # Others may use the bytes, because the claimant cannot use them now.
            self._sources.budget.withdraw(self.choice)
        return step

    def _try_to_send(self) -> Step:
        if self._in_flight.is_awaited:
            self._retry_at = self._ask_beside()
            return Step.WAIT
        if (
            self._is_closed
            or self._in_flight.exchange is not None
            or self._answers.is_settling
            or self._in_flight.error is not None
            or self._buffer.has_untaken(self)
        ):
            self._retry_at = None
            return Step.WAIT
        if self._quick is not None:
            self._quick.begin_anew()
        now = self._loop.time()
        self._retry_at = self._lend(now)
        asked_count = len(self._session)
        if not asked_count:
            return Step.WAIT if self.choice.cursors else Step.END
        connection = self._sources.cluster.pool.ready_connection(self.node_id, self.lane)
        if connection is None:
            return Step.CONNECT
        reservation = self._reserve(asked_count)
        if reservation is None:
            return Step.MAKE_ROOM
        self._send(connection, reservation, now)
        return Step.WAIT

    def _ask_beside(self) -> float | None:
        """Request the partitions that the in-flight long poll does not cover.

        Return when to look for that again; None: after the next notification.
        """
        choice = self.choice
        if (
            self._is_closed
            or self._in_flight.error is not None
            or choice.claim is not None
            or (choice.oversize is not None and choice.oversize.is_on)
            or self._buffer.has_untaken(self)
        ):
            return None
        look_at = None
        if choice.backing_off:
            poll_ends_at = self._in_flight.poll_ends_at
            look_at = choice.end_backoffs_before(poll_ends_at - BESIDE_S, self._loop.time())
        if not choice.ready:
            return look_at
        if self._in_flight.is_long_poll is None:
            self._in_flight.note_long_poll(is_long_poll=not self.is_behind)
        if not self._in_flight.is_long_poll:
            return look_at  # the response is on the way, and the next request includes all
        if self._quick is None:
            self._quick = QuickLane(self._sources, self)
        choice.lent_beside(self._quick.ask(choice.to_ask()))
        again_at = self._quick.look_at
        return again_at if look_at is None or again_at is None else min(look_at, again_at)

    def _reserve(self, asked_count: int) -> Reservation | None:
        config = self._sources.config
        wanted_bytes = min(
            config.fetch_max_bytes,
            asked_count * config.max_partition_fetch_bytes,
            self._sources.budget.quota_bytes(),
        )
        if self._unanswered_count:
            least_bytes = min(wanted_bytes, LEAST_PIECE_BYTES)
            wanted_bytes = max(wanted_bytes >> self._unanswered_count, least_bytes)
        least_bytes = min(wanted_bytes, config.max_partition_fetch_bytes)
        claim, claimant = self.choice.claim, None
        if claim is not None:
            # Brokers return a batch above the limits alone (KIP-74).
            least_bytes = max(least_bytes, claim.size_bytes)
            wanted_bytes = max(wanted_bytes, least_bytes)
            claimant = self.choice
        reservation = self._sources.budget.reserve(wanted_bytes, least_bytes, claimant)
        if reservation is None and self._buffer.waiters.sought and not self.is_behind:
            # The awaited records may be late: buffered chunks of other partitions are kept.
            reservation = self._sources.budget.reserve_nothing()
        self.is_short_of_bytes = reservation is None
        return reservation

    def _send(self, connection: Connection, reservation: Reservation, now: float) -> None:
        asked = self._session.request()
        max_wait_ms = self._sources.config.fetch_max_wait_ms
        if self._retry_at is not None:
            # The long poll ends with the backoff: the next request includes that cursor.
            left_s = max(0.0, self._retry_at - now)
            max_wait_ms = min(max_wait_ms, math.ceil(left_s * 1000))
        max_bytes = max(1, reservation.size_bytes)
        request = self._sources.request(asked, now, max_bytes, max_wait_ms)
        self._in_flight.begin(asked.session_epoch, now, max_wait_ms / 1000)
        self._in_flight.reserve(reservation, self._sources.replicas.lease_ends_at)
        if self._on_answer is None:
            self._on_answer = self._choose_on_answer()
        try:
            exchange = connection.send(
                request,
                timeout_s=self.answer_s,
                max_version=asked.max_version,
                on_done=self._on_answer,
            )
        except KafkaError as error:
            self._failed(error)
        else:
            self._in_flight.sent(exchange)

    def _give_up_request(self) -> None:
        self._in_flight.give_up()
        if self._quick is not None:
            self._quick.give_up()

    # --- Responses ------------------------------------------------------------------------
    def answered(self, exchange: Exchange[FetchResponse]) -> None:
        """Settle the response, or leave it to the task if that takes long."""
        self._in_flight.arrived()
        try:
            response, topics = exchange.result_in_pieces(PartitionData)
            now = self._loop.time()
            self.counts.answered(now, now - self._in_flight.sent_at)
            throttle_s = response.throttle_time_ms / 1000
            if throttle_s > 0 and not self.is_throttled:
                self._sources.node_throttles(self.node_id, throttle_s)
            self._in_flight.note_throttled(is_throttled=throttle_s > 0)
            self._accept(response, response.responses if topics is None else topics, now)
            if self._unanswered_count and now - self._in_flight.sent_at < self._late_s:
                self._unanswered_count -= 1
        except Exception as error:  # noqa: BLE001 -- the task raises it, if it is not to be retried
            if isinstance(error, UNREACHABLE) and self._unanswered_count < MOST_UNANSWERED:
                self._unanswered_count += 1
            self._failed(error)
            return
        finally:
            # Last, so that cursors whose loan ends do not wake the task.
            self._in_flight.settled()
        if not self._answers.is_settling:
            self.response_taken()

    def _settle_more(self) -> None:
        try:
            if self._answers.go_on():
                self._in_flight.release()
        except KafkaError as error:  # it is malformed
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Leave an error to the task, with a new session: the broker may have counted it."""
        self._session.replace()
        self._in_flight.release()
        self._note_failure(error)
        self.counts.failed()
        self.fail(error)

    def fail(self, error: Exception) -> None:
        self._in_flight.note_error(error)
        self._wake.set()

    def asks_again(self) -> None:
        """Note that the next request has the same partitions, so that no backoff needs a timer."""
        if self._quick is not None:
            self._quick.begin_anew()
        self._retry_at = None

    def broken(self, error: Exception) -> None:
        self._give_up_request()
        self._failed(error)

    def _note_failure(self, error: Exception) -> None:
        if self._failing_since is None and isinstance(error, UNREACHABLE):
            self._failing_since = self._loop.time()

    def _accept(self, response: FetchResponse, topics: Iterable[Struct], now: float) -> None:
        if response.error_code:
            self._in_flight.release()
            self._session_failed(for_code(response.error_code))
            return
        if self._backoff.failures:
            self._backoff.reset()
            self._failing_since = None
            self._sources.node_recovered(self.node_id)
        self._session.succeeded(response.session_id)
        self.choice.end_exceptions()
        reservation = self._in_flight.reservation
        assert reservation is not None  # noqa: S101 -- there was a request
        if self._answers.begin(response, topics, reservation, now):
            self._in_flight.release()
        else:
            self._wake.set()

    def _session_failed(self, error_class: type[KafkaError]) -> None:
        if error_class is FetchSessionIdNotFound:
            self._session.forget()
        else:
            self._session.replace()
        if error_class is FetchSessionTopicIdError:
            self._sources.cluster.invalidate()
        if error_class not in SESSION_ERRORS or self._in_flight.epoch == FULL_EPOCH:
            # The session is not the cause if a full request is refused: back off.
            self._in_flight.note_error(error_class(f"node {self.node_id} rejected a fetch request"))
            self._wake.set()
            return
        log.info("reopening the fetch session with node %s: %s", self.node_id, error_class.__name__)
