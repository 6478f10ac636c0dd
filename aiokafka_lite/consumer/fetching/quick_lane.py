"""The quick lane: fetches at once, next to a long poll.

A broker serves one request of a connection after the other. During a long poll, a partition that
becomes fetchable (by a seek, assignment, resume or new leader) would wait for up to half a second.
So it is fetched on a second connection, by requests without wait and session.

    fetchable -> lent to the quick lane -> answer -> buffered, or without news
                            ^                                   |
                            +--- after 5, 10, 20 ... ms --------+

Pauses double, so a new record is found after at most twice its own delay. A partition without news
joins the next long poll, which takes all that are ready. A partition with records continues here. A
cursor has one loan, so never both ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.wire import Exchange
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.fetching.answer import Answers
from aiokafka_lite.consumer.fetching.in_flight import InFlight
from aiokafka_lite.consumer.fetching.session import FINAL_EPOCH, FetchSession
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.messages.fetch import FetchResponse, PartitionData

if TYPE_CHECKING:
    from aiokafka_lite.consumer.fetching.source import Source
    from aiokafka_lite.consumer.fetching.sources import Sources

# The first pause after an answer without news, doubled each time.
FIRST_PAUSE_S: Final = 0.005
# Partitions of one request: its answer is settled in one go.
MOST_AT_ONCE: Final = 50
# After this time an answer is given up: the long poll asks instead.
OVERDUE_S: Final = 1.0


class QuickLane:
    """The requests of one source without wait, at most one in flight.

    Attributes:
        look_at: Loop time of the next request for partitions without news, if there are any.
    """

    def __init__(self, sources: Sources, source: Source) -> None:
        self.look_at: float | None = None
        self._sources = sources
        self._source = source
        self._counts = source.counts
        self._loop = asyncio.get_running_loop()
        # The lent cursors. The broker keeps no session of them.
        self._session = FetchSession()
        self._answers = Answers(sources, source, self._session)
        self._in_flight = InFlight()
        # Opens the connection.
        self._connecting: asyncio.Task[None] | None = None
        self._task_name = f"open a second connection to node {source.node_id}"
        # Cursors without news from an offset on, since the long poll was sent.
        self._nothing_at: dict[Cursor, int] = {}
        self._pause_s = FIRST_PAUSE_S

    def end(self, cursor: Cursor) -> None:
        self._session.end(cursor.tp)

    def begin_anew(self) -> None:
        """Reset before a long poll, which also replaces an overdue request."""
        self.look_at = None
        self._nothing_at.clear()
        self._pause_s = FIRST_PAUSE_S
        request = self._in_flight
        if request.exchange is not None and self._loop.time() > request.sent_at + OVERDUE_S:
            self.give_up()

    def give_up(self) -> None:
        self._in_flight.give_up()
        self._end_request()

    # --- Asking ---------------------------------------------------------------------------
    def ask(self, ready: Iterable[Cursor]) -> list[Cursor]:
        now = self._loop.time()
        if self.look_at is not None and now >= self.look_at:
            self.look_at = None
            self._nothing_at.clear()
        if self._in_flight.exchange is not None:
            return []
        new = (each for each in ready if self._nothing_at.get(each) != each.fetched)
        asked = list(islice((each for each in new if not each.is_full), MOST_AT_ONCE))
        if not asked:
            return []
        pool = self._sources.cluster.pool
        connection = pool.ready_connection(self._source.node_id, Lane.QUICK)
        if connection is None:
            self._connect_soon(now)
            return []
        config = self._sources.config
        max_bytes = config.max_partition_fetch_bytes
        # No more than that: the answers of the long poll need room, too.
        reservation = self._sources.budget.reserve(max_bytes, max_bytes)
        if reservation is None:
            self._pause()
            return []
        for cursor in asked:
            self._session.lend(cursor.lend(max_bytes))
        parts = self._session.request()._replace(session_epoch=FINAL_EPOCH)
        request = self._sources.request(parts, now, max_bytes, max_wait_ms=0)
        self._in_flight.begin(FINAL_EPOCH, now, 0.0)
        self._in_flight.reserve(reservation)
        try:
            exchange = connection.send(
                request,
                timeout_s=self._source.answer_s,
                max_version=parts.max_version,
                on_done=self._answered,
            )
        except KafkaError:
            self._nothing_new()
            return []
        self._in_flight.sent(exchange)
        return asked

    def _connect_soon(self, now: float) -> None:
        delay_s = self._sources.cluster.pool.connection_delay(self._source.node_id, Lane.QUICK)
        if delay_s > 0:
            self.look_at = now + delay_s
        elif self._connecting is None:
            self._connecting = self._sources.scope.spawn(self._connect(), name=self._task_name)

    async def _connect(self) -> None:
        try:
            await self._sources.cluster.pool.connect(self._source.node_id, Lane.QUICK)
        except KafkaError:
            pass  # the pool has said why
        finally:
            self._connecting = None
        self._source.wake()

    def _pause(self) -> None:
        self.look_at = self._loop.time() + self._pause_s
        self._pause_s *= 2.0

    # --- Answers --------------------------------------------------------------------------
    def _answered(self, exchange: Exchange[FetchResponse]) -> None:
        """Settle the answer. Errors are left to the long poll, which asks the same."""
        asked = tuple(self._session.loans)
        self._counts.answered_at_once()
        try:
            response, topics = exchange.result_in_pieces(PartitionData)
            reservation = self._in_flight.reservation
            assert reservation is not None  # noqa: S101 -- there was a request
            if not response.error_code:
                self._answers.begin(
                    response,
                    response.responses if topics is None else topics,
                    reservation,
                    self._loop.time(),
                )
                while self._answers.is_settling:
                    self._answers.go_on()
        except KafkaError:
            self._counts.failed()
        except Exception as error:  # noqa: BLE001 -- the source's task raises it
            self._source.fail(error)
        finally:
            self._in_flight.settled()
            if len(self._session) == len(asked):
                self._nothing_new()
            self._end_request()
        self._source.wake()

    def _nothing_new(self) -> None:
        for loan in self._session.loans:
            self._nothing_at[loan.cursor] = loan.offset
        self._pause()
        self._end_request()

    def _end_request(self) -> None:
        for loan in tuple(self._session.loans):
            loan.cursor.come_back()
        self._in_flight.release()
