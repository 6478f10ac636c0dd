"""A source: fetches from one broker, one request ahead of the caller.

It keeps the cursors of the partitions that are read from there: those that are READY, which the
next request lends to its fetch session; those IN_FLIGHT; and those BACKING_OFF. A cursor tells of
each of its moves (`moved`).

At most one request is in flight, and at most one answered response waits that the application has
not come for. When a get comes for it, the next request goes out before its records are decoded:
from the offsets behind them, which the batch headers tell. So the next response is on its way, or
there, while the application works.

    lend what is ready -> reserve bytes -> request -> settle each partition -> buffer
            ^                                                                    |
            +----------- response taken, cursor ready again, bytes released -----+

While all goes well no task switches are needed for that: `advance` sends the next request as soon
as it may be sent, called by whoever made it possible: the answer that a get was waiting for, or the
get that takes a response. The task (`run`) does all that has to wait: it connects, backs off,
settles large answers a slice at a time, and ends when nothing is left to fetch.

What becomes of an answer is said by answer.py.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import Event
from aiokafka_lite.client import Connection, Exchange, Lane
from aiokafka_lite.client.backoff import Backoff
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
from aiokafka_lite.protocol.fetch_template import PreparedFetch
from aiokafka_lite.protocol.messages.fetch import FetchResponse, PartitionData
from aiokafka_lite.protocol.schema import Struct
from aiokafka_lite.records import decoders

if TYPE_CHECKING:
    from aiokafka_lite.consumer.fetching.sources import Sources

log = logging.getLogger(__name__)

# How long a broker may be silent beyond fetch_max_wait_ms before its connection counts as dead,
# unless request_timeout_ms is less. Each request without an answer doubles that for the next one,
# up to request_timeout_ms, and halves what that asks for.
FETCH_STALL_S: Final = 10.0
# Fewer bytes are not asked for on that account.
LEAST_PIECE_BYTES: Final = 64 * 1024
MOST_UNANSWERED: Final = 10
LAST_BACKOFF_S: Final = 1.0
# Places from which a cursor may be asked for beside a long poll, at once or soon.
ASKED_BESIDE: Final = (Place.READY, Place.BACKING_OFF)
# What ends so much earlier than a long poll does not wait for that.
BESIDE_S: Final = 0.02
# What it may take until it is asked of others whether it still leads.
OVERDUE_S: Final = 1.0
# The same for the rest of an answer: over a slow link the kernel takes long for a good piece.
PIECE_OVERDUE_S: Final = 5.0
# Answers that blame the fetch session: it is opened anew, and nothing else has failed.
SESSION_ERRORS: Final = (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    FetchSessionTopicIdError,
)

# Errors after which the broker may be gone.
UNREACHABLE: Final = (KafkaConnectionError, NodeNotReadyError, RequestTimedOutError)


class Step(enum.Enum):
    """What `advance` came to: what the task has to do."""

    WAIT = enum.auto()  # an answer, a get or a partition wakes it
    CONNECT = enum.auto()  # there is no connection that takes a request now
    MAKE_ROOM = enum.auto()  # the byte budget is used up
    END = enum.auto()  # nothing is left to fetch from this broker


class Source:
    """The fetch task of one broker: owns its session, its request in flight and its backoff.

    What it reads as a follower is marked in the cursors: their preferred replica.
    """

    __slots__ = (
        "_answers",
        "_backoff",
        "_buffer",
        "_choice",
        "_error",
        "_failing_since",
        "_in_flight",
        "_is_closed",
        "_is_throttled",
        "_late_s",
        "_loop",
        "_on_answer",
        "_quick",
        "_retry_at",
        "_session",
        "_sources",
        "_unanswered_count",
        "_wake",
        "counts",
        "is_short_of_bytes",
        "lane",
        "node_id",
    )

    def __init__(self, sources: Sources, node_id: int, lane: Lane, counts: NodeCounts) -> None:
        self.node_id = node_id
        self.lane = lane
        self.counts = counts
        self.is_short_of_bytes = False
        self._sources = sources
        self._buffer = sources.buffer
        self._loop = asyncio.get_running_loop()
        self._session = FetchSession()
        self._choice = Choice(sources.buffer, sources.budget, self._session)
        self._in_flight = InFlight()
        # When the next backoff of a cursor ends; None: there is none, or an answer comes first.
        self._retry_at: float | None = None
        self._answers = Answers(sources, self, counts, self._session)
        # Made when something becomes fetchable beside a long poll.
        self._quick: QuickLane | None = None
        self._wake = Event()
        self._backoff = Backoff(sources.config.retry_backoff_s, LAST_BACKOFF_S, sources.rng)
        # An answer takes longer than this if the broker is slow.
        self._late_s = min(FETCH_STALL_S, sources.config.request_timeout_s)
        # How many requests got no answer, less those answered in time since.
        self._unanswered_count = 0
        # What the task has to deal with before anything more is sent.
        self._error: Exception | None = None
        self._failing_since: float | None = None
        self._is_closed = False
        # Whether the latest answer said so.
        self._is_throttled = False
        # Takes the answers; chosen with the first request.
        self._on_answer: Callable[[Exchange[FetchResponse]], None] | None = None

    def _choose_on_answer(self) -> Callable[[Exchange[FetchResponse]], None]:
        """Return what takes answers: where that can be, what takes small ones in one go."""
        sources = self._sources
        if not sources.config.client_rack and decoders.current() is not decoders.DECODERS["python"]:
            try:
                from aiokafka_lite.consumer.fetching._small import SmallAnswers
            except ModuleNotFoundError:
                pass  # the extension is not built
            else:
                return SmallAnswers(self, sources, self._session, self.counts)
        return self._answered

    # --- What others post -----------------------------------------------------------------
    def moved(self, cursor: Cursor) -> None:
        """Note where a cursor of this source is now: its place, or a switch, has changed."""
        self._choice.moved(cursor)
        place = cursor.place
        if place is not Place.IN_FLIGHT and self._quick is not None:
            self._quick.end(cursor)
        request = self._in_flight
        if request.exchange is None or (request.is_awaited and place in ASKED_BESIDE):
            self._wake.set()

    def left(self, cursor: Cursor) -> None:
        """Forget a cursor: it is read from elsewhere, or assigned no more."""
        self._choice.left(cursor)
        if self._quick is not None:
            self._quick.end(cursor)
        if self._in_flight.exchange is None:
            self._wake.set()

    def choose_anew(self) -> None:
        """Look again which cursors the next request may ask for."""
        self._choice.is_changed = True
        if self._in_flight.exchange is None:
            self._wake.set()

    def wake(self) -> None:
        """Wake the task, so that it looks whether there is something to do."""
        self._wake.set()

    def response_taken(self) -> None:
        """Send the next request, because the application has come for the buffered response."""
        self.advance()
        if self._in_flight.exchange is None or self._retry_at is not None:
            self._wake.set()

    @property
    def failing_since(self) -> float | None:
        """Loop time since which no request succeeds; None if nothing is wrong, or wanted."""
        return self._failing_since if self._choice.cursors else None

    def is_overdue(self, now: float) -> bool:
        """Whether the broker should have answered a while ago, as far as the long poll goes."""
        exchange = self._in_flight.exchange
        if exchange is None:
            return False
        overdue_s = self._sources.config.fetch_max_wait_s + OVERDUE_S
        if exchange.is_arriving:
            overdue_s = max(overdue_s, PIECE_OVERDUE_S)
        return now > exchange.silent_since + overdue_s

    # --- What others ask ------------------------------------------------------------------
    @property
    def answer_s(self) -> float:
        """How long the broker may be silent after a request."""
        config = self._sources.config
        stall_s = self._late_s * 2.0**self._unanswered_count
        return config.fetch_max_wait_s + min(stall_s, config.request_timeout_s)

    @property
    def partition_count(self) -> int:
        """How many partitions it reads."""
        return len(self._choice.cursors)

    @property
    def is_throttled(self) -> bool:
        """Whether its latest answer said that the broker holds this client back."""
        return self._is_throttled

    @property
    def is_failing(self) -> bool:
        """Whether its latest request failed."""
        return self._backoff.failures > 0

    @property
    def in_flight_since(self) -> float | None:
        """Loop time at which the request in flight was sent; None: there is none."""
        return None if self._in_flight.exchange is None else self._in_flight.sent_at

    @property
    def error(self) -> Exception | None:
        """Why the last request failed, until it is tried again."""
        return self._error

    @property
    def is_settling(self) -> bool:
        """Whether an answer with many partitions is being worked through."""
        return self._answers.is_settling

    def close(self) -> None:
        """Send nothing more; the session is closed where that takes no wait."""
        self._is_closed = True
        self._close_session()

    def _close_session(self) -> None:
        """Tell the broker to forget the session, if that can be sent at once; waits for nothing.

        A session that is left open goes when the broker needs its place (after two minutes).
        """
        request = self._session.closing()
        if request is not None:
            self._sources.cluster.pool.send_nowait(self.node_id, request, self.lane)

    # --- The task -------------------------------------------------------------------------
    async def run(self) -> None:
        """Fetch until no partition is left; run again after an error, with a new session."""
        self._is_closed = self._sources.is_closed
        try:
            if not self._choice.ready:
                # Connect while positions are being looked up, once that has been asked.
                await asyncio.sleep(0)
                self._sources.cluster.pool.ready(self.node_id, self.lane)
            while True:
                self._wake.clear()
                if self._error is not None:
                    await self._recover(self._error)
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
                    # What nobody comes for must not hold up the others.
                    self._buffer.make_room(is_behind=self.is_behind)
                await self._sleep_until_woken(self._retry_at)
        finally:
            self._is_closed = True
            self._answers.give_up()
            self._error = None
            self._give_up_request()
            self._session.replace()

    async def _sleep_until_woken(self, deadline: float | None) -> None:
        try:
            async with timeout_at(deadline):
                await self._wake.wait()
        except asyncio.TimeoutError:
            pass

    async def _connect(self) -> None:
        pool = self._sources.cluster.pool
        delay_s = pool.connection_delay(self.node_id, self.lane)
        if delay_s > 0:
            # Throttled (KIP-219), or about to connect again: what is asked for, and whether
            # there is room for the answer, is decided when it can be sent.
            await self._sleep_until_woken(self._loop.time() + delay_s)
            return
        try:
            await pool.connect(self.node_id, self.lane)
        except KafkaError as error:
            self._error = error
            self._note_failure(error)

    async def _recover(self, error: Exception) -> None:
        """Deal with the last request's error: raise it, or back off."""
        if not isinstance(error, KafkaError) or not (
            error.retriable or isinstance(error, BrokerResponseError)
        ):
            raise error  # it would fail for ever: the application has to know
        now = self._loop.time()
        for cursor in tuple(self._choice.cursors):
            if cursor.preferred_replica is not None:
                self._sources.give_back(cursor, now)
        if isinstance(error, FrameTooLargeError) and error.size_bytes is not None:
            found = self._choice.search_oversized()
            if found is not None:
                # Imported where it is used: it hardly ever happens.
                from aiokafka_lite.consumer.fetching.oversized import too_large

                sticky = too_large(found, error.size_bytes, error.limit_bytes)
                self._buffer.put_error(found, sticky, is_sticky=True)
        self._sources.node_failed(self.node_id, error)
        if error.invalid_metadata or isinstance(error, UNREACHABLE):
            self._sources.cluster.invalidate()
            self._sources.search.hurry()
        await asyncio.sleep(self._backoff.next_delay_s())
        self._error = None

    # --- What is asked for ------------------------------------------------------------------
    def _lend(self, now: float) -> float | None:
        """Lend the session what the next request asks for; return when the next backoff ends."""
        if now >= self._sources.replicas.lease_ends_at:
            self._sources.end_leases(now)
        return self._choice.lend(now, self._sources.config.max_partition_fetch_bytes)

    def can_be_asked(self, cursor: Cursor) -> bool:
        """Whether a request that is sent now could ask for a cursor."""
        return self._choice.can_be_asked(cursor)

    def claim_bytes(self, cursor: Cursor, size_bytes: int) -> None:
        """Ask next for a cursor alone, when so many bytes are available."""
        self._choice.claim_bytes(cursor, size_bytes)

    @property
    def is_behind(self) -> bool:
        """Whether the next request is known to bring records."""
        if self._choice.claim is not None:
            return True
        return any(self._sources.is_behind(loan.cursor) for loan in self._session.loans)

    # --- Requests -------------------------------------------------------------------------
    def advance(self) -> Step:
        """Send the next request, unless something forbids it."""
        step = self._try_to_send()
        if step is not Step.MAKE_ROOM and self._choice.claim is not None:
            # Others need not leave bytes to who could not use them now.
            self._sources.budget.withdraw(self._choice)
        return step

    def _try_to_send(self) -> Step:
        if self._in_flight.is_awaited:
            self._retry_at = self._ask_beside()
            return Step.WAIT
        if (
            self._is_closed
            or self._in_flight.exchange is not None
            or self._answers.is_settling
            or self._error is not None
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
            return Step.WAIT if self._choice.cursors else Step.END
        connection = self._sources.cluster.pool.ready_connection(self.node_id, self.lane)
        if connection is None:
            return Step.CONNECT
        reservation = self._reserve(asked_count)
        if reservation is None:
            return Step.MAKE_ROOM
        self._send(connection, reservation, now)
        return Step.WAIT

    def _ask_beside(self) -> float | None:
        """Have asked at once what the long poll in flight does not ask for.

        Return when to look for that again; None: when something happens.
        """
        choice = self._choice
        if (
            self._is_closed
            or self._error is not None
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
            self._in_flight.is_long_poll = not self.is_behind
        if not self._in_flight.is_long_poll:
            return look_at  # its answer is on the way, and the next request takes all
        if self._quick is None:
            self._quick = QuickLane(self._sources, self, self.counts)
        choice.lent_beside(self._quick.ask(choice.to_ask()))
        again_at = self._quick.look_at
        return again_at if look_at is None or again_at is None else min(look_at, again_at)

    def _reserve(self, asked_count: int) -> Reservation | None:
        config = self._sources.config
        wanted_bytes = min(
            config.fetch_max_bytes,
            asked_count * config.max_partition_fetch_bytes,
            self._sources.budget.quota_bytes,
        )
        if self._unanswered_count:
            least_bytes = min(wanted_bytes, LEAST_PIECE_BYTES)
            wanted_bytes = max(wanted_bytes >> self._unanswered_count, least_bytes)
        least_bytes = min(wanted_bytes, config.max_partition_fetch_bytes)
        claim, claimant = self._choice.claim, None
        if claim is not None:
            # Brokers send a batch that is too large alone, whatever they are asked for (KIP-74).
            least_bytes = max(least_bytes, claim.size_bytes)
            wanted_bytes = max(wanted_bytes, least_bytes)
            claimant = self._choice
        reservation = self._sources.budget.reserve(wanted_bytes, least_bytes, claimant)
        if reservation is None and self._buffer.sought and not self.is_behind:
            # What gets wait for may be long in coming: what is buffered of the rest is kept.
            reservation = self._sources.budget.reserve_nothing()
        self.is_short_of_bytes = reservation is None
        return reservation

    def _send(self, connection: Connection, reservation: Reservation, now: float) -> None:
        config = self._sources.config
        asked = self._session.request()
        max_wait_ms = config.fetch_max_wait_ms
        if self._retry_at is not None:
            # Whoever is in a backoff is asked again when it ends, not when others have records.
            left_s = max(0.0, self._retry_at - now)
            max_wait_ms = min(max_wait_ms, math.ceil(left_s * 1000))
        request = PreparedFetch(
            self._sources.template,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            max_bytes=max(1, reservation.size_bytes),
            topics=asked.topics,
            forgotten=asked.forgotten,
            rack_id=self._sources.replicas.rack_id(now) if config.client_rack else "",
            max_wait_ms=max_wait_ms,
        )
        self._in_flight.begin(asked.session_epoch, now, max_wait_ms / 1000)
        self._in_flight.reservation = reservation
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
        """Forget the request in flight; its answer will be dropped."""
        self._in_flight.give_up()
        if self._quick is not None:
            self._quick.give_up()

    # --- Answers --------------------------------------------------------------------------
    def _answered(self, exchange: Exchange[FetchResponse]) -> None:
        """Settle the answer, or leave it to the task if that takes long."""
        self._in_flight.is_awaited = False
        try:
            response, topics = exchange.result_in_pieces(PartitionData)
            now = self._loop.time()
            self._count_answer(now)
            throttle_s = response.throttle_time_ms / 1000
            if throttle_s > 0 and not self._is_throttled:  # KIP-219
                self._sources.node_throttles(self.node_id, throttle_s)
            self._is_throttled = throttle_s > 0
            self._accept(response, response.responses if topics is None else topics, now)
            if self._unanswered_count and now - self._in_flight.sent_at < self._late_s:
                self._unanswered_count -= 1
        except Exception as error:  # noqa: BLE001 -- the task raises it, if it is not to be retried
            if isinstance(error, UNREACHABLE) and self._unanswered_count < MOST_UNANSWERED:
                self._unanswered_count += 1
            self._failed(error)
            return
        finally:
            # Not before: the cursors that come back need not wake the task.
            self._in_flight.exchange = None
        if not self._answers.is_settling:
            self.response_taken()

    def _count_answer(self, now: float) -> None:
        self.counts.answered(now, now - self._in_flight.sent_at)

    def _settle_more(self) -> None:
        """Settle the next slice of an answer."""
        try:
            if self._answers.go_on():
                self._in_flight.release()
        except KafkaError as error:  # it is malformed
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Leave an error to the task; the broker may have counted the request: start over."""
        self._session.replace()
        self._in_flight.release()
        self._note_failure(error)
        self.counts.failed()
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """Leave an error to the task, before anything more is sent."""
        self._error = error
        self._wake.set()

    def asks_again(self) -> None:
        """Note that the next request asks for the same partitions, so that none has to wait."""
        if self._quick is not None:
            self._quick.begin_anew()
        self._retry_at = None

    def broken(self, error: Exception) -> None:
        """Leave a bug in what settles small responses to the task."""
        self._give_up_request()
        self._failed(error)

    def _note_failure(self, error: Exception) -> None:
        """Note since when requests fail, if the error may mean that the broker is gone."""
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
        self._choice.end_exceptions()
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
            # No session can be blamed for the refusal of a full request: not again at once.
            self._error = error_class(f"node {self.node_id} rejected a fetch request")
            self._wake.set()
            return
        log.info("reopening the fetch session with node %s: %s", self.node_id, error_class.__name__)
