"""What brokers have answered and the application has not been handed yet.

The responses' shares stand in line (line.py), at most two of a partition: one request ahead. A get
goes through three steps, and only the last moves anything:

    wait      until something can be handed out
    decode    a run at a time, yielding to the loop when the time slice is used up, large
              batches decompressed in a worker thread; records gather in the shares
    pop       without any await: hands records out and moves the positions

So a get may be cancelled at every await, and the next one finds all that this one prepared. A get
of rows (arrow_gets.py) decodes in its third step, for a time slice at most, so that there never are
rows that the positions do not know of.

An error stands in line behind its partition's records. It is raised when its partition is first in
line, or when there is nothing else, and never takes records with it (bad_records.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from aiokafka_lite.consumer import caller
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.bad_records import PoisonRule
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.chunk import Chunk, FetchedResponse, Record
from aiokafka_lite.consumer.buffer.decode import Runs, TimeSlice
from aiokafka_lite.consumer.buffer.delivering import AnyDelivery
from aiokafka_lite.consumer.buffer.line import Line, Wanted
from aiokafka_lite.consumer.config import DEFAULT_MAX_BUFFERED_BYTES
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.records.decoders import Columns


class WaitingGets:
    """Futures of the gets that wait, and the one timer that serves all their deadlines."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # With what each is about, none for all; the one that waits longest comes first.
        self._waiters: dict[asyncio.Future[None], Wanted] = {}
        # Moved only when it fires, so a get that does not wait to its deadline costs none.
        self._alarm: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many gets wait."""
        return len(self._waiters)

    def wake(self) -> None:
        """Wake all of them."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wanted(self) -> list[TopicPartition]:
        """Return the partitions that gets wait for; empty also if one waits for whatever comes."""
        if not all(self._waiters.values()):
            return []
        return [tp for wanted in self._waiters.values() for tp in wanted]

    def add(self, wanted: Wanted) -> asyncio.Future[None]:
        """Return what a get awaits; it hands it to `discard` then, whatever happened."""
        waiter = self._loop.create_future()
        self._waiters[waiter] = wanted
        return waiter

    def discard(self, waiter: asyncio.Future[None]) -> None:
        """Forget a get that waits no more."""
        del self._waiters[waiter]

    def set_alarm(self, deadline: float) -> bool:
        """Wake all of them at the deadline, a loop time; return False if it has passed."""
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

    def cancel_alarm(self) -> None:
        """Leave no timer behind; gets that wait until a deadline must not come any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def _do_nothing() -> None:
    """Stand in for a hook that nobody has set."""


class Buffer:
    """Buffered responses of one consumer, and the gets' side of the hand-over.

    `raise_if_unusable` raises what every get has to raise: stopped, or a task has died.
    `on_taken(node_id)` tells a sources that its buffered response was taken, `on_room(partition)`
    that a partition has room for another response, `on_error()` that a partition cannot go on,
    `on_blocked()` that a get waits though something is buffered: others may lack its bytes,
    `on_sought()` that other partitions are sought (`sought`) than before.
    """

    def __init__(
        self,
        state: SubscriptionState,
        *,
        raise_if_unusable: Callable[[], None],
        on_taken: Callable[[int], None],
        on_room: Callable[[Cursor], None],
        on_error: Callable[[], None] | None = None,
        on_blocked: Callable[[], None] | None = None,
        on_sought: Callable[[], None] | None = None,
        budget: ByteBudget,
        delivery: AnyDelivery,
        most_held_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
    ) -> None:
        self._state = state
        self._raise_if_unusable = raise_if_unusable
        self._on_taken = on_taken
        self._on_room = on_room
        self._on_error = on_error or _do_nothing
        self._on_blocked = on_blocked or _do_nothing
        self._on_sought = on_sought or _do_nothing
        self.delivery = delivery
        self._asks_application = delivery.asks_application
        self._budget = budget
        # A get decodes no more than what was decompressed to so much, and a batch.
        self._most_held_bytes = most_held_bytes
        self._loop = asyncio.get_running_loop()
        self.time_slice = TimeSlice()
        self.line = Line(state, budget)
        self.poison = PoisonRule(state, self.line, on_room)
        self._runs = Runs(state, self.line, self.poison, self.time_slice, budget, delivery)
        self._waiting = WaitingGets()
        # The only partitions to fetch, because memory is short and gets wait for them; none: all.
        self.sought: frozenset[TopicPartition] = frozenset()
        # By broker, what the application has not come for.
        self._untaken: dict[int, FetchedResponse] = {}
        state.observers.on_discard(self.drop)
        state.observers.on_assignment_change(self.wake)
        state.observers.on_partition_change(self._partition_changed)
        state.gate.on_change(self.wake)

    # --- The fetchers' side ---------------------------------------------------------------
    def has_untaken(self, node_id: int) -> bool:
        """Whether a response of this broker waits that the application has not come for."""
        return node_id in self._untaken

    def put(self, response: FetchedResponse, parts: list[Chunk]) -> None:
        """Add a response's partitions, which must be current."""
        for part in parts:
            self.line.add(part)
        if self._waiting or all(part.partition.is_paused for part in parts):
            # A get is waiting, and takes this; or none will. So the sources may go on at once.
            response.is_taken = True
        else:
            self._untaken[response.node_id] = response
        if self.sought:
            self._seek(self.sought.difference(part.partition.tp for part in parts))
        self.wake()

    def put_error(self, partition: Cursor, error: KafkaError, *, is_sticky: bool = False) -> None:
        """Let the gets raise `error` behind the partition's records.

        A sticky error stays until the application seeks; others are raised once. Nobody is told
        of an error of a partition that was taken away meanwhile.
        """
        shares = self.line.shares.get(partition)
        if not partition.is_assigned or (shares and shares[-1].error is not None):
            return
        part = Chunk(partition, self.delivery, is_sticky=is_sticky)
        part.set_error(error)
        self.line.add(part)
        self.wake()
        self._on_error()

    def sticky_error(self, partition: Cursor) -> KafkaError | None:
        """Return the error that holds a partition until the application seeks, if any."""
        for part in self.line.shares.get(partition, ()):
            if part.is_sticky:
                return part.error
        return None

    def drop(self, partition: Cursor) -> None:
        """Forget all that is buffered of a partition."""
        for part in self.line.remove(partition):
            response = part.response
            part.close()
            if response is not None and not response.is_open:
                self._give_up(response)

    def _give_up(self, response: FetchedResponse) -> None:
        """Let the next request go out though no get has come for a response.

        Soon, not now: the partition that it is about is being changed.
        """
        if self._take(response):
            self._loop.call_soon(self._on_taken, response.node_id)

    def _partition_changed(self, partition: Cursor) -> None:
        if partition.is_paused:
            # What else its broker has must not wait until it is resumed.
            for part in self.line.shares.get(partition, ()):
                if part.response is not None:
                    self._give_up(part.response)
        self.wake()

    def make_room(self, *, is_behind: bool) -> None:
        """Make room for a fetch that was refused its bytes.

        What is buffered of paused partitions is dropped; it is fetched again later. If gets wait
        for certain partitions, nothing else is fetched until they have got something or end. Only
        if that is so already, what is buffered of the others is dropped, too.

        Args:
            is_behind: The fetch is known to bring records.
        """
        awaited: frozenset[TopicPartition] = frozenset()
        if not self._state.gate.holds:
            awaited = frozenset(self.awaited())
        are_others_dropped = is_behind and bool(awaited) and awaited == self.sought
        for partition in self.line.partitions():
            shares = self.line.shares.get(partition, ())
            has_bytes = any(part.response is not None for part in shares)
            is_unwanted = are_others_dropped and partition.tp not in awaited
            if has_bytes and (is_unwanted or partition.is_paused):
                self._state.refetch(partition)
        self._seek(awaited)

    def _seek(self, sought: frozenset[TopicPartition]) -> None:
        """Fetch only these partitions; none named: all."""
        if sought != self.sought:
            self.sought = sought
            self._on_sought()

    def _seek_awaited(self) -> None:
        if self.sought:
            self._seek(frozenset(self.awaited()))

    def awaited(self) -> list[TopicPartition]:
        """Return the partitions that gets wait for; empty if none do, or one for whatever comes."""
        return self._waiting.wanted()

    def clear(self) -> None:
        """Forget everything."""
        for partition in self.line.partitions():
            self.drop(partition)
        self._untaken.clear()
        self._waiting.cancel_alarm()

    def wake(self) -> None:
        """Wake the waiting gets, so that they look again."""
        self._waiting.wake()

    # --- wait -----------------------------------------------------------------------------
    async def wait(
        self,
        wanted: Wanted,
        deadline: float | None,
        also_raise: Callable[[], None] | None = None,
        *,
        may_be_lost: bool = False,
    ) -> bool:
        """Wait until there is something to decode or raise.

        False when the deadline passed, or when none of the partitions is assigned any more. Those
        that a rebalance takes away and gives back at its end are assigned all the time.

        Args:
            wanted: The partitions it is about; empty for all.
            deadline: Loop time; None waits without end.
            also_raise: Raises what only this kind of get does; called before and after waits.
            may_be_lost: Wait for partitions that are not assigned, too: they may come back.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: A rebalance listener would wait without end.
            BaseException: A background task has died of it.
        """
        self._raise_if_unusable()
        if also_raise is not None:
            also_raise()
        while not self.line.is_any_served(wanted):
            if not may_be_lost and not self._state.has_any(wanted):
                return False
            # Whatever else is buffered is of no use to this get, and must not keep the fetchers
            # from bringing what is.
            for response in tuple(self._untaken.values()):
                self._mark_taken(response)
            if deadline is None:
                caller.refuse_to_wait_for_records()
            elif not self._waiting.set_alarm(deadline):
                return False
            waiter = self._waiting.add(wanted)
            self._seek_awaited()
            if self.line:
                self._on_blocked()
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)
                if self.sought:  # soon, not now: this get may go on waiting
                    self._loop.call_soon(self._seek_awaited)
            self.time_slice.renew()
            self._raise_if_unusable()
            if also_raise is not None:
                also_raise()
        return True

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
        may_work = not self._asks_application or not self.line.has_decoded(wanted)
        while (
            part := self._decode_some(wanted, max_records, deadline, each, may_work=may_work)
        ) is not None:
            paused_at = self._loop.time()
            is_work = part.needs_application
            await self._runs.pause(part)
            self._raise_if_unusable()
            if is_work and self.time_slice.looked_at - paused_at > self.time_slice.length_s:
                may_work = False
        if not self.line.has_decoded(wanted):
            # Perhaps there is only an error. A loop of gets that raise must let others run, too.
            await self.time_slice.let_others_run()

    def _decode_some(
        self,
        wanted: Wanted,
        max_records: int | None,
        deadline: float | None,
        each: int | None,
        *,
        may_work: bool,
    ) -> Chunk | None:
        """Decode until it is done, or time for a pause ahead of the share returned.

        Without `may_work` it is done where the application would have to be awaited.
        """
        line, time_slice, runs = self.line, self.time_slice, self._runs
        left = max_records
        has_decoded = False
        held_bytes, most_held_bytes = 0, self._most_held_bytes
        # Deserialisers may do as they please: what they change is met in what was in line.
        for partition in tuple(islice(line.decoded_next(wanted), max_records)):
            missing = each if left is None or each is None else min(left, each)
            parts = tuple(line.shares.get(partition, ()))
            for part in parts:
                if part.response is not None and not part.response.is_taken:
                    # The sources sends its next request before this one's records are decoded.
                    self._mark_taken(part.response)
                while (missing is None or len(part.decoded) < missing) and part.can_decode:
                    if runs.needs_pause(part):
                        if not part.needs_application:
                            return part
                        is_next = may_work and part is parts[0]
                        # What a get has is handed out before on_bad_record may raise.
                        is_next = is_next and (part.error is None or not line.has_decoded(wanted))
                        return part if is_next else None
                    if has_decoded and deadline is not None and time_slice.looked_at >= deadline:
                        return None
                    is_enough = held_bytes + part.held_bytes > most_held_bytes
                    if is_enough and line.has_decoded(wanted):
                        return None
                    runs.decode(part, missing)
                    has_decoded = True
                held_bytes += part.held_bytes
                if missing is not None:
                    count = min(missing, len(part.decoded))
                    missing -= count
                    left = None if left is None else left - count
                    if missing <= 0:
                        break
            if left is not None and left <= 0:
                return None
        return None

    async def decode_next(self, wanted: Wanted, limit: int) -> Chunk | None:
        """Decode up to `limit` records of the partition that is first in line.

        Returns:
            Its share, with `decoded` filled, now last in line; None if it had no records.
        """
        part = await self.first_in_line(wanted)
        if part is None:
            return None
        if not part.decoded and part.can_decode:
            self._runs.decode(part, limit)
            if not self.line.is_next(part):
                return None  # a deserialiser has moved or paused its partition
        if not part.decoded and part.needs_application:
            return None  # it stays the first: that comes next
        self.line.move_to_end(part.partition)
        if part.decoded:
            return part
        if part.error is not None:
            self.poison.fail(part, part.error)
        elif part.is_exhausted:
            self._finish(part)
        return None

    async def first_in_line(self, wanted: Wanted) -> Chunk | None:
        """Return the share that is first in line, after a pause if one is due before its decoding.

        None if there is none, or if the line has changed meanwhile: the caller looks again.
        """
        partition = next(self.line.decoded_next(wanted), None)
        part = None if partition is None else self.line.first_share(partition)
        if part is None:
            return None
        if part.response is not None and not part.response.is_taken:
            self._mark_taken(part.response)
        while not part.decoded and part.can_decode and self._runs.needs_pause(part):
            await self._runs.pause(part)
            self._raise_if_unusable()
            if not self.line.is_next(part):
                return None
            # Another task's get may have come to a batch that is being decompressed. A slice that
            # is used up again already, however, must not keep this get from ever decoding.
            if not self._runs.has_to_wait(part):
                break
        if part.error is not None and not part.decoded:
            # A loop of gets that raise must let others run, too.
            await self.time_slice.let_others_run()
            if not self.line.is_next(part):
                return None
        return part

    def _mark_taken(self, response: FetchedResponse) -> None:
        if self._take(response):
            self._on_taken(response.node_id)

    def _take(self, response: FetchedResponse) -> bool:
        """Note that nobody has to come for a response; whether its broker waited for that."""
        response.is_taken = True
        if self._untaken.get(response.node_id) is not response:
            return False
        del self._untaken[response.node_id]
        return True

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
        failed: tuple[Chunk, KafkaError] | None = None
        missing = max_records
        each = max_records if max_of_each is None else max_of_each
        served: list[Cursor] = []
        for partition in tuple(islice(self.line.served(wanted), max_records)):
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
            part = self.line.first_share(partition)
            if part is not None and part.error is not None:
                failed = failed or (part, part.error)
                if is_first:
                    break
        for partition in served if missing is not None and missing <= 0 else served[:1]:
            self.line.move_to_end(partition)
        if failed is not None and not result:
            self.poison.fail(*failed)
        return result

    def _pop_partition(self, partition: Cursor, missing: int | None) -> list[Record]:
        records: list[Record] = []
        shares = self.line.shares[partition]
        while shares:
            part = shares[0]
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
    def fill(self, part: Chunk, columns: Columns, max_rows: int) -> bool:
        """Add a run of rows to columns; False if there are none, or a pause is due first.

        Moves nothing: that is for `hand_out_rows`, before anything else is done.
        """
        if part.decoded or not part.can_decode or self._runs.needs_pause(part):
            return False
        if part.response is not None and not part.response.is_taken:
            self._mark_taken(part.response)
        return self._runs.fill(part, columns, max_rows)

    def hand_out_rows(self, part: Chunk, first_offset: int | None) -> None:
        """Move the position behind what was filled from a share, the first of its partition.

        `first_offset` is that of the first row; None if there was none.
        """
        if first_offset is not None:
            position = part.position_after
            self._state.hand_out(part.partition, first_offset, position, part.leader_epoch)
        self.finish_if_exhausted(part)

    @property
    def is_over_budget(self) -> bool:
        """Whether more is buffered than there may be."""
        return self._budget.is_over

    def keep_to_budget(self, part: Chunk) -> None:
        """Bring what is buffered down to the budget, whatever that takes but the share at hand."""
        self._runs.keep_to_budget(part)

    def end_turn(self, partition: Cursor) -> None:
        """Let the next partition be first; a time slice that is half used up is over."""
        self.line.move_to_end(partition)
        self.time_slice.end_if_half_used()

    def finish_if_exhausted(self, part: Chunk) -> None:
        """Let go of a share whose records have all been handed out."""
        if self.line.first_share(part.partition) is part and part.is_exhausted:
            self._finish(part)

    def _finish(self, part: Chunk) -> None:
        """Take an exhausted share, the first of its partition, out of the buffer."""
        partition = part.partition
        self.line.remove_first(partition)
        if partition.position != part.position_after:
            self._state.pass_over(partition, part.position_after)
        self._close(part)
        self._on_room(partition)

    def _close(self, part: Chunk) -> None:
        response = part.response
        part.close()
        if response is not None and not response.is_open and not response.is_taken:
            self._mark_taken(response)  # nothing is left of it to take
