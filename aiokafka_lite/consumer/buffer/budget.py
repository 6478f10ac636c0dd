"""The byte budget of buffered and requested records, over all brokers.

A fetch reserves its limit before it is sent; the response corrects that to its size. The largest
decompressed size so far is kept free. A reservation larger than the budget is granted if there is
no other: an oversized batch is fetched alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# Handlers that have finished such a part of the limit make room for another try.
ROOM_PARTS: Final = 64


class Reservation:
    def __init__(self, budget: ByteBudget, size_bytes: int, *, is_claimed: bool = False) -> None:
        self._budget = budget
        self.size_bytes = size_bytes
        # Whether it was reserved for a claim: no other response may take its room.
        self.is_claimed = is_claimed
        # Whether a buffered response has it, and releases it.
        self.is_kept = False

    def keep(self, size_bytes: int) -> None:
        """Transfer it to a buffered response of that size."""
        reserved_bytes, self.size_bytes = self.size_bytes, size_bytes
        self.is_kept = True
        self._budget.change(size_bytes - reserved_bytes, -reserved_bytes, self.is_claimed)

    def resize(self, size_bytes: int) -> None:
        by_bytes = size_bytes - self.size_bytes
        self.size_bytes = size_bytes
        self._budget.change(by_bytes, 0 if self.is_kept else by_bytes, self.is_claimed)

    def inflated(self, by_bytes: int, batch_bytes: int) -> None:
        """Count decompressed bytes, added or freed, of a batch of `batch_bytes` (0: none)."""
        self._budget.inflated(by_bytes, batch_bytes)
        self.resize(self.size_bytes + by_bytes)

    def release(self) -> None:
        """Release all bytes; idempotent."""
        self.resize(0)


class ByteBudget:
    """Bytes that may be reserved; `on_release` is called when bytes return after a refusal."""

    def __init__(self, limit_bytes: int, on_release: Callable[[], None]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        # The used bytes that are reserved for responses which have not arrived.
        self.pending_bytes = 0
        # The limit less the bytes that handlers of `run` hold, but at least a quarter.
        self.room_bytes = limit_bytes
        # What it was at the latest notice, or less since: each record of a handler changes it.
        self._known_room_bytes = limit_bytes
        self._least_notice_bytes = limit_bytes // ROOM_PARTS
        # The pending bytes that were claimed.
        self._claimed_bytes = 0
        # Kept for decompression: the largest batch so far, at most half of all.
        self.headroom_bytes = 0
        # The sources that share the bytes.
        self.source_count = 0
        self._inflated_bytes = 0
        # Gets the next bytes, because it needs more than others leave.
        self._claimant: object = None
        # Whether a reservation was refused since bytes were last released.
        self._is_short = False
        self._on_release = on_release

    @property
    def buffered_bytes(self) -> int:
        return self.used_bytes - self.pending_bytes

    def take_for_processing(self, size_bytes: int) -> None:
        """Note how many bytes handlers of `run` hold (processing/allowance.py)."""
        before_bytes = self.room_bytes
        self.room_bytes = room_bytes = max(self.limit_bytes - size_bytes, self.limit_bytes // 4)
        self._known_room_bytes = min(room_bytes, self._known_room_bytes)
        if room_bytes > before_bytes and (
            not size_bytes or room_bytes - self._known_room_bytes >= self._least_notice_bytes
        ):
            self._known_room_bytes = room_bytes
            self._notify()

    @property
    def taken_bytes(self) -> int:
        """Bytes that are reserved, buffered, or held by handlers."""
        return self.used_bytes + self.limit_bytes - self.room_bytes

    def quota_bytes(self) -> int:
        """The limit of one response, so that every source can have two responses."""
        return max(
            1, (self.room_bytes - self._kept_free_bytes()) // (2 * max(1, self.source_count))
        )

    def _kept_free_bytes(self) -> int:
        return min(self.headroom_bytes, self.room_bytes // 2)

    def is_ample(self) -> bool:
        """Whether nothing was refused since the last release, or is kept for decompression."""
        return not (self._is_short or self.headroom_bytes)

    def suffices_for_another(self, least_bytes: int) -> bool:
        return self.limit_bytes // (2 * (self.source_count + 1)) >= least_bytes

    @property
    def is_over(self) -> bool:
        return self.used_bytes - self.pending_bytes > self.room_bytes

    @property
    def is_tight(self) -> bool:
        """Whether decompressing another batch may exceed the budget."""
        return self.buffered_bytes + self.headroom_bytes > self.room_bytes

    def can_keep(self, reservation: Reservation, size_bytes: int) -> bool:
        """Whether a response fits next to buffered bytes and other claims, or is alone."""
        others_bytes = self._claimed_bytes - reservation.size_bytes * reservation.is_claimed
        held_bytes = self.buffered_bytes + others_bytes
        return not held_bytes or held_bytes + size_bytes <= self.room_bytes

    def reserve(
        self, wanted_bytes: int, least_bytes: int, claimant: object = None
    ) -> Reservation | None:
        """Reserve up to `wanted_bytes`; None if less than `least_bytes` are left.

        `least_bytes` are granted anyway if no others are reserved. A refused claimant has priority
        until it got its bytes or withdrew.
        """
        taken_bytes = self.used_bytes + max(0, self._kept_free_bytes() - self._inflated_bytes)
        granted = min(wanted_bytes, self.room_bytes - taken_bytes)
        is_behind = self._claimant is not None and self._claimant is not claimant
        if granted < least_bytes or is_behind:
            if self.used_bytes or is_behind:
                self._is_short = True
                self._claimant = self._claimant or claimant
                return None
            granted = least_bytes
        is_claimed = claimant is not None
        if is_claimed:
            self.withdraw(claimant)
        self.change(granted, granted, is_claimed)
        return Reservation(self, granted, is_claimed=is_claimed)

    def reserve_nothing(self) -> Reservation:
        """Return a reservation for a fetch that is not expected to yield records (`can_keep`)."""
        return Reservation(self, 0)

    def withdraw(self, claimant: object) -> None:
        if self._claimant is claimant:
            self._claimant = None
            self._notify()

    def inflated(self, by_bytes: int, batch_bytes: int) -> None:
        self._inflated_bytes += by_bytes
        self.headroom_bytes = min(max(self.headroom_bytes, batch_bytes), self.limit_bytes // 2)

    def change(self, by_bytes: int, pending_by_bytes: int, is_claimed: bool) -> None:
        """Take or release used bytes. The pending ones of them may be `Reservation.is_claimed`."""
        self.used_bytes += by_bytes
        self.pending_bytes += pending_by_bytes
        if is_claimed:
            self._claimed_bytes += pending_by_bytes
        if by_bytes < 0:
            self._notify()

    def _notify(self) -> None:
        if self._is_short:
            self._is_short = False
            self._on_release()
