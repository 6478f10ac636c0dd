"""Fetching from one broker: one request ahead of the caller.

At most one request is in flight, and at most one answered response waits that the application has
not come for. When a get comes for it, the next request goes out before its records are decoded:
from the offsets behind them, which the batch headers tell. So the next response is on its way, or
there, while the application works.

    apply what was touched -> reserve bytes -> request -> settle each partition -> buffer
            ^                                                                      |
            +------------- response taken, partition touched, bytes released ------+

While all goes well no task switches are needed for that: `advance` sends the next request as soon
as it may be sent, called by whoever made it possible: the answer that a get was waiting for, or the
get that takes a response. The task (`run`) does all that has to wait: it connects, backs off,
settles large answers a slice at a time, and ends when nothing is left to fetch.

What is asked for is said by node_targets.py, what becomes of an answer by answer.py.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._event import Event
from aiokafka_lite.client import Connection, Exchange, Lane
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.buffer.budget import Reservation
from aiokafka_lite.consumer.fetching.answer import Answers, NodeCounts
from aiokafka_lite.consumer.fetching.node_targets import NodeTargets
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

if TYPE_CHECKING:
    from aiokafka_lite.consumer.fetching.sources import Sources

log = logging.getLogger(__name__)

# What a broker may take beyond fetch_max_wait_ms before its connection counts as dead, unless
# request_timeout_ms is less.
FETCH_STALL_S: Final = 10.0
LAST_BACKOFF_S: Final = 1.0
# What it may take until it is asked of others whether it still leads.
OVERDUE_S: Final = 1.0
# Answers that blame the fetch session: it is opened anew, and nothing else has failed.
SESSION_ERRORS: Final = (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    FetchSessionTopicIdError,
)

# Errors after which the broker may be gone.
UNREACHABLE: Final = (KafkaConnectionError, NodeNotReadyError, RequestTimedOutError)


# How much later than its deadline a request in flight may be before nobody looks after it.
LATE_S: Final = 1.0


class Place(NamedTuple):
    """The request or the back-off that a partition is in, by name.

        assigned, not paused, its position known  =>  in a fetch, or in a back-off that has a name

    Nothing that the consumer does should break this; the watchdog looks whether something has.

    Attributes:
        text: The request or the back-off, or what is missing.
        is_sound: False: nobody is going to fetch the partition.
        is_brief: It lasts for a turn of the event loop; for longer, it is not sound either.
    """

    text: str
    is_sound: bool = True
    is_brief: bool = False


class Step(enum.Enum):
    """What `advance` came to: what the task has to do."""

    WAIT = enum.auto()  # an answer, a get or a partition wakes it
    CONNECT = enum.auto()  # there is no connection that takes a request now
    MAKE_ROOM = enum.auto()  # the byte budget is used up
    END = enum.auto()  # nothing is left to fetch from this broker


class Source:
    """The fetch task of one broker: owns its session, its request in flight and its backoff.

    What it reads as a follower is marked in the partitions: their preferred replica.
    """

    def __init__(self, sources: Sources, node_id: int, counts: NodeCounts) -> None:
        self.node_id = node_id
        self.counts = counts
        self.is_short_of_bytes = False
        self._sources = sources
        self._loop = asyncio.get_running_loop()
        self._session = FetchSession()
        # When the next backoff of a partition ends; None: there is none, or an answer comes first.
        self._retry_at: float | None = None
        self._targets = NodeTargets(sources, self, self._session)
        self._answers = Answers(sources, node_id, counts, self._session, self._targets)
        self._wake = Event()
        self._backoff = Backoff(sources.config.retry_backoff_s, LAST_BACKOFF_S, sources.rng)
        self._stall_s = min(FETCH_STALL_S, sources.config.request_timeout_s)
        self._exchange: Exchange[FetchResponse] | None = None
        self._reservation: Reservation | None = None
        self._asked_epoch = FULL_EPOCH
        # What the task has to deal with before anything more is sent.
        self._error: Exception | None = None
        self._failing_since: float | None = None
        self._is_closed = False
        # Whether the task connects, or waits for room: it looks again after that.
        self.is_waiting_to_send = False
        # Whether the latest answer said so.
        self._is_throttled = False
        self._sent_at = 0.0

    # --- What others post -----------------------------------------------------------------
    def add(self, partition: Cursor) -> None:
        """Take a partition over."""
        self._targets.add(partition)
        self.touch(partition)

    def remove(self, partition: Cursor) -> None:
        """Give a partition up."""
        self._targets.remove(partition)
        self.touch(partition)

    @property
    def partitions(self) -> Set[Cursor]:
        """What is read from this node."""
        return self._targets.partitions

    def forget(self, partition: Cursor) -> None:
        """Give a partition up, and a request whose deadline passed unnoticed."""
        self._targets.forget(partition)
        if self._exchange is not None and self._exchange.deadline < self._loop.time():
            self._give_up_request()
            self._session.replace()

    def touch(self, partition: Cursor) -> None:
        """Look at a partition again before the next request."""
        self._targets.touch(partition)
        if self._exchange is None:
            self._wake.set()

    def touch_all(self) -> None:
        """Look at all partitions again before the next request."""
        self._targets.touch_all()
        if self._exchange is None:
            self._wake.set()

    def wake(self) -> None:
        """Wake the task, so that it looks whether there is something to do."""
        self._wake.set()

    def response_taken(self) -> None:
        """Send the next request, because the application has come for the buffered response."""
        if self.advance() is not Step.WAIT or self._exchange is None:
            self._wake.set()

    @property
    def failing_since(self) -> float | None:
        """Loop time since which no request succeeds; None if nothing is wrong, or wanted."""
        return self._failing_since if self._targets.partitions else None

    def is_overdue(self, now: float) -> bool:
        """Whether the broker should have answered a while ago, as far as the long poll goes."""
        exchange = self._exchange
        return exchange is not None and now > exchange.deadline - self._stall_s + OVERDUE_S

    # --- What others ask ------------------------------------------------------------------
    @property
    def in_flight_since(self) -> float | None:
        """Loop time at which the request in flight was sent; None: there is none."""
        return None if self._exchange is None else self._sent_at

    def is_asked_for(self, partition: Cursor) -> bool:
        """Whether the request in flight asks for what comes next of a partition."""
        return self._exchange is not None and self._targets.is_unmoved(partition)

    def place(self, partition: Cursor, now: float) -> Place:
        """Return where a partition is that is read from this node and can be fetched."""
        name = f"node {self.node_id}"
        if partition not in self._targets.partitions:
            return Place(f"the task of {name} does not know of it", is_sound=False)
        if self._is_closed:
            return Place(f"the task of {name} is being restarted")
        if self._error is not None:
            return Place(f"{name} is asked again after {type(self._error).__name__}")
        if self.is_settling or self._sources.buffer.has_untaken(self.node_id):
            return Place(f"an answer of {name} waits to be taken")
        exchange = self._exchange
        if exchange is not None and now > exchange.deadline + LATE_S:
            return Place(f"the request to {name} has missed its deadline", is_sound=False)
        is_in_flight = exchange is not None
        will_look = is_in_flight or self._wake.is_set() or self.is_waiting_to_send
        is_brief = not is_in_flight and not self.is_waiting_to_send
        if partition in self._targets.touched:
            return Place(f"part of the next request to {name}", will_look, is_brief)
        if partition in self._targets.backing_off:
            # The task sleeps until the first of these ends; after a request it looks anyway.
            is_sound = will_look or (self._retry_at is not None and self._retry_at > now - LATE_S)
            return Place(f"{name} is asked again after {partition.retry_reason}", is_sound)
        if not self._targets.is_unmoved(partition):
            return Place(f"not asked of {name} from its position", is_sound=False)
        if is_in_flight:
            return Place(f"in a fetch from {name}")
        return Place(f"about to be fetched from {name}", will_look, is_brief)

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
        self._sources.budget.withdraw(self)
        self._close_session()

    def _close_session(self) -> None:
        """Tell the broker to forget the session, if that can be sent at once; waits for nothing.

        A session that is left open goes when the broker needs its place (after two minutes).
        """
        request = self._session.closing()
        if request is not None:
            self._sources.cluster.pool.send_nowait(self.node_id, request)

    # --- The task -------------------------------------------------------------------------
    async def run(self) -> None:
        """Fetch until no partition is left; run again after an error, with a new session."""
        self._is_closed = self._sources.is_closed
        try:
            while True:
                self._wake.clear()
                if self._error is not None:
                    await self._recover()
                while self._answers.is_settling:
                    await asyncio.sleep(0)
                    self._settle_more()
                step = self.advance()
                self.is_waiting_to_send = step in (Step.CONNECT, Step.MAKE_ROOM)
                if step is Step.END:
                    self.close()
                    self._sources.node_ended(self)
                    return
                if step is Step.CONNECT:
                    await self._connect()
                    continue
                if step is Step.MAKE_ROOM:
                    # What nobody comes for must not hold up the others.
                    self._sources.buffer.make_room(is_behind=self._targets.is_behind)
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
        delay_s = pool.connection_delay(self.node_id, Lane.FETCH)
        if delay_s > 0:
            # Throttled (KIP-219), or about to connect again: what is asked for, and whether
            # there is room for the answer, is decided when it can be sent.
            await self._sleep_until_woken(self._loop.time() + delay_s)
            return
        try:
            await pool.connect(self.node_id, Lane.FETCH)
        except KafkaError as error:
            self._error = error
            self._note_failure(error)

    async def _recover(self) -> None:
        """Deal with the last request's error: raise it, or back off."""
        error = self._error
        if error is None:
            return
        if not isinstance(error, KafkaError) or not (
            error.retriable or isinstance(error, BrokerResponseError)
        ):
            raise error  # it would fail for ever: the application has to know
        now = self._loop.time()
        for partition in tuple(self._targets.partitions):
            if partition.preferred_replica is not None:
                self._sources.give_back(partition, now)
        if isinstance(error, FrameTooLargeError) and error.size_bytes is not None:
            self._targets.search_oversized(error.size_bytes, error.limit_bytes)
        self._sources.node_failed(self.node_id, error)
        if error.invalid_metadata or isinstance(error, UNREACHABLE):
            self._sources.cluster.invalidate()
            self._sources.search.hurry()
        await asyncio.sleep(self._backoff.next_delay_s())
        self._error = None

    # --- Requests -------------------------------------------------------------------------
    def advance(self) -> Step:
        """Send the next request, unless something forbids it."""
        step = self._try_to_send()
        if step is not Step.MAKE_ROOM:
            # Others need not leave bytes to who could not use them now.
            self._sources.budget.withdraw(self)
        return step

    def _try_to_send(self) -> Step:
        if (
            self._is_closed
            or self._exchange is not None
            or self._answers.is_settling
            or self._error is not None
            or self._sources.buffer.has_untaken(self.node_id)
        ):
            self._retry_at = None
            return Step.WAIT
        self._retry_at = self._targets.apply()
        if not len(self._session):
            return Step.WAIT if self._targets.partitions else Step.END
        connection = self._sources.cluster.pool.ready_connection(self.node_id, Lane.FETCH)
        if connection is None:
            return Step.CONNECT
        reservation = self._reserve()
        if reservation is None:
            return Step.MAKE_ROOM
        self._send(connection, reservation)
        return Step.WAIT

    def _reserve(self) -> Reservation | None:
        config = self._sources.config
        wanted_bytes = min(
            config.fetch_max_bytes,
            len(self._session) * config.max_partition_fetch_bytes,
            self._sources.share_bytes,
        )
        least_bytes = min(wanted_bytes, config.max_partition_fetch_bytes)
        claim, claimant = self._targets.claim, None
        if claim is not None:
            # Brokers send a batch that is too large alone, whatever they are asked for (KIP-74).
            least_bytes = max(least_bytes, claim.size_bytes)
            wanted_bytes = max(wanted_bytes, least_bytes)
            claimant = self
        reservation = self._sources.budget.reserve(wanted_bytes, least_bytes, claimant)
        if reservation is None and self._sources.buffer.sought and not self._targets.is_behind:
            # What gets wait for may be long in coming: what is buffered of the rest is kept.
            reservation = self._sources.budget.reserve_nothing()
        self.is_short_of_bytes = reservation is None
        return reservation

    def _send(self, connection: Connection, reservation: Reservation) -> None:
        config = self._sources.config
        now = self._loop.time()
        asked = self._session.request()
        max_wait_ms = config.fetch_max_wait_ms
        if self._retry_at is not None:
            # Whoever is in a backoff is asked again when it ends, not when others have records.
            left_s = max(0.0, self._retry_at - now)
            max_wait_ms = min(max_wait_ms, math.ceil(left_s * 1000))
        request = self._sources.template.request(
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            max_bytes=max(1, reservation.size_bytes),
            topics=asked.topics,
            forgotten=asked.forgotten,
            rack_id=self._sources.replicas.rack_id(now),
            max_wait_ms=max_wait_ms,
        )
        self._sent_at = now
        self._reservation = reservation
        self._asked_epoch = asked.session_epoch
        try:
            self._exchange = connection.send(
                request,
                timeout_s=config.fetch_max_wait_s + self._stall_s,
                max_version=asked.max_version,
                on_done=self._answered,
            )
        except KafkaError as error:
            self._failed(error)

    def _give_up_request(self) -> None:
        """Forget the request in flight; its answer will be dropped."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon()
        self._release()

    def _release(self) -> None:
        """Give back what was reserved, unless a buffered response has it now."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None and not reservation.is_kept:
            reservation.release()

    # --- Answers --------------------------------------------------------------------------
    def _answered(self, exchange: Exchange[FetchResponse]) -> None:
        """Settle the answer, or leave it to the task if that takes long."""
        self._exchange = None
        try:
            response, topics = exchange.result_in_pieces(PartitionData)
            self.counts.answered(self._loop.time(), self._sent_at)
            if (response.throttle_time_ms > 0) is not self._is_throttled:
                self._note_throttle(response.throttle_time_ms / 1000)
            self._accept(response, response.responses if topics is None else topics)
        except Exception as error:  # noqa: BLE001 -- the task raises it, if it is not to be retried
            self._failed(error)
            return
        if not self._answers.is_settling:
            self.response_taken()

    def _settle_more(self) -> None:
        """Settle the next slice of an answer."""
        try:
            if self._answers.go_on():
                self._release()
        except KafkaError as error:  # it is malformed
            self._failed(error)

    def _note_throttle(self, throttle_s: float) -> None:
        """Tell once that the broker holds this client back (KIP-219), until it does not."""
        from aiokafka_lite.consumer.events.kinds import Throttled

        self._is_throttled = throttle_s > 0
        if self._is_throttled:
            self._sources.events.publish(Throttled(self.node_id, throttle_s))

    def _failed(self, error: Exception) -> None:
        """Leave an error to the task; the broker may have counted the request: start over."""
        self._session.replace()
        self._release()
        self._error = error
        self._note_failure(error)
        self.counts.failure_count += 1
        self._wake.set()

    def _note_failure(self, error: Exception) -> None:
        """Note since when requests fail, if the error may mean that the broker is gone."""
        if self._failing_since is None and isinstance(error, UNREACHABLE):
            self._failing_since = self._loop.time()

    def _accept(self, response: FetchResponse, topics: Iterable[Struct]) -> None:
        if response.error_code:
            self._release()
            self._session_failed(for_code(response.error_code))
            return
        if self._backoff.failures:
            self._backoff.reset()
            self._failing_since = None
            self._sources.node_recovered(self.node_id)
        self._session.succeeded(response.session_id)
        self._targets.answered()
        if self._reservation is None:
            raise AssertionError("an answer without a request")
        if self._answers.begin(response, topics, self._reservation):
            self._release()
        else:
            self._wake.set()

    def _session_failed(self, error_class: type[KafkaError]) -> None:
        if error_class is FetchSessionIdNotFound:
            self._session.forget()
        else:
            self._session.replace()
        if error_class is FetchSessionTopicIdError:
            self._sources.cluster.invalidate()
        if error_class not in SESSION_ERRORS or self._asked_epoch == FULL_EPOCH:
            # No session can be blamed for the refusal of a full request: not again at once.
            self._error = error_class(f"node {self.node_id} refused a fetch")
            self._wake.set()
            return
        log.info("fetch session with node %s is opened anew: %s", self.node_id, error_class)
