"""Decoding a run at a time, and the pauses between runs.

A pause is due when the time slice is used up, when a large batch has to be decompressed, which a
worker thread does, or when the application has to be awaited (application.py).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.bad_records import PoisonRule
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.chunk import Chunk
from aiokafka_lite.consumer.buffer.delivering import AnyDelivery
from aiokafka_lite.consumer.buffer.line import Line

if TYPE_CHECKING:
    from aiokafka_lite.records.decoders import Columns

# What becomes ready meanwhile waits for the rest of the slice, a timer for most of the next one
# too; a round of asyncio's loop costs some 15 us, so that shorter slices would cost more than 3 %.
TIME_SLICE_S: Final = 0.0005


class TimeSlice:
    """The time that the gets of one consumer, and a loop over its records, have until a pause."""

    def __init__(self) -> None:
        self.length_s = TIME_SLICE_S
        self._loop = asyncio.get_running_loop()
        # None: the loop has just run; the slice begins with the next decoding.
        self._ends_at: float | None = None
        # Loop time of the latest look at the clock.
        self.looked_at = 0.0

    def begin(self) -> float:
        """Return when the slice ends; it begins now if the loop has just run."""
        if self._ends_at is None:
            self._ends_at = self._loop.time() + self.length_s
        return self._ends_at

    def renew(self) -> None:
        """Note that the loop has run: the next slice begins when it is asked for."""
        self._ends_at = None

    def is_used_up(self) -> bool:
        """Look at the clock, and say whether the loop has to run; begins a slice if it has run."""
        now = self.looked_at = self._loop.time()
        if self._ends_at is None:
            self._ends_at = now + self.length_s
            return False
        return now >= self._ends_at

    def look(self) -> None:
        """Look at the clock, as after a pause, which is no part of the run that follows."""
        self.looked_at = self._loop.time()

    def end_if_half_used(self) -> None:
        """End the slice, if half of it was used up at the latest look."""
        if self._ends_at is not None and self.looked_at > self._ends_at - self.length_s / 2:
            self._ends_at = 0.0

    async def let_others_run(self) -> None:
        """Go once round the loop, after which the next slice begins."""
        try:
            await asyncio.sleep(0)
        finally:  # the loop has run also when this was cancelled
            self._ends_at = None


# Records decoded between two looks at the clock: doubled while that takes less than a quarter of a
# time slice, halved when it takes more than half of one.
FIRST_RUN: Final = 256
SMALLEST_RUN: Final = 8
LARGEST_RUN: Final = 2_048
# With deserialisers, whose cost is the application's.
FIRST_DESERIALIZE_RUN: Final = 50
# So many rows cost about as much as a record.
ROWS_A_RECORD: Final = 4
# Batches that take longer than this are decompressed in a worker thread. Getting there and back
# costs some 0.1 ms, and the processor's caches.
INFLATE_ON_LOOP_S: Final = 0.0005


class Runs:
    """Decodes shares within the time slice, and learns how many records fit into a run."""

    def __init__(
        self,
        state: SubscriptionState,
        line: Line,
        poison: PoisonRule,
        time_slice: TimeSlice,
        budget: ByteBudget,
        delivery: AnyDelivery,
    ) -> None:
        self._state = state
        self._line = line
        self._poison = poison
        self._slice = time_slice
        self._budget = budget
        self._asks_application = delivery.asks_application
        self._loop = asyncio.get_running_loop()
        self._length = FIRST_DESERIALIZE_RUN if delivery.has_deserializers else FIRST_RUN
        if delivery.awaited is not None:
            self._length = max(self._length, delivery.awaited.max_records)

    # --- Decoding -------------------------------------------------------------------------
    def decode(self, part: Chunk, limit: int | None) -> None:
        """Decode until a share holds `limit` records, but a run at most.

        The caller has asked `needs_pause`, which looked at the clock.
        """
        before = len(part.decoded)
        part.decode(self._length if limit is None else min(self._length, limit - before))
        self.keep_to_budget(part)
        self._fit(len(part.decoded) - before)

    def fill(self, part: Chunk, columns: Columns, max_rows: int) -> bool:
        """Add a run of rows to columns; whether there were any.

        The caller has asked `needs_pause`, which looked at the clock.
        """
        added = part.fill(columns, min(self._length * ROWS_A_RECORD, max_rows))
        self._fit(added // ROWS_A_RECORD)
        return added > 0

    def _fit(self, count: int) -> None:
        """Learn from the `count` records decoded since the look at the clock."""
        length = self._length
        if count < length // 2:
            return  # too few to tell how long a run takes
        took_s = self._loop.time() - self._slice.looked_at
        if took_s > self._slice.length_s / 2:
            self._length = max(length // 2, SMALLEST_RUN)
        elif took_s < self._slice.length_s / 4:
            self._length = min(length * 2, LARGEST_RUN)

    def keep_to_budget(self, part: Chunk) -> None:
        """Bring what is buffered down to the budget, whatever that takes but the share at hand."""
        for partition in self._line.droppable(part) if self._budget.is_over else ():
            self._state.refetch(partition)
            if not self._budget.is_over:
                return

    # --- Pauses ---------------------------------------------------------------------------
    def needs_pause(self, part: Chunk) -> bool:
        """Whether the loop has to run before more of a share is decoded."""
        return self.has_to_wait(part) or self._slice.is_used_up()

    def has_to_wait(self, part: Chunk) -> bool:
        """Whether a worker thread, or the application, works on what comes next, or has to."""
        return (
            part.inflating is not None
            or part.inflate_estimate_s > INFLATE_ON_LOOP_S
            or (self._asks_application and part.needs_application)
        )

    async def pause(self, part: Chunk) -> None:
        """Let others run: the application, a thread that decompresses, or once round the loop."""
        if part.needs_application:
            # Imported where it is used: most consumers have nothing that waits.
            from aiokafka_lite.consumer.buffer.application import work_on

            # The time counts towards max_poll_interval_ms: who hangs here waits for no records.
            self._state.leave_get(self._loop.time())
            try:
                await work_on(part, self._line, self._poison, self._slice)
            finally:
                self._state.resume_get()
            self._slice.look()
            return
        if part.inflating is None and part.inflate_estimate_s > INFLATE_ON_LOOP_S:
            part.inflating = self._loop.run_in_executor(None, part.inflate)
        if part.inflating is None:
            await self._slice.let_others_run()
        while (inflating := part.inflating) is not None:
            # Shielded: a cancelled get must not leave the thread working on a set that the
            # next get decodes meanwhile. That one waits for the same future.
            await asyncio.shield(inflating)
            if part.inflating is inflating:
                part.inflating = None
            self._slice.renew()
        self._slice.look()
