"""The short way of small responses; compiled in place (small.pxd).

A consumer with a trickle of records spends its time here: a response is settled, the waiting read
wakes up, and the next request is sent. The state is that of `answer.py`, `source.py`, `session.py`,
`buffer.py` and `wire.py`, which handle each other response. Tests compare both ways field by
field. No state changes before a response is known to be plain (_small.pyx), and these hold:

- The session is incremental, and its next request has the same partitions and reservation. No
  cursor is ready, recalled, claimed, backing off or read from a follower.
- A read of all partitions waits.

The next request is written last, because writing takes longest: it wakes the broker. If the
application is slow with its records, it is written before these are returned.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiokafka_lite.client.wire import Asked, WireState
from aiokafka_lite.consumer.buffer.chunk import chunk_of
from aiokafka_lite.consumer.fetching._small import SmallCodec, SmallPart

if TYPE_CHECKING:
    from aiokafka_lite.client.backoff import Backoff
    from aiokafka_lite.client.connection import Connection
    from aiokafka_lite.client.wire import Exchange, Wire
    from aiokafka_lite.consumer.assignment.cursor import Cursor
    from aiokafka_lite.consumer.fetching.in_flight import InFlight
    from aiokafka_lite.consumer.fetching.session import FetchSession
    from aiokafka_lite.consumer.fetching.source import Source
    from aiokafka_lite.consumer.fetching.sources import Sources
    from aiokafka_lite.protocol.messages.fetch import FetchResponse

# The first version with topic ids (KIP-516).
FIRST_VERSION: Final = 13
# If the application takes longer with its records, the next request is written before.
BRIEF_S: Final = 0.0002
OPEN: Final = WireState.OPEN


class SmallAnswers:
    """Settles the small responses of one source, and leaves all others to `Source.answered`.

    Attributes:
        taken_count: The number of plain responses.
    """

    def __init__(
        self,
        source: Source,
        sources: Sources,
        session: FetchSession,
        request: InFlight,
        backoff: Backoff,
    ) -> None:
        config, buffer = sources.config, sources.buffer
        self._source = source
        self._settle = source.answered
        self._session = session
        self._counts = source.counts
        self._buffer = buffer
        self._gate = buffer.gate
        self._budget = sources.budget
        self._backoff = backoff
        self._delivery = buffer.delivery
        self._deserializes = buffer.delivery.has_deserializers
        self._clock = asyncio.get_running_loop().time
        self._codec = SmallCodec(session, config)
        self._queue = buffer.queue
        self._waiters = buffer.waiters
        self._choice = source.choice
        self._request = request
        self._max_wait_s = config.fetch_max_wait_s
        self._max_bytes = config.fetch_max_bytes
        self._max_partition_bytes = config.max_partition_fetch_bytes
        self.taken_count = 0
        # Whether it took little time with its latest records.
        self._is_application_brief = False

    def __call__(self, exchange: Exchange[FetchResponse]) -> None:
        # Exchanges without a wire are left to the source.
        if not isinstance(exchange, Asked) or not self._take(exchange):  # type: ignore[redundant-expr]
            self._settle(exchange)

    def _take(self, exchange: Exchange[FetchResponse]) -> bool:
        """Settle a response if it is plain."""
        now = self._clock()
        connection = exchange.connection
        if exchange.frame is None or not self._is_steady(exchange, connection.wire, now):
            return False
        parts = self._codec.decode(exchange.frame)
        if parts is None:
            return False
        self._finish(exchange, connection, parts, now)
        return True

    def _is_steady(self, exchange: Exchange[FetchResponse], wire: Wire, now: float) -> bool:
        """Whether the next request equals this one but for offsets, and a read waits for all."""
        session, request = self._session, self._request
        if (
            request.exchange is not exchange
            or not self._choice.is_settled()
            or not session.is_settled()
            or not self._waiters.want_all()
            or request.is_throttled
            or request.error is not None
            or self._backoff.failures
            or self._waiters.sought
            or self._gate.holds
            or wire.state is not OPEN
            or wire.muted_until > now
            or exchange.version < FIRST_VERSION
            or now >= request.lease_ends_at
        ):
            return False
        return self._is_as_much_reserved()

    def _is_as_much_reserved(self) -> bool:
        """Whether the next request would get the same reservation."""
        reservation = self._request.reservation
        if reservation is None or reservation.is_claimed or not self._budget.is_ample():
            return False
        wanted_bytes = min(self._max_bytes, len(self._session) * self._max_partition_bytes)
        return reservation.size_bytes == min(wanted_bytes, self._budget.quota_bytes())

    # --- Take it -----------------------------------------------------------------------------
    def _finish(
        self,
        exchange: Exchange[FetchResponse],
        connection: Connection,
        parts: list[SmallPart],
        now: float,
    ) -> None:
        waiter = None
        is_written = False
        try:
            if self._settle_all(parts, now):
                waiter = self._waiters.wake_others()
            request = self._next_request(exchange, connection.wire, now)
            if waiter is None or not self._is_application_brief:
                connection.write(request, exchange.deadline)
                is_written = True
        except Exception as error:  # noqa: BLE001 -- a bug: the task of the source raises it
            self._source.broken(error)
            return
        self.taken_count += 1
        if waiter is None:
            return
        woken_at = self._clock()
        try:
            waiter.wake()  # the application's own code
        finally:  # also after sys.exit() in it
            now = self._clock()
            self._is_application_brief = now - woken_at < BRIEF_S
            if not is_written:
                if not self._is_application_brief:  # the broker's time begins now
                    exchange.begin_time(now)
                    self._request.begin(self._session.epoch, now, self._max_wait_s)
                connection.write(request, exchange.deadline)

    def _settle_all(self, parts: list[SmallPart], now: float) -> int:
        """Settle all partitions; return the size of their records in bytes."""
        size_bytes = 0
        for part in parts:
            cursor = part.loan.cursor
            cursor.answered(
                now,
                part.high_watermark,
                part.last_stable_offset if part.last_stable_offset >= 0 else None,
                part.log_start_offset,
            )
            if part.size_bytes > 0:
                size_bytes += part.size_bytes
                self._buffer_and_lend(cursor, part)
        self._counts.answered(now, now - self._request.sent_at)
        if size_bytes:
            self._counts.records_came(size_bytes)
        return size_bytes

    def _buffer_and_lend(self, cursor: Cursor, part: SmallPart) -> None:
        """Buffer the records of a partition, and lend it from the offset after them."""
        epochs = () if part.leader_epoch == -1 else ((cursor.fetched, part.leader_epoch),)
        chunk = chunk_of(
            cursor, self._delivery, part.records, part.next_offset, epochs, self._deserializes
        )
        self._queue.append(chunk)
        # Partitions that had records go to the end.
        self._session.renew(cursor.lend_on(part.next_offset, self._max_partition_bytes))

    def _next_request(self, exchange: Exchange[FetchResponse], wire: Wire, now: float) -> bytes:
        """Put the next request in flight with the same exchange; return its bytes.

        Only its offsets differ.
        """
        session, reservation = self._session, self._request.reservation
        assert reservation is not None  # noqa: S101 -- see _is_as_much_reserved
        session.succeeded(session.id)
        self._source.asks_again()
        self._request.begin(session.epoch, now, self._max_wait_s)
        correlation_id = wire.next_id()
        encoded = self._codec.encode(exchange.version, correlation_id, reservation.size_bytes)
        session.sent()
        wire.put_in_flight(correlation_id, exchange, now)
        return encoded
