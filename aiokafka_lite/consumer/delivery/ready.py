"""The records that `async for` and `getone` hand out one by one, from a list decoded in one go.

Per message only the cursor moves, and looks at the clock now and then. How far the application got
is worked out from the cursor when somebody asks (`settle`), and whatever makes the records
worthless, or not to be handed out now, closes the cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.chunk import Chunk, Record
from aiokafka_lite.consumer.buffer.decode import TIME_SLICE_S
from aiokafka_lite.consumer.buffer.line import Wanted
from aiokafka_lite.consumer.delivery.iteration import RecordCursor


class ReadyRecords:
    """What `decoded` of one share has left, while it is handed out message by message."""

    def __init__(self, state: SubscriptionState, on_closed: Callable[[Chunk], None]) -> None:
        # The per-message path knows nothing but this.
        self.cursor = RecordCursor(asyncio.get_running_loop().time, TIME_SLICE_S)
        self._part: Chunk | None = None
        self._settled_count = 0
        self._state = state
        # Told when a share is given back, perhaps with nothing left in it.
        self._on_closed = on_closed
        state.set_settler(self.settle)
        state.observers.on_discard(self._discard)
        state.observers.on_partition_change(self._park_if_paused)
        state.gate.on_change(self.close)

    def take(self, wanted: Wanted) -> Record | None:
        """Return the next record, if it is of a wanted partition and the time is not up."""
        return self.cursor.take() if self._is_of(wanted) else None

    def has_rest(self, wanted: Wanted) -> bool:
        """Whether records of a wanted partition are left, though perhaps no time."""
        return self.cursor.has_rest and self._is_of(wanted)

    def _is_of(self, wanted: Wanted) -> bool:
        return not wanted or (self._part is not None and self._part.partition.tp in wanted)

    def open(self, part: Chunk, ends_at: float) -> None:
        """Hand out what a share has decoded, until `ends_at` on the loop's clock.

        Another share that is open is given back. It may be the same one, opened and partly handed
        out by another task's get.
        """
        self.close()
        if part.decoded:
            self._part = part
            self.cursor.open(part.decoded, ends_at)

    def go_on(self, ends_at: float) -> None:
        """Go on with what is open, until `ends_at` on the loop's clock."""
        self.cursor.go_on(ends_at)

    def settle(self) -> None:
        """Move position and processed offset to where the application got."""
        part = self._part
        taken_count = self.cursor.taken_count
        if part is None or taken_count == self._settled_count:
            return
        self._state.record_count += taken_count - self._settled_count
        self._settled_count = taken_count
        decoded = part.decoded
        # The latest get returned this one; all before it has been processed.
        latest = decoded[taken_count - 1]
        is_all = taken_count == len(decoded)
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
            part.decoded = part.decoded[self._settled_count :]
            self._forget()
            self._on_closed(part)

    def _forget(self) -> None:
        self._part = None
        self._settled_count = 0
        self.cursor.close()

    def _discard(self, partition: Cursor) -> None:
        # Positions were settled before the partition's tag changed.
        if self._part is not None and self._part.partition is partition:
            self._forget()

    def _park_if_paused(self, partition: Cursor) -> None:
        if partition.is_paused and self._part is not None and self._part.partition is partition:
            self.close()
