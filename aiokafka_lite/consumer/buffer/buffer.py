"""What brokers have answered and the application has not been handed yet.

Each assigned partition has its chunks at itself (`Cursor.chunks`), at most two with records: one
request ahead. The buffer keeps the order in which partitions take turns: those that a limited get
was served from, and always the first, go to its end.

There is one way out, `take`. It goes through three steps, and only the last moves anything:

    wait      until something can be handed out
    decode    some records at a time, yielding to the loop when the time slice is used up, large
              batches decompressed in a worker thread; records gather in the chunks
    hand out  without any await: a sink takes what it wants, and the positions move

So a get may be cancelled at every await, and the next one finds all that this one prepared. A sink
of rows decodes in the third step, for a time slice at most, so that there never are rows that the
positions do not know of. A get of one record takes the second and the third step at once, where the
first chunk in turn has only to be decoded.

An error stands behind its partition's records. It is raised when its partition is the first in
turn, or when there is nothing else, and never takes records with it (bad_records.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from aiokafka_lite.consumer import caller
from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.buffer.bad_records import ChunkErrors
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.chunk import (
    EXHAUSTED,
    PACKED,
    Chunk,
    FetchedResponse,
    ResponseSource,
)
from aiokafka_lite.consumer.buffer.chunk_queue import ChunkQueue
from aiokafka_lite.consumer.buffer.decode import AnyDelivery, ChunkDecoder
from aiokafka_lite.consumer.config import DEFAULT_MAX_BUFFERED_BYTES
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.errors import IllegalStateError, KafkaError
from aiokafka_lite.structs import TopicPartition

Wanted = Collection[TopicPartition]


class Limits(NamedTuple):
    """What a get is about, how long it waits for it, and how much it takes at most."""

    #: Empty: all partitions.
    wanted: Wanted = ()
    #: None: it waits without end.
    timeout_s: float | None = None
    #: Records or rows in all; and of each partition.
    max_records: int | None = None
    max_of_each: int | None = None


class Taken(NamedTuple):
    """What a sink took of a chunk: the first offset, and the position behind."""

    first_offset: int
    position: int


class RecordSink(Protocol):
    """Where a get's records go. Between its calls for one get nothing is awaited."""

    @property
    def count(self) -> int:
        """How many records or rows it has taken."""

    @property
    def is_full(self) -> bool:
        """Whether it takes no more, whatever the limits say."""

    @property
    def is_for_one(self) -> bool:
        """Whether it takes from one chunk, and what is decoded at once is enough for it."""

    @property
    def decodes(self) -> bool:
        """Whether it takes what is not decoded yet, by `decoder.fill`."""

    def take(self, chunk: Chunk, limit: int | None, decoder: ChunkDecoder) -> Taken | None:
        """Take up to `limit` records of a chunk; None: none were taken, or none yet."""

    def finish(self) -> None:
        """Make of what was taken what the get returns; then the positions move."""

    def clear(self) -> None:
        """Drop what was taken: it is fetched again."""


def _do_nothing() -> None:
    """Stand in for a hook that nobody has set."""


