"""Which partition's next batch does not fit into an answer that a connection accepts.

A broker sends the first batch of the first partition that has any, however large it is (KIP-74).
An answer beyond the limit is not read, so it cannot say which partition that is: they are asked one
by one, until an answer is too large again. That is tried twice, because a stream that is out of
step announces wrong sizes too. Then the partition has an error, and the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.errors import RecordTooLargeError


class OversizeSearch:
    """The search of one fetch task; nothing is searched for until `begin`."""

    def __init__(self) -> None:
        # Asked for one by one; the first is asked now.
        self._suspects: deque[Cursor] = deque()
        # What was asked for alone when an answer was too large, and at which offset.
        self._suspicion: tuple[Cursor, int] | None = None

    @property
    def is_on(self) -> bool:
        return bool(self._suspects)

    def allows(self, cursor: Cursor) -> bool:
        """Whether a partition may be asked for now."""
        return not self._suspects or self._suspects[0] is cursor

    def begin(self, partitions: Iterable[Cursor]) -> None:
        """Ask for these one by one; the one found before comes first, as it may be again."""
        known = None if self._suspicion is None else self._suspicion[0]
        self._suspects = deque(sorted(partitions, key=lambda cursor: cursor is not known))

    def pass_idle(self, can_be_asked: Callable[[Cursor], bool]) -> None:
        """Pass suspects that cannot be asked for at present."""
        while self._suspects and not can_be_asked(self._suspects[0]):
            self._suspects.popleft()

    def answered(self) -> None:
        """Note that the answer for the first suspect was no larger than others."""
        self._suspects.popleft()

    def is_found(self, cursor: Cursor) -> bool:
        """Note that the answer for a partition alone is too large; whether it was before."""
        suspicion = cursor, cursor.fetched
        is_found = self._suspicion == suspicion
        self._suspicion = suspicion
        if is_found:
            self._suspects.clear()
        return is_found


def too_large(cursor: Cursor, size_bytes: int, limit_bytes: int) -> RecordTooLargeError:
    """Return the error of a partition whose next batch is in an answer of that size."""
    topic, number = cursor.tp
    return RecordTooLargeError(
        f"the response with the batch at offset {cursor.fetched} of {topic}/{number} has "
        f"{size_bytes} bytes, but at most {limit_bytes} are accepted: set "
        f"max_partition_fetch_bytes to {size_bytes} or more"
    ).at(cursor.tp, cursor.fetched, cursor.fetched + 1)
