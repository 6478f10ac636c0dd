"""Buffered chunks of one consumer, and the reads that take records from them.

A partition's chunks are at its cursor (`Cursor.chunks`), at most two with records. The buffer keeps
the order of turns: partitions that served a limited read, and always the first one, move to the
end.

All reads use `take`. Of its three steps only the last changes positions:

    wait     until records can be returned
    decode   records into the chunks, a time slice at a time; large batches in a worker thread
    return   without any await: a sink takes records, and the positions move

So a read may be cancelled at every await, and the next one uses the prepared records. A sink of
rows decodes in the third step, for one time slice, because positions must include all rows.

An error follows its partition's records. It is raised without records: when its partition is the
first in turn, or no others are buffered (decode.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from aiokafka_lite.consumer import caller
from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.chunk import (
    PACKED,
    RAW,
    Chunk,
    FetchedResponse,
    ResponseSource,
)
from aiokafka_lite.consumer.buffer.chunk_queue import ChunkQueue
from aiokafka_lite.consumer.buffer.decode import ChunkDecoder, ChunkErrors, Delivery
from aiokafka_lite.consumer.buffer.waiter import Waiters
from aiokafka_lite.consumer.config import DEFAULT_MAX_BUFFERED_BYTES
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.errors import IllegalStateError, KafkaError
from aiokafka_lite.structs import TopicPartition

Wanted = Collection[TopicPartition]

# States in which the short way of single records decodes.
DECODED_AT_ONCE: Final = (PACKED, RAW)


class Limits(NamedTuple):
    #: Empty: all partitions.
    wanted: Wanted = ()
    #: None: no timeout.
    timeout_s: float | None = None
    #: Records or rows in all, and per partition.
    max_records: int | None = None
    max_of_each: int | None = None


class Taken(NamedTuple):
    first_offset: int
    position: int


class RecordSink(Protocol):
    """The destination of a read's records; its calls for one read have no await between them."""

    @property
    def count(self) -> int: ...

    @property
    def is_full(self) -> bool:
        """Whether it takes no more, even below the limits."""

    @property
    def is_for_one(self) -> bool:
        """Whether it takes from one chunk, and records decoded at once suffice."""

    @property
    def decodes(self) -> bool:
        """Whether it takes undecoded batches, by `Buffer.decoder.fill`."""

    def take(self, chunk: Chunk, limit: int | None) -> Taken | None:
        """Take up to `limit` records. None: not yet."""

    def finish(self) -> None:
        """Build the read's result; then the positions move."""

    def clear(self) -> None:
        """Drop all records, which are fetched again."""


