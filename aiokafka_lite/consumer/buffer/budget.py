"""The byte budget: what everything buffered may weigh, over all brokers.

What a fetch may bring is reserved before it is sent, and corrected to what it did bring. What
decompression adds cannot be known before: as much as it took at most so far is left free for it.
A reservation larger than the whole budget is granted when nothing else is reserved, so that one
oversized batch gets through alone instead of never.
"""

from __future__ import annotations

from collections.abc import Callable


class Reservation:
    """Bytes taken out of the budget, until `release`."""

    __slots__ = ("_budget", "is_claimed", "is_kept", "size_bytes")

    def __init__(self, budget: ByteBudget, size_bytes: int, *, is_claimed: bool = False) -> None:
        self._budget = budget
        self.size_bytes = size_bytes
        # Whether it was reserved for a claim: nobody else's answer may take its room.
        self.is_claimed = is_claimed
        # Whether a buffered response holds it now, and will release it.
        self.is_kept = False

    def keep(self, size_bytes: int) -> None:
        """Hand it over to a buffered response of that many bytes."""
        reserved_bytes, self.size_bytes = self.size_bytes, size_bytes
        self.is_kept = True
        self._budget.change(size_bytes - reserved_bytes, -reserved_bytes, self.is_claimed)

    def resize(self, size_bytes: int) -> None:
        """Correct the size to what is really held."""
        by_bytes = size_bytes - self.size_bytes
        self.size_bytes = size_bytes
        self._budget.change(by_bytes, 0 if self.is_kept else by_bytes, self.is_claimed)

    def inflated(self, by_bytes: int, batch_bytes: int) -> None:
        """Count what decompression added to the response (or what is gone again).

        `batch_bytes` is what the batch takes that was decompressed; 0 if none was.
        """
        self._budget.inflated(by_bytes, batch_bytes)
        self.resize(self.size_bytes + by_bytes)

    def release(self) -> None:
        """Give everything back; idempotent."""
        self.resize(0)


class ByteBudget:
    """Bytes that may be reserved; calls `on_release` when some come back that somebody lacked."""

    __slots__ = (
        "_claimant",
        "_claimed_bytes",
        "_inflated_bytes",
        "_is_short",
        "_on_release",
        "headroom_bytes",
        "limit_bytes",
        "pending_bytes",
        "room_bytes",
        "source_count",
        "used_bytes",
    )

    def __init__(self, limit_bytes: int, on_release: Callable[[], None]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        # The part of it that is reserved for answers which have not come.
        self.pending_bytes = 0
        # What may be used: all that handlers of `run` do not hold, a quarter at least.
        self.room_bytes = limit_bytes
        # The part of that which was claimed.
        self._claimed_bytes = 0
        # What decompression may take: the most that one batch took so far, half of all at most.
        self.headroom_bytes = 0
        # Among how many sources they are shared out.
        self.source_count = 0
        self._inflated_bytes = 0
        # Who is to get the next bytes: it wants more than is left when others take theirs.
        self._claimant: object = None
        # Whether a reservation was refused since bytes last came back.
        self._is_short = False
        self._on_release = on_release

    @property
    def buffered_bytes(self) -> int:
        """What is held in memory, as received and decompressed."""
        return self.used_bytes - self.pending_bytes

    def take_for_processing(self, size_bytes: int) -> None:
        """Note how many bytes handlers of `run` hold now (processing/allowance.py)."""
        before_bytes = self.room_bytes
        self.room_bytes = max(self.limit_bytes - size_bytes, self.limit_bytes // 4)
        if self.room_bytes > before_bytes:
            self._tell()

    @property
    def taken_bytes(self) -> int:
        """What is used: reserved, buffered, or held by handlers."""
        return self.used_bytes + self.limit_bytes - self.room_bytes

    @property
    def quota_bytes(self) -> int:
        """What one response may bring, so that no broker's long poll starves another's.

        Each source has up to two at a time: one being worked on, one asked for.
        """
        return max(1, (self.room_bytes - self._kept_free_bytes) // (2 * max(1, self.source_count)))

    @property
    def _kept_free_bytes(self) -> int:
        """What is kept free for decompression."""
        return min(self.headroom_bytes, self.room_bytes // 2)

    def suffices_for_another(self, least_bytes: int) -> bool:
        """Whether each response may bring so much if one more source has a part of the budget."""
        return self.limit_bytes // (2 * (self.source_count + 1)) >= least_bytes

    @property
    def is_over(self) -> bool:
        """Whether more is held than there may be."""
        return self.used_bytes - self.pending_bytes > self.room_bytes

    @property
    def is_tight(self) -> bool:
        """Whether another batch may be too much when it is decompressed."""
        return self.buffered_bytes + self.headroom_bytes > self.room_bytes

    def can_keep(self, reservation: Reservation, size_bytes: int) -> bool:
        """Whether an answer of that size fits beside what is buffered and what others claimed.

        One that is larger than the whole budget fits where there is nothing else.
        """
        others_bytes = self._claimed_bytes - reservation.size_bytes * reservation.is_claimed
        held_bytes = self.buffered_bytes + others_bytes
        return not held_bytes or held_bytes + size_bytes <= self.room_bytes

    def reserve(
        self, wanted_bytes: int, least_bytes: int, claimant: object = None
    ) -> Reservation | None:
        """Reserve what is left, up to `wanted_bytes`; None if that is below `least_bytes`.

        With nothing reserved at all, `least_bytes` is granted whatever the limit. A claimant that
        was refused comes first: others are refused until it got its bytes, or gave up its claim.
        """
        taken_bytes = self.used_bytes + max(0, self._kept_free_bytes - self._inflated_bytes)
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
        """Return a reservation for a fetch that is not expected to bring anything for a while.

        If it does, that is kept if there is room (`can_keep`).
        """
        return Reservation(self, 0)

    def withdraw(self, claimant: object) -> None:
        """Give up a claim; nothing happens without one."""
        if self._claimant is claimant:
            self._claimant = None
            self._tell()

    def inflated(self, by_bytes: int, batch_bytes: int) -> None:
        """Count what decompressed batches take."""
        self._inflated_bytes += by_bytes
        self.headroom_bytes = min(max(self.headroom_bytes, batch_bytes), self.limit_bytes // 2)

    def change(self, by_bytes: int, pending_by_bytes: int, is_claimed: bool) -> None:
        """Take more or give back; for reservations.

        Args:
            by_bytes: Of all that is taken.
            pending_by_bytes: Of the part that is reserved for answers which have not come.
            is_claimed: Whether that was reserved for a claim.
        """
        self.used_bytes += by_bytes
        self.pending_bytes += pending_by_bytes
        if is_claimed:
            self._claimed_bytes += pending_by_bytes
        if by_bytes < 0:
            self._tell()

    def _tell(self) -> None:
        if self._is_short:
            self._is_short = False
            self._on_release()
