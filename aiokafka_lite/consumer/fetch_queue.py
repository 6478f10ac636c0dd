"""What brokers have answered and the application has not been handed yet.

Per partition the shares of one or two responses wait in offset order: the one being worked on,
and the one that was asked for when work on it began (one request ahead). A get goes through
three steps, and only the last moves anything:

    wait      until something can be handed out
    decode    a run at a time, yielding to the loop when the time slice is used up, large
              batches decompressed in a worker thread; records gather in the shares
    pop       without any await: hands records out and moves the positions

So a get may be cancelled at every await, and the next one finds all that this one prepared. A get
of rows (arrow_gets.py) decodes in its third step, for a time slice at most, so that there never are
rows that the positions do not know of.

Partitions take turns: those that a limited get was served from, and always the first, go to the
end of the line. An error stands in line behind its partition's records. It is raised when its
partition is first in line, or when there is nothing else, and never takes records with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiokafka_lite.consumer import reentry
from aiokafka_lite.consumer.budget import ByteBudget
from aiokafka_lite.consumer.config import DEFAULT_MAX_BUFFERED_BYTES
from aiokafka_lite.consumer.delivering import Delivery
from aiokafka_lite.consumer.fetched import FetchedPartition, FetchedResponse, Record
from aiokafka_lite.consumer.pressure import droppable, light_first
from aiokafka_lite.consumer.state import PartitionState, SubscriptionState
from aiokafka_lite.errors import CorruptRecordException, KafkaError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.records.decoders import Columns

log = logging.getLogger(__name__)

# Records decoded between two looks at the clock: doubled while that takes less than a quarter of a
# time slice, halved when it takes more than half of one.
FIRST_RUN: Final = 256
SMALLEST_RUN: Final = 8
LARGEST_RUN: Final = 2_048
# With deserialisers, whose cost is the application's.
FIRST_DESERIALIZE_RUN: Final = 50
# So many rows cost about as much as a record.
ROWS_A_RECORD: Final = 4
# How long a get, and a loop over records, may hold the event loop before others run. What becomes
# ready meanwhile waits for the rest of the slice, a timer for most of the next one too; a round of
# asyncio's loop costs some 15 us, so that shorter slices would cost more than 3 %.
TIME_SLICE_S: Final = 0.0005
# Batches that take longer than this are decompressed in a worker thread. Getting there and back
# costs some 0.1 ms, and the processor's caches.
INFLATE_ON_LOOP_S: Final = 0.0005

# How long a partition that stays corrupt is not fetched.
CORRUPT_PAUSE_S: Final = 0.5

Wanted = Collection[TopicPartition]


def _do_nothing() -> None:
    """Stand in for a hook that nobody has set."""


class FetchQueue:
    """Buffered responses of one consumer, and the gets' side of the hand-over.

    `raise_if_unusable` raises what every get has to raise: stopped, or a task has died.
    `on_taken(node_id)` tells a fetcher that its buffered response was taken, `on_room(partition)`
    that a partition has room for another response, `on_error()` that a partition cannot go on,
    `on_blocked()` that a get waits though something is buffered: others may lack its bytes.
    """

    def __init__(
        self,
        state: SubscriptionState,
        *,
        raise_if_unusable: Callable[[], None],
        on_taken: Callable[[int], None],
        on_room: Callable[[PartitionState], None],
        on_error: Callable[[], None] | None = None,
        on_blocked: Callable[[], None] | None = None,
        budget: ByteBudget | None = None,
        delivery: Delivery,
        most_held_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
    ) -> None:
        self._state = state
        self._raise_if_unusable = raise_if_unusable
        self._on_taken = on_taken
        self._on_room = on_room
        self._on_error = on_error or _do_nothing
        self._on_blocked = on_blocked or _do_nothing
        self._budget = budget
        self.delivery = delivery
        self._asks_application = delivery.asks_application
        # A get decodes no more than what was decompressed to so much, and a batch.
        self._most_held_bytes = most_held_bytes
        self._run = FIRST_DESERIALIZE_RUN if delivery.has_deserializers else FIRST_RUN
        if delivery.awaited is not None:
            self._run = max(self._run, delivery.awaited.max_records)
        self._loop = asyncio.get_running_loop()
        # In line: the first is served first.
        self._parts: dict[PartitionState, deque[FetchedPartition]] = {}
        self._untaken: dict[int, FetchedResponse] = {}
        self._waiters: list[asyncio.Future[None]] = []
        # One timer for all waits: it is moved only when it fires, so a get costs none.
        self._alarm: asyncio.TimerHandle | None = None
        # None: the loop has just run; the slice starts with the next decoding.
        self._slice_ends_at: float | None = None
        self._looked_at = 0.0
        state.on_discard(self.drop)
        state.on_assignment_change(self.wake)
        state.on_partition_change(lambda _: self.wake())
        state.on_hold(self.wake)

    # --- The fetchers' side ---------------------------------------------------------------
    def has_untaken(self, node_id: int) -> bool:
        """Whether a response of this broker waits that the application has not come for."""
        return node_id in self._untaken

    def can_fetch(self, partition: PartitionState) -> bool:
        """Whether there is room for another response, and a known offset to ask for."""
        parts = self._parts.get(partition)
        if not parts:
            return True
        last = parts[-1]
        return len(parts) < 2 and last.error is None and last.end_offset is not None

    def put(self, response: FetchedResponse, parts: list[FetchedPartition]) -> None:
        """Add a response's partitions, which must be current."""
        for part in parts:
            self._append(part)
        if self._waiters:
            # A get is waiting: it takes this, so the fetcher may go on at once.
            response.is_taken = True
        else:
            self._untaken[response.node_id] = response
        self.wake()

    def put_error(
        self, partition: PartitionState, error: KafkaError, *, is_sticky: bool = False
    ) -> None:
        """Have the gets raise `error` behind the partition's records.

        A sticky error stays until the application seeks; others are raised once.
        """
        parts = self._parts.get(partition)
        if parts and parts[-1].error is not None:
            return
        part = FetchedPartition(partition, self.delivery, is_sticky=is_sticky)
        part.set_error(error)
        self._append(part)
        self.wake()
        self._on_error()

    def _append(self, part: FetchedPartition) -> None:
        self._parts.setdefault(part.partition, deque()).append(part)
        if part.end_offset is not None:
            part.partition.fetched = part.end_offset

    def first_part(self, partition: PartitionState) -> FetchedPartition | None:
        """Return what a get would look at first of a partition; None: nothing is buffered."""
        parts = self._parts.get(partition)
        return parts[0] if parts else None

    def sticky_error(self, partition: PartitionState) -> KafkaError | None:
        """Return the error that holds a partition until the application seeks, if any."""
        for part in self._parts.get(partition, ()):
            if part.is_sticky:
                return part.error
        return None

    def drop(self, partition: PartitionState) -> None:
        """Forget all that is buffered of a partition."""
        for part in self._parts.pop(partition, ()):
            self._close(part)

    def make_room(self) -> None:
        """Drop what nobody comes for while others lack the bytes; it is fetched again later.

        That is what is buffered of paused partitions; and of all, if gets wait: they are about
        other partitions.
        """
        is_unwanted = bool(self._waiters) and not self._state.is_held
        for partition, parts in tuple(self._parts.items()):
            if (is_unwanted or partition.is_paused) and parts[0].response is not None:
                self._state.refetch(partition)

    def _relieve(self, part: FetchedPartition) -> None:
        """Bring what is buffered down to the budget, whatever that takes but the share at hand."""
        for partition in droppable(self._parts, part):
            if self._budget is None or not self._budget.is_over:
                return
            self._state.refetch(partition)

    def clear(self) -> None:
        """Forget everything."""
        for partition in tuple(self._parts):
            self.drop(partition)
        self._untaken.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def wake(self) -> None:
        """Have the waiting gets look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- wait -----------------------------------------------------------------------------
    def is_ready(self, wanted: Wanted) -> bool:
        """Whether a get of these partitions (none named: of all) would find something."""
        return next(self._in_line(wanted), None) is not None

    def _in_line(self, wanted: Wanted) -> Iterator[PartitionState]:
        if self._state.is_held:
            return
        for partition in self._parts:
            if not partition.is_paused and (not wanted or partition.tp in wanted):
                yield partition

    async def wait(
        self,
        wanted: Wanted,
        deadline: float | None,
        also_raise: Callable[[], None] | None = None,
    ) -> bool:
        """Wait until there is something to decode or raise; False when the deadline passed.

        Args:
            wanted: The partitions it is about; empty for all.
            deadline: Loop time; None waits without end.
            also_raise: Raises what only this kind of get does; called before and after waits.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: A rebalance listener would wait without end.
            BaseException: A background task has died of it.
        """
        self._raise_if_unusable()
        if also_raise is not None:
            also_raise()
        while not self.is_ready(wanted):
            # Whatever else is buffered is of no use to this get, and must not keep the fetchers
            # from bringing what is.
            for response in tuple(self._untaken.values()):
                self._mark_taken(response)
            if deadline is None:
                reentry.refuse_to_wait_for_records()
            elif not self._set_alarm(deadline):
                return False
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            if self._parts:
                self._on_blocked()
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
            self._slice_ends_at = None
            self._raise_if_unusable()
            if also_raise is not None:
                also_raise()
        return True

    def _set_alarm(self, deadline: float) -> bool:
        """Have the waiting gets woken by the deadline; False if it has passed."""
        if self._loop.time() >= deadline:
            return False
        if self._alarm is not None:
            if self._alarm.when() <= deadline:
                return True
            self._alarm.cancel()
        self._alarm = self._loop.call_at(deadline, self._ring)
        return True

    def _ring(self) -> None:
        self._alarm = None
        self.wake()

    # --- decode ---------------------------------------------------------------------------
    async def decode(
        self,
        wanted: Wanted,
        max_records: int | None = None,
        deadline: float | None = None,
        max_of_each: int | None = None,
    ) -> None:
        """Decode up to `max_records` of what is buffered now; moves nothing.

        Of each partition no more than `max_of_each`. Stops early, with what it has, when the
        deadline passes.
        """
        each = max_records if max_of_each is None else max_of_each
        # What an earlier get has left is handed out before the application is awaited again.
        may_work = not self._asks_application or not self._has_decoded(wanted)
        while (
            part := self._decode_some(wanted, max_records, deadline, each, may_work=may_work)
        ) is not None:
            paused_at = self._loop.time()
            is_work = part.needs_application
            await self._pause(part)
            if is_work and self._looked_at - paused_at > TIME_SLICE_S:
                may_work = False
        if not self._has_decoded(wanted):
            # Perhaps there is only an error. A loop of gets that raise must let others run, too.
            await self.let_others_run()

    def _has_decoded(self, wanted: Wanted) -> bool:
        """Whether a get of these partitions would hand out something without decoding."""
        if self._state.is_held:
            return False
        for partition, parts in self._parts.items():
            is_wanted = not wanted or partition.tp in wanted
            if is_wanted and parts[0].decoded and not partition.is_paused:
                return True
        return False

    def _decode_some(
        self,
        wanted: Wanted,
        max_records: int | None,
        deadline: float | None,
        each: int | None,
        *,
        may_work: bool,
    ) -> FetchedPartition | None:
        """Decode until it is done, or time for a pause ahead of the share returned.

        Without `may_work` it is done where the application would have to be awaited.
        """
        left = max_records
        has_decoded = False
        held_bytes, most_held_bytes = 0, self._most_held_bytes
        # Deserialisers may do as they please: what they change is met in what was in line.
        line = self._in_line(wanted)
        if self._budget is not None and self._budget.is_tight:
            line = light_first(line, self._parts)
        for partition in tuple(islice(line, max_records)):
            missing = each if left is None or each is None else min(left, each)
            parts = tuple(self._parts.get(partition, ()))
            for part in parts:
                if part.response is not None and not part.response.is_taken:
                    # The fetcher sends its next request before this one's records are decoded.
                    self._mark_taken(part.response)
                while (missing is None or len(part.decoded) < missing) and part.can_decode:
                    if self._needs_pause(part):
                        if not part.needs_application:
                            return part
                        is_next = may_work and part is parts[0]
                        # What a get has is handed out before on_bad_record may raise.
                        is_next = is_next and (part.error is None or not self._has_decoded(wanted))
                        return part if is_next else None
                    if has_decoded and deadline is not None and self._looked_at >= deadline:
                        return None
                    if held_bytes + part.held_bytes > most_held_bytes and self._has_decoded(wanted):
                        return None
                    self._decode_run(part, missing)
                    has_decoded = True
                held_bytes += part.held_bytes
                if missing is not None:
                    missing -= len(part.decoded)
                    left = None if left is None else left - len(part.decoded)
                    if missing <= 0:
                        break
            if left is not None and left <= 0:
                return None
        return None

    async def decode_next(self, wanted: Wanted, limit: int) -> FetchedPartition | None:
        """Decode up to `limit` records of the partition that is first in line.

        Returns:
            Its share, with `decoded` filled, now last in line; None if it had no records.
        """
        part = await self.first_in_line(wanted)
        if part is None:
            return None
        if not part.decoded and part.can_decode:
            self._decode_run(part, limit)
        self.move_to_end(part.partition)
        if part.decoded:
            return part
        if part.error is not None:
            self._raise_error(part, part.error)
        elif part.is_exhausted:
            self._finish(part)
        return None

    async def first_in_line(self, wanted: Wanted) -> FetchedPartition | None:
        """Return the share that is first in line, after a pause if one is due before its decoding.

        None if there is none, or if the line has changed meanwhile: the caller looks again.
        """
        line = self._in_line(wanted)
        if self._budget is not None and self._budget.is_tight:
            line = light_first(line, self._parts)
        partition = next(line, None)
        if partition is None:
            return None
        part = self._parts[partition][0]
        if part.response is not None and not part.response.is_taken:
            self._mark_taken(part.response)
        while not part.decoded and part.can_decode and self._needs_pause(part):
            await self._pause(part)
            if not self._is_first(part):
                return None
            # Another task's get may have come to a batch that is being decompressed. A slice that
            # is used up again already, however, must not keep this get from ever decoding.
            if not self._has_to_wait(part):
                break
        if part.error is not None and not part.decoded:
            await self.let_others_run()  # a loop of gets that raise must let others run, too
            if not self._is_first(part):
                return None
        return part

    def _is_first(self, part: FetchedPartition) -> bool:
        """Whether a share is still the next of its partition, and may be handed out."""
        partition = part.partition
        parts = self._parts.get(partition)
        is_next = parts is not None and len(parts) > 0 and parts[0] is part
        return is_next and not partition.is_paused and not self._state.is_held

    def _decode_run(self, part: FetchedPartition, limit: int | None) -> None:
        """Have a share hold up to `limit` records, but decode only what fits into a time slice.

        The caller has asked `_needs_pause`, which looked at the clock.
        """
        before = len(part.decoded)
        part.decode(self._run if limit is None else min(self._run, limit - before))
        if self._budget is not None and self._budget.is_over:
            self._relieve(part)
        self._fit_run(len(part.decoded) - before)

    def _fit_run(self, count: int) -> None:
        """Learn from the `count` records decoded since the look at the clock."""
        run = self._run
        if count < run // 2:
            return  # too few to tell how long a run takes
        took_s = self._loop.time() - self._looked_at
        if took_s > TIME_SLICE_S / 2:
            self._run = max(run // 2, SMALLEST_RUN)
        elif took_s < TIME_SLICE_S / 4:
            self._run = min(run * 2, LARGEST_RUN)

    def _needs_pause(self, part: FetchedPartition) -> bool:
        """Whether the loop has to run before more of a share is decoded."""
        if self._has_to_wait(part):
            return True
        self._looked_at = self._loop.time()
        if self._slice_ends_at is None:
            self._slice_ends_at = self._looked_at + TIME_SLICE_S
            return False
        return self._looked_at >= self._slice_ends_at

    def _has_to_wait(self, part: FetchedPartition) -> bool:
        """Whether a worker thread, or the application, works on what comes next, or has to."""
        return (
            part.inflating is not None
            or part.inflate_estimate_s > INFLATE_ON_LOOP_S
            or (self._asks_application and part.needs_application)
        )

    def begin_slice(self) -> float:
        """Return when the time slice ends; it begins now if the loop has just run."""
        if self._slice_ends_at is None:
            self._slice_ends_at = self._loop.time() + TIME_SLICE_S
        return self._slice_ends_at

    async def let_others_run(self) -> None:
        """Go once round the loop, after which the next time slice begins."""
        try:
            await asyncio.sleep(0)
        finally:  # the loop has run also when this was cancelled
            self._slice_ends_at = None

    async def _pause(self, part: FetchedPartition) -> None:
        """Let others run: the application, a thread that decompresses, or once round the loop."""
        if part.needs_application:
            # Imported where it is used: most consumers have nothing that waits.
            from aiokafka_lite.consumer.application import work_on

            await work_on(part, self)
            self._looked_at = self._loop.time()
            return
        if part.inflating is None and part.inflate_estimate_s > INFLATE_ON_LOOP_S:
            part.inflating = self._loop.run_in_executor(None, part.inflate)
        if part.inflating is None:
            await self.let_others_run()
        while (inflating := part.inflating) is not None:
            # Shielded: a cancelled get must not leave the thread working on a set that the
            # next get decodes meanwhile. That one waits for the same future.
            await asyncio.shield(inflating)
            if part.inflating is inflating:
                part.inflating = None
            self._slice_ends_at = None
        self._looked_at = self._loop.time()  # the pause is no part of the run that follows

    def _mark_taken(self, response: FetchedResponse) -> None:
        response.is_taken = True
        if self._untaken.get(response.node_id) is response:
            del self._untaken[response.node_id]
            self._on_taken(response.node_id)

    # --- pop ------------------------------------------------------------------------------
    def pop(
        self, wanted: Wanted, max_records: int | None = None, max_of_each: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Hand out decoded records and move the positions behind them.

        Partitions that were served go to the end of the line, if the limit left some unserved.

        Raises:
            KafkaError: What stands first in line, or alone.
        """
        result: dict[TopicPartition, list[Record]] = {}
        failed: tuple[FetchedPartition, KafkaError] | None = None
        missing = max_records
        each = max_records if max_of_each is None else max_of_each
        served: list[PartitionState] = []
        for partition in tuple(islice(self._in_line(wanted), max_records)):
            is_first = not served
            limit = each if missing is None or each is None else min(missing, each)
            records = self._pop_partition(partition, limit)
            if records or is_first:
                served.append(partition)
            if records:
                result[partition.tp] = records
                if missing is not None:
                    missing -= len(records)
                    if missing <= 0:
                        break
                continue
            parts = self._parts.get(partition)
            if parts and (error := parts[0].error) is not None:
                failed = failed or (parts[0], error)
                if is_first:
                    break
        for partition in served if missing is not None and missing <= 0 else served[:1]:
            self.move_to_end(partition)
        if failed is not None and not result:
            self.fail(*failed)
        return result

    def _pop_partition(self, partition: PartitionState, missing: int | None) -> list[Record]:
        records: list[Record] = []
        parts = self._parts[partition]
        while parts:
            part = parts[0]
            if part.decoded:
                if len(records) == missing:
                    break
                taken = part.pop(None if missing is None else missing - len(records))
                position = taken[-1].offset + 1 if part.decoded else part.position_after
                self._state.hand_out(partition, taken[0].offset, position, part.leader_epoch)
                self._state.record_count += len(taken)
                records = records + taken if records else taken
            if not part.is_exhausted:
                break
            self._finish(part)
        return records

    # --- pop, into columns ----------------------------------------------------------------
    def line(self, max_rows: int) -> list[tuple[FetchedPartition, ...]]:
        """Return the shares of all partitions in line, as far as `max_rows` could reach."""
        return [tuple(self._parts[partition]) for partition in islice(self._in_line(()), max_rows)]

    def fill(self, part: FetchedPartition, columns: Columns, max_rows: int) -> bool:
        """Add a run of rows to columns; False if there are none, or a pause is due first.

        Moves nothing: that is for `hand_out_rows`, before anything else is done.
        """
        if part.decoded or not part.can_decode or self._needs_pause(part):
            return False
        if part.response is not None and not part.response.is_taken:
            self._mark_taken(part.response)
        added = part.fill(columns, min(self._run * ROWS_A_RECORD, max_rows))
        self._fit_run(added // ROWS_A_RECORD)
        return added > 0

    def hand_out_rows(self, part: FetchedPartition, first_offset: int | None) -> None:
        """Move the position behind what was filled from a share, the first of its partition.

        `first_offset` is that of the first row; None if there was none.
        """
        if first_offset is not None:
            position = part.position_after
            self._state.hand_out(part.partition, first_offset, position, part.leader_epoch)
        self.finish_if_exhausted(part)

    def end_turn(self, partition: PartitionState) -> None:
        """Let the next partition be first; a time slice that is half used up is over."""
        self.move_to_end(partition)
        slice_ends_at = self._slice_ends_at
        if slice_ends_at is not None and self._looked_at > slice_ends_at - TIME_SLICE_S / 2:
            self._slice_ends_at = 0.0

    def finish_if_exhausted(self, part: FetchedPartition) -> None:
        """Let go of a share whose records have all been handed out."""
        if part.is_current and part.is_exhausted:
            self._finish(part)

    def _finish(self, part: FetchedPartition) -> None:
        """Take an exhausted share, the first of its partition, out of the queue."""
        partition = part.partition
        self._remove_first(partition)
        if partition.position != part.position_after:
            self._state.pass_over(partition, part.position_after)
        self._close(part)
        self._on_room(partition)

    def _close(self, part: FetchedPartition) -> None:
        response = part.response
        part.close()
        if response is not None and not response.is_open and not response.is_taken:
            self._mark_taken(response)  # nothing is left of it to take

    def move_to_end(self, partition: PartitionState) -> None:
        """Have all other partitions come first."""
        parts = self._parts.pop(partition, None)
        if parts is not None:
            self._parts[partition] = parts

    def fail(self, part: FetchedPartition, error: KafkaError) -> None:
        """Raise a share's error, unless it is to be tried again; other partitions come next."""
        self.move_to_end(part.partition)
        self._raise_error(part, error)

    def _raise_error(self, part: FetchedPartition, error: KafkaError) -> None:
        """Raise a share's error under the poison rule: the position stays where it is."""
        partition = part.partition
        if part.is_undecided:
            return  # on_bad_record comes first, and may not want it raised
        if part.is_error_only and not part.is_sticky:
            self._remove_first(partition)
            self._on_room(partition)
        part.raised()
        if isinstance(error, CorruptRecordException):
            if self.fetch_again(part, error):
                return
            # It may be mended in the log; but a loop of gets must not ask without a pause.
            partition.retry_at = self._loop.time() + CORRUPT_PAUSE_S
            partition.retry_reason = type(error).__name__
            self._state.refetch(partition)
        raise error.with_traceback(None)

    # --- Bad batches ----------------------------------------------------------------------
    def fetch_again(self, part: FetchedPartition, error: CorruptRecordException) -> bool:
        """Have what is corrupt fetched once more; False if it was already."""
        partition = part.partition
        offset = partition.position if error.offset is None else error.offset
        if partition.corrupt_at == offset:
            return False
        partition.corrupt_at = -1 if offset is None else offset
        log.warning("%s/%s: %s; fetching it again", *partition.tp, error)
        self._state.refetch(partition)
        return True

    def skip_batch(self, part: FetchedPartition, next_offset: int) -> None:
        """Go on fetching behind a batch that cannot be read."""
        self._state.pass_over(part.partition, next_offset)
        self._state.refetch(part.partition)

    def replace_batch(
        self, part: FetchedPartition, next_offset: int, record: ConsumerRecord[object, object]
    ) -> None:
        """Deliver a record instead of a batch that cannot be read, and go on fetching behind it."""
        partition = part.partition
        self._state.refetch(partition)
        substitute = FetchedPartition(partition, self.delivery, end_offset=next_offset)
        substitute.decoded.append(record)  # type: ignore[arg-type]  # of the application's types
        self._append(substitute)
        self._on_room(partition)

    def _remove_first(self, partition: PartitionState) -> None:
        parts = self._parts[partition]
        parts.popleft()
        if not parts:
            del self._parts[partition]