class Buffer:
    """The buffer of one consumer.

    Args:
        on_error: Called when a partition cannot go on.
        on_blocked: Called when a read waits though chunks are buffered: other fetches may lack
            their bytes.
        on_sought: Called when `waiters.sought` has changed.
    """

    def __init__(
        self,
        state: SubscriptionState,
        reads: Reads,
        gate: Gate,
        observers: Observers,
        *,
        on_error: Callable[[], None],
        on_blocked: Callable[[], None],
        on_sought: Callable[[], None],
        budget: ByteBudget,
        delivery: Delivery,
        most_held_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
    ) -> None:
        self._state = state
        self._reads = reads
        self.gate = gate
        self._on_error = on_error
        self._on_blocked = on_blocked
        self._on_sought = on_sought
        self.delivery = delivery
        self._asks_application = delivery.asks_application
        self._deserializes = delivery.has_deserializers
        self.budget = budget
        # Decompressed bytes after which a read stops decoding.
        self._most_held_bytes = most_held_bytes
        self._loop = asyncio.get_running_loop()
        self.queue = ChunkQueue(reads, self._loop, gate, budget)
        self._errors = ChunkErrors(state, reads, self.queue.add)
        self.decoder = ChunkDecoder(reads, gate, self._errors, delivery)
        self.waiters = Waiters()
        # One timer for all deadlines. It moves only when it fires, so that a read which ends
        # before its deadline costs no timer. Not all of uvloop's handles know their time.
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        observers.discarded.add(self.queue.drop)
        observers.assignment_changed.add(self.wake)
        observers.partition_changed.add(self._partition_changed)
        gate.on_change(self.wake)

    # --- Buffered records -----------------------------------------------------------------
    @property
    def partitions(self) -> Collection[Cursor]:
        return self.queue.order.keys()

    @property
    def waiting_count(self) -> int:
        return len(self.waiters)

    def is_left_out(self, cursor: Cursor) -> bool:
        sought = self.waiters.sought
        return bool(sought) and cursor.tp not in sought

    def has_untaken(self, source: ResponseSource) -> bool:
        return source in self.queue.untaken

    def sticky_error(self, partition: Cursor) -> KafkaError | None:
        return next((chunk.failure for chunk in partition.chunks if chunk.is_sticky), None)

    def can_serve(self, wanted: Wanted) -> bool:
        return bool(self.queue.in_order(wanted, 1))

    # --- Turns ----------------------------------------------------------------------------
    def _first(self, wanted: Wanted) -> Chunk | None:
        order = self.queue.in_order(wanted, 1)
        return order[0].chunks[0] if order else None

    # --- Changes --------------------------------------------------------------------------
    def clear(self) -> None:
        for partition in tuple(self.queue.order):
            self.queue.drop(partition)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    # --- The sources' side ----------------------------------------------------------------
    def put(self, response: FetchedResponse, chunks: list[Chunk]) -> None:
        is_wanted = False
        for chunk in chunks:
            self.queue.add(chunk)
            is_held = chunk.partition.is_paused or chunk.partition.has_enough
            is_wanted = is_wanted or not is_held
        if self.waiters or not is_wanted:
            # A waiting read takes this, or no read can. So the source may continue at once.
            response.is_taken = True
        else:
            self.queue.hold(response)
        if sought := self.waiters.sought:
            self._seek(sought.difference(chunk.partition.tp for chunk in chunks))
        self.wake()

    def put_error(self, partition: Cursor, error: KafkaError, *, is_sticky: bool = False) -> None:
        """Raise an error after the partition's records: once, or until a seek if it is sticky."""
        if not partition.is_assigned or partition.failure is not None:
            return
        self.queue.add(Chunk(partition, self.delivery, error=error, is_sticky=is_sticky))
        self.wake()
        self._on_error()

    def _partition_changed(self, partition: Cursor) -> None:
        if partition.is_paused:
            # Other partitions of its broker must not wait until it is resumed.
            for chunk in partition.chunks:
                if chunk.response is not None:
                    self.queue.release_source(chunk.response)
        self.wake()

    # --- Lack of memory -------------------------------------------------------------------
    def make_room(self, *, is_behind: bool) -> None:
        """Make room for a fetch that was refused its bytes.

        Chunks of paused partitions are dropped. If reads wait, so are those of partitions that have
        enough, and only the partitions that reads wait for are fetched. If that was so already, and
        the fetch is known to yield records (`is_behind`), chunks of all others are dropped, too.
        """
        awaited: frozenset[TopicPartition] = frozenset()
        if not self.gate.holds:
            awaited = frozenset(self.waiters.awaited())
        are_others_dropped = is_behind and bool(awaited) and awaited == self.waiters.sought
        for partition in tuple(self.queue.order):
            has_bytes = any(chunk.response is not None for chunk in partition.chunks)
            is_unwanted = are_others_dropped and partition.tp not in awaited
            is_held_up = partition.has_enough and bool(self.waiters)
            if has_bytes and (is_unwanted or partition.is_paused or is_held_up):
                self._state.refetch(partition)
        self._seek(awaited)

    def _seek(self, sought: frozenset[TopicPartition]) -> None:
        if self.waiters.seek(sought):
            self._on_sought()

    def wait_ended(self) -> None:
        """Look later which partitions are sought, because the read may go on waiting."""
        self._loop.call_soon(self._seek_awaited)

    def _seek_awaited(self) -> None:
        if self.waiters.sought:
            self._seek(frozenset(self.waiters.awaited()))

    def _keep_to_budget(self, kept: Chunk) -> None:
        for partition in _least_useful_first(self.queue.order, kept):
            self._state.refetch(partition)
            if not self.budget.is_over:
                return

    # --- take -----------------------------------------------------------------------------
    async def take(
        self, sink: RecordSink, limits: Limits, also_raise: Callable[[], None] | None = None
    ) -> bool:
        """Wait for records, decode them, and let a sink take them; cancelled, it takes none.

        Return whether it has taken some: not after the timeout, or if all wanted partitions were
        revoked (a rebalance that reassigns them does not count). Raises the errors of `Gate.check`,
        of `also_raise`, and of partitions, and IllegalStateError if reads would wait forever.
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
            self._reads.close_reader()
        self._reads.enter_get()
        try:
            if timeout_s is not None and timeout_s <= 0 and not self.can_serve(wanted):
                # A loop of reads that never wait must let the sources run.
                await self.decoder.let_others_run()
            # Partitions that were lost before may be reassigned within the timeout.
            may_be_lost = deadline is not None and not self._state.has_any(wanted)
            while await self._wait(wanted, deadline, also_raise, may_be_lost=may_be_lost):
                if sink.is_for_one and self.take_first(sink, limits):
                    return True
                if sink.decodes:
                    await self._pause_if_due(wanted)
                else:
                    # A read that does not wait takes all that is buffered.
                    await self.decode(limits, deadline if timeout_s else None, sink.is_for_one)
                if self.queue.lent is not None:  # another task has read since
                    self._reads.close_reader()
                if self._deliver(sink, limits):
                    return True
            return False
        finally:
            self._reads.leave_get(self._loop.time())

    async def let_others_run(self) -> None:
        self._reads.enter_get()
        try:
            await self.decoder.let_others_run()
        finally:
            self._reads.leave_get(self._loop.time())

    # --- wait -----------------------------------------------------------------------------
    def wake(self) -> None:
        self.waiters.wake()

    async def _wait(
        self,
        wanted: Wanted,
        deadline: float | None,
        also_raise: Callable[[], None] | None,
        *,
        may_be_lost: bool,
    ) -> bool:
        """Wait until a chunk can be decoded, or an error raised.

        False: the deadline has passed, or no wanted partition is assigned (unless `may_be_lost`).
        """
        if self.gate.is_troubled:
            self.gate.check()
        if also_raise is not None:
            also_raise()
        while not self.queue.order or not self.queue.in_order(wanted, 1):
            if not may_be_lost and not self._state.has_any(wanted):
                return False
            # Other chunks must not keep the sources from fetching the wanted partitions.
            self.queue.mark_all_taken()
            if deadline is None:
                caller.refuse_to_wait_for_records()
            elif not self._set_alarm(deadline):
                return False
            waiter = self._loop.create_future()
            self.waiters.add(waiter, wanted)
            if self.waiters.sought:
                self._seek_awaited()
            if self.queue.order:
                self._on_blocked()
            try:
                await waiter
            finally:
                self.waiters.remove(waiter)
                if self.waiters.sought:
                    self.wait_ended()
            self.decoder.slice.renew()
            if self.gate.is_troubled:
                self.gate.check()
            if also_raise is not None:
                also_raise()
        return True

    def _set_alarm(self, deadline: float) -> bool:
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
        """Decode records that a read may take. Stop at the deadline, and if one chunk suffices."""
        wanted, decoder = limits.wanted, self.decoder
        # Return an earlier read's rest before the application is awaited again.
        may_work = is_for_one or not self._asks_application or not self.queue.has_decoded(wanted)
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
        if not self.queue.has_decoded(wanted):
            # Perhaps there is only an error. A loop of reads that raise must let others run, too.
            await decoder.let_others_run()

    def _decode_to_pause(
        self, limits: Limits, deadline: float | None, is_for_one: bool
    ) -> Chunk | None:
        """Decode until there is enough; return the chunk before which a pause is due."""
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
                if is_late and self.queue.has_decoded(limits.wanted):
                    return None
                if decoder.needs_pause(chunk):
                    return chunk
                is_enough = held_bytes + chunk.held_bytes > self._most_held_bytes
                if is_enough and self.queue.has_decoded(limits.wanted):
                    return None
                decoder.decode(chunk, limit)
                if self.budget.is_over:
                    self._keep_to_budget(chunk)
                if is_for_one and chunk.decoded:
                    return None
            held_bytes += chunk.held_bytes
        return None

    def _to_decode(self, limits: Limits, is_for_one: bool) -> Iterator[tuple[Chunk, int | None]]:
        """Yield chunks in turn, each with the number of records to hold."""
        left = limits.max_records
        each = left if limits.max_of_each is None else limits.max_of_each
        # Deserialisers may change the buffer; this iterates over copies.
        for partition in self.queue.in_order(limits.wanted, 1 if is_for_one else left):
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
        if chunk is not chunk.partition.first_chunk:
            return False
        # Decoded records are returned before on_bad_record may raise.
        return is_for_one or chunk.failure is None or not self.queue.has_decoded(wanted)

    async def _pause_if_due(self, wanted: Wanted) -> None:
        while (chunk := self._first(wanted)) is not None and not chunk.decoded:
            if chunk.response is not None and not chunk.response.is_taken:
                self.queue.mark_taken(chunk.response)
            if chunk.can_decode and self.decoder.needs_pause(chunk):
                await self._pause(chunk)
                continue
            if chunk.failure is not None:
                # A loop of reads that raise must let others run, too.
                await self.decoder.let_others_run()
            return

    async def _pause(self, chunk: Chunk) -> None:
        is_work = self._asks_application and chunk.needs_application
        try:
            await self.decoder.pause(chunk)
        except BaseException:
            if is_work:
                # Other partitions are served while this one hangs or fails.
                self.queue.end_turn(chunk.partition)
            raise
        if self.gate.is_troubled:
            self.gate.check()

    # --- return ---------------------------------------------------------------------------
    def take_first(self, sink: RecordSink, limits: Limits) -> bool:
        """Take from the first chunk in turn. False: `decode` and `_deliver` have to do it."""
        if self.queue.lent is not None:
            return False
        partition = self.queue.in_order(limits.wanted, 1)[0]
        chunk = partition.chunks[0]
        if not chunk.decoded:
            if chunk.response is not None and not chunk.response.is_taken:
                # The source sends its next request before this one's records are decoded.
                self.queue.mark_taken(chunk.response)
            if chunk.state not in DECODED_AT_ONCE or self.decoder.needs_pause(chunk):
                return False
            self.decoder.decode(chunk, limits.max_records)
            if self.budget.is_over:
                self._keep_to_budget(chunk)
            if not chunk.decoded:
                return False
            if self._deserializes and self._first(limits.wanted) is not chunk:
                return False  # a deserialiser has moved or paused it
        sink.take(chunk, limits.max_records)
        self.queue.lend(chunk)
        if len(self.queue.order) > 1:
            self.queue.end_turn(partition)
        return True

    def _deliver(self, sink: RecordSink, limits: Limits) -> bool:
        """Let a sink take from one partition after the other, and move positions and turns."""
        most = limits.max_records
        each = most if limits.max_of_each is None else limits.max_of_each
        served: list[Cursor] = []
        taken: list[tuple[Chunk, Taken | None]] = []
        failed: Chunk | None = None
        is_alone, is_enough = True, False
        try:
            for partition in self.queue.in_order(limits.wanted, most):
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
                        is_alone = False  # more of its records follow after a pause
                if sink.decodes and self.budget.is_over:
                    break
            if sink.count:
                sink.finish()
        except BaseException:
            # For example, out of memory: no records are returned, all are fetched again.
            sink.clear()
            for chunk, _ in taken:
                self._state.refetch(chunk.partition)
            raise
        self.queue.move_positions(taken)
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
        """Return the last chunk that the sink used."""
        before = sink.count
        chunks = partition.chunks
        for chunk in chunks:
            left = None if limit is None else limit - (sink.count - before)
            span = sink.take(chunk, left)
            taken.append((chunk, span))
            # After records were taken of a chunk, decoding has looked for the next batch.
            is_left = chunk.decoded or (span is not None and chunk.state is PACKED)
            if is_left or not chunk.is_exhausted:
                return chunk
        return chunks[-1]

    def _keep_to_budget_of_rows(self, taken: list[tuple[Chunk, Taken | None]]) -> None:
        if taken and self.budget.is_over:
            self._keep_to_budget(taken[-1][0])
        self.decoder.slice.end_if_half_used(self.decoder.looked_at)

    def _fail(self, chunk: Chunk) -> None:
        partition, error = chunk.partition, chunk.failure
        self.queue.end_turn(partition)
        if error is None or chunk.is_undecided:
            return  # on_bad_record decides first
        if chunk.is_error_only and not chunk.is_sticky:
            self.queue.remove_first(partition)
            partition.chunks_changed()
        self._errors.raise_error(chunk, error)


def _least_useful_first(turns: Iterable[Cursor], kept: Chunk) -> list[Cursor]:
    """Return the partitions whose chunks may be dropped to keep one, the least useful first.

    Chunks of the response of `kept` free only their decompressed bytes.
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
