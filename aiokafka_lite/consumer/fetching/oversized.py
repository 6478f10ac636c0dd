"""Finds the partition whose next batch does not fit into an answer that a connection accepts.

A broker sends the first batch of an answer however large it is (KIP-74). An oversized answer is not
read, and does not identify the partition. So partitions are asked for one by one until an answer is
too large again, twice, because a broken stream announces wrong sizes, too. Then the partition has
an error, and the others continue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.errors import RecordTooLargeError


class OversizeSearch:
    def __init__(self) -> None:
        # Asked for one by one, now for the first.
        self._suspects: deque[Cursor] = deque()
        # Asked for alone when an answer was too large, with its offset.
        self._suspicion: tuple[Cursor, int] | None = None

    @property
    def is_on(self) -> bool:
        return bool(self._suspects)

    def allows(self, cursor: Cursor) -> bool:
        return not self._suspects or self._suspects[0] is cursor

    def begin(self, partitions: Iterable[Cursor]) -> None:
        """Ask for these one by one, first for the one found before."""
        known = None if self._suspicion is None else self._suspicion[0]
        self._suspects = deque(sorted(partitions, key=lambda cursor: cursor is not known))

    def pass_idle(self, can_be_asked: Callable[[Cursor], bool]) -> None:
        while self._suspects and not can_be_asked(self._suspects[0]):
            self._suspects.popleft()

    def answered(self) -> None:
        """Clear the first suspect: its answer had a normal size."""
        self._suspects.popleft()

    def is_found(self, cursor: Cursor) -> bool:
        """Note that a partition's own answer is too large. Return whether it was before."""
        suspicion = cursor, cursor.fetched
        is_found = self._suspicion == suspicion
        self._suspicion = suspicion
        if is_found:
            self._suspects.clear()
        return is_found


def too_large(cursor: Cursor, size_bytes: int, limit_bytes: int) -> RecordTooLargeError:
    topic, number = cursor.tp
    return RecordTooLargeError(
        f"the response with the batch at offset {cursor.fetched} of {topic}/{number} has "
        f"{size_bytes} bytes, but at most {limit_bytes} are accepted: set "
        f"max_partition_fetch_bytes to {size_bytes} or more"
    ).at(cursor.tp, cursor.fetched, cursor.fetched + 1)
