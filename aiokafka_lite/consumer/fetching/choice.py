"""The partitions of one source, and those of its next request; compiled in place (choice.pxd)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from aiokafka_lite.consumer.assignment.cursor import Cursor, Place

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.budget import ByteBudget
    from aiokafka_lite.consumer.buffer.buffer import Buffer
    from aiokafka_lite.consumer.fetching.oversized import OversizeSearch
    from aiokafka_lite.consumer.fetching.session import FetchSession


class BytesClaim(NamedTuple):
    """A cursor that is requested alone next, because its batch needs this many bytes."""

    cursor: Cursor
    size_bytes: int


class Choice:
    """The cursors of one source, and which of them may be lent to its fetch session.

    It is the claimant of the byte budget.

    Attributes:
        cursors: All cursors of the source, in any place.
        ready: Lent by the next request, if it may include them.
        backing_off: Those in a backoff.
        recalled: Those in flight whose loan may be outdated.
        claim: The cursor that is requested alone, until a response or as long as possible.
        oversize: The search for a batch that is too large to be received; created when needed.
        is_changed: Whether the next request may include other cursors than the latest one.
    """

    def __init__(self, buffer: Buffer, budget: ByteBudget, session: FetchSession) -> None:
        self._buffer = buffer
        self._budget = budget
        self._session = session
        self.cursors: set[Cursor] = set()
        self.ready: dict[Cursor, None] = {}
        self.backing_off: dict[Cursor, None] = {}
        self.recalled: dict[Cursor, None] = {}
        self.claim: BytesClaim | None = None
        self.oversize: OversizeSearch | None = None
        self.is_changed = False

    def is_settled(self) -> bool:
        """Whether the next request has the partitions of the latest one."""
        return not (
            self.ready
            or self.backing_off
            or self.recalled
            or self.is_changed
            or self.claim is not None
            or self.oversize is not None
        )

    def choose_anew(self) -> None:
        """Check again which cursors the next request may include."""
        self.is_changed = True

    # --- Cursors that move ------------------------------------------------------------------
    def moved(self, cursor: Cursor) -> None:
        self.cursors.add(cursor)
        place = cursor.place
        if place is not Place.IN_FLIGHT:
            self._session.end(cursor.tp)
        else:
            # Its loan may be outdated. It is checked later, as a request may be using it now.
            self.recalled[cursor] = None
        if place is Place.READY and cursor.is_fetchable:
            self.ready[cursor] = None
        else:
            self.ready.pop(cursor, None)
        if place is Place.BACKING_OFF:
            self.backing_off[cursor] = None
        else:
            self.backing_off.pop(cursor, None)

    def left(self, cursor: Cursor) -> None:
        self.cursors.discard(cursor)
        self.ready.pop(cursor, None)
        self.backing_off.pop(cursor, None)
        self.recalled.pop(cursor, None)
        self._session.end(cursor.tp)

    # --- Loans ------------------------------------------------------------------------------
    def lend(self, now: float, max_bytes: int) -> float | None:
        """Lend the next request's cursors to the session; return when the next backoff ends."""
        self._end_backoffs(self.backing_off, now)
        if self.oversize is not None and self.oversize.is_on:
            self.oversize.pass_idle(self.can_be_asked)
            self.is_changed = True
        if self.claim is not None and not self.can_be_asked(self.claim.cursor):
            self.end_claim()
        if self.recalled:
            recalled, self.recalled = self.recalled, {}
            for cursor in recalled:
                if cursor.loan is not None and cursor.loan.is_outdated:
                    cursor.come_back()
        if self.is_changed:
            self.is_changed = False
            for loan in tuple(self._session.loans):
                if not self.may_ask_for(loan.cursor):
                    loan.cursor.come_back()
        for cursor in tuple(self.ready):
            if cursor.is_full:  # it has met an error since
                cursor.chunks_changed()
            elif self.may_ask_for(cursor):
                del self.ready[cursor]
                self._session.lend(cursor.lend(max_bytes))
        return min((cursor.retry_at for cursor in self.backing_off), default=None)

    def _end_backoffs(self, cursors: Iterable[Cursor], now: float) -> None:
        for cursor in tuple(cursors):
            if cursor.retry_at <= now:
                cursor.end_back_off()

    def end_backoffs_before(self, end: float, now: float) -> float | None:
        """End backoffs that are over; return when the next one ends, if before `end`."""
        early = [cursor for cursor in self.backing_off if cursor.retry_at < end]
        self._end_backoffs(early, now)
        return min((c.retry_at for c in early if c in self.backing_off), default=None)

    def to_ask(self) -> Iterator[Cursor]:
        return filter(self.may_ask_for, self.ready)

    def lent_beside(self, cursors: Iterable[Cursor]) -> None:
        """Note ready cursors that were lent to another session."""
        for cursor in cursors:
            del self.ready[cursor]

    def may_ask_for(self, cursor: Cursor) -> bool:
        """Whether no other cursor has to be requested alone, or first."""
        if self.claim is not None and self.claim.cursor is not cursor:
            return False
        if self.oversize is not None and not self.oversize.allows(cursor):
            return False
        return not self._buffer.is_left_out(cursor)

    def can_be_asked(self, cursor: Cursor) -> bool:
        """Whether a request that is sent now could include a cursor."""
        return (
            cursor in self.cursors
            and cursor.place in (Place.READY, Place.IN_FLIGHT)
            and cursor.is_fetchable
            and not self._buffer.is_left_out(cursor)
        )

    # --- Cursors that are asked for alone -----------------------------------------------------
    def claim_bytes(self, cursor: Cursor, size_bytes: int) -> None:
        """Request a cursor alone when this many bytes are available."""
        self.claim = BytesClaim(cursor, size_bytes)
        self.is_changed = True

    def end_claim(self) -> None:
        self.claim = None
        self._budget.withdraw(self)

    def end_exceptions(self) -> None:
        """Request all cursors again, because a response was received."""
        if self.claim is not None:
            self.end_claim()
        if self.oversize is not None and self.oversize.is_on:
            self.oversize.answered()

    def search_oversized(self) -> Cursor | None:
        """Narrow down the cursor whose next batch is too large to receive; return it if found."""
        from aiokafka_lite.consumer.fetching.oversized import OversizeSearch

        search = self.oversize = self.oversize or OversizeSearch()
        asked = [loan.cursor for loan in self._session.loans]
        if len(asked) > 1:
            search.begin(asked)
        elif asked and search.is_found(asked[0]):
            return asked[0]
        return None