class Buffer:
    """Buffered responses of one consumer, and the gets that take from them.

    `on_error()` tells that a partition cannot go on; `on_blocked()` that a get waits though
    something is buffered, so that others may lack its bytes; `on_sought()` that other partitions
    are sought (`sought`) than before.
    """

    __slots__ = (
        "_alarm",
        "_alarm_at",
        "_asks_application",
        "_budget",
        "_close_reader",
        "_deserializes",
        "_errors",
        "_gate",
        "_loop",
        "_most_held_bytes",
        "_on_blocked",
        "_on_error",
        "_on_sought",
        "_reads",
        "_state",
        "_waiters",
        "decoder",
        "delivery",
        "queue",
        "sought",
    )

    def __init__(
        self,
        state: Assignment,
        reads: Reads,
        gate: Gate,
        observers: Observers,
        *,
        on_error: Callable[[], None] | None = None,
        on_blocked: Callable[[], None] | None = None,
        on_sought: Callable[[], None] | None = None,
        budget: ByteBudget,
        delivery: AnyDelivery,
        most_held_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
    ) -> None:
        self._state = state
        self._reads = reads
        self._gate = gate
        self._on_error = on_error or _do_nothing
        self._on_blocked = on_blocked or _do_nothing
        self._on_sought = on_sought or _do_nothing
        # Called before a get takes anything: see `on_take`.
        self._close_reader = _do_nothing
        self.delivery = delivery
        self._asks_application = delivery.asks_application
        self._deserializes = delivery.has_deserializers
        self._budget = budget
        # A get decodes no more than what was decompressed to so much, and a batch.
        self._most_held_bytes = most_held_bytes
        self._loop = asyncio.get_running_loop()
        self.queue = ChunkQueue(reads, self._loop)
        self._errors = ChunkErrors(state, reads, self.queue.add)
        self.decoder = ChunkDecoder(reads, self._errors, delivery)
        # The gets that wait, with what each is about, none for all; the oldest comes first.
        self._waiters: dict[asyncio.Future[None], Wanted] = {}
        # Serves the deadlines of all of them. Moved only when it fires, so that a get that does
        # not wait to its deadline costs none. When that is: uvloop's handles do not all know.
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        # The only partitions to fetch, because memory is short and gets wait for them; none: all.
        self.sought: frozenset[TopicPartition] = frozenset()
        observers.on_discard(self.queue.drop)
        observers.on_assignment_change(self.wake)
        observers.on_partition_change(self._partition_changed)
        gate.on_change(self.wake)

    def on_take(self, close_reader: Callable[[], None]) -> None:
        """Set what is called before a get takes anything.

        It brings back what is being read record by record, so that there is one order of records.
        """
        self._close_reader = close_reader

    # --- What is buffered -----------------------------------------------------------------
    @property
    def partitions(self) -> Collection[Cursor]:
        """The partitions of which something is buffered, in the order of their turns."""
        return self.queue.order.keys()

    @property
    def waiting_count(self) -> int:
        """How many gets wait."""
        return len(self._waiters)

    def is_left_out(self, cursor: Cursor) -> bool:
        """Whether a cursor is not fetched because memory is short, and gets wait for others."""
        return bool(self.sought) and cursor.tp not in self.sought

    def has_untaken(self, source: ResponseSource) -> bool:
        """Whether a response that it has fetched waits, and the application has not come for it."""
        return source in self.queue.untaken

    def awaited(self) -> list[TopicPartition]:
        """Return the partitions that gets wait for; empty if none do, or one for whatever comes."""
        if not all(self._waiters.values()):
            return []
        return [tp for wanted in self._waiters.values() for tp in wanted]

    def sticky_error(self, partition: Cursor) -> KafkaError | None:
        """Return the error that stays until the application seeks, if there is one."""
        return next((chunk.failure for chunk in partition.chunks if chunk.is_sticky), None)

    def can_serve(self, wanted: Wanted) -> bool:
        """Whether there is something to hand out or raise, of all partitions if none are named."""
        return bool(self._in_order(wanted, 1))

    def _has_decoded(self, wanted: Wanted) -> bool:
        """Whether a get of these partitions would be handed something without decoding."""
        for partition in self.queue.order:
            is_wanted = not wanted or partition.tp in wanted
            is_free = not (partition.is_paused or partition.has_enough)
            if is_wanted and partition.chunks[0].decoded and is_free:
                return True
        return False

    # --- Whose turn it is -----------------------------------------------------------------
    def _in_order(self, wanted: Wanted, most: int | None) -> list[Cursor]:
        """Return the first `most` partitions that may be served, of those wanted.

        When memory is short, what takes none comes first.
        """
        found: list[Cursor] = []
        if self._gate.holds:
            return found
        # Most consumers read nothing that has to be decompressed: then it is never tight.
        is_tight = self._budget.headroom_bytes and self._budget.is_tight
        for partition in self.queue.order:
            if partition.is_paused or partition.has_enough:
                continue
            if not wanted or partition.tp in wanted:
                found.append(partition)
                if len(found) == most and not is_tight:
                    break
        return list(islice(_light_first(found), most)) if is_tight else found

    def _first(self, wanted: Wanted) -> Chunk | None:
        """Return the chunk that a get looks at first."""
        order = self._in_order(wanted, 1)
        return order[0].chunks[0] if order else None

    # --- Changes --------------------------------------------------------------------------
    def clear(self) -> None:
        """Forget everything."""
        for partition in tuple(self.queue.order):
            self.queue.drop(partition)
        if self._alarm is not None:  # no get may wait until a deadline any more
            self._alarm.cancel()
            self._alarm = None

    # --- The sources' side ----------------------------------------------------------------
    def put(self, response: FetchedResponse, chunks: list[Chunk]) -> None:
        """Add a response's chunks, which must be current."""
        is_wanted = False
        for chunk in chunks:
            self.queue.add(chunk)
            is_held = chunk.partition.is_paused or chunk.partition.has_enough
            is_wanted = is_wanted or not is_held
        if self._waiters or not is_wanted:
            # A get is waiting, and takes this; or none will. So the source may go on at once.
            response.is_taken = True
        else:
            self.queue.untaken[response.source] = response
        if self.sought:
            self._seek(self.sought.difference(chunk.partition.tp for chunk in chunks))
        self.wake()

    def put_error(self, partition: Cursor, error: KafkaError, *, is_sticky: bool = False) -> None:
        """Let the gets raise `error` behind the partition's records.

        A sticky error stays until the application seeks; others are raised once. Nobody is told
        of an error of a partition that was taken away meanwhile.
        """
        if not partition.is_assigned or partition.failure is not None:
            return
        self.queue.add(Chunk(partition, self.delivery, error=error, is_sticky=is_sticky))
        self.wake()
        self._on_error()

    def _partition_changed(self, partition: Cursor) -> None:
        if partition.is_paused:
            # What else its broker has must not wait until it is resumed.
            for chunk in partition.chunks:
                if chunk.response is not None:
                    self.queue.release_source(chunk.response)
        self.wake()

    # --- When memory is short -------------------------------------------------------------
    def make_room(self, *, is_behind: bool) -> None:
        """Make room for a fetch that was refused its bytes.

        What is buffered of paused partitions is dropped, and of those in open batches if gets wait;
        it is fetched again later. If gets wait for certain partitions, nothing else is fetched
        until they have got something or end. Only if that is so already, what is buffered of the
        others is dropped, too.

        Args:
            is_behind: The fetch is known to bring records.
        """
        awaited: frozenset[TopicPartition] = frozenset()
        if not self._gate.holds:
            awaited = frozenset(self.awaited())
        are_others_dropped = is_behind and bool(awaited) and awaited == self.sought
        for partition in tuple(self.queue.order):
            has_bytes = any(chunk.response is not None for chunk in partition.chunks)
            is_unwanted = are_others_dropped and partition.tp not in awaited
            is_held_up = partition.has_enough and bool(self._waiters)
            if has_bytes and (is_unwanted or partition.is_paused or is_held_up):
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

    def _keep_to_budget(self, kept: Chunk) -> None:
        """Drop what is least useful until the rest, and the chunk at hand, fit into the budget."""
        for partition in _least_useful_first(self.queue.order, kept):
            self._state.refetch(partition)
            if not self._budget.is_over:
                return

    # --- take -----------------------------------------------------------------------------
    async def take(
        self, sink: RecordSink, limits: Limits, also_raise: Callable[[], None] | None = None
    ) -> bool:
        """Wait for records, decode them, and let a sink take them.

        A get that is cancelled has taken nothing.

        Args:
            sink: What takes them.
            limits: Of which partitions, how much, and for how long.
            also_raise: Raises what only this kind of get does.

        Returns:
            Whether the sink has taken something. Not if the time was up, or if the last of the
            partitions was taken away meanwhile. Those that a rebalance takes away and gives back
            at its end are assigned all the time.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: A rebalance listener would wait without end; or `run` takes all.
            KafkaError: What stands first in turn, or alone.
            BaseException: A background task has died of it.
        """
        processing = self._reads.processing
        if processing is not None and not processing.takes(sink):
            raise IllegalStateError(
                "consumer.run() is active and passes every record to its handler: no other "
                "method can read records until run() ends"
                if processing.is_always_asking
                else 'poll_arrow() cannot be used with ack_mode="explicit": leave out ack_mode'
            )
        wanted, timeout_s = limits.wanted, limits.timeout_s
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        if self.queue.lent is not None:
            self._close_reader()
        self._reads.enter_get()
        try:
            if timeout_s is not None and timeout_s <= 0 and not self.can_serve(wanted):
                # A loop of gets that never wait must not keep the sources from working.
                await asyncio.sleep(0)
            # What was lost before may come back, and a get of it alone takes its time.
            may_be_lost = deadline is not None and not self._state.has_any(wanted)
            while await self._wait(wanted, deadline, also_raise, may_be_lost=may_be_lost):
                if sink.is_for_one and self._take_at_hand(sink, limits):
                    return True
                if sink.decodes:
                    await self._pause_if_due(wanted)
                else:
                    # A get that does not wait takes all that is buffered: only decoding takes time.
                    await self.decode(limits, deadline if timeout_s else None, sink.is_for_one)
                if self.queue.lent is not None:  # by another task's get, meanwhile
                    self._close_reader()
                if self._hand_out(sink, limits):
                    return True
            return False
        finally:
            self._reads.leave_get(self._loop.time())

    async def let_others_run(self) -> None:
        """Go once round the loop in the middle of what the application takes as one get."""
        self._reads.enter_get()
        try:
            await self.decoder.let_others_run()
        finally:
            self._reads.leave_get(self._loop.time())

    # --- wait -----------------------------------------------------------------------------
    def wake(self) -> None:
        """Wake the waiting gets, so that they look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(
        self,
        wanted: Wanted,
        deadline: float | None,
        also_raise: Callable[[], None] | None,
        *,
        may_be_lost: bool,
    ) -> bool:
        """Wait until there is something to decode or raise.

        Return False when the deadline passed, or when none of the partitions is assigned any more,
        unless they may be lost.
        """
        if self._gate.is_troubled:
            self._gate.check()
        if also_raise is not None:
            also_raise()
        while not self.queue.order or not self._in_order(wanted, 1):
            if not may_be_lost and not self._state.has_any(wanted):
                return False
            # Whatever else is buffered is of no use to this get, and must not keep the sources
            # from bringing what is.
            for response in tuple(self.queue.untaken.values()):
                self.queue.mark_taken(response)
            if deadline is None:
                caller.refuse_to_wait_for_records()
            elif not self._set_alarm(deadline):
                return False
            waiter = self._loop.create_future()
            self._waiters[waiter] = wanted
            if self.sought:
                self._seek_awaited()
            if self.queue.order:
                self._on_blocked()
            try:
                await waiter
            finally:
                del self._waiters[waiter]
                if self.sought:  # soon, not now: this get may go on waiting
                    self._loop.call_soon(self._seek_awaited)
            self.decoder.slice.renew()
            if self._gate.is_troubled:
                self._gate.check()
            if also_raise is not None:
                also_raise()
        return True

    def _set_alarm(self, deadline: float) -> bool:
        """Wake the gets at a deadline, a loop time; return False if it has passed."""
        if self._loop.time() >= deadline:
            return False
        if self._alarm is not None:
            if self._alarm_at <= deadline:
                return True
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_at(deadline, self._ring)
        return True

    def _ring(self) -> None:
        self._alarm = None
        self.wake()

    # --- decode ---------------------------------------------------------------------------
    async def decode(
        self, limits: Limits, deadline: float | None = None, is_for_one: bool = False
    ) -> None:
        """Decode what a get may take of what is buffered now; move nothing.

        Stop early, with what there is, when the deadline passes; and where one chunk is enough, as
        soon as some of its records are decoded.
        """
        wanted, decoder = limits.wanted, self.decoder
        # What an earlier get has left is handed out before the application is awaited again.
        may_work = is_for_one or not self._asks_application or not self._has_decoded(wanted)
        while (chunk := self._decode_to_pause(limits, deadline, is_for_one)) is not None:
            is_work = self._asks_application and chunk.needs_application
            if is_work and not (may_work and self._may_work_on(chunk, wanted, is_for_one)):
                break
            paused_at = self._loop.time()
            await self._pause(chunk)
            if (
                is_work
                and not is_for_one
                and decoder.looked_at - paused_at > decoder.slice.length_s
            ):
                may_work = False
        if not self._has_decoded(wanted):
            # Perhaps there is only an error. A loop of gets that raise must let others run, too.
            await decoder.let_others_run()

    def _decode_to_pause(
        self, limits: Limits, deadline: float | None, is_for_one: bool
    ) -> Chunk | None:
        """Decode until there is enough, or a pause is due ahead of the chunk returned."""
        decoder = self.decoder
        held_bytes = 0
        for chunk, limit in self._to_decode(limits, is_for_one):
            response = chunk.response
            if response is not None and not response.is_taken:
                # The source sends its next request before this one's records are decoded.
                self.queue.mark_taken(response)
            if is_for_one and chunk.decoded:
                return None
            while (limit is None or len(chunk.decoded) < limit) and (
                chunk.state is PACKED or chunk.can_decode
            ):
                is_late = deadline is not None and decoder.looked_at >= deadline
                if is_late and self._has_decoded(limits.wanted):
                    return None
                if decoder.needs_pause(chunk):
                    return chunk
                is_enough = held_bytes + chunk.held_bytes > self._most_held_bytes
                if is_enough and self._has_decoded(limits.wanted):
                    return None
                decoder.decode(chunk, limit)
                if self._budget.is_over:
                    self._keep_to_budget(chunk)
                if is_for_one and chunk.decoded:
                    return None
            held_bytes += chunk.held_bytes
        return None

    def _to_decode(self, limits: Limits, is_for_one: bool) -> Iterator[tuple[Chunk, int | None]]:
        """Yield chunks in the order of turns, and how many records each should hold then."""
        left = limits.max_records
        each = left if limits.max_of_each is None else limits.max_of_each
        # Deserialisers may do as they please: what they change is met in what was buffered.
        for partition in self._in_order(limits.wanted, 1 if is_for_one else left):
            missing = each if left is None or each is None else min(left, each)
            for chunk in partition.chunks:
                yield chunk, missing
                if missing is not None:
                    count = min(missing, len(chunk.decoded))
                    missing -= count
                    left = None if left is None else left - count
                    if missing <= 0:
                        break
            if left is not None and left <= 0:
                return

    def _may_work_on(self, chunk: Chunk, wanted: Wanted, is_for_one: bool) -> bool:
        """Whether the application may be awaited for a chunk now."""
        if chunk is not chunk.partition.first_chunk:
            return False
        # What a get has is handed out before on_bad_record may raise.
        return is_for_one or chunk.failure is None or not self._has_decoded(wanted)

    async def _pause_if_due(self, wanted: Wanted) -> None:
        """Pause as long as that is due before the first in turn can be decoded."""
        while (chunk := self._first(wanted)) is not None and not chunk.decoded:
            if chunk.response is not None and not chunk.response.is_taken:
                self.queue.mark_taken(chunk.response)
            if chunk.can_decode and self.decoder.needs_pause(chunk):
                await self._pause(chunk)
                continue
            if chunk.failure is not None:
                # A loop of gets that raise must let others run, too.
                await self.decoder.let_others_run()
            return

    async def _pause(self, chunk: Chunk) -> None:
        """Let others run before more of a chunk is decoded."""
        is_work = self._asks_application and chunk.needs_application
        try:
            await self.decoder.pause(chunk)
        except BaseException:
            if is_work:
                # What hangs or fails must not keep the other partitions from being served.
                self.queue.end_turn(chunk.partition)
            raise
        if self._gate.is_troubled:
            self._gate.check()

    # --- hand out -------------------------------------------------------------------------
    def _take_at_hand(self, sink: RecordSink, limits: Limits) -> bool:
        """Let a sink for one chunk take from the first in turn; False: that takes more than this.

        It is the way of records that come one by one. A pause, the application, memory that is
        short, an error: all that is left to `decode` and `_hand_out`.
        """
        if self.queue.lent is not None:
            return False
        partition = self._in_order(limits.wanted, 1)[0]
        chunk = partition.chunks[0]
        if not chunk.decoded:
            if chunk.response is not None and not chunk.response.is_taken:
                # The source sends its next request before this one's records are decoded.
                self.queue.mark_taken(chunk.response)
            if chunk.state is not PACKED or self.decoder.needs_pause(chunk):
                return False
            self.decoder.decode(chunk, limits.max_records)
            if self._budget.is_over:
                self._keep_to_budget(chunk)
            if not chunk.decoded:
                return False
            if self._deserializes and self._first(limits.wanted) is not chunk:
                return False  # a deserialiser has moved or paused it
        sink.take(chunk, limits.max_records, self.decoder)
        self.queue.lend(chunk)
        if len(self.queue.order) > 1:
            self.queue.end_turn(partition)
        return True

    def _hand_out(self, sink: RecordSink, limits: Limits) -> bool:
        """Let a sink take from one partition after the other, and move the positions behind it.

        Partitions that were served go to the end of the turns, if the limit left some unserved.

        Raises:
            KafkaError: What stands first in turn, or alone.
        """
        most = limits.max_records
        each = most if limits.max_of_each is None else limits.max_of_each
        served: list[Cursor] = []
        taken: list[tuple[Chunk, Taken | None]] = []
        failed: Chunk | None = None
        is_alone, is_enough = True, False
        try:
            for partition in self._in_order(limits.wanted, most):
                before = sink.count
                left = None if most is None else most - before
                limit = each if left is None or each is None else min(left, each)
                chunk = self._take_from(partition, sink, limit, taken)
                is_first = not served
                if sink.count > before or sink.is_full or is_first:
                    served.append(partition)
                if sink.is_full or sink.count == most:
                    is_enough = True
                    self.queue.lend(chunk if sink.is_for_one else None)
                    break
                if sink.count == before:
                    if chunk.failure is not None:
                        failed = failed or chunk
                        if is_first:
                            break
                    elif not chunk.is_exhausted:
                        is_alone = False  # more of it can be handed out after a pause
                if sink.decodes and self._budget.is_over:
                    break
            if sink.count:
                sink.finish()
        except BaseException:
            # As from a lack of memory: nothing is handed out, all is fetched again.
            sink.clear()
            for chunk, _ in taken:
                self._state.refetch(chunk.partition)
            raise
        self._move_positions(taken)
        if len(self.queue.order) > 1:
            for partition in served if is_enough else served[:1]:
                self.queue.end_turn(partition)
        self._reads.record_count += sink.count
        if sink.count or is_enough:
            if sink.decodes:
                self._keep_to_budget_of_rows(taken)
            return True
        if failed is not None and (is_alone or failed.partition is served[0]):
            self._fail(failed)
        return False

    def _take_from(
        self,
        partition: Cursor,
        sink: RecordSink,
        limit: int | None,
        taken: list[tuple[Chunk, Taken | None]],
    ) -> Chunk:
        """Let a sink take up to `limit` of a partition; return the chunk that it came to."""
        before = sink.count
        chunks = partition.chunks
        for chunk in chunks:
            left = None if limit is None else limit - (sink.count - before)
            span = sink.take(chunk, left, self.decoder)
            taken.append((chunk, span))
            # Of what was taken from, decoding has looked what comes next.
            is_left = chunk.decoded or (span is not None and chunk.state is PACKED)
            if is_left or not chunk.is_exhausted:
                return chunk
        return chunks[-1]

    def _move_positions(self, taken: Iterable[tuple[Chunk, Taken | None]]) -> None:
        """Move the positions behind what was taken, and let go of chunks that are used up."""
        for chunk, span in taken:
            if span is not None:
                if chunk.response is not None and not chunk.response.is_taken:
                    self.queue.mark_taken(chunk.response)
                self._reads.hand_out(
                    chunk.partition, span.first_offset, span.position, chunk.epochs
                )
            if chunk.state is EXHAUSTED and not chunk.decoded:
                self.queue.finish(chunk)

    def _keep_to_budget_of_rows(self, taken: list[tuple[Chunk, Taken | None]]) -> None:
        """Make up for what was decompressed for rows; end a slice that is half used up."""
        if taken and self._budget.is_over:
            self._keep_to_budget(taken[-1][0])
        self.decoder.slice.end_if_half_used(self.decoder.looked_at)

    def _fail(self, chunk: Chunk) -> None:
        """Raise a chunk's error, unless it is to be tried again; other partitions come next."""
        partition, error = chunk.partition, chunk.failure
        self.queue.end_turn(partition)
        if error is None or chunk.is_undecided:
            return  # on_bad_record comes first, and may not want it raised
        if chunk.is_error_only and not chunk.is_sticky:
            self.queue.remove_first(partition)
            partition.chunks_changed()
        self._errors.raise_error(chunk, error)


def _light_first(turns: Iterable[Cursor]) -> Iterator[Cursor]:
    """Yield the partitions of which no batch has to be decompressed now.

    If there are none, the first in turn; so batches that are decompressed already are finished
    before memory is taken for another.
    """
    first: Cursor | None = None
    has_light = False
    for partition in turns:
        first = first or partition
        chunk = partition.chunks[0]
        if chunk.is_begun or not chunk.inflate_estimate_s:
            has_light = True
            yield partition
    if first is not None and not has_light:
        yield first


def _least_useful_first(turns: Iterable[Cursor], kept: Chunk) -> list[Cursor]:
    """Return the partitions whose chunks may be dropped for one, the least useful first.

    The last in turn come first, and before all that has been begun what has not. What has the
    memory of a response in common with `kept` gives back only what was decompressed of it.
    """
    others = [
        (any(chunk.is_begun for chunk in partition.chunks), partition)
        for partition in turns
        if partition is not kept.partition
        and any(
            chunk.response is not None and (chunk.response is not kept.response or chunk.is_begun)
            for chunk in partition.chunks
        )
    ]
    others.reverse()
    return [partition for _, partition in sorted(others, key=lambda other: other[0])]
