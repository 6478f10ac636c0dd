"""The partitions of which something is buffered, in the order in which the gets serve them.

Per partition the shares of one or two responses wait in offset order: the one being worked on,
and the one that was asked for when work on it began. Partitions take turns: those that a limited
get was served from, and always the first, go to the end of the line. When memory is short, what
takes none comes first, and what is least useful is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.chunk import Chunk
from aiokafka_lite.structs import TopicPartition

Wanted = Collection[TopicPartition]


class Line:
    """Shares by partition; the partition that is first is served first."""

    def __init__(self, state: SubscriptionState, budget: ByteBudget) -> None:
        self._state = state
        self._budget = budget
        self._shares: dict[Cursor, deque[Chunk]] = {}
        # What is buffered, for everybody to read: it changes with the line.
        self.shares: Mapping[Cursor, Sequence[Chunk]] = self._shares

    def __len__(self) -> int:
        """Return of how many partitions something is buffered."""
        return len(self._shares)

    # --- What is in it --------------------------------------------------------------------
    def partitions(self) -> tuple[Cursor, ...]:
        """Return all partitions, also those that are paused."""
        return tuple(self._shares)

    def first_share(self, partition: Cursor) -> Chunk | None:
        """Return what a get would look at first of a partition; None: nothing is buffered."""
        shares = self._shares.get(partition)
        return shares[0] if shares else None

    def is_next(self, part: Chunk) -> bool:
        """Whether a share is still the first of its partition, and may be handed out."""
        partition = part.partition
        is_first = self.first_share(partition) is part
        return is_first and not partition.is_paused and not self._state.gate.holds

    # --- Whose turn it is -----------------------------------------------------------------
    def served(self, wanted: Wanted) -> Iterator[Cursor]:
        """Yield the partitions that may be served, of those wanted (none named: of all)."""
        if self._state.gate.holds:
            return
        for partition in self._shares:
            if not partition.is_paused and (not wanted or partition.tp in wanted):
                yield partition

    def decoded_next(self, wanted: Wanted) -> Iterator[Cursor]:
        """Like `served`; but when memory is short, first what takes none."""
        if not self._budget.is_tight:
            return self.served(wanted)
        from aiokafka_lite.consumer.buffer.line import light_first

        return light_first(self.served(wanted), self._shares)

    def droppable(self, kept: Chunk) -> Sequence[Cursor]:
        """Return the partitions to give up for a share when memory is short, in this order."""
        from aiokafka_lite.consumer.buffer.line import droppable

        return droppable(self._shares, kept)

    def is_any_served(self, wanted: Wanted) -> bool:
        """Whether there is a partition that may be served."""
        return next(self.served(wanted), None) is not None

    def has_decoded(self, wanted: Wanted) -> bool:
        """Whether a get of these partitions would hand out something without decoding."""
        if self._state.gate.holds:
            return False
        for partition, shares in self._shares.items():
            is_wanted = not wanted or partition.tp in wanted
            if is_wanted and shares[0].decoded and not partition.is_paused:
                return True
        return False

    def front(self, most: int) -> list[tuple[Chunk, ...]]:
        """Return the shares of the first `most` partitions that are decoded next."""
        line = islice(self.decoded_next(()), most)
        return [tuple(self._shares[partition]) for partition in line]

    # --- Changes --------------------------------------------------------------------------
    def add(self, part: Chunk) -> None:
        """Put a share behind those of its partition, or at the end of the line."""
        cursor = part.partition
        chunks = self._shares.get(cursor)
        if chunks is None:
            chunks = cursor.chunks = self._shares[cursor] = deque()
        chunks.append(part)
        cursor.buffered(part.end_offset, is_sticky=part.is_sticky)

    def move_to_end(self, partition: Cursor) -> None:
        """Put a partition behind all others."""
        shares = self._shares.pop(partition, None)
        if shares is not None:
            self._shares[partition] = shares

    def remove_first(self, partition: Cursor) -> None:
        """Take a partition's first share out."""
        shares = self._shares[partition]
        shares.popleft()
        if not shares:
            del self._shares[partition]
            partition.chunks = ()

    def remove(self, partition: Cursor) -> Sequence[Chunk]:
        """Take all of a partition out; return what it was."""
        partition.chunks = ()
        return self._shares.pop(partition, ())


Shares = Mapping[Cursor, Sequence[Chunk]]


def light_first(line: Iterable[Cursor], shares: Shares) -> Iterator[Cursor]:
    """Yield the partitions in line of which no batch has to be decompressed now.

    If there are none, the first in line; so batches that are decompressed already are finished
    before memory is taken for another.
    """
    first: Cursor | None = None
    has_light = False
    for partition in line:
        first = first or partition
        part = shares[partition][0]
        if part.is_begun or not part.inflate_estimate_s:
            has_light = True
            yield partition
    if first is not None and not has_light:
        yield first


def droppable(shares: Shares, kept: Chunk) -> list[Cursor]:
    """Return the partitions whose buffers may be given up for a share, the least useful first.

    The last in line come first, and before all that has been begun what has not. What shares the
    memory of a response with `kept` gives back only what was decompressed of it.
    """
    others = [
        (any(part.is_begun for part in parts), partition)
        for partition, parts in shares.items()
        if partition is not kept.partition
        and any(
            part.response is not None and (part.response is not kept.response or part.is_begun)
            for part in parts
        )
    ]
    others.reverse()
    return [partition for _, partition in sorted(others, key=lambda other: other[0])]
