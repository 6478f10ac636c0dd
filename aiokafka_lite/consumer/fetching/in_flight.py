"""The fetch request of one source that is in flight; compiled in place (in_flight.pxd)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aiokafka_lite.consumer.fetching.session import FULL_EPOCH

if TYPE_CHECKING:
    from aiokafka_lite.client.wire import Exchange
    from aiokafka_lite.consumer.buffer.budget import Reservation
    from aiokafka_lite.protocol.messages.fetch import FetchResponse


class InFlight:
    """The request in flight, or the latest one.

    Attributes:
        exchange: The request, until its response is settled.
        is_awaited: Whether its response has not arrived yet.
        is_long_poll: Whether the broker may delay the response. None: not determined yet.
        sent_at: Loop time of the request.
        poll_ends_at: Loop time at which a long poll without records ends.
        epoch: The session epoch of the request.
        reservation: The bytes reserved for the response.
        lease_ends_at: Loop time before which no cursor of the request returns from a follower.
        is_throttled: Whether the latest response was throttled (KIP-219).
        error: Handled by the source's task before the next request.
    """

    def __init__(self) -> None:
        self.exchange: Exchange[FetchResponse] | None = None
        self.is_awaited = False
        self.is_long_poll: bool | None = None
        self.sent_at = 0.0
        self.poll_ends_at = 0.0
        self.epoch = FULL_EPOCH
        self.reservation: Reservation | None = None
        self.lease_ends_at = math.inf
        self.is_throttled = False
        self.error: Exception | None = None

    def begin(self, epoch: int, now: float, max_wait_s: float) -> None:
        """Note a request that is sent `now` and may be delayed for `max_wait_s`."""
        self.epoch = epoch
        self.is_long_poll = None
        self.sent_at = now
        self.poll_ends_at = now + max_wait_s

    def reserve(self, reservation: Reservation, lease_ends_at: float = math.inf) -> None:
        self.reservation = reservation
        self.lease_ends_at = lease_ends_at

    def sent(self, exchange: Exchange[FetchResponse]) -> None:
        self.exchange = exchange
        self.is_awaited = True

    def note_long_poll(self, *, is_long_poll: bool) -> None:
        self.is_long_poll = is_long_poll

    def note_throttled(self, *, is_throttled: bool) -> None:
        self.is_throttled = is_throttled

    def note_error(self, error: Exception | None) -> None:
        self.error = error

    def arrived(self) -> None:
        self.is_awaited = False

    def settled(self) -> None:
        self.exchange = None

    def give_up(self) -> None:
        """Abandon the request in flight, if there is one."""
        exchange, self.exchange = self.exchange, None
        self.is_awaited = False
        if exchange is not None:
            exchange.abandon()
        self.release()

    def release(self) -> None:
        """Release the reserved bytes, unless a buffered response uses them."""
        reservation, self.reservation = self.reservation, None
        if reservation is not None and not reservation.is_kept:
            reservation.release()
