"""The records that `async for` and `getone` hand out one by one, from a list decoded in one go.

Nothing is written per message: taking the next element of `iterator` is all there is. How far
the application got is worked out from the iterator when somebody asks (`settle`), and whatever
makes the records worthless, or not to be handed out now, replaces the iterator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator

from aiokafka_lite.consumer.fetched import FetchedPartition, Record
from aiokafka_lite.consumer.state import PartitionState, SubscriptionState
from aiokafka_lite.structs import TopicPartition


class ReadyRecords:
    """A cursor into `decoded` of the share that is being handed out message by message."""

    def __init__(
        self, state: SubscriptionState, on_closed: Callable[[FetchedPartition], None]
    ) -> None:
        # Of the records that come next; the per-message path reads only this.
        self.iterator: Iterator[Record] = iter(())
        self._part: FetchedPartition | None = None
        self._settled_count = 0
        self._state = state
        # Told when a share is given back, perhaps with nothing left in it.
        self._on_closed = on_closed
        state.set_settler(self.settle)
        state.on_discard(self._discard)
        state.on_partition_change(self._park_if_paused)
        state.on_hold(self.close)

    def open(self, part: FetchedPartition) -> None:
        """Start handing out what a share has decoded."""
        self._part = part
        self._settled_count = 0
        self.iterator = iter(part.decoded)

    def is_for(self, wanted: Collection[TopicPartition]) -> bool:
        """Whether its records are of a wanted partition (none named: of any)."""
        return not wanted or (self._part is not None and self._part.partition.tp in wanted)

    def settle(self) -> None:
        """Move position and processed offset to where the application got."""
        part = self._part
        if part is None:
            return
        decoded = part.decoded
        handed_out_count = len(decoded) - operator.length_hint(self.iterator)
        if handed_out_count == self._settled_count:
            return
        self._settled_count = handed_out_count
        # The latest get returned this one; all before it has been processed.
        latest = decoded[handed_out_count - 1]
        is_all = handed_out_count == len(decoded)
        self._state.begin_get()
        self._state.hand_out(
            part.partition,
            latest.offset,
            part.position_after if is_all else latest.offset + 1,
            part.leader_epoch,
        )

    def close(self) -> None:
        """Settle, and give what was not handed out back to its share."""
        self.settle()
        part = self._part
        if part is not None:
            self._part = None
            self.iterator = iter(())
            part.decoded = part.decoded[self._settled_count :]
            self._on_closed(part)

    def _discard(self, partition: PartitionState) -> None:
        # Positions were settled before the partition's tag changed.
        if self._part is not None and self._part.partition is partition:
            self._part = None
            self.iterator = iter(())

    def _park_if_paused(self, partition: PartitionState) -> None:
        if partition.is_paused and self._part is not None and self._part.partition is partition:
            self.close()
