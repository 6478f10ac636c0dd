"""The byte budget: what everything buffered may weigh, over all brokers.

What a fetch may bring is reserved before it is sent, and corrected to what it did bring. A
reservation larger than the whole budget is granted when nothing else is reserved, so that one
oversized batch gets through alone instead of never.
"""

from __future__ import annotations

from collections.abc import Callable


class Reservation:
    """Bytes taken out of the budget, until `release`."""

    __slots__ = ("_budget", "is_kept", "size_bytes")

    def __init__(self, budget: ByteBudget, size_bytes: int) -> None:
        self._budget = budget
        self.size_bytes = size_bytes
        # Whether a buffered response holds it now, and will release it.
        self.is_kept = False

    def keep(self, size_bytes: int) -> None:
        """Hand it over to a buffered response of that many bytes."""
        self.is_kept = True
        self.resize(size_bytes)

    def resize(self, size_bytes: int) -> None:
        """Correct the size to what is really held."""
        self._budget.change(size_bytes - self.size_bytes)
        self.size_bytes = size_bytes

    def release(self) -> None:
        """Give everything back; idempotent."""
        self.resize(0)


class ByteBudget:
    """Bytes that may be reserved; calls `on_release` when some come back that somebody lacked."""

    def __init__(self, limit_bytes: int, on_release: Callable[[], None]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        # Whether a reservation was refused since bytes last came back.
        self._is_short = False
        self._on_release = on_release

    def reserve(self, wanted_bytes: int, least_bytes: int) -> Reservation | None:
        """Reserve what is left, up to `wanted_bytes`; None if that is below `least_bytes`.

        With nothing reserved at all, `least_bytes` is granted whatever the limit.
        """
        left = self.limit_bytes - self.used_bytes
        granted = min(wanted_bytes, left)
        if granted < least_bytes:
            if self.used_bytes:
                self._is_short = True
                return None
            granted = least_bytes
        self.used_bytes += granted
        return Reservation(self, granted)

    def change(self, by_bytes: int) -> None:
        """Take more or give back; for reservations."""
        self.used_bytes += by_bytes
        if by_bytes < 0 and self._is_short:
            self._is_short = False
            self._on_release()
